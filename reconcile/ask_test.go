package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// breakStreams breaks the streams of the first n members and returns the provider calls of the
// next two seconds.
func (w *world) breakStreams(n int) (lists, gets int) {
	lists, gets = w.cloud.Count(simcloud.OpList), w.cloud.Count(simcloud.OpGet)
	for _, id := range w.ready()[:n] {
		w.r.Observe(nstance.Disconnected{ID: id})
	}
	w.advance(1900 * time.Millisecond)
	return w.cloud.Count(simcloud.OpList) - lists, w.cloud.Count(simcloud.OpGet) - gets
}

// TestProviderReadsAreCoalesced: many streams that break at once cost one list.
func TestProviderReadsAreCoalesced(t *testing.T) {
	t.Run("many", func(t *testing.T) {
		withGroup(t, 200, simcloud.Options{}, func(t *testing.T, w *world) {
			lists, gets := w.breakStreams(200)
			require.Zero(t, gets)
			require.GreaterOrEqual(t, lists, 1)
			require.LessOrEqual(t, lists, 2)
			w.advance(time.Minute)
			w.requireMembers(200)
		})
	})
	t.Run("a few", func(t *testing.T) {
		withGroup(t, 20, simcloud.Options{}, func(t *testing.T, w *world) {
			w.advance(10 * time.Second) // a full pass, if one is due
			lists, gets := w.breakStreams(5)
			require.Equal(t, 5, gets)
			require.Zero(t, lists)
		})
	})
}

// TestSilenceBeforeTakeover: a member that was silent before the handover has the full
// report limit under the new leader, and no more.
func TestSilenceBeforeTakeover(t *testing.T) {
	withGroup(t, 5, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.ready()[0]
		w.silenceAgents(id)
		w.advance(100 * time.Second) // most of the limit under the old leader
		w.stopLeader()
		w.startLeader(webGroup(5))
		silent := func() bool {
			v, err := w.r.Instance(id)
			require.NoError(t, err)
			return v.Silent
		}
		w.advance(time.Second)
		gets := w.cloud.Count(simcloud.OpGet)
		for range 64 {
			w.advance(time.Second)
			require.False(t, silent())
		}
		require.Equal(t, gets, w.cloud.Count(simcloud.OpGet), "no Get before the limit")
		w.advance(5 * time.Second)
		require.True(t, silent())
		require.Greater(t, w.cloud.Count(simcloud.OpGet), gets)
		w.advance(110 * time.Second) // 180 s after the takeover: three reports are not overdue yet
		require.Zero(t, w.count(nstance.EventUnhealthy, id))
		w.advance(10 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventUnhealthy, id))
		w.advance(10 * time.Minute)
		w.requireMembers(5)
		require.NotContains(t, w.ready(), id)
	})
}
