package reconcile_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

var (
	zoneA = reconcile.Pool{Zone: "zone-a"}
)

// zonedGroup is a spot group of one type in both zones.
func zonedGroup(size int) nstance.Group {
	g := webGroup(size)
	g.Definition.Subnets = []string{"s-a", "s-b"}
	return g
}

// withZones runs a test in a world with two zones and one leader whose group is ready.
func withZones(t *testing.T, g nstance.Group, test func(t *testing.T, w *world)) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, twoZones)
		defer w.close()
		w.startLeader(g)
		w.advance(2 * time.Minute)
		w.requireMembers(g.Size)
		test(t, w)
	})
}

// avoid has a pool avoided for some time.
func (w *world) avoid(p reconcile.Pool, d time.Duration, drain bool) reconcile.AvoidedPool {
	w.t.Helper()
	r, _ := w.leader()
	out, _, err := r.Admin().AvoidPool(w.ctx, reconcile.AvoidedPool{Pool: p, Until: time.Now().Add(d), Reason: "network trouble", By: "eve", Drain: drain}, false)
	require.NoError(w.t, err)
	return out
}

func (w *world) release(p reconcile.Pool) {
	w.t.Helper()
	r, _ := w.leader()
	released, err := r.Admin().ReleasePool(w.ctx, p, requester, false)
	require.NoError(w.t, err)
	require.True(w.t, released)
}

// inZone counts the machines in a zone that run or boot.
func (w *world) inZone(zone string) (n int) {
	for p, count := range w.pools() {
		if p.Zone == zone {
			n += count
		}
	}
	return n
}

func TestAvoidedPool(t *testing.T) {
	t.Run("creates go elsewhere, members stay", func(t *testing.T) {
		withZones(t, zonedGroup(3), func(t *testing.T, w *world) {
			require.Equal(t, 3, w.inZone("zone-a"))
			before := w.ready()
			w.avoid(zoneA, 2*time.Hour, false)
			w.setGroups(zonedGroup(6))
			w.advance(5 * time.Minute)
			w.requireMembers(6)
			require.Equal(t, before, w.ready()[:3])
			require.Equal(t, 3, w.inZone("zone-b"))
			v, err := w.r.Instance(w.ready()[5])
			require.NoError(t, err)
			require.Equal(t, "avoided", v.ShapeChoice)

			w.advance(2 * time.Hour)
			w.setGroups(zonedGroup(7))
			w.advance(5 * time.Minute)
			require.Equal(t, 4, w.inZone("zone-a"), "it ends by itself")
			require.Empty(t, w.r.Admin().AvoidedPools())
			w.requireOneHold(nstance.GroupKey{}, plan.HoldAvoided, "no machine is made in zone=zone-a: network trouble (asked for by eve); nstance-admin pool release zone=zone-a ends it")
		})
	})
	t.Run("a loss waits, with a hold that says why", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			p := w.avoid(reconcile.Pool{InstanceType: "small", Market: nstance.Spot}, time.Hour, false)
			require.NoError(t, w.cloud.Kill(w.ready()[0]))
			w.advance(30 * time.Minute)
			require.Len(t, w.ready(), 2)
			h := w.hold(plan.HoldAvoided)
			require.Equal(t, p.Until, h.Until)
			require.Equal(t, fmt.Sprintf("every permitted shape is in an avoided pool: type=small market=spot until %s: network trouble (asked for by eve), nstance-admin pool release type=small market=spot ends it",
				p.Until.Format(time.RFC3339)), h.Reason)
			require.Len(t, w.holdEvents(web, plan.HoldAvoided), 1)
			require.Len(t, w.attentionFor(reconcile.AttentionKind(plan.HoldAvoided)), 2, "of the shard and of the group")
			w.advance(30 * time.Minute)
			w.advance(2 * time.Minute)
			w.requireMembers(3)
			w.requireOneHold(web, plan.HoldAvoided, "every permitted shape")
			require.Empty(t, w.attentionFor(reconcile.AttentionKind(plan.HoldAvoided)))
		})
	})
	t.Run("a release ends it", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			p := reconcile.Pool{Market: nstance.Spot}
			w.avoid(p, time.Hour, false)
			w.setGroups(webGroup(4))
			w.advance(10 * time.Minute)
			require.Len(t, w.ready(), 3)
			w.release(p)
			w.advance(2 * time.Minute)
			w.requireMembers(4)
			ended := w.holdEvents(nstance.GroupKey{}, plan.HoldAvoided)[1]
			require.Equal(t, "avoided: market=spot, after 10m0s: "+requester, ended.Reason)
			released, err := w.r.Admin().ReleasePool(t.Context(), p, requester, false)
			require.NoError(t, err)
			require.False(t, released)
		})
	})
	t.Run("spot is avoided: a group with a fallback is made on-demand at once", func(t *testing.T) {
		withFallback(t, 3, simcloud.Options{}, func(t *testing.T, w *world, g nstance.Group) {
			g.Definition.Market.ReturnAfter = 10 * time.Minute
			w.startLeader(g)
			w.advance(2 * time.Minute)
			w.avoid(reconcile.Pool{Market: nstance.Spot}, 2*time.Hour, false)
			w.reclaimOne(2 * time.Minute)
			w.advance(30 * time.Second)
			require.Equal(t, 1, w.shapes()["small/on-demand"], "before fallback_after")
			w.requireOnDemandFor(1, time.Hour) // it does not return to spot
			w.advance(3 * time.Hour)
			w.requireMembers(3)
			require.Equal(t, map[string]int{"small/spot": 3}, w.shapes(), "it returns")
		})
	})
	t.Run("survives a change of leader", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			p := w.avoid(reconcile.Pool{Market: nstance.Spot}, time.Hour, false)
			w.changeLeader(webGroup(5))
			w.advance(10 * time.Minute)
			w.requireMembers(3)
			require.Equal(t, []reconcile.AvoidedPool{p}, w.r.Admin().AvoidedPools())
			require.Equal(t, p.Since, w.r.Admin().Holds()[0].Since)
			w.advance(time.Hour)
			w.requireMembers(5)
			w.changeLeader(webGroup(5))
			require.Empty(t, w.r.Admin().AvoidedPools())
		})
	})
	t.Run("it ended between two leaders", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.avoid(reconcile.Pool{Market: nstance.Spot}, time.Hour, false)
			w.stopLeader()
			w.advance(2 * time.Hour)
			w.startLeader(webGroup(4))
			w.advance(5 * time.Minute)
			w.requireMembers(4)
			w.requireOneHold(nstance.GroupKey{}, plan.HoldAvoided, "no machine is made in market=spot")
		})
	})
}

