package dev

import (
	"context"
	"fmt"

	"github.com/nstance-go/nstance"
)

// rollout changes the template and sees the members replaced one by one.
func (p *play) rollout(ctx context.Context) error {
	return p.replaceAll(ctx, func(h history) error { return orderly(h, p.size) })
}

// replaceAll changes the template and sees the members replaced. check looks at the events so
// far, again and again.
func (p *play) replaceAll(ctx context.Context, check func(history) error) error {
	members, err := p.full(ctx)
	if err != nil {
		return err
	}
	if err := p.choose(members); err != nil {
		return err
	}
	if err := p.change(ctx); err != nil {
		return err
	}
	for n := 1; n <= p.size; n++ {
		err := p.await(ctx, fmt.Sprintf("rollout %d of %d", n, p.size), func(h history) (bool, error) {
			return p.size-len(p.missing(h, nstance.EventDeleted)) >= n, check(h)
		}, func(h history) string {
			return fmt.Sprintf("%d of %d members have been replaced", p.size-len(p.missing(h, nstance.EventDeleted)), p.size)
		})
		if err != nil {
			return err
		}
	}
	for _, t := range []nstance.EventType{nstance.EventReplacementRequested, nstance.EventReady, nstance.EventDrainAcknowledged} {
		if err := p.each(ctx, t); err != nil {
			return err
		}
	}
	return p.over(ctx)
}

// change puts another release into the user data.
func (p *play) change(ctx context.Context) error {
	p.stage, p.since = "refresh", p.story.now()
	text, err := configuration(p.o, p.cloud, alone(p.bind), 2)
	if err != nil {
		return err
	}
	if err := p.conf.set(text); err != nil {
		return err
	}
	changed, err := p.server.Refresh(ctx)
	if err == nil && !changed {
		err = nstance.Errorf(nstance.Internal, "the server sees no change")
	}
	return err
}

// orderly fails when, since the group was full, fewer than size members have
// ever been ready, or more than one replacement was on its way.
func orderly(h history, size int) error {
	ready, starting := map[nstance.InstanceID]bool{}, map[nstance.InstanceID]bool{}
	full := false
	for _, e := range h {
		switch {
		case e.Type == nstance.EventCreateRequested || e.Type == nstance.EventReplacementRequested:
			starting[e.Instance] = true
		case e.Type == nstance.EventReady:
			delete(starting, e.Instance)
			ready[e.Instance] = true
		case leaves(e.Type):
			delete(ready, e.Instance)
		}
		full = full || e.Type == nstance.EventGroupReady
		if full && len(ready) < size {
			return nstance.Errorf(nstance.Internal, "only %d of %d members were ready after %s of %s", len(ready), size, e.Type, e.Instance)
		}
		if full && len(starting) > 1 {
			return nstance.Errorf(nstance.Internal, "%d replacements were on their way at the same time", len(starting))
		}
	}
	return nil
}
