package reconcile_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// groupOf is a group of a tenant.
func groupOf(tenant nstance.TenantID, name nstance.GroupID, size int) nstance.Group {
	g := webGroup(size)
	g.Key = nstance.GroupKey{Tenant: tenant, Group: name}
	g.Definition.LaunchTimeout, g.Definition.RegistrationTimeout = 0, 0
	return g
}

// withCreateBudget runs a test in a shard with a create budget of one a second and the given burst.
func withCreateBudget(t *testing.T, burst int, test func(t *testing.T, w *world)) {
	t.Helper()
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.setCreateBudget(burst)
		test(t, w)
	})
}

// setCreateBudget sets the create budget of the next leaders to one a second with the given burst.
func (w *world) setCreateBudget(burst int) {
	w.wrap = func(o *leaderEnv) {
		o.options = func(opts *reconcile.Options) { opts.Provider = &provider.Options{Rate: 1, Burst: burst} }
	}
}

// fillGroups fills groups, then starts a leader whose budget has no burst.
func (w *world) fillGroups(groups ...nstance.Group) {
	w.t.Helper()
	w.startLeader(groups...)
	w.advance(2 * time.Minute)
	w.stopLeader()
	w.setCreateBudget(1)
	w.startLeader(groups...)
	w.advance(time.Minute)
	size := 0
	for _, g := range groups {
		size += g.Size
	}
	require.Len(w.t, w.ready(), size)
}

// setAllGroups sets the desired groups.
func (w *world) setAllGroups(groups ...nstance.Group) {
	w.t.Helper()
	r, _ := w.leader()
	require.NoError(w.t, r.Desire(groups))
}

