package reconcile_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// of is a group of a tenant.
func of(tenant nstance.TenantID, name nstance.GroupID, size int) nstance.Group {
	g := wanted(size)
	g.Key = nstance.GroupKey{Tenant: tenant, Group: name}
	g.Definition.LaunchTimeout, g.Definition.RegistrationTimeout = 0, 0
	return g
}

// paced runs test in a shard with a create budget of one a second and the given
// burst.
func paced(t *testing.T, burst int, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.allow(burst)
		test(t, w)
	})
}

// allow has the next leaders create one machine a second, and burst at once.
func (w *world) allow(burst int) {
	w.wrap = func(o *office) {
		o.options = func(opts *reconcile.Options) { opts.Provider = &provider.Options{Rate: 1, Burst: burst} }
	}
}

// full brings groups to their size, then has somebody lead whose budget has no
// burst.
func (w *world) full(groups ...nstance.Group) {
	w.t.Helper()
	w.lead(groups...)
	w.passes(2 * time.Minute)
	w.depose()
	w.allow(1)
	w.lead(groups...)
	w.passes(time.Minute)
	size := 0
	for _, g := range groups {
		size += g.Size
	}
	require.Len(w.t, w.ready(), size)
}

// wants changes what is desired.
func (w *world) wants(groups ...nstance.Group) {
	w.t.Helper()
	r, _ := w.leader()
	require.NoError(w.t, r.Desire(groups))
}

// made counts the creates that were begun for a group, of one reason unless that
// is empty.
func (w *world) made(key nstance.GroupKey, reason plan.Reason) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		begun := e.Type == nstance.EventCreateRequested || e.Type == nstance.EventReplacementRequested
		if begun && e.Tenant == key.Tenant && e.Group == key.Group && (reason == "" || e.Reason == string(reason)) {
			n++
		}
	}
	return n
}

// waitsFor returns the hold of a group for the create budget.
func (w *world) waitsFor(key nstance.GroupKey) reconcile.HoldView {
	w.t.Helper()
	r, _ := w.leader()
	g, err := r.Group(key)
	require.NoError(w.t, err)
	i := slices.IndexFunc(g.Holds, func(h reconcile.HoldView) bool { return h.Kind == plan.HoldBudget })
	require.GreaterOrEqual(w.t, i, 0, "group %s waits for nothing: %+v", key, g.Holds)
	return g.Holds[i]
}

func TestReplacementsGoFirst(t *testing.T) {
	big, small := of("a", "big", 400), of("b", "web", 6)
	paced(t, 6, func(t *testing.T, w *world) {
		w.lead(small)
		w.passes(time.Minute)
		require.Len(t, w.ready(), 6)
		victims := w.ready()[:4]
		w.wants(big)
		w.passes(10 * time.Second)
		began := w.made(big.Key, "")
		require.Less(t, began, 20)

		small.Size = 8 // two more, which are no replacements
		w.wants(small)
		for _, id := range victims {
			require.NoError(t, w.cloud.Reclaim(id, 30*time.Second))
		}
		w.passes(1100 * time.Millisecond)
		require.Equal(t, 1, w.made(small.Key, plan.ReasonReplace), "the next one is a replacement")
		require.Contains(t, w.waitsFor(big.Key).Reason, "replacements of lost instances go first")
		w.passes(3 * time.Second)
		require.Equal(t, 4, w.made(small.Key, plan.ReasonReplace), "and so are the others, long after they were lost")
		require.Equal(t, began, w.made(big.Key, ""))
		named := w.first(nstance.EventReplacementRequested, func(e nstance.Event) bool { return e.Replaces != "" })
		require.Contains(t, victims, named.Replaces)
		w.passes(4 * time.Second)
		require.Equal(t, 2, w.made(small.Key, "")-6-4, "what is more than that takes turns")
		require.Equal(t, began+2, w.made(big.Key, ""))
	})
}

// TestReplacementsTakeTurns: a tenant that has lost hundreds does not hold up
// one that has lost two.
func TestReplacementsTakeTurns(t *testing.T) {
	big, small := of("a", "big", 300), of("b", "web", 2)
	paced(t, 302, func(t *testing.T, w *world) {
		w.full(big, small)
		var lost []nstance.InstanceID
		r, _ := w.leader()
		for _, v := range r.Instances() {
			switch v.Record.Tenant {
			case "a":
				require.NoError(t, w.cloud.Reclaim(v.Record.ID, 10*time.Minute))
			case "b":
				lost = append(lost, v.Record.ID)
			}
		}
		w.passes(time.Second)
		before := w.made(big.Key, plan.ReasonReplace)
		for _, id := range lost {
			require.NoError(t, w.cloud.Reclaim(id, 10*time.Minute))
		}
		w.passes(5 * time.Second)
		require.Equal(t, 2, w.made(small.Key, plan.ReasonReplace))
		require.InDelta(t, before+3, w.made(big.Key, plan.ReasonReplace), 1)
		require.Contains(t, w.waitsFor(big.Key).Reason, "used up")
	})
}

