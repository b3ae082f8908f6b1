package reconcile_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// Two copies share a store and a cloud. One leads; when it ends, the other one does.
func ExampleLead() {
	cloud, store := simcloud.New(nil), storage.NewMemory()
	defer cloud.Close()
	web := nstance.Group{Key: nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "web"}, Size: 2}
	web.Definition = nstance.Definition{Kind: "web", Arch: nstance.AMD64, InstanceTypes: []string{"small"}}
	options := &reconcile.Options{Owner: nstance.Owner{Installation: "example", Cluster: "demo", Shard: "a"}, Groups: []nstance.Group{web}}

	var running sync.WaitGroup
	start := func(name string) (leads chan struct{}, stop context.CancelFunc) {
		ctx, stop := context.WithCancel(context.Background())
		leads = make(chan struct{})
		running.Go(func() {
			_ = reconcile.Lead(ctx, cloud, store, options, func(context.Context, *reconcile.Reconciler) {
				fmt.Println("the", name, "copy leads")
				close(leads)
			})
		})
		return leads, stop
	}
	first, stopFirst := start("first")
	<-first
	second, stopSecond := start("second")
	stopFirst()
	<-second
	stopSecond()
	running.Wait()
	// Output:
	// the first copy leads
	// the second copy leads
}