func TestAvoidedPoolRequests(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		admin := w.r.Admin()
		avoid := func(p reconcile.Pool, d time.Duration) error {
			_, _, err := admin.AvoidPool(t.Context(), reconcile.AvoidedPool{Pool: p, Until: time.Now().Add(d)}, false)
			return err
		}
		for name, c := range map[string]struct {
			pool  reconcile.Pool
			d     time.Duration
			field string
		}{
			"nothing":        {reconcile.Pool{}, time.Hour, "pool"},
			"no market":      {reconcile.Pool{Market: "reserved"}, time.Hour, "market"},
			"two words":      {reconcile.Pool{Zone: "a b"}, time.Hour, "zone"},
			"control":        {reconcile.Pool{InstanceType: "a\n"}, time.Hour, "instance_type"},
			"no time":        {zoneA, 0, "duration"},
			"more than 30 d": {zoneA, 31 * 24 * time.Hour, "duration"},
		} {
			err := avoid(c.pool, c.d)
			require.ErrorIs(t, err, nstance.Invalid, name)
			require.ErrorContains(t, err, c.field+": ", name)
		}
		require.Empty(t, admin.AvoidedPools())

		first := w.avoid(zoneA, time.Hour, false)
		w.advance(time.Minute)
		again := w.avoid(zoneA, 2*time.Hour, true)
		require.Equal(t, first.Since, again.Since)
		require.Equal(t, []reconcile.AvoidedPool{again}, admin.AvoidedPools(), "a repeat replaces duration and drain")
		w.advance(time.Second)
		require.Equal(t, again, w.avoid(zoneA, 2*time.Hour, true), "one whose answer was lost changes nothing")
		require.Len(t, w.holdEvents(nstance.GroupKey{}, plan.HoldAvoided), 2)
		dry, changed, err := admin.AvoidPool(t.Context(), reconcile.AvoidedPool{Pool: zoneA, Until: time.Now().Add(3 * time.Hour)}, true)
		require.NoError(t, err)
		require.True(t, changed)
		require.Equal(t, first.Since, dry.Since)
		released, err := admin.ReleasePool(t.Context(), zoneA, requester, true)
		require.NoError(t, err)
		require.True(t, released)
		require.Equal(t, []reconcile.AvoidedPool{again}, admin.AvoidedPools(), "dry runs change nothing")
		for i := range 63 {
			require.NoError(t, avoid(reconcile.Pool{InstanceType: fmt.Sprint(i)}, time.Hour))
		}
		require.ErrorIs(t, avoid(reconcile.Pool{InstanceType: "one more"[:3]}, time.Hour), nstance.Conflict)
		require.NoError(t, avoid(zoneA, time.Hour), "one that is known")
	})
}

