package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/bench/internal/rig"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

var owner = nstance.Owner{Installation: "bench", Cluster: "bench", Shard: "s1"}

// refill is how long the pace of creates takes to permit a thousand at once
// again, at the 100 a second of the defaults.
const refill = 11 * time.Second

// A bench is one group whose machines join as soon as they run.
type bench struct {
	rig.Changes
	cloud    *simcloud.Cloud
	fleet    *reconcile.Reconciler
	members  int
	end      context.CancelFunc
	running  sync.WaitGroup
	created  chan nstance.InstanceID
	ready    []nstance.InstanceID
	replaces map[nstance.InstanceID]nstance.InstanceID // by the new one
	replaced map[nstance.InstanceID]time.Time          // when the create of its replacement was called
}

func start(ctx context.Context, members int) (*bench, error) {
	ctx, end := context.WithCancel(ctx)
	b := &bench{
		cloud: simcloud.New(&simcloud.Options{Latency: simcloud.Delay{Min: latency}, Width: 4 * width}), members: members, end: end,
		created:  make(chan nstance.InstanceID, 4*members),
		replaces: map[nstance.InstanceID]nstance.InstanceID{}, replaced: map[nstance.InstanceID]time.Time{},
	}
	web := nstance.Group{Key: nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "web"}, Size: members}
	web.Definition = nstance.Definition{Kind: "web", Arch: nstance.AMD64, InstanceTypes: []string{"small"}}
	var err error
	b.fleet, err = reconcile.New(watched{b.cloud, b}, storage.NewMemory(), &reconcile.Options{
		Owner: owner, Groups: []nstance.Group{web}, Journal: b.journal, HealthInterval: time.Hour,
	})
	if err != nil {
		end()
		return nil, err
	}
	b.running.Go(func() { _ = b.fleet.Run(ctx) }) // nil, when ctx ends
	b.running.Go(func() { b.join(ctx) })
	return b, nil
}

func (b *bench) stop() {
	b.end()
	b.running.Wait()
	b.cloud.Close()
}

// journal is called under the reconciler's lock.
func (b *bench) journal(e nstance.Event) {
	switch e.Type {
	case nstance.EventCreated:
		b.created <- e.Instance
	case nstance.EventReplacementRequested:
		b.Do(func() { b.replaces[e.Instance] = e.Replaces })
	case nstance.EventReady:
		b.Do(func() { b.ready = append(b.ready, e.Instance) })
	}
}

// join does what the agents and the registrar do.
func (b *bench) join(ctx context.Context) {
	for {
		select {
		case id := <-b.created:
			if err := b.fleet.Joined(ctx, id); err != nil {
				return
			}
			b.fleet.Observe(nstance.Reported{Report: nstance.Report{InstanceID: id}})
		case <-ctx.Done():
			return
		}
	}
}

// fill waits until every member is ready and a thousand creates may be called at
// once.
func (b *bench) fill(ctx context.Context) error {
	if err := b.Wait(ctx, func() bool { return len(b.ready) == b.members }); err != nil {
		return fmt.Errorf("%d of %d members became ready: %w", len(b.ready), b.members, err)
	}
	sleep.For(ctx, refill)
	return ctx.Err()
}

// reclaim notices n members, and returns when the first and the last create
// of a replacement were called.
func (b *bench) reclaim(ctx context.Context, n int) (first, last time.Duration, err error) {
	var lost []nstance.InstanceID
	b.Do(func() { lost = b.ready[:n] })
	began := time.Now()
	for _, id := range lost {
		b.fleet.Observe(nstance.Noticed{ID: id, Notice: nstance.Notice{
			Kind: nstance.Reclaim, Action: "terminate", Deadline: began.Add(2 * time.Minute),
			Source: "bench", EventID: string(id), DetectedAt: began, ReceivedAt: began,
		}})
	}
	if err := b.Wait(ctx, func() bool { return len(b.replaced) == n && len(b.ready) == b.members+n }); err != nil {
		return 0, 0, fmt.Errorf("%d of %d reclaimed members were replaced: %w", len(b.replaced), n, err)
	}
	first = time.Hour
	for _, at := range b.replaced {
		first, last = min(first, at.Sub(began)), max(last, at.Sub(began))
	}
	return first, last, nil
}

// watched notes when a create is called.
type watched struct {
	*simcloud.Cloud
	bench *bench
}

// Create implements nstance.Provider.
func (w watched) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	now := time.Now()
	w.bench.Do(func() {
		if lost := w.bench.replaces[spec.ID]; lost != "" {
			if _, again := w.bench.replaced[lost]; !again {
				w.bench.replaced[lost] = now
			}
		}
	})
	return w.Cloud.Create(ctx, spec)
}
