package reconcile_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage/storagetest"
)

var front = nstance.LoadBalancer{Name: "front", ID: "lb-1"}

// balanced is a group of the given size behind load balancers.
func balanced(size int, names ...string) nstance.Group {
	g := wanted(size)
	g.Definition.LoadBalancers = names
	return g
}

// balancing runs a test in a world whose group has come up behind load balancer
// front, in which something of somebody else's is too.
func balancing(t *testing.T, size int, o simcloud.Options, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		o.Balancers = []string{"lb-1", "lb-2"}
		w := newWorld(t, o)
		defer w.close()
		w.cloud.Attach("lb-1", "foreign")
		w.wrap = func(o *office) {
			o.options = func(opts *reconcile.Options) { opts.Balancers = []nstance.LoadBalancer{front} }
		}
		w.lead(balanced(size, "front"))
		w.passes(2 * time.Minute)
		w.agrees(size)
		w.fronts("lb-1", "foreign")
		test(t, w)
	})
}

// fronts checks that the members of a load balancer are the ready machines, and
// others as given.
func (w *world) fronts(lb string, others ...string) {
	w.t.Helper()
	want := slices.Clone(others)
	ready := w.ready()
	for _, m := range w.outside.Machines() {
		if slices.Contains(ready, m.ID) {
			want = append(want, m.ProviderID)
		}
	}
	require.ElementsMatch(w.t, want, w.outside.Balanced(lb))
	require.Empty(w.t, w.outside.Severed(), "no machine is deleted while it is sent traffic")
}

// balances reports whether a machine is in a load balancer.
func (w *world) balances(lb string, id nstance.InstanceID) bool {
	m, err := w.cloud.Get(w.ctx, id)
	require.NoError(w.t, err)
	return slices.Contains(w.cloud.Balanced(lb), m.ProviderID)
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

func TestLoadBalancerIsJoinedWithTheFirstGoodReport(t *testing.T) {
	balancing(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{balanced(2, "front")}})
		for len(w.ready()) < 2 {
			require.Len(t, w.cloud.Balanced("lb-1"), 2)
			w.passes(100 * time.Millisecond)
		}
		w.passes(time.Second)
		w.fronts("lb-1", "foreign")
	})
}

func TestLoadBalancerIsLeftBeforeTheDrainEnds(t *testing.T) {
	balancing(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.slowDrain = true
		w.mu.Unlock()
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 10*time.Minute))
		w.passes(time.Second)
		require.Len(t, w.in(nstance.Draining), 1)
		w.fronts("lb-1", "foreign")
		w.passes(10 * time.Minute)
		w.agrees(2)
		w.fronts("lb-1", "foreign")
	})
}

func TestLoadBalancerIsJoinedAgainWhenADrainIsCancelled(t *testing.T) {
	balancing(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.slowDrain = true
		w.mu.Unlock()
		spared := w.ready()[0]
		require.NoError(t, w.cloud.Reclaim(spared, 10*time.Minute))
		w.passes(10 * time.Second)
		require.NoError(t, w.cloud.Withdraw(spared))
		w.passes(10 * time.Second)
		require.Contains(t, w.ready(), spared)
		require.NotEmpty(t, w.cloud.Balanced("lb-1"))
		w.mu.Lock()
		w.slowDrain = false
		w.mu.Unlock()
		w.passes(2 * time.Minute)
		w.fronts("lb-1", "foreign")
	})
}

