package reconcile_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// withBalancer runs a test in a world whose group is ready behind load balancer front,
// which also has a foreign member.
func withBalancer(t *testing.T, size int, o simcloud.Options, test func(t *testing.T, w *world)) {
	bubble(t, func(t *testing.T) {
		o.Balancers = []string{"lb-1", "lb-2"}
		w := newWorld(t, o)
		defer w.close()
		w.cloud.SetBalancer("lb-1", true, "foreign")
		w.wrap = func(o *leaderEnv) {
			o.options = func(opts *reconcile.Options) { opts.Balancers = []nstance.LoadBalancer{front} }
		}
		w.startLeader(balancedGroup(size, "front"))
		w.advance(2 * time.Minute)
		w.requireMembers(size)
		w.requireBalanced("lb-1", "foreign")
		test(t, w)
	})
}

// isBalanced reports whether a machine is in a load balancer.
func (w *world) isBalanced(lb string, id nstance.InstanceID) bool {
	m, err := w.cloud.Get(w.ctx, id)
	require.NoError(w.t, err)
	return slices.Contains(w.cloud.AttachedTo(lb), m.ProviderID)
}

func (w *world) alarms(about string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Type == nstance.EventAlarm && strings.Contains(e.Reason, about) {
			n++
		}
	}
	return n
}

func TestBalancerJoinWithFirstHealthyReport(t *testing.T) {
	withBalancer(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{balancedGroup(2, "front")}})
		for len(w.ready()) < 2 {
			require.Len(t, w.cloud.AttachedTo("lb-1"), 2)
			w.advance(100 * time.Millisecond)
		}
		w.advance(time.Second)
		w.requireBalanced("lb-1", "foreign")
	})
}

func TestBalancerLeaveBeforeDrainEnds(t *testing.T) {
	withBalancer(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.slowDrain = true
		w.mu.Unlock()
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 10*time.Minute))
		w.advance(time.Second)
		require.Len(t, w.in(nstance.Draining), 1)
		w.requireBalanced("lb-1", "foreign")
		w.advance(10 * time.Minute)
		w.requireMembers(2)
		w.requireBalanced("lb-1", "foreign")
	})
}

func TestBalancerRejoinAfterCancelledDrain(t *testing.T) {
	withBalancer(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.slowDrain = true
		w.mu.Unlock()
		spared := w.ready()[0]
		require.NoError(t, w.cloud.Reclaim(spared, 10*time.Minute))
		w.advance(10 * time.Second)
		require.NoError(t, w.cloud.Withdraw(spared))
		w.advance(10 * time.Second)
		require.Contains(t, w.ready(), spared)
		require.NotEmpty(t, w.cloud.AttachedTo("lb-1"))
		w.mu.Lock()
		w.slowDrain = false
		w.mu.Unlock()
		w.advance(2 * time.Minute)
		w.requireBalanced("lb-1", "foreign")
	})
}

func TestPreservedMachineLeavesBalancers(t *testing.T) {
	t.Run("at once, and does not rejoin", func(t *testing.T) {
		withBalancer(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			kept := w.ready()[0]
			require.NoError(t, w.r.Admin().Preserve(t.Context(), kept, time.Now().Add(time.Hour), requester))
			w.advance(time.Second)
			require.False(t, w.isBalanced("lb-1", kept))
			w.advance(10 * time.Minute)
			require.Len(t, w.cloud.Machines(), 3)
			require.Len(t, w.cloud.AttachedTo("lb-1"), 3, "two members and the foreign one")
			w.changeLeader(balancedGroup(2, "front"))
			w.advance(10 * time.Minute)
			require.False(t, w.isBalanced("lb-1", kept), "it does not rejoin under the next leader")
			w.advance(time.Hour)
			w.requireMembers(2)
			w.requireBalanced("lb-1", "foreign")
		})
	})
	t.Run("during a freeze", func(t *testing.T) {
		withBalancer(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			kept := w.ready()[0]
			require.NoError(t, w.r.Admin().FreezeShard(t.Context(), ""))
			require.NoError(t, w.r.Admin().Preserve(t.Context(), kept, time.Now().Add(time.Hour), requester))
			w.advance(time.Second)
			require.False(t, w.isBalanced("lb-1", kept))
			require.Len(t, w.cloud.AttachedTo("lb-1"), 2)
		})
	})
	t.Run("not if the preservation cannot be recorded", func(t *testing.T) {
		withBalancer(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			faulty := storagetest.NewFaulty(w.store)
			w.store = faulty
			w.changeLeader(balancedGroup(2, "front"))
			id := w.ready()[0]
			faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: "instance/", Times: -1, Do: func() {
				w.r.Observe(nstance.Balancing{LoadBalancers: []nstance.LoadBalancer{front}}) // compares all members
				<-time.After(time.Second)
			}})
			require.ErrorIs(t, w.r.Admin().Preserve(t.Context(), id, time.Now().Add(time.Hour), requester), nstance.Unavailable)
			faulty.ClearFaults()
			w.advance(time.Second)
			w.requireBalanced("lb-1", "foreign")
		})
	})
}

