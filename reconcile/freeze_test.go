package reconcile_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// mutations counts the provider calls that change something.
func (w *world) mutations() int {
	return w.cloud.Count(simcloud.OpCreate) + w.cloud.Count(simcloud.OpDelete)
}

func TestFreezeStopsChanges(t *testing.T) {
	kinds := map[string]struct{ freeze, thaw func(w *world) error }{
		"of a group": {
			func(w *world) error { return w.r.Admin().Freeze(w.ctx, web, "audit") },
			func(w *world) error { return w.r.Admin().Thaw(w.ctx, web, requester) },
		},
		"of the shard": {
			func(w *world) error { return w.r.Admin().FreezeShard(w.ctx, "audit") },
			func(w *world) error { return w.r.Admin().ThawShard(w.ctx, requester) },
		},
	}
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				at := time.Now().UTC()
				require.NoError(t, k.freeze(w))
				require.NoError(t, k.freeze(w), "again")
				before := w.mutations()
				w.setGroups(groupWithUserData(5, "v2"))
				require.NoError(t, w.cloud.Kill(w.ready()[0]))
				w.advance(30 * time.Minute)
				require.Equal(t, before, w.mutations(), "no create or delete for size, rollout or loss")
				require.Zero(t, w.count(nstance.EventDrainStarted, ""))
				require.True(t, w.group().Frozen)
				h := w.hold(plan.HoldFrozen)
				require.Equal(t, at, h.Since)
				require.Contains(t, h.Reason, "audit")

				w.changeLeader(groupWithUserData(5, "v2"))
				w.advance(30 * time.Minute)
				require.Equal(t, before, w.mutations(), "nor under the next leader")
				require.Equal(t, at, w.hold(plan.HoldFrozen).Since)
				require.Equal(t, 1, w.count(eventtype.Frozen, ""))

				require.NoError(t, k.thaw(w))
				require.NoError(t, k.thaw(w))
				require.Equal(t, 1, w.count(eventtype.Thawed, ""))
				w.advance(time.Hour)
				require.Equal(t, map[string]int{"v2": 5}, w.userDataVersions())
				w.requireMembers(5)
				w.changeLeader(groupWithUserData(5, "v2"))
				require.False(t, w.group().Frozen)
			})
		})
	}
	t.Run("drains in progress continue and end", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.mu.Lock()
			w.slowDrain = true
			w.mu.Unlock()
			gone := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(gone, 2*time.Minute))
			w.advance(time.Second)
			require.Equal(t, 1, w.count(nstance.EventDrainStarted, gone))
			require.NoError(t, w.r.Admin().Freeze(t.Context(), web, ""))
			w.advance(10 * time.Minute)
			require.Equal(t, 1, w.count(nstance.EventDeleted, gone))
		})
	})
	t.Run("freeze of one group does not affect others", func(t *testing.T) {
		withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			other := webGroup(1)
			other.Key.Group = "other"
			require.NoError(t, w.r.Admin().Freeze(t.Context(), web, ""))
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{other, webGroup(2)}})
			w.advance(5 * time.Minute)
			require.Len(t, w.cloud.Machines(), 2)
			require.NoError(t, w.r.Admin().Internals().Thawed(other.Key))
			require.ErrorIs(t, w.r.Admin().Internals().Thawed(web), nstance.Conflict)
			require.ErrorContains(t, w.r.Admin().Internals().Thawed(web), "nstance-admin thaw group web")
			require.NoError(t, w.r.Admin().Internals().Thawed(nstance.GroupKey{}))
		})
	})
	t.Run("requests are refused", func(t *testing.T) {
		withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			require.NoError(t, w.r.Admin().FreezeShard(t.Context(), "audit"))
			_, err := w.r.Drain(t.Context(), w.ready()[0], "")
			require.ErrorIs(t, err, nstance.Conflict)
			require.ErrorContains(t, err, "audit")
			require.ErrorIs(t, w.r.Delete(t.Context(), w.ready()[0], "", true), nstance.Conflict)
			require.ErrorIs(t, w.r.Admin().Internals().Thawed(nstance.GroupKey{}), nstance.Conflict)
			require.Contains(t, attention.Problems(w.r.Admin().Attention())[0], "the shard is frozen")
			w.advance(time.Hour)
			w.requireMembers(2)
		})
	})
	t.Run("machines without a record stay", func(t *testing.T) {
		withSettledLeader(t, 3, func(t *testing.T, w *world) {
			id := w.createOrphan(10*time.Minute, nil)
			require.NoError(t, w.r.Admin().FreezeShard(t.Context(), "audit"))
			w.advance(time.Hour)
			require.True(t, w.exists(id))
			require.Contains(t, w.keepReason(id), "frozen")
			require.ErrorIs(t, w.r.Admin().DeleteOrphan(t.Context(), id, ""), nstance.Conflict)
			err := w.r.Admin().AdoptOrphan(t.Context(), id, requester)
			require.ErrorIs(t, err, nstance.Conflict)
			require.NoError(t, w.r.Admin().ThawShard(t.Context(), requester))
			w.advance(time.Hour)
			require.False(t, w.exists(id))
		})
	})
	t.Run("discarded creates are not failures", func(t *testing.T) {
		withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1})
			w.setGroups(webGroup(4))
			w.advance(time.Minute)
			require.NoError(t, w.r.Admin().Freeze(t.Context(), web, ""))
			w.cloud.ClearFaults()
			before := w.mutations()
			w.advance(2 * time.Hour) // their nonces have expired
			require.Equal(t, before, w.mutations())
			w.changeLeader(webGroup(4))
			require.NoError(t, w.r.Admin().Thaw(t.Context(), web, requester))
			w.advance(time.Second)
			require.Zero(t, w.group().Failures)
			require.Zero(t, w.group().BackoffUntil, "replaced at once")
			w.advance(5 * time.Minute)
			w.requireMembers(4)
		})
	})
}