func TestPreservedMachineLeavesItsLoadBalancers(t *testing.T) {
	t.Run("at once, and does not come back", func(t *testing.T) {
		balancing(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			kept := w.ready()[0]
			require.NoError(t, w.r.Preserve(t.Context(), kept, time.Now().Add(time.Hour), eve))
			w.passes(time.Second)
			require.False(t, w.balances("lb-1", kept))
			w.passes(10 * time.Minute)
			require.Len(t, w.cloud.Machines(), 3)
			require.Len(t, w.cloud.Balanced("lb-1"), 3, "two that serve, and the foreign one")
			w.succeeds(balanced(2, "front"))
			w.passes(10 * time.Minute)
			require.False(t, w.balances("lb-1", kept), "nor under the next leader")
			w.passes(time.Hour)
			w.agrees(2)
			w.fronts("lb-1", "foreign")
		})
	})
	t.Run("during a freeze, too", func(t *testing.T) {
		balancing(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			kept := w.ready()[0]
			require.NoError(t, w.r.FreezeShard(t.Context(), ""))
			require.NoError(t, w.r.Preserve(t.Context(), kept, time.Now().Add(time.Hour), eve))
			w.passes(time.Second)
			require.False(t, w.balances("lb-1", kept))
			require.Len(t, w.cloud.Balanced("lb-1"), 2)
		})
	})
	t.Run("unless that cannot be recorded", func(t *testing.T) {
		balancing(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			faulty := storagetest.NewFaulty(w.store)
			w.store = faulty
			w.succeeds(balanced(2, "front"))
			id := w.ready()[0]
			faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: "instance/", Times: -1, Do: func() {
				w.r.Observe(nstance.Balancing{LoadBalancers: []nstance.LoadBalancer{front}}) // so that all are looked at
				<-time.After(time.Second)
			}})
			require.ErrorIs(t, w.r.Preserve(t.Context(), id, time.Now().Add(time.Hour), eve), nstance.Unavailable)
			faulty.Heal()
			w.passes(time.Second)
			w.fronts("lb-1", "foreign")
		})
	})
}

// A slowJoiner registers no machine before the test permits it.
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

// TestDeletionWaitsForAJoinUnderWay: a call that may yet make the machine a
// member is no reason to delete it before it has left.
func TestDeletionWaitsForAJoinUnderWay(t *testing.T) {
	balancing(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		old := w.ready()[0]
		open := make(chan struct{})
		wrap := w.wrap
		w.wrap = func(o *office) {
			wrap(o)
			o.provider = slowJoiner{w.cloud, open}
		}
		w.succeeds(balanced(1, "front"))
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{balanced(2, "front")}})
		for len(w.ready()) < 2 {
			w.passes(100 * time.Millisecond)
		}
		joining := w.ready()[1]
		require.NotEqual(t, old, joining)
		w.passes(time.Second) // the call is under way
		require.NoError(t, w.r.Delete(t.Context(), joining, eve, true))
		w.passes(10 * time.Second)
		_, err := w.cloud.Get(w.ctx, joining)
		require.NoError(t, err, "traffic may come at any moment")
		require.Zero(t, w.cloud.Count(simcloud.OpDelete))
		close(open)
		w.passes(2 * time.Minute)
		require.Equal(t, 1, w.count(nstance.EventDeleted, joining))
		require.Zero(t, w.alarms("could not be withdrawn"))
		w.fronts("lb-1", "foreign")
	})
}

func TestDeletionWithoutADrainLeavesFirst(t *testing.T) {
	balancing(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		g := balanced(0, "front")
		g.DrainTimeout = 0
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
		w.passes(10 * time.Second)
		w.agrees(0)
		w.fronts("lb-1", "foreign")
	})
}

func TestLoadBalancersAreChangedInBatches(t *testing.T) {
	balancing(t, 250, simcloud.Options{}, func(t *testing.T, w *world) {
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpJoin), 10)
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{balanced(20, "front")}})
		w.passes(2 * time.Minute)
		w.agrees(20)
		w.fronts("lb-1", "foreign")
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpLeave), 10)
		lists := w.cloud.Count(simcloud.OpMembers)
		w.passes(time.Hour)
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpMembers)-lists, 15, "it is listed with each full pass")
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpLeave), 10, "where nothing changes nothing is called")
	})
}

func TestFailingLoadBalancerKeepsNoMachine(t *testing.T) {
	for _, op := range []simcloud.Op{simcloud.OpMembers, simcloud.OpLeave, simcloud.OpAny} {
		t.Run("it fails "+string(op), func(t *testing.T) {
			balancing(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				w.cloud.Inject(simcloud.Fault{Op: op, ID: "lb-1", Times: -1, Code: nstance.Internal})
				if op == simcloud.OpMembers { // what was known is known no more
					w.depose()
					w.lead(balanced(3, "front"))
					w.passes(2 * time.Minute)
				}
				w.r.Observe(nstance.Desired{Groups: []nstance.Group{balanced(2, "front")}})
				w.passes(20 * time.Second)
				require.Len(t, w.cloud.Machines(), 3, "it is given some time")
				require.Contains(t, strings.Join(w.r.Problems(), "\n"), "load balancer front is not up to date")
				w.passes(time.Minute)
				w.agrees(2)
				require.Equal(t, 1, w.alarms("could not be withdrawn from front"))
				w.cloud.Heal()
				w.passes(2 * time.Minute)
				require.Empty(t, w.r.Problems())
				require.Len(t, w.cloud.Balanced("lb-1"), 3)
			})
		})
	}
}

