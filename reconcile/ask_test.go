package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// breaks has the streams of the first n members break, and returns what the
// provider is asked within two seconds.
func (w *world) breaks(n int) (lists, gets int) {
	lists, gets = w.cloud.Count(simcloud.OpList), w.cloud.Count(simcloud.OpGet)
	for _, id := range w.ready()[:n] {
		w.r.Observe(nstance.Disconnected{ID: id})
	}
	w.passes(1900 * time.Millisecond)
	return w.cloud.Count(simcloud.OpList) - lists, w.cloud.Count(simcloud.OpGet) - gets
}

// TestQuestionsAreCoalesced: what breaks for many at once is one question.
func TestQuestionsAreCoalesced(t *testing.T) {
	t.Run("many", func(t *testing.T) {
		within(t, 200, simcloud.Options{}, func(t *testing.T, w *world) {
			lists, gets := w.breaks(200)
			require.Zero(t, gets)
			require.GreaterOrEqual(t, lists, 1)
			require.LessOrEqual(t, lists, 2)
			w.passes(time.Minute)
			w.agrees(200)
		})
	})
	t.Run("a few", func(t *testing.T) {
		within(t, 20, simcloud.Options{}, func(t *testing.T, w *world) {
			w.passes(10 * time.Second) // of the full pass, if there is one
			lists, gets := w.breaks(5)
			require.Equal(t, 5, gets)
			require.Zero(t, lists)
		})
	})
}

// TestSilenceBeforeATakeover: who was silent before a leader came has as long as
// anybody else until it is missed by this one, and no longer.
func TestSilenceBeforeATakeover(t *testing.T) {
	within(t, 5, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.ready()[0]
		w.hush(id)
		w.passes(100 * time.Second) // with the former leader it would not have had long
		w.depose()
		w.lead(wanted(5))
		silent := func() bool {
			v, err := w.r.Instance(id)
			require.NoError(t, err)
			return v.Silent
		}
		w.passes(time.Second)
		gets := w.cloud.Count(simcloud.OpGet)
		for range 64 {
			w.passes(time.Second)
			require.False(t, silent())
		}
		require.Equal(t, gets, w.cloud.Count(simcloud.OpGet), "nobody was asked about it")
		w.passes(5 * time.Second)
		require.True(t, silent())
		require.Greater(t, w.cloud.Count(simcloud.OpGet), gets)
		w.passes(110 * time.Second) // 180 s: it has not missed three, late as they may be
		require.Zero(t, w.count(nstance.EventUnhealthy, id))
		w.passes(10 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventUnhealthy, id))
		w.passes(10 * time.Minute)
		w.agrees(5)
		require.NotContains(t, w.ready(), id)
	})
}
