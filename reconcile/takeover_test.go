package reconcile_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// takeover runs a test in a bubble whose leaders render different user data, or the
// same.
func takeover(t *testing.T, differ bool, o simcloud.Options, test func(t *testing.T, w *world)) {
	t.Helper()
	bubble(t, func(t *testing.T) {
		w := newWorld(t, o)
		w.ownUserData = differ
		defer w.close()
		test(t, w)
	})
}

// ids returns the IDs of all machines.
func (w *world) ids() (out []nstance.InstanceID) {
	for _, m := range w.cloud.Machines() {
		out = append(out, m.ID)
	}
	return out
}

// requireNoFailures requires that the definition has no failures.
func (w *world) requireNoFailures() {
	w.t.Helper()
	require.Zero(w.t, w.count(nstance.EventCreateFailed, ""))
	require.Zero(w.t, w.count(nstance.EventRolloutHalted, ""))
	g := w.group()
	require.Zero(w.t, g.Failures)
	require.Zero(w.t, g.BackoffUntil)
	require.Empty(w.t, g.Halted)
}

func TestTakeoverKeepsBootingMachines(t *testing.T) {
	for _, lag := range []time.Duration{0, 5 * time.Second} {
		t.Run(fmt.Sprintf("the cloud shows machines after %s", lag), func(t *testing.T) {
			o := simcloud.Options{Boot: simcloud.Delay{Min: time.Minute}, Lag: simcloud.Delay{Min: lag}}
			takeover(t, true, o, func(t *testing.T, w *world) {
				w.startLeader(webGroup(5))
				w.advance(time.Second)
				booting := w.ids()
				require.Len(t, booting, 5)
				w.stopLeader()
				w.startLeader(webGroup(5))
				w.advance(3 * time.Minute)
				require.Equal(t, booting, w.ids(), "all are kept")
				w.requireMembers(5)
				require.Zero(t, w.count(nstance.EventDeleteRequested, ""))
				w.requireNoFailures()
			})
		})
	}
}

// TestTakeoverAfterDelete: a provider that does not show a machine any more may still have
// parts of it: its Delete says when nothing is left, to the next leader too.
func TestTakeoverAfterDelete(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.startLeader(webGroup(3))
		w.advance(time.Minute)
		require.Len(t, w.ready(), 3)
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, Times: -1, Lost: true})
		r, _ := w.leader()
		require.NoError(t, r.Desire([]nstance.Group{webGroup(0)}))
		for len(w.cloud.Machines()) > 0 {
			w.advance(10 * time.Millisecond)
		}
		w.stopLeader()
		w.cloud.ClearFaults()
		before := w.cloud.Count(simcloud.OpDelete)
		w.startLeader(webGroup(0))
		w.advance(time.Minute)
		require.Empty(t, w.in(nstance.Deleting))
		require.Equal(t, 3, w.cloud.Count(simcloud.OpDelete)-before)
	})
}

// TestTakeoverOfAMemberThatIsNeverReady: its launch timeout passed while no server led. It is not
// shown as ready for that, and has the timeout of the new term.
func TestTakeoverOfAMemberThatIsNeverReady(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		g := webGroup(1)
		g.Definition.LaunchTimeout = 10 * time.Minute
		w.startLeader(g)
		w.advance(5 * time.Second)
		id := w.ids()[0]
		w.silenceAgents(id) // the test stands in for it
		w.advance(time.Minute)
		report := func() {
			r, _ := w.leader()
			w.register(t.Context(), r, id)
			r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: id, Timestamp: time.Now(), Probes: []nstance.ProbeResult{{Name: "serves"}}}})
			w.advance(30 * time.Second)
		}
		report()
		report()
		w.stopLeader()
		w.advance(20 * time.Minute)
		w.startLeader(g)
		w.advance(10 * time.Second)
		require.Zero(t, w.group().Ready)
		for range 19 {
			report()
		}
		require.Zero(t, w.count(nstance.EventDeleteRequested, id))
		for range 14 {
			report()
		}
		e := w.first(nstance.EventDeleteRequested, func(e nstance.Event) bool { return e.Instance == id }) // after its drain
		require.Equal(t, "timeout: not ready within its launch timeout", e.Reason)
	})
}

// A deleteSeen is a provider that remembers what it was asked to delete.
type deleteSeen struct {
	nstance.Provider
	mu   sync.Mutex
	seen []nstance.Machine
}

func (p *deleteSeen) Delete(ctx context.Context, m nstance.Machine) error {
	p.mu.Lock()
	p.seen = append(p.seen, m)
	p.mu.Unlock()
	return p.Provider.Delete(ctx, m)
}

