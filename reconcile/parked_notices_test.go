package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// TestNoticesOfParked: a notice for a parked member that nothing follows from is recorded and
// acknowledged, and its machine sleeps on.
func TestNoticesOfParked(t *testing.T) {
	for _, kind := range []nstance.NoticeKind{nstance.Maintenance, nstance.Rebalance, nstance.Reclaim} {
		for _, mode := range []nstance.ParkMode{nstance.ParkStopped, nstance.ParkRunning} {
			t.Run(string(kind)+", "+string(mode), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					g := pooledGroup(1)
					g.WarmPool.Mode = mode
					w := newPooledWorld(t, g)
					defer w.close()
					id := w.in(nstance.Parked)[0]
					r, _ := w.leader()
					if kind == nstance.Reclaim { // else the machine is replaced
						require.NoError(t, r.Admin().Freeze(t.Context(), web, ""))
					}
					parked, asked, acks := w.count(nstance.EventParked, id), w.cloud.Count(simcloud.OpGet), 0
					r.Observe(nstance.Noticed{ID: id, Notice: nstance.Notice{Kind: kind, EventID: "e1", Source: "test"}, Ack: func() { acks++ }})
					w.advance(time.Minute)
					require.Equal(t, 1, acks)
					require.Equal(t, nstance.Parked, w.instance(id).State)
					require.Equal(t, parked, w.count(nstance.EventParked, id))
					require.LessOrEqual(t, w.cloud.Count(simcloud.OpGet)-asked, 2)
				})
			})
		}
	}
}
