// Command group keeps three machines of a simulated cloud, and ends once all are ready.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	web := nstance.Group{Key: nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "web"}, Size: 3}
	web.Definition = nstance.Definition{Kind: "web", Arch: nstance.AMD64, InstanceTypes: []string{"small"}}
	cloud := simcloud.New(nil)
	fleet, err := reconcile.New(cloud, storage.NewMemory(), &reconcile.Options{
		Owner: nstance.Owner{Installation: "example", Cluster: "demo", Shard: "a"}, Groups: []nstance.Group{web},
	})
	if err != nil {
		log.Fatal(err)
	}
	events := fleet.Events(ctx)
	go func() {
		for e := range events {
			fmt.Println(e.Type, e.Instance)
			if e.Type == nstance.EventGroupReady {
				stop()
			}
		}
	}()
	go vouch(ctx, fleet, cloud)
	if err := fleet.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// vouch stands for agents on the machines: every second it says of each that runs that it
// has joined, and that it is well. What fails is said again a second later.
func vouch(ctx context.Context, fleet *reconcile.Reconciler, cloud nstance.Provider) {
	for tick := time.Tick(time.Second); ; {
		for _, i := range fleet.Instances() {
			if m, err := cloud.Get(ctx, i.ID); err != nil || m.Status != nstance.StatusRunning {
				continue
			}
			if err := fleet.Joined(ctx, i.ID); err != nil {
				log.Println("has not joined:", i.ID, err)
				continue
			}
			fleet.Observe(nstance.Reported{Report: nstance.Report{InstanceID: i.ID}})
		}
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
	}
}