// TestCreateAnsweredDuringFreeze: a machine whose create was in flight when the freeze
// began registers during it and becomes a member.
func TestCreateAnsweredDuringFreeze(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Lost: true})
		for _, op := range []simcloud.Op{simcloud.OpGet, simcloud.OpList} {
			w.cloud.Inject(simcloud.Fault{Op: op, Times: -1})
		}
		w.setGroups(webGroup(2))
		for len(w.cloud.Machines()) < 2 {
			w.advance(time.Millisecond)
		}
		made := w.cloud.Machines()[1].ID
		require.NoError(t, w.r.Admin().Freeze(t.Context(), web, ""))
		w.advance(time.Minute)
		require.Equal(t, 1, w.count(nstance.EventRegistered, made))
		require.Zero(t, w.count(nstance.EventCreated, made), "the create was not answered")
		w.cloud.ClearFaults()
		require.NoError(t, w.r.Admin().Thaw(t.Context(), web, requester))
		w.advance(10 * time.Minute)
		w.requireMembers(2)
		require.Contains(t, w.ready(), made)
	})
}

// TestOnDemandBeforeFreeze: an accepted instance on demand is created after the thaw, or
// its caller is told that it was given up.
func TestOnDemandBeforeFreeze(t *testing.T) {
	for name, c := range map[string]struct {
		frozen time.Duration
		made   bool
	}{"short freeze": {5 * time.Minute, true}, "freeze longer than the nonce": {time.Hour, false}} {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
				w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1})
				id := w.newID()
				_, err := w.requestOnDemand(onDemand(id))
				require.NoError(t, err)
				w.advance(time.Second)
				require.NoError(t, w.r.Admin().Freeze(t.Context(), web, ""))
				w.cloud.ClearFaults()
				w.advance(c.frozen)
				require.Len(t, w.cloud.Machines(), 1)
				w.changeLeader(webGroup(1))
				require.NoError(t, w.r.Admin().Thaw(t.Context(), web, requester))
				w.advance(5 * time.Minute)
				if !c.made {
					require.Equal(t, 1, w.count(nstance.EventDeleted, id))
					w.requireMembers(1)
					return
				}
				require.Contains(t, w.ready(), id)
			})
		})
	}
}