func TestVanishedLoadBalancerKeepsNoMachine(t *testing.T) {
	t.Run("from the configuration", func(t *testing.T) {
		balancing(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.Inject(simcloud.Fault{ID: "lb-1", Times: -1, Code: nstance.Internal})
			w.r.Observe(nstance.Balancing{})
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{wanted(2)}})
			w.passes(15 * time.Second)
			require.Len(t, w.cloud.Machines(), 2, "nothing waits for it")
			require.Zero(t, w.alarms("withdrawn"))
			w.cloud.Heal()
			w.passes(2 * time.Minute)
			require.Equal(t, []string{"foreign"}, w.cloud.Balanced("lb-1"), "it was left as well as it could be")
			calls := w.cloud.Count(simcloud.OpMembers)
			w.passes(time.Hour)
			require.Equal(t, calls, w.cloud.Count(simcloud.OpMembers), "and forgotten")
			require.Empty(t, w.r.Problems())
		})
	})
	t.Run("from the configuration, and it never answers", func(t *testing.T) {
		balancing(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.Inject(simcloud.Fault{ID: "lb-1", Times: -1, Code: nstance.Internal})
			w.r.Observe(nstance.Balancing{})
			w.passes(10 * time.Minute)
			require.Empty(t, w.r.Problems(), "forgotten all the same")
		})
	})
	t.Run("from the cloud", func(t *testing.T) {
		balancing(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.SetBalancer("lb-1", false)
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{balanced(2, "front")}})
			w.passes(15 * time.Second)
			require.Len(t, w.cloud.Machines(), 2, "nobody is in what is not there")
			require.Contains(t, strings.Join(w.r.Problems(), "\n"), "no load balancer")
			w.cloud.SetBalancer("lb-1", true)
			w.passes(2 * time.Minute)
			w.fronts("lb-1")
		})
	})
	t.Run("with the group that named it moving to another", func(t *testing.T) {
		balancing(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.r.Observe(nstance.Balancing{LoadBalancers: []nstance.LoadBalancer{{Name: "back", ID: "lb-2"}}})
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{balanced(2, "back")}})
			w.passes(5 * time.Second)
			require.Equal(t, []string{"foreign"}, w.cloud.Balanced("lb-1"))
			w.fronts("lb-2")
		})
	})
	t.Run("when its name stands for another", func(t *testing.T) {
		balancing(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.r.Observe(nstance.Balancing{LoadBalancers: []nstance.LoadBalancer{{Name: "front", ID: "lb-2"}}})
			w.passes(5 * time.Second)
			require.Equal(t, []string{"foreign"}, w.cloud.Balanced("lb-1"))
			w.fronts("lb-2")
		})
	})
}

func TestNewLeaderComparesLoadBalancers(t *testing.T) {
	balancing(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.slowDrain = true
		w.mu.Unlock()
		doomed := w.ready()[0]
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpLeave, Times: -1})
		require.NoError(t, w.cloud.Reclaim(doomed, 30*time.Minute))
		w.passes(10 * time.Second)
		w.depose()
		w.cloud.Heal()
		var lost nstance.Machine
		for _, m := range w.cloud.Machines() {
			if m.ID == w.ready()[0] {
				lost = m
			}
		}
		require.NoError(t, w.cloud.LeaveBalancer(w.ctx, front, []nstance.Machine{lost})) // somebody took it out
		silent := w.ready()[1]
		w.mute(silent, true)
		before := len(w.cloud.Balanced("lb-1"))

		w.lead(balanced(3, "front"))
		w.passes(2 * time.Second)
		w.mu.Lock()
		require.NotEmpty(t, w.events)
		w.mu.Unlock()
		in := w.cloud.Balanced("lb-1")
		require.Len(t, in, before-1, "the draining one is out; nobody else was touched before he was heard of")
		w.mute(silent, false)
		w.passes(3 * time.Minute)
		w.fronts("lb-1", "foreign")
	})
}