// slowJoiner is a provider whose JoinBalancer blocks until the test releases it.
type slowJoiner struct {
	*simcloud.Cloud
	open chan struct{}
}

func (s slowJoiner) JoinBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	select {
	case <-s.open:
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.Cloud.JoinBalancer(ctx, lb, machines)
}

// TestDeleteWaitsForJoinInFlight: a machine is not deleted while a call may still add it
// to a load balancer.
func TestDeleteWaitsForJoinInFlight(t *testing.T) {
	withBalancer(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		old := w.ready()[0]
		open := make(chan struct{})
		wrap := w.wrap
		w.wrap = func(o *leaderEnv) {
			wrap(o)
			o.provider = slowJoiner{w.cloud, open}
		}
		w.changeLeader(balancedGroup(1, "front"))
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{balancedGroup(2, "front")}})
		for len(w.ready()) < 2 {
			w.advance(100 * time.Millisecond)
		}
		joining := w.ready()[1]
		require.NotEqual(t, old, joining)
		w.advance(time.Second) // the call is in flight
		require.NoError(t, w.r.Delete(t.Context(), joining, requester, true))
		w.advance(10 * time.Second)
		_, err := w.cloud.Get(w.ctx, joining)
		require.NoError(t, err, "it may still receive traffic")
		require.Zero(t, w.cloud.Count(simcloud.OpDelete))
		close(open)
		w.advance(2 * time.Minute)
		require.Equal(t, 1, w.count(nstance.EventDeleted, joining))
		require.Zero(t, w.alarms("could not be withdrawn"))
		w.requireBalanced("lb-1", "foreign")
	})
}

func TestDeleteWithoutDrainLeavesBalancerFirst(t *testing.T) {
	withBalancer(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		g := balancedGroup(0, "front")
		g.DrainTimeout = 0
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
		w.advance(10 * time.Second)
		w.requireMembers(0)
		w.requireBalanced("lb-1", "foreign")
	})
}

func TestBalancerChangesAreBatched(t *testing.T) {
	withBalancer(t, 250, simcloud.Options{}, func(t *testing.T, w *world) {
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpJoin), 10)
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{balancedGroup(20, "front")}})
		w.advance(2 * time.Minute)
		w.requireMembers(20)
		w.requireBalanced("lb-1", "foreign")
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpLeave), 10)
		lists := w.cloud.Count(simcloud.OpMembers)
		w.advance(time.Hour)
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpMembers)-lists, 15, "listed with each full pass")
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpLeave), 10, "no call without a change")
	})
}

func TestFailingBalancerDelaysDeleteForLimitedTime(t *testing.T) {
	for _, op := range []simcloud.Op{simcloud.OpMembers, simcloud.OpLeave, simcloud.OpAny} {
		t.Run("failing "+string(op), func(t *testing.T) {
			withBalancer(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				w.cloud.Inject(simcloud.Fault{Op: op, ID: "lb-1", Times: -1, Code: nstance.Internal})
				if op == simcloud.OpMembers { // the known members are discarded
					w.stopLeader()
					w.startLeader(balancedGroup(3, "front"))
					w.advance(2 * time.Minute)
				}
				w.r.Observe(nstance.Desired{Groups: []nstance.Group{balancedGroup(2, "front")}})
				w.advance(20 * time.Second)
				require.Len(t, w.cloud.Machines(), 3, "delete waits for a limited time")
				require.Contains(t, strings.Join(attention.Problems(w.r.Admin().Attention()), "\n"), "load balancer front is not up to date")
				w.advance(time.Minute)
				w.requireMembers(2)
				require.Equal(t, 1, w.alarms("could not be withdrawn from front"))
				w.cloud.ClearFaults()
				w.advance(2 * time.Minute)
				require.Empty(t, attention.Problems(w.r.Admin().Attention()))
				require.Len(t, w.cloud.AttachedTo("lb-1"), 3)
			})
		})
	}
}