// TestNoticeDuringFreeze: an acknowledged notice is in the record, and is executed once,
// also after handovers.
func TestNoticeDuringFreeze(t *testing.T) {
	for name, leaders := range map[string]int{"the same leader": 0, "the next leader": 1, "the one after": 2} {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				require.NoError(t, w.r.Admin().Freeze(t.Context(), web, ""))
				id := w.ready()[0]
				require.NoError(t, w.cloud.Reclaim(id, 6*time.Hour))
				w.advance(10 * time.Second)
				require.Len(t, w.acked, 1, "acknowledged")
				v, err := w.r.Instance(id)
				require.NoError(t, err)
				rec, _ := w.r.Admin().Internals().Records().Get(id)
				require.Len(t, rec.Notices, 1, "because it is recorded")
				require.Nil(t, v.Drain)
				require.Contains(t, w.first(nstance.EventNoticeReceived, func(e nstance.Event) bool { return e.Instance == id }).Reason, "frozen")
				w.advance(time.Hour)
				require.Zero(t, w.count(nstance.EventDrainStarted, ""))

				w.mu.Lock()
				w.broken[id] = true // its agent does not repeat it
				w.mu.Unlock()
				for range leaders {
					w.changeLeader(webGroup(3))
				}
				require.NoError(t, w.r.Admin().Thaw(t.Context(), web, requester))
				w.advance(20 * time.Minute)
				require.Equal(t, 1, w.count(nstance.EventDrainStarted, id))
				require.Equal(t, 1, w.count(nstance.EventReplacementRequested, ""))
				require.Equal(t, 1, w.count(nstance.EventDeleted, id))
				w.requireMembers(3)
			})
		})
	}
	t.Run("withdrawn", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			require.NoError(t, w.r.Admin().Freeze(t.Context(), web, ""))
			id := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(id, 6*time.Hour))
			w.advance(10 * time.Second)
			require.NoError(t, w.cloud.Withdraw(id))
			w.advance(10 * time.Second)
			rec, ok := w.r.Admin().Internals().Records().Get(id)
			require.True(t, ok)
			require.Empty(t, rec.Notices)
			w.changeLeader(webGroup(3))
			require.NoError(t, w.r.Admin().Thaw(t.Context(), web, requester))
			w.advance(time.Hour)
			require.Zero(t, w.count(nstance.EventDrainStarted, ""))
			w.requireMembers(3)
		})
	})
	t.Run("machine gone before the thaw", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			require.NoError(t, w.r.Admin().FreezeShard(t.Context(), ""))
			id := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
			w.advance(10 * time.Minute)
			require.Len(t, w.ready(), 2)
			w.changeLeader(webGroup(3))
			require.NoError(t, w.r.Admin().ThawShard(t.Context(), requester))
			w.advance(10 * time.Minute)
			require.Equal(t, 1, w.count(nstance.EventReplacementRequested, ""))
			w.requireMembers(3)
		})
	})
}

// TestLateDrainDuringFreeze: a former leader's drain that lands during a freeze is
// accepted and ends.
func TestLateDrainDuringFreeze(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		r, _ := w.leader()
		require.NoError(t, r.Admin().Freeze(w.ctx, web, requester))
		id := w.ready()[0]
		former := records.New(w.store, "s1", &records.Options{Epoch: w.epoch})
		_, _, err := former.Load(w.ctx)
		require.NoError(t, err)
		_, err = former.Update(w.ctx, id, func(rec *records.Instance) error {
			rec.Generation++
			rec.Drain = &nstance.Drain{
				Instance: id, Group: web, Generation: rec.Generation, StartedAt: time.Now().UTC(), Deadline: time.Now().Add(5 * time.Minute).UTC(),
				Causes: []nstance.Cause{{Kind: nstance.CauseRequest}}, Executor: nstance.ExecutorAgent,
			}
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, w.cloud.Reclaim(id, 30*time.Minute))
		w.advance(2 * time.Minute)
		require.False(t, w.exists(id), "a drain in progress continues")
	})
}

