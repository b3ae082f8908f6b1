package gcetest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/nstance-go/nstance/gcp/gcetest"
)

// It answers as the cloud does: here a list of no machines.
func Example() {
	cloud := gcetest.New(nil)
	defer cloud.Close()
	api := httptest.NewServer(cloud)
	defer api.Close()
	resp, err := http.Get(api.URL + "/compute/v1/projects/test-project/zones/us-central1-a/instances")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status, len(cloud.Machines()))
	// Output: 200 OK 0
}
