// Command embed-reconciler keeps three machines alive from inside a program of
// one's own: without a server, an agent or Kubernetes. It brings a group to its
// size, has the cloud take one machine back, and tells what happens: the
// replacement, the drain, the end of the old machine.
//
//	go run ./embed-reconciler
//
// This file is what embedding takes. The cloud is the simulated one and the
// store is memory; machines.go stands for what a real program knows of its
// machines and of the work on them.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "embed-reconciler:", err)
		os.Exit(1)
	}
}

// web is the group to keep: three spot machines, each with five minutes at most
// to hand over its work when it has to go.
var web = nstance.Group{
	Key:          nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "web"},
	Size:         3,
	DrainTimeout: 5 * time.Minute,
	Rollout:      nstance.Rollout{MaxSurge: nstance.Count{N: 1}, HaltAfter: 2},
	Definition: nstance.Definition{
		Kind: "web", Arch: nstance.AMD64, InstanceTypes: []string{"small"}, Market: nstance.Market{Type: nstance.Spot},
		LaunchTimeout: 15 * time.Minute, RegistrationTimeout: 5 * time.Minute,
	},
}

func run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	s := newStory(out)
	m := &machines{}
	cloud := simcloud.New(&simcloud.Options{
		Latency: simcloud.Delay{Min: 20 * time.Millisecond}, Boot: simcloud.Delay{Min: 300 * time.Millisecond},
		Shutdown: simcloud.Delay{Min: 100 * time.Millisecond}, OnStart: m.started, OnStop: m.stopped,
	})
	defer m.wait()
	defer cloud.Close()

	drains := drain.New(nil)
	fleet, err := reconcile.New(cloud, storage.NewMemory(), &reconcile.Options{
		Owner:  nstance.Owner{Installation: "example", Cluster: "demo", Shard: "a"},
		Groups: []nstance.Group{web}, Drains: drains, Journal: s.journal,
	})
	if err != nil {
		return err
	}
	m.cloud, m.fleet = cloud, fleet

	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	remove := drains.AddExecutor(web.Key.Tenant) // before Run: from now on drains are ours to carry out
	defer remove()
	wg.Go(func() { empty(ctx, drains) })
	wg.Go(func() { _ = fleet.Run(ctx) }) // nil, when ctx ends
	return play(ctx, s, cloud, fleet)
}

// play waits for the group to be full, has a machine taken, and waits until it
// is replaced and gone.
func play(ctx context.Context, s *story, cloud *simcloud.Cloud, fleet *reconcile.Reconciler) error {
	full := func(e nstance.Event) bool { return e.Type == nstance.EventGroupReady }
	if err := s.tell(ctx, full); err != nil {
		return err
	}
	doomed := fleet.Instances()[0].ID
	s.say("the cloud takes %s back in 10s", s.name(doomed))
	if err := cloud.Reclaim(doomed, 10*time.Second); err != nil {
		return err
	}
	gone := func(e nstance.Event) bool { return e.Type == nstance.EventDeleted && e.Instance == doomed }
	if err := s.tell(ctx, full, gone); err != nil {
		return err
	}
	if n := len(cloud.Machines()); n != web.Size {
		return fmt.Errorf("%d machines are left, want %d", n, web.Size)
	}
	s.say("three machines again")
	return nil
}
