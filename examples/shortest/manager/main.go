// Command manager runs a reconciler inside a controller-runtime manager, beside whatever
// controllers the manager has. It asks no cluster itself; the program ends when its
// group is ready.
package main

import (
	"context"
	"fmt"
	"log"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

func main() {
	web := nstance.Group{Key: nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "web"}, Size: 3}
	web.Definition = nstance.Definition{Kind: "web", Arch: nstance.AMD64, InstanceTypes: []string{"small"}}
	fleet, err := reconcile.New(simcloud.New(nil), storage.NewMemory(), &reconcile.Options{
		Owner: nstance.Owner{Installation: "example", Cluster: "demo", Shard: "a"}, Groups: []nstance.Group{web},
	})
	if err != nil {
		log.Fatal(err)
	}
	// with a cluster: config.GetConfig() in place of this address
	mgr, err := manager.New(&rest.Config{Host: "127.0.0.1:6443"}, manager.Options{Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	for _, run := range []manager.RunnableFunc{fleet.Run, func(ctx context.Context) error { follow(ctx, fleet, stop); return nil }} {
		if err := mgr.Add(run); err != nil {
			log.Fatal(err)
		}
	}
	if err := mgr.Start(ctx); err != nil {
		log.Fatal(err)
	}
}

// follow stands for agents on the machines.
func follow(ctx context.Context, fleet *reconcile.Reconciler, ready func()) {
	for e := range fleet.Events(ctx) {
		fmt.Println(e.Type, e.Instance)
		switch e.Type {
		case nstance.EventCreated:
			_ = fleet.Joined(ctx, e.Instance)
			fleet.Observe(nstance.Reported{Report: nstance.Report{InstanceID: e.Instance}})
		case nstance.EventGroupReady:
			ready()
		}
	}
}
