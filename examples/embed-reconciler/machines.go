package main

import (
	"context"
	"log"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// machines stands for what the program knows of its machines by itself. Here it
// is told by the simulated cloud; elsewhere it would ask them, or they it.
type machines struct {
	cloud *simcloud.Cloud
	fleet *reconcile.Reconciler
	stops sync.Map // instance ID: context.CancelFunc
	wg    sync.WaitGroup
}

// started is called when a machine begins to run.
func (m *machines) started(mach nstance.Machine, _ nstance.MachineSpec) {
	ctx, cancel := context.WithCancel(context.Background())
	m.stops.Store(mach.ID, cancel)
	m.wg.Go(func() { m.vouch(ctx, mach.ID) })
	m.wg.Go(func() { m.listen(ctx, mach.ID) })
}

// stopped is called when it no longer does.
func (m *machines) stopped(mach nstance.Machine) {
	if cancel, ok := m.stops.LoadAndDelete(mach.ID); ok {
		cancel.(context.CancelFunc)()
	}
}

func (m *machines) wait() { m.wg.Wait() }

// vouch says, again and again, that a machine has joined, which makes it a member that is
// drained before it is deleted, and that it is well. One that is not heard of for three
// intervals would be replaced.
func (m *machines) vouch(ctx context.Context, id nstance.InstanceID) {
	for tick := time.Tick(20 * time.Second); ctx.Err() == nil; {
		if err := m.fleet.Joined(ctx, id); err == nil {
			m.fleet.Observe(nstance.Reported{Report: nstance.Report{InstanceID: id, Timestamp: time.Now()}})
		} else if ctx.Err() == nil {
			log.Println("has not joined, said again:", id, err)
		}
		select {
		case <-ctx.Done():
		case <-tick:
		}
	}
}

// listen passes on what the cloud announces about a machine.
func (m *machines) listen(ctx context.Context, id nstance.InstanceID) {
	for n, err := range m.cloud.Detector(id).Watch(ctx) {
		if err == nil { // an error is no notice
			m.fleet.Observe(nstance.Noticed{ID: id, Notice: n})
		}
	}
}

// empty moves the work off every machine that has to go. A watch that fell
// behind begins again with the drains under way.
func empty(ctx context.Context, drains *drain.Coordinator) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for ctx.Err() == nil {
		for e, err := range drains.Watch(ctx, "", 0) {
			if err != nil {
				break
			}
			if e.Type == nstance.DrainSnapshot || e.Type == nstance.DrainRequested {
				wg.Go(func() { handOver(ctx, drains, e.Drain) })
			}
		}
	}
}

// handOver acknowledges when the work has moved. It has until d.Deadline: then the
// machine is deleted, empty or not. If the drain was withdrawn meanwhile, the error
// reports that.
func handOver(ctx context.Context, drains *drain.Coordinator, d nstance.Drain) {
	select {
	case <-ctx.Done():
	case <-time.After(200 * time.Millisecond): // the work moves
		_ = drains.Acknowledge(ctx, nstance.Ack{
			Instance: d.Instance, Generation: d.Generation, By: d.Executor, Outcome: nstance.OutcomeDrained,
		})
	}
}
