package reconcile_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// A group of two machines is brought to its size.
func Example() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	cloud := simcloud.New(nil)
	defer cloud.Close()
	var created sync.WaitGroup
	created.Add(2)
	fleet, err := reconcile.New(cloud, storage.NewMemory(), &reconcile.Options{
		Owner: nstance.Owner{Installation: "example", Cluster: "demo", Shard: "a"},
		Groups: []nstance.Group{{
			Key: nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "web"}, Size: 2,
			Definition: nstance.Definition{Kind: "web", Arch: nstance.AMD64, InstanceTypes: []string{"small"}},
		}},
		Journal: func(e nstance.Event) {
			if e.Type == nstance.EventCreated {
				fmt.Println("a machine of group", e.Group, "exists")
				created.Done()
			}
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var running sync.WaitGroup
	running.Go(func() { _ = fleet.Run(ctx) }) // until ctx ends
	created.Wait()
	stop()
	running.Wait()
	// Output:
	// a machine of group web exists
	// a machine of group web exists
}
