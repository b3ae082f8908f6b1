package dev

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
)

// plainGroupID is the group without a warm pool in scenario bridge. The group with one
// is groupID.
const plainGroupID = nstance.GroupID("plain")

// What the local cloud pretends in scenario bridge: how long a new machine boots, how
// long a parked one takes to wake, and how long before the reclaim the notice comes.
const (
	bridgeBoot   = 8 * time.Second
	bridgeWake   = time.Second
	bridgeNotice = 30 * time.Second
)

// bridgeArgs are the arguments of the machines in scenario bridge.
func bridgeArgs() object {
	return object{"boot_delay": bridgeBoot.String(), "wake_delay": bridgeWake.String()}
}

// A bridgeRun is the state of scenario bridge.
type bridgeRun struct {
	groups  map[nstance.InstanceID]nstance.GroupID // of this round's victims
	from    int                                    // events before this round
	bridges []nstance.InstanceID                   // woken in this round, in this order
	rounds  []BridgeRound
}

// A BridgeRound is what one round of scenario bridge measured. Durations are whole
// milliseconds from the publication of the notices; with several victims in each group
// they are those of the last.
type BridgeRound struct {
	WithPool    BridgeGroup `json:"with_pool"`
	WithoutPool BridgeGroup `json:"without_pool"`

	// BootMS and WakeMS are the delays that the cloud pretends.
	BootMS int64 `json:"boot_delay_ms"`
	WakeMS int64 `json:"wake_delay_ms"`

	// ProviderWakeMS is the longest time that the provider took for one machine, from its
	// call to the running process.
	ProviderWakeMS int64 `json:"provider_wake_ms"`

	// AddedMS is the time from the notice to the ready bridge beyond what the provider took
	// to wake it; AddedAfterPollMS counts from the server's receipt of the notice instead.
	AddedMS          int64 `json:"added_ms"`
	AddedAfterPollMS int64 `json:"added_after_poll_ms"`

	WakeRequestedMS int64 `json:"wake_requested_ms"`
	ParkedAgainMS   int64 `json:"parked_again_ms"`
}

// A BridgeGroup is one of the two groups of scenario bridge.
type BridgeGroup struct {
	DetectedMS         int64 `json:"detected_ms"`
	CapacityBackMS     int64 `json:"capacity_back_ms"` // a ready member for each that was lost: a bridge, or the replacement
	ReplacementReadyMS int64 `json:"replacement_ready_ms"`
}

// bridge reclaims members of a group with a warm pool and of one without at the same
// moment, and sees the bridges woken, drained and parked again.
func (p *play) bridge(ctx context.Context) error {
	if err := p.awaitPools(ctx); err != nil {
		return err
	}
	for range p.o.Rounds {
		for _, step := range []func(context.Context) error{p.reclaimBoth, p.awaitBridges, p.awaitLasting, p.awaitReturn} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		if err := p.measureRound(); err != nil {
			return err
		}
	}
	return p.auditSize(ctx, 2*p.size)
}

// awaitPools waits until both groups are whole and the pool is parked.
func (p *play) awaitPools(ctx context.Context) error {
	err := p.await(ctx, string(nstance.EventGroupReady), func(h history) (bool, error) {
		return len(p.lasting(h, groupID)) == p.size && len(p.lasting(h, plainGroupID)) == p.size, nil
	}, func(h history) string {
		return fmt.Sprintf("%d and %d of %d members are ready", len(p.lasting(h, groupID)), len(p.lasting(h, plainGroupID)), p.size)
	})
	if err != nil {
		return err
	}
	err = p.await(ctx, string(nstance.EventParked), func(h history) (bool, error) {
		return len(h.about(nstance.EventParked)) == p.o.Count, nil
	}, func(h history) string {
		return fmt.Sprintf("%d of %d stand-by machines are parked", len(h.about(nstance.EventParked)), p.o.Count)
	})
	if err != nil {
		return err
	}
	return p.poll(ctx, "group_full", p.bothWhole)
}

// lasting returns the members of a group that are ready and not of its pool.
func (p *play) lasting(h history, group nstance.GroupID) []nstance.InstanceID {
	pooled := h.about(nstance.EventParked)
	of := h.groups()
	return slices.DeleteFunc(h.ready(), func(id nstance.InstanceID) bool {
		return of[id] != group || slices.Contains(pooled, id)
	})
}

