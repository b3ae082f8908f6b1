package nodedrain

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// TestSlotIsNotLost: a slot that is granted to a call which ends in that moment goes to the next one.
func TestSlotIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1)
		for range 100 {
			require.NoError(t, s.acquire(t.Context(), time.Time{}))
			ctx, cancel := context.WithCancelCause(t.Context())
			got := make(chan error, 1)
			go func() {
				err := s.acquire(ctx, time.Time{})
				if err == nil {
					s.release()
				}
				got <- err
			}()
			synctest.Wait()
			cancel(errors.New("no more wanted")) // both at once
			s.release()
			<-got
			require.Equal(t, 1, s.free)
		}
	})
}

// TestRateGrows: the rate of requests grows with the fleet, and with it how many may be sent at once.
func TestRateGrows(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		pass(time.Second)
		require.EqualValues(r, minQPS, r.Drainer.budget.QPS())
		for i := range 150 {
			r.node(fmt.Sprint("n", i))
		}
		pass(10 * time.Second)
		require.EqualValues(r, 300, r.Drainer.budget.QPS())
		for range 300 {
			require.True(r, r.Drainer.budget.TryAccept())
		}
		require.False(r, r.Drainer.budget.TryAccept())
	})
}

// briefWatches end after one event.
type briefWatches struct {
	nstance.DrainCoordinator
	made int
}

func (b *briefWatches) Watch(_ context.Context, _ nstance.TenantID, after nstance.Seq) iter.Seq2[nstance.DrainEvent, error] {
	b.made++
	return func(yield func(nstance.DrainEvent, error) bool) {
		_ = yield(nstance.DrainEvent{Seq: after + 1, Type: nstance.DrainSynced}, nil)
	}
}

// TestWatchIsResumedSoon: watches that end after they yielded something are resumed at once, however
// often.
func TestWatchIsResumedSoon(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.stop()
		c := &briefWatches{DrainCoordinator: r.drains}
		r.Drainer.drains = c
		ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
		defer cancel()
		r.watch(ctx)
		require.Greater(r, c.made, 40)
	})
}