// TestDeleteOfWhatWasRefused: the provider is told in which market a machine that it does not
// show was asked for: it need not look elsewhere.
func TestDeleteOfWhatWasRefused(t *testing.T) {
	for _, market := range []nstance.MarketType{nstance.OnDemand, nstance.Spot} {
		t.Run(string(market), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{})
				defer w.close()
				p := &deleteSeen{Provider: w.cloud}
				w.wrap = func(e *leaderEnv) { e.provider = p }
				w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Invalid, Times: 1})
				g := webGroup(1)
				g.Definition.Market.Type = market
				w.startLeader(g)
				w.advance(10 * time.Minute)
				p.mu.Lock()
				defer p.mu.Unlock()
				require.NotEmpty(t, p.seen)
				for _, m := range p.seen {
					require.Equal(t, market, m.Market)
				}
			})
		})
	}
}

func TestTakeoverDuringReclaim(t *testing.T) {
	after := map[bool]time.Duration{} // by whether user data differ
	var mu sync.Mutex
	t.Run("a wave", func(t *testing.T) {
		for _, differ := range []bool{false, true} {
			t.Run(fmt.Sprint("user data differ: ", differ), func(t *testing.T) {
				takeover(t, differ, simcloud.Options{Boot: simcloud.Delay{Min: 40 * time.Second}}, func(t *testing.T, w *world) {
					w.startLeader(webGroup(20))
					w.advance(2 * time.Minute)
					w.requireMembers(20)
					began := time.Now()
					for _, id := range w.ready()[:10] {
						require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
					}
					w.advance(20 * time.Second)
					w.stopLeader()
					w.startLeader(webGroup(20))
					for len(w.ready()) < 20 {
						w.advance(time.Second)
						require.Less(t, time.Since(began), time.Hour)
					}
					mu.Lock()
					after[differ] = time.Since(began)
					mu.Unlock()
					w.advance(5 * time.Minute)
					w.requireMembers(20)
					require.Equal(t, 30, w.cloud.Count(simcloud.OpCreate), "one replacement for each loss")
					w.requireNoFailures()
				})
			})
		}
	})
	require.Equal(t, after[false], after[true])
}

// TestTakeoverOfIntentsWithoutMachine: an intent whose user data only the former leader
// could render is replaced and not counted as a failure.
func TestTakeoverOfIntentsWithoutMachine(t *testing.T) {
	// abandoned ends a leader whose creates never reached the cloud and returns the IDs of
	// its intents.
	abandoned := func(w *world, n int) []nstance.InstanceID {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1})
		before := w.ids()
		w.advance(time.Second)
		ids := w.in(nstance.Provisioning)
		require.Len(w.t, ids, n)
		require.Equal(w.t, before, w.ids())
		w.stopLeader()
		w.cloud.ClearFaults()
		return ids
	}
	// renewed requires that other instances were created instead.
	renewed := func(w *world, ids []nstance.InstanceID) {
		for _, id := range ids {
			e := w.first(nstance.EventDeleteRequested, func(e nstance.Event) bool { return e.Instance == id })
			require.Contains(w.t, e.Reason, "abandoned")
			require.False(w.t, w.exists(id))
			_, ok := w.r.Admin().Internals().Records().Get(id)
			require.False(w.t, ok)
		}
		w.requireNoFailures()
	}
	t.Run("of a new group", func(t *testing.T) {
		takeover(t, true, simcloud.Options{}, func(t *testing.T, w *world) {
			w.startLeader(webGroup(3))
			ids := abandoned(w, 3)
			w.startLeader(webGroup(3))
			w.advance(15 * time.Second)
			require.Len(t, w.ids(), 3, "once their absence is certain")
			w.advance(2 * time.Minute)
			w.requireMembers(3)
			renewed(w, ids)
		})
	})
	t.Run("replacements of losses", func(t *testing.T) {
		takeover(t, true, simcloud.Options{}, func(t *testing.T, w *world) {
			w.startLeader(webGroup(3))
			w.advance(2 * time.Minute)
			require.NoError(t, w.cloud.Reclaim(w.ready()[0], 2*time.Minute))
			ids := abandoned(w, 1)
			w.startLeader(webGroup(3))
			w.advance(5 * time.Minute)
			w.requireMembers(3)
			renewed(w, ids)
			require.Equal(t, 2, w.count(nstance.EventReplacementRequested, ""), "still the replacement of a loss")
		})
	})
	t.Run("of a rollout", func(t *testing.T) {
		takeover(t, true, simcloud.Options{}, func(t *testing.T, w *world) {
			w.startLeader(webGroup(2))
			w.advance(2 * time.Minute)
			w.setGroups(groupWithUserData(2, "v2"))
			ids := abandoned(w, 1)
			w.startLeader(groupWithUserData(2, "v2"))
			w.requireReadyFor(2, 10*time.Minute)
			w.requireMembers(2)
			renewed(w, ids)
			require.Zero(t, w.group().Stale)
		})
	})
	t.Run("of a removed group", func(t *testing.T) {
		takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
			w.startLeader(webGroup(3))
			abandoned(w, 3)
			w.startLeader(webGroup(1))
			w.advance(2 * time.Minute)
			w.requireMembers(1)
			require.Len(t, w.ids(), 1)
			w.requireNoFailures()
		})
	})
	t.Run("with a nonce about to expire", func(t *testing.T) {
		takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
			w.startLeader(webGroup(2))
			ids := abandoned(w, 2)
			w.advance(15 * time.Minute) // of 20, of which registration may take 5
			w.startLeader(webGroup(2))
			w.advance(2 * time.Minute)
			w.requireMembers(2)
			for _, id := range ids {
				require.NotContains(t, w.ready(), id)
			}
			w.advance(time.Minute)
			require.Zero(t, w.group().Failures)
			require.Zero(t, w.count(nstance.EventRolloutHalted, ""))
		})
	})
	t.Run("with a deleted definition", func(t *testing.T) {
		takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
			w.startLeader(webGroup(1))
			ids := abandoned(w, 1)
			for _, e := range w.stored(layout.DefinitionPrefix("s1")) {
				require.NoError(t, w.store.DeleteIfMatch(w.ctx, e.Key, e.Version))
			}
			w.startLeader(webGroup(1))
			w.advance(2 * time.Minute)
			w.requireMembers(1)
			renewed(w, ids)
		})
	})
	t.Run("on demand: error to the caller", func(t *testing.T) {
		takeover(t, true, simcloud.Options{}, func(t *testing.T, w *world) {
			w.startLeader(webGroup(0))
			w.advance(time.Second)
			id := w.newID()
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1})
			_, err := w.requestOnDemand(onDemand(id))
			require.NoError(t, err)
			w.stopLeader()
			w.cloud.ClearFaults()
			w.startLeader(webGroup(0))
			w.advance(2 * time.Minute)
			w.requireMembers(0)
			e := w.first(nstance.EventCreateFailed, func(e nstance.Event) bool { return e.Instance == id })
			require.Contains(t, e.Error, "make a new ID")
			require.Zero(t, w.group().Failures)
		})
	})
}

