package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// TestStorm reclaims a fifth of a large group within one second, from a cloud
// whose calls take 50 ms, a hundred at a time. In virtual time the pace is
// arithmetic: the last create must be called within one and a half times what
// that many calls need, and no member may be lost.
func TestStorm(t *testing.T) {
	const size, reclaimed, width = 500, 100, 50
	const latency = 50 * time.Millisecond
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Latency: simcloud.Delay{Min: latency}, Width: width})
		defer w.close()
		p := w.timing()
		w.startLeader(webGroup(size))
		w.advance(3 * time.Minute)
		require.Len(t, w.ready(), size)
		victims := w.ready()[:reclaimed]

		began := time.Now()
		for _, id := range victims {
			require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
			w.advance(time.Second / reclaimed)
		}
		arriving := time.Since(began)
		w.advance(10 * time.Second)
		require.Equal(t, reclaimed, w.count(nstance.EventReplacementRequested, ""))
		called, last := p.since(began)
		require.Equal(t, reclaimed, called)
		floor := max(arriving, reclaimed*latency/width)
		require.LessOrEqual(t, last.Sub(began), floor*3/2)

		w.advance(5 * time.Minute)
		w.requireMembers(size)
	})
}