// createsBegun counts the creates begun for a group, of one reason unless that is empty.
func (w *world) createsBegun(key nstance.GroupKey, reason plan.Reason) (n int) {
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

// budgetHold returns a group's hold for the create budget.
func (w *world) budgetHold(key nstance.GroupKey) reconcile.HoldView {
	w.t.Helper()
	r, _ := w.leader()
	g, err := r.Group(key)
	require.NoError(w.t, err)
	i := slices.IndexFunc(g.Holds, func(h reconcile.HoldView) bool { return h.Kind == plan.HoldBudget })
	require.GreaterOrEqual(w.t, i, 0, "group %s waits for nothing: %+v", key, g.Holds)
	return g.Holds[i]
}

func TestReplacementsGoFirst(t *testing.T) {
	big, small := groupOf("a", "big", 400), groupOf("b", "web", 6)
	withCreateBudget(t, 6, func(t *testing.T, w *world) {
		w.startLeader(small)
		w.advance(time.Minute)
		require.Len(t, w.ready(), 6)
		victims := w.ready()[:4]
		w.setAllGroups(big)
		w.advance(10 * time.Second)
		began := w.createsBegun(big.Key, "")
		require.Less(t, began, 20)

		small.Size = 8 // growth, not replacements
		w.setAllGroups(small)
		for _, id := range victims {
			require.NoError(t, w.cloud.Reclaim(id, 30*time.Second))
		}
		w.advance(1100 * time.Millisecond)
		require.Equal(t, 1, w.createsBegun(small.Key, plan.ReasonReplace), "the next create is a replacement")
		require.Contains(t, w.budgetHold(big.Key).Reason, "replacements of lost instances go first")
		w.advance(3 * time.Second)
		require.Equal(t, 4, w.createsBegun(small.Key, plan.ReasonReplace), "so are the others, long after the loss")
		require.Equal(t, began, w.createsBegun(big.Key, ""))
		named := w.first(nstance.EventReplacementRequested, func(e nstance.Event) bool { return e.Replaces != "" })
		require.Contains(t, victims, named.Replaces)
		w.advance(4 * time.Second)
		require.Equal(t, 2, w.createsBegun(small.Key, "")-6-4, "growth alternates between tenants")
		require.Equal(t, began+2, w.createsBegun(big.Key, ""))
	})
}

// TestReplacementsAlternateBetweenTenants: a tenant with hundreds of losses does not
// delay one with two.
func TestReplacementsAlternateBetweenTenants(t *testing.T) {
	big, small := groupOf("a", "big", 300), groupOf("b", "web", 2)
	withCreateBudget(t, 302, func(t *testing.T, w *world) {
		w.fillGroups(big, small)
		var lost []nstance.InstanceID
		r, _ := w.leader()
		for _, v := range r.Instances() {
			switch v.Group.Tenant {
			case "a":
				require.NoError(t, w.cloud.Reclaim(v.ID, 10*time.Minute))
			case "b":
				lost = append(lost, v.ID)
			}
		}
		w.advance(time.Second)
		before := w.createsBegun(big.Key, plan.ReasonReplace)
		for _, id := range lost {
			require.NoError(t, w.cloud.Reclaim(id, 10*time.Minute))
		}
		w.advance(5 * time.Second)
		require.Equal(t, 2, w.createsBegun(small.Key, plan.ReasonReplace))
		require.InDelta(t, before+3, w.createsBegun(big.Key, plan.ReasonReplace), 1)
		require.Contains(t, w.budgetHold(big.Key).Reason, "used up")
	})
}

func TestTenantsAlternate(t *testing.T) {
	big, small, next := groupOf("a", "big", 300), groupOf("b", "web", 3), groupOf("b", "next", 3)
	withCreateBudget(t, 1, func(t *testing.T, w *world) {
		w.startLeader(big)
		w.advance(10 * time.Second)
		w.setAllGroups(small)
		w.advance(time.Millisecond)
		h := w.budgetHold(small.Key)
		require.WithinDuration(t, time.Now(), h.Until, time.Second, "the hold names the next grant")
		w.advance(6500 * time.Millisecond)
		require.Equal(t, 3, w.createsBegun(small.Key, ""))

		w.setAllGroups(small, next)
		small.Size += 20
		w.setAllGroups(small)
		had, hadNext := w.createsBegun(big.Key, ""), w.createsBegun(next.Key, "")
		w.advance(time.Millisecond)
		require.Contains(t, w.budgetHold(small.Key).Reason, "tenants take turns")
		w.advance(12 * time.Second)
		require.Equal(t, 3, w.createsBegun(next.Key, "")-hadNext, "groups of a tenant alternate")
		require.Equal(t, 6, w.createsBegun(big.Key, "")-had, "a tenant gets only its share")
	})
	t.Run("with many events", func(t *testing.T) {
		withCreateBudget(t, 30, func(t *testing.T, w *world) {
			w.startLeader(big)
			w.advance(40 * time.Second)
			began := w.createsBegun(big.Key, "")
			w.setAllGroups(small)
			for range 700 { // each event plans it
				w.setAllGroups(big)
				w.advance(10 * time.Millisecond)
			}
			require.Equal(t, 3, w.createsBegun(small.Key, ""))
			require.InDelta(t, began+4, w.createsBegun(big.Key, ""), 1)
		})
	})
}

func TestOnDemandSharesTenantTurns(t *testing.T) {
	for _, tenant := range []nstance.TenantID{"b", "a"} {
		t.Run(string(tenant), func(t *testing.T) {
			big, mine := groupOf("a", "big", 400), groupOf(tenant, "mine", 0)
			if tenant == "a" {
				mine.Key = big.Key // not behind its own group's growth
			}
			withCreateBudget(t, 1, func(t *testing.T, w *world) {
				if tenant == "a" {
					w.startLeader(mine)
					w.setAllGroups(big)
				} else {
					w.startLeader(big, mine)
				}
				w.advance(10 * time.Second)
				var ids []nstance.InstanceID
				for range 3 {
					req := onDemand(w.newID())
					req.Group = mine.Key
					_, err := w.requestOnDemand(req)
					require.NoError(t, err)
					ids = append(ids, req.ID)
				}
				require.Contains(t, w.budgetHold(mine.Key).Reason, "the create budget is used up")
				w.advance(7 * time.Second)
				for _, id := range ids {
					require.Equal(t, 1, w.count(nstance.EventCreateRequested, id))
				}
				require.InDelta(t, 10+4, w.createsBegun(big.Key, plan.ReasonSize), 1)
			})
		})
	}
}

// TestCancelledCreatesDelayNothing: only pending creates take turns.
func TestCancelledCreatesDelayNothing(t *testing.T) {
	for name, end := range map[string]func(w *world, big nstance.Group){
		"smaller": func(w *world, big nstance.Group) { big.Size = 1; w.setAllGroups(big) },
		"removed": func(w *world, big nstance.Group) { big.Removing = true; w.setAllGroups(big) },
		"frozen": func(w *world, big nstance.Group) {
			require.NoError(w.t, w.r.Admin().Freeze(w.ctx, big.Key, ""))
		},
		"sold out": func(w *world, _ nstance.Group) {
			w.cloud.SetCapacity(simcloud.Pool{InstanceType: "large"}, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			big, small := groupOf("a", "big", 400), groupOf("b", "web", 5)
			big.Definition.InstanceTypes = []string{"large"}
			withCreateBudget(t, 1, func(t *testing.T, w *world) {
				w.startLeader(big)
				w.advance(10 * time.Second)
				w.setAllGroups(small)
				w.advance(time.Millisecond)
				end(w, big)
				w.advance(7500 * time.Millisecond)
				require.Equal(t, 5, w.createsBegun(small.Key, ""), "one a second, except creates in flight")
			})
		})
	}
	t.Run("replacements that are no longer desired", func(t *testing.T) {
		big, small, calls := groupOf("a", "big", 60), groupOf("b", "web", 5), groupOf("c", "calls", 0)
		withCreateBudget(t, 60, func(t *testing.T, w *world) {
			w.fillGroups(big)
			for _, id := range w.ready() {
				require.NoError(t, w.cloud.Reclaim(id, 10*time.Minute))
			}
			w.advance(time.Second)
			w.setAllGroups(small, calls)
			w.advance(5 * time.Second)
			req := onDemand(w.newID())
			req.Group = calls.Key
			_, err := w.requestOnDemand(req)
			require.NoError(t, err)
			w.advance(time.Second)
			require.Zero(t, w.createsBegun(small.Key, ""))
			require.Contains(t, w.budgetHold(small.Key).Reason, "replacements")
			big.Size = 1
			w.setAllGroups(big)
			w.advance(2500 * time.Millisecond)
			require.Equal(t, 1, w.count(nstance.EventCreateRequested, req.ID), "at once")
			w.advance(4 * time.Second)
			require.Equal(t, 5, w.createsBegun(small.Key, ""))
		})
	})
}

// TestFailedReplacementsAreNotLosses: a replacement that failed has no priority, and
// waiting for the budget does not end its backoff.
func TestFailedReplacementsAreNotLosses(t *testing.T) {
	bad, big := groupOf("a", "web", 3), groupOf("b", "big", 400)
	bad.Definition.RegistrationTimeout = time.Minute
	withCreateBudget(t, 3, func(t *testing.T, w *world) {
		w.fillGroups(bad)
		w.setAllGroups(big)
		w.badImage = func(s nstance.MachineSpec) bool { return s.Owner.Tenant == "a" }
		for _, id := range w.ready() {
			require.NoError(t, w.cloud.Reclaim(id, 30*time.Second))
		}
		w.advance(10 * time.Second)
		require.Equal(t, 3, w.createsBegun(bad.Key, plan.ReasonReplace))
		w.advance(5 * time.Minute)
		require.Equal(t, 3, w.createsBegun(bad.Key, plan.ReasonReplace))
		require.Greater(t, w.createsBegun(bad.Key, ""), 6, "they are repeated")
	})
}

// TestDelayedLossesFindSoldOut: replacements that waited for the create budget respect
// the capacity cache.
func TestDelayedLossesFindSoldOut(t *testing.T) {
	web := groupOf("a", "web", 100)
	withCreateBudget(t, 100, func(t *testing.T, w *world) {
		w.startLeader(web)
		w.advance(4 * time.Minute)
		other := groupOf("b", "other", 80)
		other.Definition.InstanceTypes = []string{"large"}
		w.setAllGroups(other)
		w.advance(time.Second)
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, 0)
		for _, m := range w.cloud.Machines() {
			if m.Owner.Tenant == "a" {
				require.NoError(t, w.cloud.Reclaim(m.ID, 2*time.Minute))
			}
		}
		w.advance(time.Second)
		require.InDelta(t, 20, w.createsBegun(web.Key, plan.ReasonReplace), 5, "the budget's share")
		require.LessOrEqual(t, w.maxCreatesPerMinute(10), 6)
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, 5)
		require.LessOrEqual(t, w.maxCreatesPerMinute(3), 5+6+6, "five granted, plus creates in flight")
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, -1)
		w.advance(6 * time.Minute)
		require.Len(t, w.ready(), 180)
	})
}

