package reconcile_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// A serverBootstrap renders the server's address into user data. No other server
// renders the same bytes.
type serverBootstrap struct{ address string }

func (b serverBootstrap) Render(_ context.Context, _ *storage.Instance, def nstance.Definition) (reconcile.Rendered, error) {
	return reconcile.Rendered{UserData: fmt.Appendf(nil, "%s %s", def.UserData.Content, b.address), Args: def.Args}, nil
}

// takeover runs a test in a bubble whose leaders render differently, or alike.
func takeover(t *testing.T, differ bool, o simcloud.Options, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, o)
		w.differ = differ
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

// blameless checks that nothing was counted against a group's definition.
func (w *world) blameless() {
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
			o := simcloud.Options{Boot: simcloud.Constant(time.Minute), Lag: simcloud.Constant(lag)}
			takeover(t, true, o, func(t *testing.T, w *world) {
				w.lead(wanted(5))
				w.passes(time.Second)
				booting := w.ids()
				require.Len(t, booting, 5)
				w.depose()
				w.lead(wanted(5))
				w.passes(3 * time.Minute)
				require.Equal(t, booting, w.ids(), "all of them are kept")
				w.agrees(5)
				require.Zero(t, w.count(nstance.EventDeleteRequested, ""))
				w.blameless()
			})
		})
	}
}

func TestTakeoverDuringReclaim(t *testing.T) {
	whole := func(differ bool) (after time.Duration) {
		takeover(t, differ, simcloud.Options{Boot: simcloud.Constant(40 * time.Second)}, func(t *testing.T, w *world) {
			w.lead(wanted(20))
			w.passes(2 * time.Minute)
			w.agrees(20)
			began := time.Now()
			for _, id := range w.ready()[:10] {
				require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
			}
			w.passes(20 * time.Second)
			w.depose()
			w.lead(wanted(20))
			for len(w.ready()) < 20 {
				w.passes(time.Second)
				require.Less(t, time.Since(began), time.Hour)
			}
			after = time.Since(began)
			w.passes(5 * time.Minute)
			w.agrees(20)
			require.Equal(t, 30, w.cloud.Count(simcloud.OpCreate), "one replacement for each loss")
			w.blameless()
		})
		return after
	}
	require.Equal(t, whole(false), whole(true))
}