// TestAvoidedPoolDurable: the call returns once it is durable.
func TestAvoidedPoolDurable(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, err := w.r.Admin().AvoidPool(ctx, reconcile.AvoidedPool{Pool: zoneA, Until: time.Now().Add(time.Hour)}, false)
		require.ErrorIs(t, err, nstance.Unavailable)
		w.advance(time.Second)
		require.Len(t, w.object("state/s1.json")["avoided"], 1)
	})
}

func TestAvoidedPoolDrain(t *testing.T) {
	t.Run("one at a time, the replacement first", func(t *testing.T) {
		withZones(t, zonedGroup(3), func(t *testing.T, w *world) {
			before := w.ready()
			w.avoid(zoneA, 2*time.Hour, true)
			for range 60 {
				w.advance(10 * time.Second)
				require.GreaterOrEqual(t, len(w.ready()), 3, "never fewer for it")
				require.LessOrEqual(t, len(w.cloud.Machines()), 5)
			}
			w.requireMembers(3)
			require.Zero(t, w.inZone("zone-a"))
			for _, id := range before {
				require.NotContains(t, w.ready(), id)
			}
			require.Equal(t, nstance.Cause{Kind: nstance.CauseRollout, Message: "it is in an avoided pool: zone=zone-a: network trouble (asked for by eve)"}, w.lastCause())
		})
	})
	t.Run("released or paused: the others stay", func(t *testing.T) {
		for name, stop := range map[string]func(w *world){
			"released": func(w *world) { w.release(zoneA) },
			"paused":   func(w *world) { require.NoError(w.t, w.r.Admin().Pause(w.ctx, web, "")) },
		} {
			t.Run(name, func(t *testing.T) {
				withZones(t, zonedGroup(3), func(t *testing.T, w *world) {
					before := w.ready()
					w.avoid(zoneA, 2*time.Hour, true)
					w.advance(time.Second)
					stop(w)
					w.advance(time.Hour)
					require.Equal(t, before, w.ready())
				})
			})
		}
	})
	t.Run("nothing else is permitted: members stay, and the hold says so", func(t *testing.T) {
		g := zonedGroup(3)
		g.Rollout.MaxSurge = nstance.Count{} // the old one would go first
		g.Definition.Subnets = []string{"s-a"}
		withZones(t, g, func(t *testing.T, w *world) {
			before := w.ready()
			p := w.avoid(zoneA, 2*time.Hour, true)
			w.advance(time.Hour)
			require.Equal(t, before, w.ready())
			h := w.hold(plan.HoldAvoided)
			require.Equal(t, p.Until, h.Until)
			require.Contains(t, h.Reason, "members stay in an avoided pool, because the group permits nothing else: zone=zone-a until ")
		})
	})
	t.Run("instances on demand and preserved ones stay", func(t *testing.T) {
		withZones(t, zonedGroup(2), func(t *testing.T, w *world) {
			req := onDemand(w.newID())
			req.Definition.Subnets = []string{"s-a"}
			_, err := w.requestOnDemand(req)
			require.NoError(t, err)
			w.advance(2 * time.Minute)
			kept := w.ready()[0]
			require.NoError(t, w.r.Admin().Preserve(t.Context(), kept, time.Now().Add(24*time.Hour), ""))
			w.avoid(zoneA, 2*time.Hour, true)
			w.advance(time.Hour)
			require.True(t, w.exists(req.ID))
			require.True(t, w.exists(kept))
			require.Equal(t, 2, w.inZone("zone-a"))
		})
	})
	t.Run("goes on under the next leader", func(t *testing.T) {
		withZones(t, zonedGroup(3), func(t *testing.T, w *world) {
			w.avoid(zoneA, 2*time.Hour, true)
			w.advance(time.Second)
			w.changeLeader(zonedGroup(3))
			w.advance(20 * time.Minute)
			w.requireMembers(3)
			require.Zero(t, w.inZone("zone-a"))
		})
	})
	t.Run("machines whose subnet has no known zone stay", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{}) // all are in sim-a, and no subnet is named
			defer w.close()
			w.startLeader(webGroup(2))
			w.advance(2 * time.Minute)
			before := w.ready()
			w.avoid(reconcile.Pool{Zone: "sim-a"}, 24*time.Hour, true)
			w.advance(10 * time.Hour)
			require.Equal(t, before, w.ready(), "they would come back")
			require.True(t, w.hasHold(plan.HoldAvoided))
		})
	})
}

