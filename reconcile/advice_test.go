package reconcile_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// advise sends a notice that dooms nothing, and waits until it is acknowledged.
func (w *world) advise(id nstance.InstanceID, n nstance.Notice) {
	w.t.Helper()
	n.DetectedAt = time.Now()
	acked := false
	r, _ := w.leader()
	r.Observe(nstance.Noticed{ID: id, Notice: n, Ack: func() { acked = true }})
	w.advance(time.Second)
	require.True(w.t, acked)
}

func rebalance(event string) nstance.Notice {
	return nstance.Notice{Kind: nstance.Rebalance, Source: "aws/rebalance", EventID: event}
}

func retirement(notBefore time.Time) nstance.Notice {
	return nstance.Notice{Kind: nstance.Maintenance, Action: "instance-retirement", Source: "aws/maintenance", EventID: "m", NotBefore: notBefore}
}

// lastCause returns the first cause of the latest drain.
func (w *world) lastCause() (c nstance.Cause) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Type == nstance.EventDrainStarted {
			c = e.Drain.Causes[0]
		}
	}
	return c
}

func TestRebalance(t *testing.T) {
	t.Run("ignored unless the group says otherwise", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			before := w.ready()
			w.advise(before[0], rebalance("a"))
			w.advance(time.Hour)
			require.Equal(t, before, w.ready())
		})
	})
	t.Run("all at once: replaced one at a time, the replacement first", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			g := webGroup(3)
			g.OnRebalance = nstance.NoticeReplace
			w.setGroups(g)
			before := w.ready()
			for _, id := range before {
				w.advise(id, rebalance("r-"+string(id)))
			}
			for range 60 {
				w.advance(10 * time.Second)
				require.GreaterOrEqual(t, len(w.ready()), 3, "never fewer for it")
				require.LessOrEqual(t, len(w.cloud.Machines()), 5)
			}
			for _, id := range before {
				require.NotContains(t, w.ready(), id)
			}
			w.requireMembers(3)
			require.Equal(t, nstance.Cause{Kind: nstance.CauseRollout, Message: "aws/rebalance (on_rebalance)"}, w.lastCause())
		})
	})
	t.Run("paused, and withdrawn: it stays", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			g := webGroup(3)
			g.OnRebalance = nstance.NoticeReplace
			w.setGroups(g)
			require.NoError(t, w.r.Admin().Pause(t.Context(), web, ""))
			before := w.ready()
			n := rebalance("a")
			w.advise(before[0], n)
			w.advance(time.Hour)
			require.Equal(t, before, w.ready())
			n.Cancelled = true
			w.advise(before[0], n)
			require.NoError(t, w.r.Admin().Resume(t.Context(), web, ""))
			w.advance(time.Hour)
			require.Equal(t, before, w.ready())
		})
	})
	t.Run("known to the next leader", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			before := w.ready()
			acks := w.announce(before[0], rebalance("a"))
			w.advance(time.Second)
			require.EqualValues(t, 1, acks.Load(), "an acknowledged notice is not repeated")
			g := webGroup(3)
			g.OnRebalance = nstance.NoticeReplace
			w.changeLeader(g)
			w.advance(10 * time.Minute)
			require.NotContains(t, w.ready(), before[0])
			w.requireMembers(3)
		})
	})
	t.Run("beside a drain: written with it", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.withholdDrainAcks()
			id := w.ready()[0]
			reclaim, _ := bySources(20*time.Minute, 0)
			advised, doomed := w.announce(id, rebalance("a")), w.announce(id, reclaim)
			w.advance(time.Second)
			require.Equal(t, []int32{1, 1}, []int32{advised.Load(), doomed.Load()})
			require.Len(t, w.freshRecord(id).Advice, 1)
			later := w.announce(id, rebalance("c"))
			w.advance(time.Second)
			require.EqualValues(t, 1, later.Load(), "nothing follows for a machine that leaves")
		})
	})
	t.Run("again and again: planned maintenance counts", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			before := w.ready()
			for i := range 40 {
				w.advise(before[0], rebalance(strconv.Itoa(i)))
			}
			w.advise(before[0], retirement(time.Now().Add(2*time.Hour)))
			w.advance(10 * time.Minute)
			require.NotContains(t, w.ready(), before[0])
			w.requireMembers(3)
		})
	})
}

func TestPlannedMaintenance(t *testing.T) {
	t.Run("replaced from a day before", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			before := w.ready()
			w.advise(before[0], retirement(time.Now().Add(72*time.Hour)))
			w.advance(47 * time.Hour)
			require.Equal(t, before, w.ready())
			w.advance(2 * time.Hour)
			require.NotContains(t, w.ready(), before[0])
			require.Equal(t, "aws/maintenance (on_maintenance)", w.lastCause().Message)
			w.requireMembers(3)
		})
	})
	for name, c := range map[string]struct {
		n      nstance.Notice
		policy nstance.NoticeAction
	}{
		"ignored if the group says so":        {retirement(time.Time{}), nstance.NoticeIgnore},
		"a live migration is none of it":      {nstance.Notice{Kind: nstance.Maintenance, Action: "MIGRATE_ON_HOST_MAINTENANCE", Source: "gcp/maintenance", EventID: "m"}, ""},
		"nor is a freeze":                     {nstance.Notice{Kind: nstance.Maintenance, Action: "Freeze", Source: "azure/events", EventID: "m"}, ""},
		"nor is a kind that it does not know": {nstance.Notice{Kind: "hibernate", Source: "new/cloud", EventID: "m"}, nstance.NoticeReplace},
	} {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				g := webGroup(3)
				g.OnMaintenance, g.OnRebalance = c.policy, c.policy
				w.setGroups(g)
				before := w.ready()
				w.advise(before[0], c.n)
				w.advance(time.Hour)
				require.Equal(t, before, w.ready())
			})
		})
	}
}

// TestRebalanceOfTheOnlyPool: where no other pool is permitted, recommendations have each
// member replaced once while they matter, and not its replacements.
func TestRebalanceOfTheOnlyPool(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		g := webGroup(3)
		g.OnRebalance = nstance.NoticeReplace
		w.setGroups(g)
		first := w.ready()
		created := w.count(nstance.EventCreated, "")
		for round := range 9 {
			for _, id := range w.ready() {
				w.advise(id, rebalance(strconv.Itoa(round)+string(id)))
			}
			w.advance(time.Minute)
		}
		for _, id := range first {
			require.NotContains(t, w.ready(), id, "the first time it is worth a try")
		}
		require.Equal(t, created+3, w.count(nstance.EventCreated, ""), "the replacements stay")
		stay := w.ready()
		e := w.first(nstance.EventNoticeIgnored, func(e nstance.Event) bool { return e.Instance == stay[0] })
		require.Contains(t, e.Reason, "no other pool")
		w.advance(7 * time.Hour)
		require.Equal(t, created+6, w.count(nstance.EventCreated, ""), "what stands is heeded when the pool's memory has ended")
	})
}

// TestRebalanceLeavesPool: a machine that is replaced for a recommendation is not replaced by
// one in the pool that the recommendation is about.
func TestRebalanceLeavesPool(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		g := webGroup(3)
		g.OnRebalance, g.Definition.InstanceTypes = nstance.NoticeReplace, []string{"small", "medium"}
		w.startLeader(g)
		w.advance(2 * time.Minute)
		require.Equal(t, map[string]int{"small": 3}, w.types())
		for _, id := range w.ready() {
			w.advise(id, rebalance("r-"+string(id)))
		}
		w.advance(10 * time.Minute)
		require.Equal(t, map[string]int{"medium": 3}, w.types())
	})
}