func TestTenantsTakeTurns(t *testing.T) {
	big, small, next := of("a", "big", 300), of("b", "web", 3), of("b", "next", 3)
	paced(t, 1, func(t *testing.T, w *world) {
		w.lead(big)
		w.passes(10 * time.Second)
		w.wants(small)
		w.passes(time.Millisecond)
		h := w.waitsFor(small.Key)
		require.WithinDuration(t, time.Now(), h.Until, time.Second, "it says when there is another one")
		w.passes(6500 * time.Millisecond)
		require.Equal(t, 3, w.made(small.Key, ""))

		w.wants(small, next)
		small.Size += 20
		w.wants(small)
		had, hadNext := w.made(big.Key, ""), w.made(next.Key, "")
		w.passes(time.Millisecond)
		require.Contains(t, w.waitsFor(small.Key).Reason, "tenants take turns")
		w.passes(12 * time.Second)
		require.Equal(t, 3, w.made(next.Key, "")-hadNext, "within a tenant, groups do")
		require.Equal(t, 6, w.made(big.Key, "")-had, "which earns it no more than its turns")
	})
	t.Run("whatever else happens", func(t *testing.T) {
		paced(t, 30, func(t *testing.T, w *world) {
			w.lead(big)
			w.passes(40 * time.Second)
			began := w.made(big.Key, "")
			w.wants(small)
			for range 700 { // each event has it planned
				w.wants(big)
				w.passes(10 * time.Millisecond)
			}
			require.Equal(t, 3, w.made(small.Key, ""))
			require.InDelta(t, began+4, w.made(big.Key, ""), 1)
		})
	})
}

func TestOnDemandTakesTurns(t *testing.T) {
	for _, tenant := range []nstance.TenantID{"b", "a"} {
		t.Run(string(tenant), func(t *testing.T) {
			big, mine := of("a", "big", 400), of(tenant, "mine", 0)
			if tenant == "a" {
				mine.Key = big.Key // not even behind its own group's size
			}
			paced(t, 1, func(t *testing.T, w *world) {
				w.lead(big, mine)
				if tenant == "a" {
					w.wants(big)
				}
				w.passes(10 * time.Second)
				var ids []nstance.InstanceID
				for range 3 {
					req := onDemand(w.newID())
					req.Group = mine.Key
					_, err := w.order(req)
					require.NoError(t, err)
					ids = append(ids, req.ID)
				}
				require.Contains(t, w.waitsFor(mine.Key).Reason, "the create budget is used up")
				w.passes(7 * time.Second)
				for _, id := range ids {
					require.Equal(t, 1, w.count(nstance.EventCreateRequested, id))
				}
				require.InDelta(t, 10+4, w.made(big.Key, plan.ReasonSize), 1)
			})
		})
	}
}

// TestWhoWaitsNoMoreHoldsUpNobody: the order is between those who still want
// something.
func TestWhoWaitsNoMoreHoldsUpNobody(t *testing.T) {
	for name, end := range map[string]func(w *world, big nstance.Group){
		"smaller": func(w *world, big nstance.Group) { big.Size = 1; w.wants(big) },
		"removed": func(w *world, big nstance.Group) { big.Removing = true; w.wants(big) },
		"frozen": func(w *world, big nstance.Group) {
			require.NoError(w.t, w.r.Freeze(w.ctx, big.Key, ""))
		},
		"sold out": func(w *world, _ nstance.Group) {
			w.cloud.SetCapacity(simcloud.Pool{InstanceType: "large"}, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			big, small := of("a", "big", 400), of("b", "web", 5)
			big.Definition.InstanceTypes = []string{"large"}
			paced(t, 1, func(t *testing.T, w *world) {
				w.lead(big)
				w.passes(10 * time.Second)
				w.wants(small)
				w.passes(time.Millisecond)
				end(w, big)
				w.passes(7500 * time.Millisecond)
				require.Equal(t, 5, w.made(small.Key, ""), "one a second, but for what was under way")
			})
		})
	}
	t.Run("replacements that are not wanted any more", func(t *testing.T) {
		big, small, calls := of("a", "big", 60), of("b", "web", 5), of("c", "calls", 0)
		paced(t, 60, func(t *testing.T, w *world) {
			w.full(big)
			for _, id := range w.ready() {
				require.NoError(t, w.cloud.Reclaim(id, 10*time.Minute))
			}
			w.passes(time.Second)
			w.wants(small, calls)
			w.passes(5 * time.Second)
			req := onDemand(w.newID())
			req.Group = calls.Key
			_, err := w.order(req)
			require.NoError(t, err)
			w.passes(time.Second)
			require.Zero(t, w.made(small.Key, ""))
			require.Contains(t, w.waitsFor(small.Key).Reason, "replacements")
			big.Size = 1
			w.wants(big)
			w.passes(2500 * time.Millisecond)
			require.Equal(t, 1, w.count(nstance.EventCreateRequested, req.ID), "at once")
			w.passes(4 * time.Second)
			require.Equal(t, 5, w.made(small.Key, ""))
		})
	})
}