// reclaimBoth publishes a notice for the same number of members of both groups.
func (p *play) reclaimBoth(ctx context.Context) error {
	told, _, _ := p.story.read()
	p.bridgeRun.groups, p.bridgeRun.from, p.bridgeRun.bridges, p.pids = map[nstance.InstanceID]nstance.GroupID{}, len(told), nil, nil
	var victims []nstance.InstanceID
	for _, group := range []nstance.GroupID{groupID, plainGroupID} {
		for _, id := range p.lasting(told, group)[:p.o.Count] {
			p.bridgeRun.groups[id] = group
			victims = append(victims, id)
		}
	}
	if err := p.choose(victims); err != nil {
		return err
	}
	p.stage, p.since = string(eventtype.NoticePublished), time.Now()
	for _, id := range victims {
		p.story.tell(nstance.Event{Type: eventtype.NoticePublished, Tenant: nstance.DefaultTenant, Group: p.bridgeRun.groups[id], Instance: id})
		if err := p.cloud.announce(id, "terminate", bridgeNotice); err != nil {
			return err
		}
	}
	for _, t := range []nstance.EventType{eventtype.NoticeDetected, nstance.EventNoticeReceived, nstance.EventReplacementRequested} {
		if err := p.each(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// awaitBridges waits until a stand-by machine is ready for each victim of the group that
// has a pool.
func (p *play) awaitBridges(ctx context.Context) error {
	err := p.await(ctx, string(nstance.EventWakeRequested), func(h history) (bool, error) {
		p.bridgeRun.bridges = p.round(h).about(nstance.EventWakeRequested)
		return len(p.bridgeRun.bridges) == p.o.Count, nil
	}, func(h history) string {
		return fmt.Sprintf("%d of %d stand-by machines are woken", len(p.bridgeRun.bridges), p.o.Count)
	})
	for _, t := range []nstance.EventType{nstance.EventWoken, nstance.EventReady} {
		if err == nil {
			err = p.eachBridge(ctx, t)
		}
	}
	return err
}

// awaitLasting waits until the victims are replaced and gone.
func (p *play) awaitLasting(ctx context.Context) error {
	for _, t := range []nstance.EventType{nstance.EventDrainAcknowledged, nstance.EventReady, nstance.EventDeleted} {
		if err := p.each(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// awaitReturn waits until the bridges are drained and parked again, after the lasting
// replacements were ready, and both groups are as before.
func (p *play) awaitReturn(ctx context.Context) error {
	for _, t := range []nstance.EventType{nstance.EventDrainStarted, nstance.EventDrainAcknowledged, nstance.EventParked} {
		if err := p.eachBridge(ctx, t); err != nil {
			return err
		}
	}
	if err := p.poll(ctx, "group_full", p.bothWhole); err != nil {
		return err
	}
	told, _, _ := p.story.read()
	now := p.round(told)
	if n, asked := len(now.about(nstance.EventWakeRequested)), len(now.requested()); n != p.o.Count || asked != len(p.victims) {
		return nstance.Errorf(nstance.Internal, "%d stand-by machines were woken instead of %d, and %d instances were asked for instead of %d", n, p.o.Count, asked, len(p.victims))
	}
	x := now.index()
	returned := x.times(x.about, nstance.EventDrainStarted, p.bridgeRun.bridges)
	for i, lasting := range x.times(x.replacing, nstance.EventReady, p.victimsOf(groupID)) {
		if returned[i].Before(lasting) {
			return nstance.Errorf(nstance.Internal, "a bridge was drained %s before a replacement was ready", lasting.Sub(returned[i]))
		}
	}
	return nil
}

// eachBridge waits until an event of a type has happened to every bridge in this round.
func (p *play) eachBridge(ctx context.Context, t nstance.EventType) error {
	missing := func(h history) []nstance.InstanceID {
		seen := p.round(h).about(t)
		return slices.DeleteFunc(slices.Clone(p.bridgeRun.bridges), func(id nstance.InstanceID) bool { return slices.Contains(seen, id) })
	}
	return p.await(ctx, "bridge_"+string(t), func(h history) (bool, error) { return len(missing(h)) == 0, nil }, func(h history) string {
		return fmt.Sprintf("no event %s for bridge %s", t, missing(h)[0])
	})
}

// bothWhole returns what differs from two whole groups and a pool that is parked.
func (p *play) bothWhole(ctx context.Context) error {
	if err := p.victimsEnded(); err != nil {
		return err
	}
	machines, err := p.list(ctx)
	if err != nil {
		return err
	}
	s, err := p.status(ctx)
	if err != nil {
		return err
	}
	if want := 2*p.size + p.o.Count; len(machines) != want || len(s.Instances) != want || len(s.Groups) != 2 {
		return nstance.Errorf(nstance.Conflict, "there are %d machines and %d instances instead of %d", len(machines), len(s.Instances), want)
	}
	for _, g := range s.Groups {
		if g.Ready != p.size {
			return nstance.Errorf(nstance.Conflict, "group %s has %d ready members of %d", g.Group, g.Ready, p.size)
		}
	}
	parked := 0
	for _, i := range s.Instances {
		if i.State == string(nstance.Parked) {
			parked++
		}
	}
	if parked != p.o.Count {
		return nstance.Errorf(nstance.Conflict, "%d stand-by machines of %d are parked", parked, p.o.Count)
	}
	return nil
}

// measureRound records how long this round's steps took.
func (p *play) measureRound() error {
	told, _, _ := p.story.read()
	x := p.round(told).index()
	last := func(events map[indexKey]nstance.Event, t nstance.EventType, ids []nstance.InstanceID) int64 {
		return max(0, x.times(events, t, ids)[len(ids)-1].Sub(p.since).Milliseconds())
	}
	group := func(id nstance.GroupID) BridgeGroup {
		g := BridgeGroup{
			DetectedMS:         last(x.about, eventtype.NoticeDetected, p.victimsOf(id)),
			ReplacementReadyMS: last(x.replacing, nstance.EventReady, p.victimsOf(id)),
		}
		g.CapacityBackMS = g.ReplacementReadyMS
		return g
	}
	bridges := p.bridgeRun.bridges
	r := BridgeRound{
		WithPool: group(groupID), WithoutPool: group(plainGroupID), BootMS: bridgeBoot.Milliseconds(), WakeMS: bridgeWake.Milliseconds(),
		WakeRequestedMS: last(x.about, nstance.EventWakeRequested, bridges), ParkedAgainMS: last(x.about, nstance.EventParked, bridges),
	}
	r.WithPool.CapacityBackMS = last(x.about, nstance.EventReady, bridges)
	for i, detected := range x.times(x.about, eventtype.NoticeDetected, p.victimsOf(groupID)) { // each wakes the next bridge
		took, err := p.cloud.wakeTime(bridges[i])
		if err != nil {
			return err
		}
		ready := x.about[indexKey{nstance.EventReady, bridges[i]}].Time
		r.ProviderWakeMS = max(r.ProviderWakeMS, took.Milliseconds())
		r.AddedMS = max(r.AddedMS, (ready.Sub(p.since) - took).Milliseconds())
		r.AddedAfterPollMS = max(r.AddedAfterPollMS, (ready.Sub(detected) - took).Milliseconds())
	}
	p.bridgeRun.rounds = append(p.bridgeRun.rounds, r)
	return nil
}

// victimsOf returns this round's victims in a group.
func (p *play) victimsOf(group nstance.GroupID) []nstance.InstanceID {
	return slices.DeleteFunc(slices.Clone(p.victims), func(id nstance.InstanceID) bool { return p.bridgeRun.groups[id] != group })
}

// times returns when an event of a type happened to each of some instances, earliest
// first. Events are those of x.about or x.replacing.
func (x index) times(events map[indexKey]nstance.Event, t nstance.EventType, ids []nstance.InstanceID) []time.Time {
	at := make([]time.Time, len(ids))
	for i, id := range ids {
		at[i] = events[indexKey{t, id}].Time
	}
	slices.SortFunc(at, time.Time.Compare)
	return at
}

// round returns what has happened in this round.
func (p *play) round(h history) history { return h[min(p.bridgeRun.from, len(h)):] }

// about returns the instances that an event of that type is about, each once, in the
// order of the first ones.
func (h history) about(t nstance.EventType) (ids []nstance.InstanceID) {
	for _, e := range h {
		if e.Type == t && !slices.Contains(ids, e.Instance) {
			ids = append(ids, e.Instance)
		}
	}
	return ids
}

// groups returns the group of every instance.
func (h history) groups() map[nstance.InstanceID]nstance.GroupID {
	of := map[nstance.InstanceID]nstance.GroupID{}
	for _, e := range h {
		if e.Instance != "" && e.Group != "" {
			of[e.Instance] = e.Group
		}
	}
	return of
}
