package reconcile_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestPreserve(t *testing.T) {
	play := func(t *testing.T, then func(t *testing.T, w *world, id nstance.InstanceID)) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			w.lead(wanted(3))
			w.passes(5 * time.Minute)
			id := w.ready()[0]
			r, _ := w.leader()
			require.NoError(t, r.Preserve(t.Context(), id, time.Now().Add(2*time.Hour), eve))
			w.passes(5 * time.Minute)
			then(t, w, id)
		})
	}
	runs := func(w *world, id nstance.InstanceID) bool {
		_, err := w.cloud.Get(w.ctx, id)
		return err == nil
	}
	t.Run("it is replaced and stays, until its time is over", func(t *testing.T) {
		play(t, func(t *testing.T, w *world, id nstance.InstanceID) {
			require.True(t, runs(w, id))
			require.Len(t, w.cloud.Machines(), 4)
			g := w.group()
			require.Equal(t, []int{3, 1, 0, 0}, []int{g.Ready, g.Preserved, g.Booting, g.Leaving})
			w.hush(id)
			w.passes(time.Hour)
			require.True(t, runs(w, id), "silence is no reason")
			w.passes(2 * time.Hour)
			require.False(t, runs(w, id))
			require.Len(t, w.cloud.Machines(), 3)
			w.agrees(3)
		})
	})
	t.Run("a request to end it is refused, with the way to do so", func(t *testing.T) {
		play(t, func(t *testing.T, w *world, id nstance.InstanceID) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, drained := w.r.Drain(ctx, id, "")
			for _, err := range []error{drained, w.r.Delete(ctx, id, "", false), w.r.Delete(ctx, id, "", true), w.r.Removable(id)} {
				require.ErrorIs(t, err, nstance.Conflict)
				require.ErrorContains(t, err, "nstance-admin instance preserve --end "+string(id))
			}
			w.passes(time.Hour)
			require.True(t, runs(w, id))
			w.passes(2 * time.Hour)
			require.ErrorIs(t, w.r.Removable(id), nstance.NotFound)
			gone := w.first(nstance.EventDrainStarted, func(e nstance.Event) bool { return e.Instance == id })
			require.Len(t, gone.Drain.Causes, 1)
			require.Contains(t, gone.Drain.Causes[0].Message, "it was preserved until", "nothing of those requests is left")
		})
	})
	t.Run("a request that comes first hears of it", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			faulty := storagetest.NewFaulty(w.store)
			w.store = faulty
			w.succeeds(wanted(3))
			id := w.ready()[0]
			faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: "instance/", Times: -1}) // so that no drain begins
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			asked := make(chan error, 1)
			go func() { asked <- w.r.Delete(ctx, id, "test", false) }()
			w.passes(5 * time.Second)
			faulty.Heal()
			require.NoError(t, w.r.Preserve(t.Context(), id, time.Now().Add(time.Hour), eve))
			require.ErrorIs(t, <-asked, nstance.Conflict)
		})
	})
	t.Run("a new leader keeps it", func(t *testing.T) {
		play(t, func(t *testing.T, w *world, id nstance.InstanceID) {
			w.depose()
			w.lead(wanted(3))
			w.passes(30 * time.Minute)
			require.True(t, runs(w, id))
			require.Len(t, w.cloud.Machines(), 4)
		})
	})
	t.Run("a smaller group takes others", func(t *testing.T) {
		play(t, func(t *testing.T, w *world, id nstance.InstanceID) {
			r, _ := w.leader()
			r.Observe(nstance.Desired{Groups: []nstance.Group{wanted(0)}})
			w.passes(30 * time.Minute)
			require.True(t, runs(w, id))
			require.Len(t, w.cloud.Machines(), 1)
		})
	})
	t.Run("what the cloud takes is gone", func(t *testing.T) {
		play(t, func(t *testing.T, w *world, id nstance.InstanceID) {
			require.NoError(t, w.cloud.Kill(id))
			w.passes(10 * time.Minute)
			r, _ := w.leader()
			_, err := r.Instance(id)
			require.ErrorIs(t, err, nstance.NotFound)
			w.agrees(3)
		})
	})
	t.Run("ended early, it is drained", func(t *testing.T) {
		play(t, func(t *testing.T, w *world, id nstance.InstanceID) {
			r, _ := w.leader()
			require.NoError(t, r.Preserve(t.Context(), id, time.Now(), eve))
			w.passes(10 * time.Minute)
			require.False(t, runs(w, id))
			require.Equal(t, 1, w.count(nstance.EventDrainAcknowledged, id))
			require.ErrorIs(t, r.Preserve(t.Context(), id, time.Now().Add(time.Hour), eve), nstance.NotFound)
		})
	})
	t.Run("one that never came up is kept past its time to do so", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			w.fails("v1")
			w.lead(wanted(1))
			w.passes(time.Minute)
			id := w.cloud.Machines()[0].ID
			require.NoError(t, w.r.Preserve(t.Context(), id, time.Now().Add(2*time.Hour), eve))
			w.fails("")
			w.passes(time.Hour) // both of its timeouts have passed
			require.True(t, runs(w, id))
			g := w.group()
			require.Equal(t, []int{1, 1, 0}, []int{g.Ready, g.Preserved, g.Booting})
			require.Zero(t, w.count(nstance.EventCreateFailed, id))
			w.succeeds(wanted(1))
			w.passes(30 * time.Minute)
			require.True(t, runs(w, id), "nor does the next leader end it")
			w.passes(time.Hour)
			require.False(t, runs(w, id))
			w.agrees(1)
		})
	})
	t.Run("one that is being drained can still be kept", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			w.slowDrain = true
			w.lead(wanted(3))
			w.passes(5 * time.Minute)
			id := w.ready()[0]
			r, _ := w.leader()
			_, err := r.Drain(t.Context(), id, "test")
			require.NoError(t, err)
			require.NoError(t, r.Preserve(t.Context(), id, time.Now().Add(time.Hour), eve))
			w.passes(30 * time.Minute)
			require.True(t, runs(w, id), "its drain's deadline has passed")
			w.passes(time.Hour)
			require.False(t, runs(w, id))
		})
	})
}

// TestServerPause: silence that this process did not hear is nobody's.
func TestServerPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var skipped atomic.Int64
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.wrap = func(o *office) {
			o.options = func(ro *reconcile.Options) {
				ro.Now = func() time.Time { return time.Now().Add(time.Duration(skipped.Load())) }
			}
		}
		w.lead(wanted(1))
		w.passes(5 * time.Minute)
		id := w.ready()[0]
		w.hush(id)
		w.passes(time.Second)
		skipped.Store(int64(10 * time.Minute)) // as if nothing had run meanwhile
		w.passes(30 * time.Second)
		require.Zero(t, w.count(nstance.EventUnhealthy, ""))
		require.Len(t, w.ready(), 1)
		w.passes(10 * time.Minute)
		require.NotContains(t, w.ready(), id, "and then it is judged like any other")
	})
}
