package pvetest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/nstance-go/nstance/proxmox/pvetest"
)

// It refuses what the cloud refuses: here a request without credentials.
func Example() {
	cloud := pvetest.New(nil)
	defer cloud.Close()
	api := httptest.NewServer(cloud)
	defer api.Close()
	resp, err := http.Get(api.URL + "/api2/json/cluster/resources")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status, len(cloud.Machines()))
	// Output: 401 No ticket 0
}