// stored lists the objects under a prefix.
func (w *world) stored(prefix string) (out []storage.Entry) {
	w.t.Helper()
	for e, err := range w.store.List(w.ctx, prefix, "") {
		require.NoError(w.t, err)
		out = append(out, e)
	}
	return out
}

// TestUserDataChangesBetweenAttempts: settings that change between two attempts of a
// create have the effect of a new leader.
func TestUserDataChangesBetweenAttempts(t *testing.T) {
	takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
		settings := &settableBootstrap{text: "one"}
		w.wrap = func(o *leaderEnv) { o.options = func(opts *reconcile.Options) { opts.Bootstrap = settings } }
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate})
		w.startLeader(webGroup(1))
		w.advance(time.Second)
		settings.set("two")
		w.advance(2 * time.Minute)
		w.requireMembers(1)
		w.requireNoFailures()
		spec, _ := w.cloud.Spec(w.ready()[0])
		require.Equal(t, "two", string(spec.UserData))
	})
}

// settableBootstrap is a Bootstrap that renders the current settings, or fails.
type settableBootstrap struct {
	mu   sync.Mutex
	text string
	err  error
}

func (c *settableBootstrap) set(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text, c.err = text, nil
}

func (c *settableBootstrap) Render(_ context.Context, req reconcile.RenderRequest) (reconcile.Rendered, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return reconcile.Rendered{UserData: []byte(c.text), Args: req.Definition.Args}, c.err
}

// TestMachineLostBeforeItsCreateIsAnswered: the agent of a machine registers while the answer to
// its create is missing, and the machine ends before the provider shows it.
func TestMachineLostBeforeItsCreateIsAnswered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: 1, Lost: true})
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpGet, Times: -1, Code: nstance.Unavailable})
		w.startLeader(webGroup(1))
		for len(w.cloud.Machines()) == 0 {
			w.advance(10 * time.Millisecond)
		}
		id := w.ids()[0]
		w.silenceAgents(id)
		r, _ := w.leader()
		require.True(t, w.register(t.Context(), r, id))
		require.NoError(t, w.cloud.Kill(id))
		w.cloud.ClearFaults()
		w.advance(2 * time.Minute)
		require.NotContains(t, w.ids(), id)
		require.Len(t, w.ready(), 1)
	})
}