// TestEveryChangeIsPermitted: a freeze, and the end of the term, hold each call that changes
// something at once, also one that the provider refuses meanwhile; only what leaves goes on
// during a freeze.
func TestEveryChangeIsPermitted(t *testing.T) {
	freeze := func(w *world, _ *atomic.Bool) { require.NoError(w.t, w.r.Admin().Freeze(w.ctx, web, "audit")) }
	for _, state := range []struct {
		name  string
		begin func(w *world, over *atomic.Bool)
		ends  bool // nothing goes on
	}{
		{"frozen", freeze, false},
		{"frozen, next leader", func(w *world, over *atomic.Bool) { freeze(w, over); w.changeLeader(w.group().Group) }, false},
		{"term over", func(_ *world, over *atomic.Bool) { over.Store(true) }, true},
	} {
		for _, c := range []struct {
			name  string
			op    simcloud.Op
			begin func(w *world) // has the step be due
			goes  bool           // during a freeze
		}{
			{"create", simcloud.OpCreate, func(w *world) { w.setGroups(pooledOf(5, 1)) }, false},
			{"wake", simcloud.OpWake, func(w *world) { w.lose(2 * time.Minute) }, false},
			{"park", simcloud.OpPark, func(w *world) {
				require.NoError(w.t, w.claimed("n1"))
				w.advance(20 * time.Second)
				_, err := w.r.Admin().ReleaseStandby(w.ctx, web, "n1")
				require.NoError(w.t, err)
			}, false},
			{"join", simcloud.OpJoin, func(w *world) { w.setGroups(pooledOf(3, 1, "front", "back")) }, false},
			{"leave", simcloud.OpLeave, func(w *world) { w.setGroups(pooledOf(3, 1)) }, false},
			{"leave to be deleted", simcloud.OpLeave, func(w *world) { w.setGroups(pooledOf(2, 1)) }, true},
			{"delete", simcloud.OpDelete, func(w *world) { w.setGroups(pooledOf(2, 1)) }, true},
		} {
			t.Run(state.name+"/"+c.name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					var over atomic.Bool
					w := newBalancedPool(t, &over)
					defer w.close()
					before := w.cloud.Count(c.op)
					w.cloud.Inject(simcloud.Fault{Op: c.op, Times: -1})
					c.begin(w)
					w.advance(20 * time.Second)
					require.Greater(t, w.cloud.Count(c.op), before, "it is due")
					size := w.group().Size
					goes := c.goes && !state.ends
					before = w.cloud.Count(c.op)
					state.begin(w, &over)
					if !goes {
						w.advance(30 * time.Second) // what was sent before has ended
						before = w.cloud.Count(c.op)
					}
					w.cloud.ClearFaults()
					w.advance(10 * time.Minute)
					require.Equal(t, goes, w.cloud.Count(c.op) > before)
					if over.Swap(false) {
						w.changeLeader(w.group().Group)
					} else {
						require.NoError(t, w.r.Admin().Thaw(w.ctx, web, requester))
					}
					w.advance(20 * time.Minute)
					require.Len(t, w.in(nstance.Parked), 1)
					require.Equal(t, size, w.group().Ready)
					require.Len(t, w.cloud.Machines(), size+1)
				})
			})
		}
	}
}

// newBalancedPool has three machines behind a load balancer and one that sleeps; the term of
// its leader is over while over is set.
func newBalancedPool(t *testing.T, over *atomic.Bool) *world {
	w := newWorld(t, simcloud.Options{
		Boot: simcloud.Delay{Min: time.Minute}, Park: simcloud.Delay{Min: 3 * time.Second}, Wake: simcloud.Delay{Min: time.Second}, Balancers: []string{"lb-1", "lb-2"},
	})
	w.wrap = func(o *leaderEnv) {
		o.options = func(opts *reconcile.Options) {
			opts.Balancers = []nstance.LoadBalancer{front, {Name: "back", ID: "lb-2"}}
		}
		check := o.check
		o.check = func() error {
			if over.Load() {
				return nstance.Errorf(nstance.Unavailable, "the term is over")
			}
			return check()
		}
	}
	w.startLeader(pooledOf(3, 1, "front"))
	w.advance(5 * time.Minute)
	require.Len(t, w.in(nstance.Parked), 1)
	require.Equal(t, 3, w.group().Ready)
	return w
}

// pooledOf is a group of a size with a warm pool, behind load balancers.
func pooledOf(size, pool int, balancers ...string) nstance.Group {
	g := pooledGroup(pool)
	g.Size, g.Definition.LoadBalancers = size, balancers
	return g
}

// claimed has a stand-by machine run in place of a node.
func (w *world) claimed(node string) error {
	_, _, err := w.r.Admin().ClaimStandby(w.ctx, web, reconcile.Claim{Node: node, Until: time.Now().Add(time.Hour)})
	return err
}