// TestAvoidedCreatesUnderWay: what was granted before is not made there any more.
func TestAvoidedCreatesUnderWay(t *testing.T) {
	for _, after := range []int{100, 160, 200, 230, 260, 300} {
		t.Run(fmt.Sprintf("throttled, and repeated as it was, avoided after %d ms", after), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, twoZones)
				defer w.close()
				w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: 6, Code: nstance.Throttled})
				w.startLeader(zonedGroup(2))
				w.advance(time.Duration(after) * time.Millisecond)
				require.Zero(t, w.inZone("zone-a"))
				w.avoid(zoneA, time.Hour, false)
				w.advance(25 * time.Second)
				w.requireMembers(2)
				require.Zero(t, w.inZone("zone-a"))
				require.Empty(t, w.group().Holds)
				w.release(zoneA)
				w.setGroups(zonedGroup(3))
				w.advance(3 * time.Second)
				require.Equal(t, 1, w.inZone("zone-a"), "it does not count as sold out")
			})
		})
	}
	t.Run("an intent of a former leader", func(t *testing.T) {
		takeover(t, false, simcloud.Options{Zones: twoZones.Zones}, func(t *testing.T, w *world) {
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1})
			w.startLeader(zonedGroup(2))
			w.advance(time.Second)
			w.avoid(zoneA, time.Hour, false)
			w.stopLeader()
			w.cloud.ClearFaults()
			w.startLeader(zonedGroup(2))
			w.advance(5 * time.Minute)
			w.requireMembers(2)
			require.Zero(t, w.inZone("zone-a"))
		})
	})
	t.Run("an instance on demand waits for another shape", func(t *testing.T) {
		withZones(t, zonedGroup(1), func(t *testing.T, w *world) {
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: 6, Code: nstance.Throttled})
			req := onDemand(w.newID())
			req.Definition.Subnets = []string{"s-a", "s-b"}
			_, err := w.requestOnDemand(req)
			require.NoError(t, err)
			w.avoid(zoneA, time.Hour, false)
			w.advance(5 * time.Minute)
			require.True(t, w.exists(req.ID))
			require.Equal(t, "zone-b", w.machine(req.ID).Zone)
		})
	})
	t.Run("an instance on demand of which everything is avoided", func(t *testing.T) {
		withZones(t, zonedGroup(1), func(t *testing.T, w *world) {
			w.avoid(zoneA, 10*time.Minute, false)
			req := onDemand(w.newID())
			req.Definition.Subnets = []string{"s-a"}
			_, err := w.requestOnDemand(req)
			require.NoError(t, err)
			w.advance(5 * time.Minute)
			require.False(t, w.exists(req.ID))
			require.Contains(t, w.hold(plan.HoldAvoided).Reason, "zone=zone-a")
			w.advance(10 * time.Minute)
			require.Equal(t, "zone-a", w.machine(req.ID).Zone)
		})
	})
}