// TestTakeoverOfIntentsWithoutMachine: bytes that only the former leader could
// make again are no reason to blame the definition.
func TestTakeoverOfIntentsWithoutMachine(t *testing.T) {
	// abandoned ends a leader with intents whose creates never arrived, and
	// returns their IDs.
	abandoned := func(w *world, n int) []nstance.InstanceID {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1})
		before := w.ids()
		w.passes(time.Second)
		ids := w.in(nstance.Provisioning)
		require.Len(w.t, ids, n)
		require.Equal(w.t, before, w.ids())
		w.depose()
		w.cloud.Heal()
		return ids
	}
	// renewed checks that others were made in their place.
	renewed := func(w *world, ids []nstance.InstanceID) {
		for _, id := range ids {
			e := w.first(nstance.EventDeleteRequested, func(e nstance.Event) bool { return e.Instance == id })
			require.Contains(w.t, e.Reason, "abandoned")
			require.False(w.t, w.exists(id))
			_, ok := w.r.Records().Get(id)
			require.False(w.t, ok)
		}
		w.blameless()
	}
	t.Run("of a new group", func(t *testing.T) {
		takeover(t, true, simcloud.Options{}, func(t *testing.T, w *world) {
			w.lead(wanted(3))
			ids := abandoned(w, 3)
			w.lead(wanted(3))
			w.passes(15 * time.Second)
			require.Len(t, w.ids(), 3, "as soon as their absence is certain")
			w.passes(2 * time.Minute)
			w.agrees(3)
			renewed(w, ids)
		})
	})
	t.Run("that replace losses", func(t *testing.T) {
		takeover(t, true, simcloud.Options{}, func(t *testing.T, w *world) {
			w.lead(wanted(3))
			w.passes(2 * time.Minute)
			require.NoError(t, w.cloud.Reclaim(w.ready()[0], 2*time.Minute))
			ids := abandoned(w, 1)
			w.lead(wanted(3))
			w.passes(5 * time.Minute)
			w.agrees(3)
			renewed(w, ids)
			require.Equal(t, 2, w.count(nstance.EventReplacementRequested, ""), "it stays the replacement of a loss")
		})
	})
	t.Run("of a rollout", func(t *testing.T) {
		takeover(t, true, simcloud.Options{}, func(t *testing.T, w *world) {
			w.lead(wanted(2))
			w.passes(2 * time.Minute)
			w.want(redefined(2, "v2"))
			ids := abandoned(w, 1)
			w.lead(redefined(2, "v2"))
			w.serves(2, 10*time.Minute)
			w.agrees(2)
			renewed(w, ids)
			require.Zero(t, w.group().Stale)
		})
	})
	t.Run("that no group wants", func(t *testing.T) {
		takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
			w.lead(wanted(3))
			abandoned(w, 3)
			w.lead(wanted(1))
			w.passes(2 * time.Minute)
			w.agrees(1)
			require.Len(t, w.ids(), 1)
			w.blameless()
		})
	})
	t.Run("whose nonce is nearly used up", func(t *testing.T) {
		takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
			w.lead(wanted(2))
			ids := abandoned(w, 2)
			w.passes(15 * time.Minute) // of the 20 that it holds, of which registration may take 5
			w.lead(wanted(2))
			w.passes(2 * time.Minute)
			w.agrees(2)
			for _, id := range ids {
				require.NotContains(t, w.ready(), id)
			}
			w.passes(time.Minute)
			require.Zero(t, w.group().Failures)
			require.Zero(t, w.count(nstance.EventRolloutHalted, ""))
		})
	})
	t.Run("whose definition is gone", func(t *testing.T) {
		takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
			w.lead(wanted(1))
			ids := abandoned(w, 1)
			for _, e := range w.stored(storage.DefinitionPrefix("s1")) {
				require.NoError(t, w.store.DeleteIfMatch(w.ctx, e.Key, e.Version))
			}
			w.lead(wanted(1))
			w.passes(2 * time.Minute)
			w.agrees(1)
			renewed(w, ids)
		})
	})
	t.Run("on demand: its caller hears of it", func(t *testing.T) {
		takeover(t, true, simcloud.Options{}, func(t *testing.T, w *world) {
			w.lead(wanted(0))
			w.passes(time.Second)
			id := w.newID()
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1})
			_, err := w.order(onDemand(id))
			require.NoError(t, err)
			w.depose()
			w.cloud.Heal()
			w.lead(wanted(0))
			w.passes(2 * time.Minute)
			w.agrees(0)
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

// TestBytesThatChangeMeanwhile: a server whose settings change between two
// attempts at a create is in the place of a new leader.
func TestBytesThatChangeMeanwhile(t *testing.T) {
	takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
		settings := &changing{text: "one"}
		w.wrap = func(o *office) { o.options = func(opts *reconcile.Options) { opts.Bootstrap = settings } }
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate})
		w.lead(wanted(1))
		w.passes(time.Second)
		settings.set("two")
		w.passes(2 * time.Minute)
		w.agrees(1)
		w.blameless()
		spec, _ := w.cloud.Spec(w.ready()[0])
		require.Equal(t, "two", string(spec.UserData))
	})
}

// A changing bootstrap renders what its server is set to, or refuses to.
type changing struct {
	mu   sync.Mutex
	text string
	err  error
}

func (c *changing) set(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text, c.err = text, nil
}

func (c *changing) Render(_ context.Context, _ *storage.Instance, def nstance.Definition) (reconcile.Rendered, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return reconcile.Rendered{UserData: []byte(c.text), Args: def.Args}, c.err
}
