package ec2test_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/nstance-go/nstance/aws/ec2test"
)

// It refuses what the cloud refuses: here a request without credentials.
func Example() {
	cloud := ec2test.New(nil)
	defer cloud.Close()
	api := httptest.NewServer(cloud)
	defer api.Close()
	resp, err := http.Get(api.URL + "/?Action=DescribeInstances&Version=2016-11-15")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status, len(cloud.Machines()))
	// Output: 400 Bad Request 0
}
