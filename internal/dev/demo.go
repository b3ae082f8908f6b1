package dev

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// What scenario demo shows, in about two minutes.
const (
	demoInstances = 6
	demoWork      = 5 * time.Second // that a machine takes to be emptied
	demoPause     = 4 * time.Second // after each scene
	demoPatience  = time.Minute     // a sold-out shape is tried again after 30 s
	demoLimit     = 4 * time.Minute
)

// scene is the event with which a scene of scenario demo begins. Its reason explains it.
const scene nstance.EventType = "scene"

// demo plays four scenes on one group, each with a line of explanation.
func (p *play) demo(ctx context.Context) error {
	for _, s := range []struct {
		text string
		play func(context.Context) error
	}{
		{"1 of 4, reclaim: the cloud takes one machine back, two minutes after its notice. It is replaced at once, and drained meanwhile.", p.interrupt},
		{"2 of 4, wave: the cloud takes all machines back at the same time. Each is replaced and drained before its deadline.", p.mass},
		{"3 of 4, rollout: the template changes. Members are replaced one by one, the replacement first.", func(ctx context.Context) error {
			return p.replaceAll(ctx, func(history) error { return nil }) // its order is checked by scenario rollout
		}},
		{"4 of 4, shortage: the cloud takes a machine back and is sold out. The group says that it waits, and tries again after 30 s.", p.shortage},
	} {
		p.explain(s.text)
		if err := s.play(ctx); err != nil {
			return err
		}
		if !sleep.For(ctx, p.o.pause) {
			return context.Cause(ctx)
		}
	}
	p.explain("that was all: the group has its size, and every machine that was taken is replaced.")
	return nil
}

// explain prints a line between the events.
func (p *play) explain(text string) { p.story.tell(nstance.Event{Type: scene, Reason: text}) }

// shortage takes a machine back while the cloud has no capacity, which it has again after the
// group has said that it waits.
func (p *play) shortage(ctx context.Context) error {
	members, err := p.full(ctx)
	if err != nil {
		return err
	}
	if err := p.choose(members[:1]); err != nil {
		return err
	}
	p.stock.soldOut.Store(true)
	defer p.stock.soldOut.Store(false)
	if err := p.publish(members[:1]); err != nil {
		return err
	}
	if err := p.poll(ctx, "capacity", p.held); err != nil {
		return err
	}
	p.explain("the cloud has capacity again: the next attempt succeeds.")
	p.stock.soldOut.Store(false)
	// The machine that is made after a refusal names none that it replaces: the group's size tells.
	for _, t := range []nstance.EventType{nstance.EventDrainAcknowledged, nstance.EventDeleted} {
		if err := p.each(ctx, t); err != nil {
			return err
		}
	}
	return p.awaitSettled(ctx)
}

// held returns nil when a create was refused and the group says that it waits for capacity.
func (p *play) held(ctx context.Context) error {
	s, err := p.status(ctx)
	if err != nil {
		return err
	}
	for _, g := range s.Groups {
		for _, h := range g.Holds {
			if h.Kind == string(plan.HoldCapacity) && p.stock.refused.Load() > 0 {
				return nil
			}
		}
	}
	return nstance.Errorf(nstance.Conflict, "%d creates were refused, and no group says that it waits for capacity", p.stock.refused.Load())
}

// A stock is a provider that may be sold out.
type stock struct {
	parkingProvider
	soldOut atomic.Bool
	refused atomic.Int32 // creates
}

// Create implements nstance.Provider.
func (s *stock) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	if s.soldOut.Load() {
		s.refused.Add(1)
		return nstance.Machine{}, nstance.Errorf(nstance.Capacity, "InsufficientInstanceCapacity: the demonstration has no machine of type %s now", spec.InstanceType)
	}
	return s.parkingProvider.Create(ctx, spec)
}

// newStock puts a stock in front of a cloud that lets machines sleep.
func newStock(machines nstance.Provider) (*stock, error) {
	p, ok := machines.(parkingProvider)
	if !ok {
		return nil, nstance.Errorf(nstance.Internal, "%T cannot park machines", machines)
	}
	return &stock{parkingProvider: p}, nil
}

// sceneText formats the beginning of a scene.
func sceneText(e nstance.Event) string { return fmt.Sprintf("\n--- %s\n\n", e.Reason) }
