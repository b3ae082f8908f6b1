package dev

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// growth is by how many members the group grows when the leader is killed.
const growth = 2

// A failoverState is what must survive the end of the leader.
type failoverState struct {
	drain    nstance.Drain              // of the victim, as it was before
	stay     map[nstance.InstanceID]int // processes of the members that nothing happens to
	failover time.Duration              // from the kill until the other leads
	took     bool                       // failover is known
	address  Holder                     // where the leader address was before
	moved    time.Duration              // from the kill until the new leader has it; zero: it has not
	fresh    int                        // new machines that are needed
}

// failover kills the leader while a drain is under way and machines are being
// made, and sees that the other one finishes what was begun, once.
func (p *play) failover(ctx context.Context) error {
	members, err := p.full(ctx)
	if err != nil {
		return err
	}
	victims := p.cloud.affected(members[0], members)
	if err := p.choose(victims); err != nil {
		return err
	}
	if err := p.recordMembers(slices.DeleteFunc(members, func(id nstance.InstanceID) bool { return slices.Contains(victims, id) })); err != nil {
		return err
	}
	p.failoverState.fresh = growth + len(p.victims)
	for _, step := range []func(context.Context) error{p.locate, p.disturb, p.takeOver, p.finish, p.audit} {
		if err := step(ctx); err != nil {
			stage := p.stage
			if p.failoverState.took && p.balance == nil {
				_ = p.audit(ctx) // for the summary: the first error is the news
			}
			p.stage = stage
			return err
		}
	}
	return nil
}

func (p *play) recordMembers(members []nstance.InstanceID) error {
	p.failoverState.stay = map[nstance.InstanceID]int{}
	for _, id := range members {
		pid, err := p.home.pid(id)
		if err != nil {
			return err
		}
		p.failoverState.stay[id] = pid
	}
	return nil
}

// locate waits until the leader has the leader address, where there is one.
func (p *play) locate(ctx context.Context) error {
	if !p.cloud.hasAddress() {
		return nil
	}
	return p.poll(ctx, stageAddress, func(ctx context.Context) (err error) {
		p.failoverState.address, err = p.leaderHolds(ctx)
		return err
	})
}

const stageAddress = "leader_address"

// leaderHolds returns where the leader address is, if that is at the leader.
func (p *play) leaderHolds(ctx context.Context) (Holder, error) {
	h, err := p.cloud.holder(ctx)
	if err == nil && h.Server != p.pair.leader {
		err = nstance.Errorf(nstance.Unavailable, "leader address %s is at %s, not at the leader's interface", h.Address, h.At)
	}
	return h, err
}

// eventAddressMoved is told when the new leader has the leader address.
const eventAddressMoved nstance.EventType = "leader_address_moved"

// follow waits until the new leader has the leader address, where there is one.
func (p *play) follow(ctx context.Context, killed time.Time) error {
	if !p.cloud.hasAddress() {
		return nil
	}
	return p.poll(ctx, stageAddress, func(ctx context.Context) error {
		h, err := p.leaderHolds(ctx)
		if err == nil {
			p.failoverState.moved = time.Since(killed)
			p.story.tell(nstance.Event{Type: eventAddressMoved, Reason: h.Address + " from " + p.failoverState.address.At + " to " + h.At})
		}
		return err
	})
}

// disturb has the victim reclaimed and the group grow, and returns when the
// drain is under way and calls for machines hang.
func (p *play) disturb(ctx context.Context) error {
	p.cloud.front().close()
	victim := p.victims[0]
	if err := p.publish(p.victims); err != nil {
		return err
	}
	err := p.poll(ctx, string(nstance.EventDrainStarted), func(ctx context.Context) error {
		if p.cloud.drains(victim) == 0 {
			return nstance.Errorf(nstance.Unavailable, "machine %s is not being emptied", victim)
		}
		d, err := p.drain(ctx)
		p.failoverState.drain = d
		return err
	})
	if err != nil {
		return err
	}
	if err := p.scale(ctx, p.size+growth); err != nil {
		return err
	}
	return p.poll(ctx, "creates_in_flight", func(context.Context) error {
		done, undone := p.cloud.front().hanging()
		if done+undone < p.failoverState.fresh {
			return nstance.Errorf(nstance.Unavailable, "%d calls for machines are under way instead of %d", done+undone, p.failoverState.fresh)
		}
		return nil
	})
}

// takeOver kills the leader and waits until the other one leads.
func (p *play) takeOver(ctx context.Context) error {
	p.stage = "kill"
	if _, err := p.drain(ctx); err != nil {
		return fmt.Errorf("the drain was over too soon: %w", err)
	}
	p.cloud.front().open()
	killed := time.Now()
	if err := p.pair.killLeader(); err != nil {
		return err
	}
	const often = 5 * time.Millisecond
	err := p.every(ctx, often, "takeover", func(ctx context.Context) error {
		if !reaches(ctx, p.http, "/readyz") {
			return nstance.Errorf(nstance.Unavailable, "no server leads")
		}
		return nil
	})
	p.failoverState.failover, p.failoverState.took = time.Since(killed), err == nil
	if err != nil {
		return err
	}
	return p.follow(ctx, killed)
}

// finish waits until everything has come to its end.
func (p *play) finish(ctx context.Context) error {
	// The drain is compared for as long as it stands.
	err := p.poll(ctx, string(nstance.EventDeleted), func(ctx context.Context) error {
		if n := p.cloud.drains(p.victims[0]); n > 1 {
			return fatal{nstance.Errorf(nstance.Internal, "the drain was begun %d times", n)}
		}
		switch d, err := p.drain(ctx); {
		case nstance.CodeOf(err) == nstance.NotFound:
			return nil
		case err != nil:
			return err
		case !same(d, p.failoverState.drain):
			return fatal{nstance.Errorf(nstance.Internal, "the drain was generation %d until %s, and is generation %d until %s",
				p.failoverState.drain.Generation, p.failoverState.drain.Deadline, d.Generation, d.Deadline)}
		}
		return nstance.Errorf(nstance.Conflict, "%s is still there", p.victims[0])
	})
	if err != nil {
		return err
	}
	for _, t := range []nstance.EventType{nstance.EventDrainAcknowledged, nstance.EventReady, nstance.EventDeleted} {
		if err := p.each(ctx, t); err != nil {
			return err
		}
	}
	return p.awaitSettled(ctx)
}

// same reports whether a drain is the one that was begun, with the time that it
// was given.
func same(a, b nstance.Drain) bool {
	return a.Generation == b.Generation && a.StartedAt.Equal(b.StartedAt) && a.Deadline.Equal(b.Deadline)
}

// drain reads the victim's drain in storage. Fails with NotFound when there is
// no record of the victim any more.
func (p *play) drain(ctx context.Context) (nstance.Drain, error) {
	recs, err := p.records(ctx)
	if err != nil {
		return nstance.Drain{}, err
	}
	rec, ok := recs[p.victims[0]]
	switch {
	case !ok:
		return nstance.Drain{}, nstance.Errorf(nstance.NotFound, "there is no record of %s", p.victims[0])
	case rec.Drain == nil:
		return nstance.Drain{}, nstance.Errorf(nstance.Conflict, "%s is not being drained", p.victims[0])
	}
	return *rec.Drain, nil
}
