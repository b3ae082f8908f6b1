package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/sleep"
)

// noticeAhead is how long before it is taken a machine is told: as on AWS.
const noticeAhead = 2 * time.Minute

// A play is a scenario under way.
type play struct {
	*shard
	size    int                  // of the group
	asked   int                  // machines that were asked for to fill it
	stage   string               // what is waited for
	since   time.Time            // when the scenario did what it does; zero before
	victims []nstance.InstanceID // whom it did it to
	pids    []int                // their processes

	failoverState failoverState // of scenario failover
	killRun       killRun       // of scenario kill
	bridgeRun     bridgeRun     // of scenario bridge
	balance       *balance      // of both; nil while it is not known
}

// play plays the scenario and returns how it went.
func (w *shard) play(ctx context.Context) (Summary, error) {
	p := &play{shard: w, size: w.o.size(), stage: stageStart}
	limit := time.Minute + time.Duration(p.size)*time.Second
	if w.pair != nil {
		limit += 4 * w.o.ElectionTTL
	}
	if w.o.QEMU != nil {
		limit += time.Duration(2*p.size) * guestPatience
	}
	if w.o.Scenario == Kill {
		limit += time.Minute + time.Duration(w.o.Count)*2*w.o.meanPause()
	}
	if w.o.Scenario == Bridge {
		limit += time.Duration(w.o.Rounds) * 2 * bridgeNotice
	}
	if w.o.Scenario == Demo {
		limit += demoLimit
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, nstance.Errorf(nstance.Unavailable, "the scenario took longer than %s", limit))
	defer cancel()
	scenario := map[string]func(context.Context) error{
		Interrupt: p.interrupt, Mass: p.mass, Crash: p.crash, Rollout: p.rollout, Failover: p.failover, Kill: p.kill, Bridge: p.bridge, Demo: p.demo,
	}[w.o.Scenario]
	err := scenario(ctx)
	sum := p.summary()
	if err == nil {
		sum.OK = true
		return sum, nil
	}
	sum.Stage, sum.Error = p.stage, err.Error()
	return sum, &Failure{w.o.Scenario, p.stage, err}
}

func (p *play) interrupt(ctx context.Context) error {
	members, err := p.full(ctx)
	if err != nil {
		return err
	}
	return p.reclaim(ctx, p.cloud.affected(members[0], members))
}

func (p *play) mass(ctx context.Context) error {
	members, err := p.full(ctx)
	if err != nil {
		return err
	}
	return p.reclaim(ctx, members)
}

// reclaim takes members back and sees each of them replaced, drained, deleted.
func (p *play) reclaim(ctx context.Context, members []nstance.InstanceID) error {
	if err := p.choose(members); err != nil {
		return err
	}
	if err := p.publish(members); err != nil {
		return err
	}
	for _, t := range []nstance.EventType{
		eventtype.NoticeDetected, nstance.EventNoticeReceived, nstance.EventReplacementRequested, nstance.EventDrainStarted,
		nstance.EventDrainAcknowledged, nstance.EventReady, nstance.EventDeleteRequested, nstance.EventDeleted,
	} {
		if err := p.each(ctx, t); err != nil {
			return err
		}
	}
	return p.over(ctx)
}

// publish has the cloud take members back.
func (p *play) publish(members []nstance.InstanceID) error {
	p.stage = string(eventtype.NoticePublished)
	p.since = time.Now()
	for _, id := range members {
		p.story.tell(nstance.Event{Type: eventtype.NoticePublished, Tenant: nstance.DefaultTenant, Group: groupID, Instance: id})
	}
	return p.cloud.interrupt(members)
}

// crash kills a member's process: nothing is left to drain.
func (p *play) crash(ctx context.Context) error {
	members, err := p.full(ctx)
	if err != nil {
		return err
	}
	if err := p.choose(members[:1]); err != nil {
		return err
	}
	p.stage, p.since = "kill", time.Now()
	if err := p.cloud.crash(members[0]); err != nil {
		return err
	}
	for _, t := range []nstance.EventType{
		nstance.EventMachineGone, nstance.EventReplacementRequested, nstance.EventReady, nstance.EventDeleteRequested, nstance.EventDeleted,
	} {
		if err := p.each(ctx, t); err != nil {
			return err
		}
	}
	told, _, _ := p.story.read()
	if _, drained := told.index().about[indexKey{nstance.EventDrainStarted, members[0]}]; drained {
		return nstance.Errorf(nstance.Internal, "a machine that was gone was drained")
	}
	return p.over(ctx)
}

// full waits until the group has all its members and returns them. In a
// directory that was used before, their number may have been changed.
func (p *play) full(ctx context.Context) (members []nstance.InstanceID, err error) {
	const stage = string(nstance.EventGroupReady)
	lacking := func(h history) string { return fmt.Sprintf("%d of %d members are ready", len(h.ready()), p.size) }
	err = p.await(ctx, stage, func(h history) (bool, error) { return h.has(nstance.EventGroupReady), nil }, lacking)
	if err != nil {
		return nil, err
	}
	if err := p.poll(ctx, stage, p.readSize); err != nil {
		return nil, err
	}
	return members, p.await(ctx, stage, func(h history) (bool, error) {
		members, p.asked = h.ready(), len(h.requested())
		return len(members) == p.size, nil
	}, lacking)
}

// readSize reads the size of the group.
func (p *play) readSize(ctx context.Context) error {
	s, err := p.status(ctx)
	if err != nil {
		return err
	}
	if len(s.Groups) != 1 || s.Groups[0].Size == 0 {
		return fatal{nstance.Errorf(nstance.Conflict, "there is not one group with members in %s", p.home.dir)}
	}
	p.size = s.Groups[0].Size
	return nil
}