func TestVanishedBalancerDelaysNoDelete(t *testing.T) {
	t.Run("from the configuration", func(t *testing.T) {
		withBalancer(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.Inject(simcloud.Fault{ID: "lb-1", Times: -1, Code: nstance.Internal})
			w.r.Observe(nstance.Balancing{})
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(2)}})
			w.advance(15 * time.Second)
			require.Len(t, w.cloud.Machines(), 2, "no wait for a removed load balancer")
			require.Zero(t, w.alarms("withdrawn"))
			w.cloud.ClearFaults()
			w.advance(2 * time.Minute)
			require.Equal(t, []string{"foreign"}, w.cloud.AttachedTo("lb-1"), "members left on best effort")
			calls := w.cloud.Count(simcloud.OpMembers)
			w.advance(time.Hour)
			require.Equal(t, calls, w.cloud.Count(simcloud.OpMembers), "and no longer tracked")
			require.Empty(t, attention.Problems(w.r.Admin().Attention()))
		})
	})
	t.Run("from the configuration, calls hang", func(t *testing.T) {
		withBalancer(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.Inject(simcloud.Fault{ID: "lb-1", Times: -1, Code: nstance.Internal})
			w.r.Observe(nstance.Balancing{})
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(1)}})
			w.advance(10 * time.Minute)
			require.Empty(t, attention.Problems(w.r.Admin().Attention()), "dropped without an answer")
		})
	})
	t.Run("from the cloud", func(t *testing.T) {
		withBalancer(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.SetBalancer("lb-1", false)
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{balancedGroup(2, "front")}})
			w.advance(15 * time.Second)
			require.Len(t, w.cloud.Machines(), 2, "a missing load balancer has no members")
			require.Contains(t, strings.Join(attention.Problems(w.r.Admin().Attention()), "\n"), "no load balancer")
			w.cloud.SetBalancer("lb-1", true)
			w.advance(2 * time.Minute)
			w.requireBalanced("lb-1")
		})
	})
	t.Run("group moves to another load balancer", func(t *testing.T) {
		withBalancer(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.r.Observe(nstance.Balancing{LoadBalancers: []nstance.LoadBalancer{{Name: "back", ID: "lb-2"}}})
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{balancedGroup(2, "back")}})
			w.advance(5 * time.Second)
			require.Equal(t, []string{"foreign"}, w.cloud.AttachedTo("lb-1"))
			w.requireBalanced("lb-2")
		})
	})
	t.Run("name gets another ID", func(t *testing.T) {
		withBalancer(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.r.Observe(nstance.Balancing{LoadBalancers: []nstance.LoadBalancer{{Name: "front", ID: "lb-2"}}})
			w.advance(5 * time.Second)
			require.Equal(t, []string{"foreign"}, w.cloud.AttachedTo("lb-1"))
			w.requireBalanced("lb-2")
		})
	})
}

func TestNewLeaderComparesBalancers(t *testing.T) {
	withBalancer(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.slowDrain = true
		w.mu.Unlock()
		doomed := w.ready()[0]
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpLeave, Times: -1})
		require.NoError(t, w.cloud.Reclaim(doomed, 30*time.Minute))
		w.advance(10 * time.Second)
		w.stopLeader()
		w.cloud.ClearFaults()
		var lost nstance.Machine
		for _, m := range w.cloud.Machines() {
			if m.ID == w.ready()[0] {
				lost = m
			}
		}
		require.NoError(t, w.cloud.LeaveBalancer(w.ctx, front, []nstance.Machine{lost})) // removed by another client
		silent := w.ready()[1]
		w.setAgentSilent(silent, true)
		before := len(w.cloud.AttachedTo("lb-1"))

		w.startLeader(balancedGroup(3, "front"))
		w.advance(2 * time.Second)
		w.mu.Lock()
		require.NotEmpty(t, w.events)
		w.mu.Unlock()
		in := w.cloud.AttachedTo("lb-1")
		require.Len(t, in, before-1, "only the draining member left; others stay until their first report")
		w.setAgentSilent(silent, false)
		w.advance(3 * time.Minute)
		w.requireBalanced("lb-1", "foreign")
	})
}

// TestNewLeaderDeletesAfterLeavingBalancers: a member marked by the last leader is
// deleted after the next leader has read the members, although the group no longer names
// the load balancer.
func TestNewLeaderDeletesAfterLeavingBalancers(t *testing.T) {
	for _, unlisted := range []bool{false, true} {
		t.Run(fmt.Sprintf("the list fails %t", unlisted), func(t *testing.T) {
			withBalancer(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				w.cloud.Inject(simcloud.Fault{Op: simcloud.OpLeave, Times: -1, Code: nstance.Internal})
				w.r.Observe(nstance.Desired{Groups: []nstance.Group{balancedGroup(2, "front")}})
				for w.count(nstance.EventDeleteRequested, "") == 0 {
					w.advance(100 * time.Millisecond)
				}
				w.stopLeader()
				w.cloud.ClearFaults()
				require.Len(t, w.cloud.Machines(), 3)
				if unlisted {
					w.cloud.Inject(simcloud.Fault{Op: simcloud.OpMembers, Times: -1, Code: nstance.Internal})
				}
				w.startLeader(webGroup(2))
				w.advance(20 * time.Second)
				if unlisted {
					require.Len(t, w.cloud.Machines(), 3, "delete waits for a limited time")
					w.advance(20 * time.Second)
					require.Len(t, w.cloud.Machines(), 2)
					require.Equal(t, 1, w.alarms("could not be withdrawn from front"))
					return
				}
				require.Len(t, w.cloud.Machines(), 2)
				require.Empty(t, w.cloud.DeletedWhileMember())
			})
		})
	}
}

