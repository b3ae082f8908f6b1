package armtest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/nstance-go/nstance/azure/armtest"
)

// It refuses what the cloud refuses: here a request without credentials.
func Example() {
	cloud := armtest.New(nil)
	defer cloud.Close()
	api := httptest.NewServer(cloud)
	defer api.Close()
	resp, err := http.Get(api.URL + "/subscriptions/s/resourceGroups/machines/providers/Microsoft.Compute/virtualMachines?api-version=2025-04-01")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status, len(cloud.Machines()))
	// Output: 401 Unauthorized 0
}
