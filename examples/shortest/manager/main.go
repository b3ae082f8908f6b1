// Command manager runs a reconciler inside a controller-runtime manager, beside whatever
// controllers the manager has. It asks no cluster itself; the program ends when its
// group is ready.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

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
	cloud := simcloud.New(nil)
	fleet, err := reconcile.New(cloud, storage.NewMemory(), &reconcile.Options{
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
	events := fleet.Events(ctx)
	for _, run := range []manager.RunnableFunc{
		fleet.Run,
		func(ctx context.Context) error { vouch(ctx, fleet, cloud); return nil },
		func(context.Context) error {
			for e := range events {
				fmt.Println(e.Type, e.Instance)
				if e.Type == nstance.EventGroupReady {
					stop()
				}
			}
			return nil
		},
	} {
		if err := mgr.Add(run); err != nil {
			log.Fatal(err)
		}
	}
	if err := mgr.Start(ctx); err != nil {
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