func TestAvoidedPoolInPlans(t *testing.T) {
	withZones(t, zonedGroup(3), func(t *testing.T, w *world) {
		admin := w.r.Admin()
		w.avoid(zoneA, time.Hour, false)
		plans, err := admin.WhatIf([]nstance.Group{zonedGroup(4)}, false)
		require.NoError(t, err)
		require.Equal(t, &reconcile.ShapePlan{InstanceType: "small", Subnet: "s-b", Market: nstance.Spot, Choice: "avoided"}, plans[0].Shape)
		require.Empty(t, plans[0].Holds)
		w.avoid(reconcile.Pool{Zone: "zone-b"}, time.Hour, false)
		plans, err = admin.WhatIf([]nstance.Group{zonedGroup(4)}, false)
		require.NoError(t, err)
		require.Nil(t, plans[0].Shape)
		require.Equal(t, plan.HoldAvoided, plans[0].Holds[0].Kind)
		require.Contains(t, plans[0].Holds[0].Reason, "zone=zone-b until ")
	})
}

func TestPoolOutlook(t *testing.T) {
	g := zonedGroup(3)
	g.Definition.Subnets = []string{"s-a", "s-b"}
	t.Run("zones", func(t *testing.T) {
		withZones(t, g, func(t *testing.T, w *world) {
			admin := w.r.Admin()
			require.Equal(t, reconcile.PoolOutlook{Groups: []reconcile.PoolImpact{{
				Key: web, Lost: []reconcile.ShapePlan{{InstanceType: "small", Subnet: "s-a", Market: nstance.Spot}}, Left: 1, Members: 3, Replaced: 3,
			}}}, admin.PoolOutlook(zoneA))
			require.Empty(t, admin.PoolOutlook(reconcile.Pool{Zone: "zone-c"}).Groups)
			all := admin.PoolOutlook(reconcile.Pool{InstanceType: "small"}).Groups[0]
			require.Equal(t, []int{2, 0, 3, 0}, []int{len(all.Lost), all.Left, all.Members, all.Replaced}, "nothing is left, so members stay")
			w.avoid(reconcile.Pool{Zone: "zone-b"}, time.Hour, false)
			after := admin.PoolOutlook(zoneA).Groups[0]
			require.Equal(t, []int{1, 0, 3, 0}, []int{len(after.Lost), after.Left, after.Members, after.Replaced})
		})
	})
	t.Run("the on-demand base is among the shapes", func(t *testing.T) {
		g := zonedGroup(2)
		g.Definition.Market.OnDemandBase = nstance.Count{N: 1}
		withZones(t, g, func(t *testing.T, w *world) {
			i := w.r.Admin().PoolOutlook(zoneA).Groups[0]
			require.Equal(t, []int{2, 2}, []int{len(i.Lost), i.Left})
		})
	})
	t.Run("without zones", func(t *testing.T) {
		withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			g := webGroup(1)
			g.Definition.Subnets = []string{"somewhere"}
			w.setGroups(g)
			require.Equal(t, []string{"somewhere"}, w.r.Admin().PoolOutlook(zoneA).ZoneUnknown)
			require.Empty(t, w.r.Admin().PoolOutlook(reconcile.Pool{Market: nstance.Spot}).ZoneUnknown)
		})
	})
}

