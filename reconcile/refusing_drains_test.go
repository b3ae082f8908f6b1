package reconcile_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// A refusingDrains is a coordinator that refuses the first call of each kind for each instance.
type refusingDrains struct {
	nstance.DrainCoordinator
	mu      sync.Mutex
	refused map[string]bool
}

func (d *refusingDrains) refuse(call string, id nstance.InstanceID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if key := call + " " + string(id); !d.refused[key] {
		d.refused[key] = true
		return nstance.Errorf(nstance.Unavailable, "no answer")
	}
	return nil
}

func (d *refusingDrains) Start(ctx context.Context, is nstance.Drain) error {
	if err := d.refuse("start", is.Instance); err != nil {
		return err
	}
	return d.DrainCoordinator.Start(ctx, is)
}

func (d *refusingDrains) Cancel(ctx context.Context, id nstance.InstanceID, generation uint64) error {
	if err := d.refuse("cancel", id); err != nil {
		return err
	}
	return d.DrainCoordinator.Cancel(ctx, id, generation)
}

func (d *refusingDrains) End(ctx context.Context, id nstance.InstanceID) error {
	if err := d.refuse("end", id); err != nil {
		return err
	}
	return d.DrainCoordinator.End(ctx, id)
}

// TestCoordinatorThatRefuses: each call that failed is repeated, although what goes before it is
// durable already, and what was written is published once.
func TestCoordinatorThatRefuses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{
			Boot: simcloud.Delay{Min: time.Minute}, Park: simcloud.Delay{Min: 3 * time.Second}, Wake: simcloud.Delay{Min: time.Second},
		})
		defer w.close()
		w.wrap = func(o *leaderEnv) {
			o.options = func(opts *reconcile.Options) {
				opts.Drains = &refusingDrains{DrainCoordinator: opts.Drains, refused: map[string]bool{}}
			}
		}
		w.startLeader(pooledGroup(1))
		w.advance(6 * time.Minute)
		bridge := w.in(nstance.Parked)[0]
		_, drains := w.leader()
		active := func(id nstance.InstanceID) bool {
			_, ok := drains.Of(id)
			return ok
		}
		require.True(t, active(bridge))

		w.withholdDrainAcks()
		w.advance(10 * time.Second)
		spared, lost := w.ready()[0], w.ready()[1]
		require.NoError(t, w.cloud.Reclaim(spared, 10*time.Minute))
		w.advance(10 * time.Second)
		require.True(t, active(spared))
		require.Contains(t, w.ready(), bridge)
		require.False(t, active(bridge), "its drain is cancelled as it is woken")
		require.NoError(t, w.cloud.Withdraw(spared))
		w.advance(10 * time.Second)
		require.False(t, active(spared))
		require.Equal(t, []int{1, 0, 1}, []int{
			w.count(nstance.EventDrainStarted, spared), w.count(nstance.EventDrainTightened, spared), w.count(nstance.EventDrainCancelled, spared),
		})

		require.NoError(t, w.cloud.Reclaim(lost, 2*time.Minute))
		w.advance(5 * time.Minute)
		require.Equal(t, 1, w.count(nstance.EventDeleted, lost))
		require.False(t, active(lost))
	})
}