// TestNewLeaderDeletesNobodyWhoMayBeInALoadBalancer: who was marked by the last
// leader is deleted by the next one after it knows the members, although the
// group names the load balancer no more.
func TestNewLeaderDeletesNobodyWhoMayBeInALoadBalancer(t *testing.T) {
	for _, unlisted := range []bool{false, true} {
		t.Run(fmt.Sprintf("the list fails %t", unlisted), func(t *testing.T) {
			balancing(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				w.cloud.Inject(simcloud.Fault{Op: simcloud.OpLeave, Times: -1, Code: nstance.Internal})
				w.r.Observe(nstance.Desired{Groups: []nstance.Group{balanced(2, "front")}})
				for w.count(nstance.EventDeleteRequested, "") == 0 {
					w.passes(100 * time.Millisecond)
				}
				w.depose()
				w.cloud.Heal()
				require.Len(t, w.cloud.Machines(), 3)
				if unlisted {
					w.cloud.Inject(simcloud.Fault{Op: simcloud.OpMembers, Times: -1, Code: nstance.Internal})
				}
				w.lead(wanted(2))
				w.passes(20 * time.Second)
				if unlisted {
					require.Len(t, w.cloud.Machines(), 3, "it is given some time")
					w.passes(20 * time.Second)
					require.Len(t, w.cloud.Machines(), 2)
					require.Equal(t, 1, w.alarms("could not be withdrawn from front"))
					return
				}
				require.Len(t, w.cloud.Machines(), 2)
				require.Empty(t, w.cloud.Severed())
			})
		})
	}
}

func TestOneLoadBalancerDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Balancers: []string{"lb-1", "lb-2"}})
		defer w.close()
		w.wrap = func(o *office) {
			o.options = func(opts *reconcile.Options) {
				opts.Balancers = []nstance.LoadBalancer{front, {Name: "back", ID: "lb-2"}}
			}
		}
		w.cloud.Inject(simcloud.Fault{ID: "lb-1", Times: -1, Code: nstance.Internal})
		w.lead(balanced(3, "front", "back"))
		w.passes(time.Minute)
		w.fronts("lb-2")
		calls := w.cloud.Count(simcloud.OpMembers)
		w.passes(10 * time.Minute)
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpMembers)-calls, 25, "with backoff")
	})
}

func TestBatchThatIsRefusedForOneIsTakenApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Balancers: []string{"lb-1"}})
		defer w.close()
		w.wrap = func(o *office) {
			o.options = func(opts *reconcile.Options) { opts.Balancers = []nstance.LoadBalancer{front} }
		}
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpJoin, Code: nstance.NotFound, Times: 1})
		w.lead(balanced(3, "front"))
		for len(w.ready()) < 3 {
			w.passes(100 * time.Millisecond)
		}
		w.passes(500 * time.Millisecond)
		w.fronts("lb-1")
		require.Equal(t, 4, w.cloud.Count(simcloud.OpJoin))
	})
}

func TestLostAnswersOfLoadBalancers(t *testing.T) {
	for _, op := range []simcloud.Op{simcloud.OpJoin, simcloud.OpLeave, simcloud.OpMembers} {
		for _, when := range []simcloud.When{simcloud.Before, simcloud.After} {
			t.Run(fmt.Sprint(op, when), func(t *testing.T) {
				balancing(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
					w.cloud.Inject(simcloud.Fault{Op: op, Times: 3, When: when})
					w.r.Observe(nstance.Desired{Groups: []nstance.Group{balanced(4, "front")}})
					w.passes(30 * time.Second)
					w.r.Observe(nstance.Desired{Groups: []nstance.Group{balanced(1, "front")}})
					w.passes(3 * time.Minute)
					w.agrees(1)
					w.fronts("lb-1", "foreign")
				})
			})
		}
	}
}

func TestProviderWithoutLoadBalancersSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.wrap = func(o *office) {
			o.provider = struct{ nstance.Provider }{w.cloud} // and nothing else
			o.options = func(opts *reconcile.Options) { opts.Balancers = []nstance.LoadBalancer{front} }
		}
		w.lead(balanced(2, "front"))
		w.passes(2 * time.Minute)
		w.agrees(2)
		require.Contains(t, strings.Join(w.r.Problems(), "\n"), "the provider cannot change load balancers: no machine joins front")
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{balanced(1, "front")}})
		w.passes(10 * time.Second)
		w.agrees(1)
	})
}