// TestFailedReplacementsAreNoLosses: what does not work does not go first again
// and again, nor does waiting for the budget help it out of its backoff.
func TestFailedReplacementsAreNoLosses(t *testing.T) {
	bad, big := of("a", "web", 3), of("b", "big", 400)
	bad.Definition.RegistrationTimeout = time.Minute
	paced(t, 3, func(t *testing.T, w *world) {
		w.full(bad)
		w.wants(big)
		w.badImage = func(s nstance.MachineSpec) bool { return s.Owner.Tenant == "a" }
		for _, id := range w.ready() {
			require.NoError(t, w.cloud.Reclaim(id, 30*time.Second))
		}
		w.passes(10 * time.Second)
		require.Equal(t, 3, w.made(bad.Key, plan.ReasonReplace))
		w.passes(5 * time.Minute)
		require.Equal(t, 3, w.made(bad.Key, plan.ReasonReplace))
		require.Greater(t, w.made(bad.Key, ""), 6, "they are tried again")
	})
}

// TestOwedLossesFindEverythingSoldOut: replacements that waited for the create
// budget do not ask a cloud in vain all at once, again and again.
func TestOwedLossesFindEverythingSoldOut(t *testing.T) {
	web := of("a", "web", 100)
	paced(t, 100, func(t *testing.T, w *world) {
		w.lead(web)
		w.passes(4 * time.Minute)
		other := of("b", "other", 80)
		other.Definition.InstanceTypes = []string{"large"}
		w.wants(other)
		w.passes(time.Second)
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, 0)
		for _, m := range w.cloud.Machines() {
			if m.Owner.Tenant == "a" {
				require.NoError(t, w.cloud.Reclaim(m.ID, 2*time.Minute))
			}
		}
		w.passes(time.Second)
		require.InDelta(t, 20, w.made(web.Key, plan.ReasonReplace), 5, "that is what the budget had")
		require.LessOrEqual(t, w.callsAMinute(10), 6)
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, 5)
		require.LessOrEqual(t, w.callsAMinute(3), 5+6+6, "five are had, and a few more are under way by then")
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, -1)
		w.passes(6 * time.Minute)
		require.Len(t, w.ready(), 180)
	})
}

// TestSoldOutKeepsItsAttempt: who waits for the create budget when an attempt at
// shapes that are sold out is due, makes it when it is its turn.
func TestSoldOutKeepsItsAttempt(t *testing.T) {
	big, small := of("a", "big", 1000), of("b", "web", 1)
	small.Definition.InstanceTypes = []string{"large"}
	paced(t, 1, func(t *testing.T, w *world) {
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "large"}, 0)
		w.lead(big, small)
		w.passes(5 * time.Minute)
		require.Zero(t, w.made(small.Key, "")-w.count(nstance.EventCreateFailed, ""))
		require.Equal(t, 4, w.made(small.Key, ""), "few a minute")
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "large"}, -1)
		w.passes(4 * time.Minute)
		require.Equal(t, 1, w.shapes()["large/spot"])
	})
}

// TestNothingWaitsWhileThereIsEnough: an order is for what cannot be served at
// once.
func TestNothingWaitsWhileThereIsEnough(t *testing.T) {
	a, b, c := of("a", "big", 60), of("b", "web", 20), of("c", "web", 20)
	paced(t, 100, func(t *testing.T, w *world) {
		w.lead(a, b, c)
		w.passes(time.Second)
		for _, g := range []nstance.Group{a, b, c} {
			require.Equal(t, g.Size, w.made(g.Key, ""))
			v, err := w.r.Group(g.Key)
			require.NoError(t, err)
			require.Empty(t, v.Holds)
		}

		a.Size += 100 // more than there is
		w.wants(a)
		w.passes(50 * time.Second)
		require.Equal(t, 110, w.made(a.Key, ""))
		w.passes(150 * time.Second)
		require.Equal(t, 160, w.made(a.Key, ""))
		b.Size, c.Size = 40, 40 // and now there is again
		w.wants(b, c)
		w.passes(time.Second)
		require.Equal(t, 40, w.made(b.Key, ""))
		require.Equal(t, 40, w.made(c.Key, ""))
		for _, g := range w.r.Groups() {
			require.Empty(t, g.Holds)
		}
	})
}