// TestSoldOutKeepsItsAttempt: an attempt at sold-out shapes that waits for the create
// budget is made when its turn comes.
func TestSoldOutKeepsItsAttempt(t *testing.T) {
	big, small := groupOf("a", "big", 1000), groupOf("b", "web", 1)
	small.Definition.InstanceTypes = []string{"large"}
	withCreateBudget(t, 1, func(t *testing.T, w *world) {
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "large"}, 0)
		w.startLeader(big, small)
		w.advance(5 * time.Minute)
		require.Zero(t, w.createsBegun(small.Key, "")-w.count(nstance.EventCreateFailed, ""))
		require.Equal(t, 4, w.createsBegun(small.Key, ""), "few a minute")
		w.cloud.SetCapacity(simcloud.Pool{InstanceType: "large"}, -1)
		w.advance(4 * time.Minute)
		require.Equal(t, 1, w.shapes()["large/spot"])
	})
}

// TestBudgetSufficesWithoutOrder: no create waits while the budget suffices.
func TestBudgetSufficesWithoutOrder(t *testing.T) {
	a, b, c := groupOf("a", "big", 60), groupOf("b", "web", 20), groupOf("c", "web", 20)
	withCreateBudget(t, 100, func(t *testing.T, w *world) {
		w.startLeader(a, b, c)
		w.advance(time.Second)
		for _, g := range []nstance.Group{a, b, c} {
			require.Equal(t, g.Size, w.createsBegun(g.Key, ""))
			v, err := w.r.Group(g.Key)
			require.NoError(t, err)
			require.Empty(t, v.Holds)
		}

		a.Size += 100 // more than the budget
		w.setAllGroups(a)
		w.advance(50 * time.Second)
		require.Equal(t, 110, w.createsBegun(a.Key, ""))
		w.advance(150 * time.Second)
		require.Equal(t, 160, w.createsBegun(a.Key, ""))
		b.Size, c.Size = 40, 40 // within the budget
		w.setAllGroups(b, c)
		w.advance(time.Second)
		require.Equal(t, 40, w.createsBegun(b.Key, ""))
		require.Equal(t, 40, w.createsBegun(c.Key, ""))
		for _, g := range w.r.Groups() {
			require.Empty(t, g.Holds)
		}
	})
}