func TestZonalShift(t *testing.T) {
	shift := func(d time.Duration) nstance.ZoneShift {
		s := nstance.ZoneShift{Zone: "zone-a", Reason: "autoshift"}
		if d > 0 {
			s.Until = time.Now().Add(d).UTC()
		}
		return s
	}
	t.Run("no machine is made there, members stay", func(t *testing.T) {
		withZones(t, zonedGroup(2), func(t *testing.T, w *world) {
			before := w.ready()
			s := shift(time.Hour)
			w.cloud.SetShiftedZones(s, s, nstance.ZoneShift{Zone: "no name"})
			w.advance(time.Minute)
			all := w.r.Admin().AvoidedPools()
			require.Len(t, all, 1)
			require.Equal(t, reconcile.AvoidedPool{Pool: zoneA, Since: all[0].Since, Until: s.Until, Reason: "autoshift", Cloud: true}, all[0])
			w.setGroups(zonedGroup(4))
			w.advance(2 * time.Minute)
			w.requireMembers(4)
			require.Equal(t, 2, w.inZone("zone-b"))
			require.Equal(t, before, w.ready()[:2])

			_, err := w.r.Admin().ReleasePool(t.Context(), zoneA, requester, false)
			require.ErrorIs(t, err, nstance.Conflict)
			w.avoid(zoneA, time.Hour, false)
			w.release(zoneA)
			require.Len(t, w.r.Admin().AvoidedPools(), 1, "that of the cloud stays")

			w.cloud.SetShiftedZones()
			w.advance(time.Minute)
			require.Empty(t, w.r.Admin().AvoidedPools())
			events := w.holdEvents(nstance.GroupKey{}, plan.HoldAvoided)
			require.Len(t, events, 4)
			require.Contains(t, events[0].Reason, "no machine is made in zone=zone-a: autoshift; the cloud ends it, until ")
			require.Contains(t, events[3].Reason, "the cloud has ended it")
			require.Empty(t, w.object("state/s1.json")["avoided"])
		})
	})
	t.Run("the next leader reads it before it plans", func(t *testing.T) {
		withZones(t, zonedGroup(2), func(t *testing.T, w *world) {
			w.cloud.SetShiftedZones(shift(0))
			w.changeLeader(zonedGroup(3))
			w.requireMembers(3)
			require.Equal(t, 1, w.inZone("zone-b"))
		})
	})
	t.Run("unreadable: it stands until its own end", func(t *testing.T) {
		withZones(t, zonedGroup(1), func(t *testing.T, w *world) {
			w.cloud.SetShiftedZones(shift(time.Hour))
			w.advance(time.Minute)
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpShiftedZones, Times: -1, Code: nstance.Denied})
			w.cloud.SetShiftedZones()
			w.advance(50 * time.Minute)
			require.Len(t, w.r.Admin().AvoidedPools(), 1)
			w.advance(10 * time.Minute)
			require.Empty(t, w.r.Admin().AvoidedPools())
			w.advance(time.Minute)
			w.requireOneHold(nstance.GroupKey{}, plan.HoldAvoided, "no machine is made in zone=zone-a")
			w.setGroups(zonedGroup(2))
			w.advance(2 * time.Minute)
			require.Equal(t, 2, w.inZone("zone-a"))
		})
	})
	t.Run("unreadable, without an end: for a quarter of an hour", func(t *testing.T) {
		withZones(t, zonedGroup(1), func(t *testing.T, w *world) {
			w.cloud.SetShiftedZones(shift(0))
			w.advance(time.Hour)
			require.Len(t, w.r.Admin().AvoidedPools(), 1, "while it is read it stands")
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpShiftedZones, Times: -1, Code: nstance.Denied})
			w.advance(13 * time.Minute)
			require.Len(t, w.r.Admin().AvoidedPools(), 1)
			w.advance(4 * time.Minute)
			require.Empty(t, w.r.Admin().AvoidedPools())
		})
	})
}

// TestAvoidUnknownZone: what the avoidance of a zone does not reach is listed, and members are
// not drained where their replacements could be in the same zone.
func TestAvoidUnknownZone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.startLeader(webGroup(2))
		w.advance(2 * time.Minute)
		p := reconcile.AvoidedPool{Pool: reconcile.Pool{Zone: "sim-a"}, Until: time.Now().Add(time.Hour), Drain: true}
		known := webGroup(1)
		known.Key.Group, known.Definition.Subnets = "zoned", []string{"s-a"}
		w.setGroups(webGroup(2), known)
		w.advance(2 * time.Minute)
		before := w.ready()
		_, _, err := w.r.Admin().AvoidPool(w.ctx, p, false)
		require.NoError(t, err)
		require.Equal(t, []string{"any of group default/web"}, w.r.Admin().PoolOutlook(p.Pool).ZoneUnknown)
		w.advance(10 * time.Minute)
		require.Equal(t, before, w.ready(), "they would come back to the zone")
	})
}
