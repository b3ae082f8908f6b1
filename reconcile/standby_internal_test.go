package reconcile

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
)

// newSleepingShard returns an idle shard of one group of ten, with that many parked members.
func newSleepingShard(t testing.TB, parked int) (*Reconciler, nstance.GroupKey) {
	r, specs := newIdleShard(t, 1, 10)
	specs[0].WarmPool = nstance.WarmPool{Size: parked, Mode: nstance.ParkStopped}
	require.NoError(t, r.Desire(specs))
	g := r.groups[specs[0].Key]
	for range parked {
		m := eventMember(t, r, g.key)
		m.rec.Standby = &records.Standby{Mode: nstance.ParkStopped, Phase: nstance.Parking, Since: m.rec.CreatedAt}
		m.state, m.agentState, m.machine.Status = nstance.Parked, agentState{wasReady: true}, nstance.StatusStopped
		m.drainState = drainState{drain: &nstance.Drain{Instance: m.id, Group: g.key, Generation: 1, StartedAt: m.rec.CreatedAt, Deadline: m.rec.CreatedAt.Add(time.Minute)}, drainEnded: true}
		r.addMember(g, m)
	}
	processQueue(r)
	return r, g.key
}

// TestSleepCausesNothing: parked members are the reason for no plan, now or later, and for no
// question to the provider.
func TestSleepCausesNothing(t *testing.T) {
	due := func(parked int) time.Duration {
		r, key := newSleepingShard(t, parked)
		require.Len(t, r.groups[key].members, 10+parked)
		require.Empty(t, processQueue(r))
		require.Zero(t, r.questions.Waiting())
		for _, m := range r.groups[key].members {
			require.Equal(t, stepNone, m.step)
		}
		_, _, wait := r.queue.Next()
		return wait
	}
	require.Equal(t, due(0), due(100), "the group is planned again no sooner")
}

// BenchmarkSleep plans a group of ten with parked members, as after each listing.
func BenchmarkSleep(b *testing.B) {
	for _, parked := range []int{0, 10, 100} {
		b.Run(fmt.Sprint(parked), func(b *testing.B) {
			r, key := newSleepingShard(b, parked)
			b.ReportAllocs()
			for b.Loop() {
				r.process(key)
			}
		})
	}
}
