package server_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// A shard server with a simulated cloud and a store in memory. The machines run no
// agents, so they boot and never become ready.
func ExampleNew() {
	const conf = `{
		"cluster": {"id": "demo"},
		"shard": {
			"id": "a", "provider": {"kind": "sim"},
			"bind": {"http": "127.0.0.1:0", "registration": "127.0.0.1:0", "operator": "127.0.0.1:0", "agent": "127.0.0.1:0"},
		},
		"templates": {"small": {"kind": "web", "arch": "amd64", "userdata": {"content": "{{.Nonce}}"}}},
		"groups": {"default": {"web": {"template": "small", "size": 3}}},
	}`
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	cloud := simcloud.New(nil)
	defer cloud.Close()
	source := func(context.Context) (string, []byte, error) { return "demo.jsonc", []byte(conf), nil }
	store := storage.NewMemory()
	if _, err := lease.Prepare(ctx, store, "a"); err != nil { // the shard is new, so its first leader does not wait
		fmt.Println(err)
		return
	}
	s, err := server.New(ctx, store, cloud, source, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	if err := s.Ready(ctx); err != nil {
		fmt.Println(<-done)
		return
	}
	resp, err := http.Get("http://" + s.Addresses().HTTP + "/healthz")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	for len(cloud.Machines()) < 3 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	fmt.Println(resp.Status, "and", len(cloud.Machines()), "machines")
	stop()
	fmt.Println(<-done)
	// Output:
	// 200 OK and 3 machines
	// <nil>
}