// choose remembers whom the scenario is about.
func (p *play) choose(ids []nstance.InstanceID) error {
	p.victims = ids
	for _, id := range ids {
		pid, err := p.home.pid(id)
		if err != nil {
			return err
		}
		p.pids = append(p.pids, pid)
	}
	return nil
}

// each waits until an event of that type has happened to every victim, or to
// the replacement of every victim where it is about those.
func (p *play) each(ctx context.Context, t nstance.EventType) error {
	return p.await(ctx, stageOf(t), func(h history) (bool, error) {
		return len(p.missing(h, t)) == 0, nil
	}, func(h history) string {
		missing := p.missing(h, t)
		return fmt.Sprintf("no event %s for %s, the first of %d of %d instances", t, missing[0], len(missing), len(p.victims))
	})
}

func stageOf(t nstance.EventType) string {
	if t == nstance.EventReady {
		return "replacement_ready"
	}
	return string(t)
}

// missing returns the victims that have not had such an event.
func (p *play) missing(h history, t nstance.EventType) []nstance.InstanceID {
	var ids []nstance.InstanceID
	x := h.index()
	for _, id := range p.victims {
		e, ok := x.find(t, id)
		if t == nstance.EventDrainAcknowledged && e.Reason != string(nstance.OutcomeDrained) {
			ok = false // that it did not work is no success
		}
		if !ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// find returns the event of a type that belongs to the loss of id.
func (x index) find(t nstance.EventType, id nstance.InstanceID) (nstance.Event, bool) {
	where := x.about
	if t == nstance.EventReady || t == nstance.EventReplacementRequested {
		where = x.replacing
	}
	e, ok := where[indexKey{t, id}]
	return e, ok
}

// await waits for a stage, as long as a stage may take.
func (p *play) await(ctx context.Context, stage string, done func(history) (bool, error), lacking func(history) string) error {
	p.stage = stage
	limit := p.limit()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errLate)
	defer cancel()
	err := p.story.await(ctx, done)
	if errors.Is(err, errLate) {
		told, _, _ := p.story.read()
		return nstance.Errorf(nstance.Unavailable, "%s after %s", lacking(told), limit)
	}
	return err
}

var errLate = errors.New("the stage took too long")

// limit is how long one stage may take. Without a leader nothing goes on.
func (p *play) limit() time.Duration {
	if own, ok := p.o.limits[p.stage]; ok {
		return own
	}
	limit := p.o.patience + time.Duration(p.size)*300*time.Millisecond
	if p.pair != nil {
		limit += 2 * p.o.ElectionTTL
	}
	if p.o.Scenario == Kill { // a killed leader's create is waited for, and a whole rollout may be ahead, one machine after another
		limit += time.Minute + time.Duration(p.size)*8*time.Second
	}
	return limit
}

// over waits until the victims' processes are gone and the group is as it was,
// no machine more and none less, and checks that each victim was replaced once.
func (p *play) over(ctx context.Context) error {
	if err := p.awaitSettled(ctx); err != nil {
		return err
	}
	told, _, _ := p.story.read()
	if n := len(told.requested()) - p.asked; n != len(p.victims) {
		return nstance.Errorf(nstance.Internal, "%d replacements were asked for instead of %d", n, len(p.victims))
	}
	return nil
}

// awaitSettled waits until the victims' processes are gone and the group is full, no
// machine more and none less.
func (p *play) awaitSettled(ctx context.Context) error { return p.poll(ctx, "group_full", p.settled) }

// poll waits for a stage of which no event tells: until look returns nil, as
// long as a stage may take.
func (p *play) poll(ctx context.Context, stage string, look func(context.Context) error) error {
	return p.every(ctx, again, stage, look)
}

func (p *play) every(ctx context.Context, d time.Duration, stage string, look func(context.Context) error) error {
	p.stage = stage
	limit := p.limit()
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := look(limited)
		if err == nil {
			return nil
		}
		if _, final := errors.AsType[fatal](err); final {
			return err
		}
		if !sleep.For(limited, d) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return nstance.Errorf(nstance.Unavailable, "after %s: %w", limit, err)
		}
	}
}

// fatal is an error that waiting does not mend.
type fatal struct{ error }

func (f fatal) Unwrap() error { return f.error }

// victimsEnded returns which process of the victims still runs.
func (p *play) victimsEnded() error {
	for i, pid := range p.pids {
		if alive(pid) {
			return nstance.Errorf(nstance.Conflict, "process %d of %s still runs", pid, p.victims[i])
		}
	}
	return nil
}

// settled returns what is not yet as it should be in the end.
func (p *play) settled(ctx context.Context) error {
	if err := p.victimsEnded(); err != nil {
		return err
	}
	machines, err := p.list(ctx)
	if err != nil {
		return err
	}
	n := len(machines)
	s, err := p.status(ctx)
	if err != nil {
		return err
	}
	if n != p.size || len(s.Instances) != p.size || len(s.Groups) != 1 {
		return nstance.Errorf(nstance.Conflict, "there are %d machines and %d instances instead of %d", n, len(s.Instances), p.size)
	}
	if g := s.Groups[0]; g.Ready != p.size || g.Leaving != 0 || g.Stale != 0 {
		return nstance.Errorf(nstance.Conflict, "of %d members %d are ready, %d leave, %d are outdated", g.Size, g.Ready, g.Leaving, g.Stale)
	}
	return nil
}

// alive reports whether there is such a process.
func alive(pid int) bool {
	proc, err := os.FindProcess(pid)
	return err == nil && !errors.Is(proc.Signal(syscall.Signal(0)), os.ErrProcessDone)
}
