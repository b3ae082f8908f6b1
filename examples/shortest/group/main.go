// Command group keeps three machines of a simulated cloud, and ends once all are ready.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	web := nstance.Group{Key: nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "web"}, Size: 3}
	web.Definition = nstance.Definition{Kind: "web", Arch: nstance.AMD64, InstanceTypes: []string{"small"}}
	fleet, err := reconcile.New(simcloud.New(nil), storage.NewMemory(), &reconcile.Options{
		Owner: nstance.Owner{Installation: "example", Cluster: "demo", Shard: "a"}, Groups: []nstance.Group{web},
	})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for e := range fleet.Events(ctx) {
			fmt.Println(e.Type, e.Instance)
			switch e.Type {
			case nstance.EventCreated: // in place of an agent on the machine
				_ = fleet.Joined(ctx, e.Instance)
				fleet.Observe(nstance.Reported{Report: nstance.Report{InstanceID: e.Instance}})
			case nstance.EventGroupReady:
				stop()
			}
		}
	}()
	_ = fleet.Run(ctx)
}
