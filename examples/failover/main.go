// Command failover keeps a group of machines at its size from two processes of the same
// program: one works, the other takes over when it crashes. keep is all that a program
// needs for that; demo.go starts two copies and kills the one that leads.
//
//	go run ./failover
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	run := func() error { return demo(ctx, os.Args[0], os.Stdout) }
	if len(os.Args) > 1 {
		run = func() error { return keep(ctx, os.Args[1]) }
	}
	err := run()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
}

// keep is one copy of the program. The copies share the store and the machines in dir.
func keep(ctx context.Context, dir string) error {
	machines, err := local.Dial(filepath.Join(dir, "cloud"))
	if err != nil {
		return err
	}
	defer func() { _ = machines.Close() }()
	store, err := storage.OpenDir(filepath.Join(dir, "store"), nil)
	if err != nil {
		return err
	}
	return reconcile.Lead(ctx, machines, store, &reconcile.Options{
		Owner: owner, HealthInterval: 2 * time.Second,
		Groups: []nstance.Group{{
			Key: nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "web"}, Size: 3,
			Definition: nstance.Definition{Kind: "web", Arch: nstance.AMD64},
		}},
	}, func(ctx context.Context, fleet *reconcile.Reconciler) {
		events := fleet.Events(ctx)
		go vouch(ctx, fleet, machines)
		fmt.Println("leads")
		for e := range events {
			if e.Type == nstance.EventCreated {
				fmt.Println("has", e.Instance)
			}
		}
	})
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
