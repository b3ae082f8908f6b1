package inmemory_test

import (
	"fmt"
	"net/http"

	"github.com/nstance-go/nstance/provider/testcloud/inmemory"
)

func Example() {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Host) })
	client := &http.Client{Transport: inmemory.Transport{Handler: handler}}
	resp, err := client.Get("http://cloud.test/")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	var host string
	_, err = fmt.Fscan(resp.Body, &host)
	fmt.Println(host, err)
	// Output: cloud.test <nil>
}