func TestBalancersAreIndependent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Balancers: []string{"lb-1", "lb-2"}})
		defer w.close()
		w.wrap = func(o *leaderEnv) {
			o.options = func(opts *reconcile.Options) {
				opts.Balancers = []nstance.LoadBalancer{front, {Name: "back", ID: "lb-2"}}
			}
		}
		w.cloud.Inject(simcloud.Fault{ID: "lb-1", Times: -1, Code: nstance.Internal})
		w.startLeader(balancedGroup(3, "front", "back"))
		w.advance(time.Minute)
		w.requireBalanced("lb-2")
		calls := w.cloud.Count(simcloud.OpMembers)
		w.advance(10 * time.Minute)
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpMembers)-calls, 25, "with backoff")
	})
}

func TestRefusedBatchIsSplit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Balancers: []string{"lb-1"}})
		defer w.close()
		w.wrap = func(o *leaderEnv) {
			o.options = func(opts *reconcile.Options) { opts.Balancers = []nstance.LoadBalancer{front} }
		}
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpJoin, Code: nstance.NotFound, Times: 1})
		w.startLeader(balancedGroup(3, "front"))
		for len(w.ready()) < 3 {
			w.advance(100 * time.Millisecond)
		}
		w.advance(500 * time.Millisecond)
		w.requireBalanced("lb-1")
		require.Equal(t, 4, w.cloud.Count(simcloud.OpJoin))
	})
}

func TestLostBalancerAnswers(t *testing.T) {
	for _, op := range []simcloud.Op{simcloud.OpJoin, simcloud.OpLeave, simcloud.OpMembers} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprint(op, lost), func(t *testing.T) {
				withBalancer(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
					w.cloud.Inject(simcloud.Fault{Op: op, Times: 3, Lost: lost})
					w.r.Observe(nstance.Desired{Groups: []nstance.Group{balancedGroup(4, "front")}})
					w.advance(30 * time.Second)
					w.r.Observe(nstance.Desired{Groups: []nstance.Group{balancedGroup(1, "front")}})
					w.advance(3 * time.Minute)
					w.requireMembers(1)
					w.requireBalanced("lb-1", "foreign")
				})
			})
		}
	}
}

func TestProviderWithoutBalancersIsReported(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.wrap = func(o *leaderEnv) {
			o.provider = struct{ nstance.Provider }{w.cloud} // hides its optional abilities
			o.options = func(opts *reconcile.Options) { opts.Balancers = []nstance.LoadBalancer{front} }
		}
		w.startLeader(balancedGroup(2, "front"))
		w.advance(2 * time.Minute)
		w.requireMembers(2)
		require.Contains(t, strings.Join(attention.Problems(w.r.Admin().Attention()), "\n"), "the provider cannot change load balancers: no machine joins front")
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{balancedGroup(1, "front")}})
		w.advance(10 * time.Second)
		w.requireMembers(1)
	})
}

// TestBalancersOfGroupDefinedLate: members stay in their load balancers while a new leader does
// not know their group, and leave at once when it names none any more.
func TestBalancersOfGroupDefinedLate(t *testing.T) {
	withBalancer(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.stopLeader()
		w.startLeader()
		w.advance(20 * time.Second)
		require.Len(t, w.cloud.AttachedTo("lb-1"), 4, "one is of no group")
		w.setGroups(webGroup(3))
		w.advance(10 * time.Second)
		require.Len(t, w.cloud.AttachedTo("lb-1"), 1)
	})
}

// TestPreservedByALateWrite: what a former leader has preserved leaves its load balancers as soon as
// that is read.
func TestPreservedByALateWrite(t *testing.T) {
	withBalancer(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.ready()[0]
		w.writeLate(id, func(rec *records.Instance) { rec.Preserve = &records.Preserve{Until: time.Now().Add(time.Hour).UTC()} })
		require.NoError(t, w.r.Admin().Internals().Reread(w.ctx))
		w.advance(5 * time.Second) // before its replacement is ready
		require.False(t, w.isBalanced("lb-1", id))
	})
}
