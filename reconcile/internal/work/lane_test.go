package work_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/nstance-go/nstance/reconcile/internal/work"
	"github.com/stretchr/testify/require"
)

// TestLaneOrder: steps run in order of arrival, so that none starves.
func TestLaneOrder(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	l := work.NewLane[*int](1)
	var submitted, performed []*int
	for range 5 {
		m := new(int)
		submitted = append(submitted, m)
		l.Submit(m)
	}
	l.Run(ctx, func(_ context.Context, m *int) {
		if performed = append(performed, m); len(performed) == len(submitted) {
			stop()
		}
	})
	require.Len(t, performed, len(submitted))
	for i, m := range submitted {
		require.Same(t, m, performed[i])
	}
}

// TestLaneWidth: as many steps run at the same time as the lane is wide, also those that come
// while it is idle, and none of them begins after the end.
func TestLaneWidth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		l := work.NewLane[int](3)
		var mu sync.Mutex
		var running, begun, ended int
		release := make(chan struct{})
		var lane sync.WaitGroup
		lane.Go(func() {
			l.Run(ctx, func(context.Context, int) {
				mu.Lock()
				running, begun = running+1, begun+1
				mu.Unlock()
				<-release
				mu.Lock()
				running, ended = running-1, ended+1
				mu.Unlock()
			})
		})
		synctest.Wait()
		for i := range 7 {
			l.Submit(i)
		}
		for _, want := range []int{3, 3, 3, 3, 3, 2, 1, 0} {
			synctest.Wait()
			mu.Lock()
			require.Equal(t, want, running)
			mu.Unlock()
			if want > 0 {
				release <- struct{}{}
			}
		}
		for i := range 4 {
			l.Submit(i)
		}
		synctest.Wait()
		stop()
		close(release)
		lane.Wait()
		require.Equal(t, 10, begun, "the fourth has not begun")
		require.Equal(t, begun, ended)
	})
}

// TestIdleLaneEnds: none of the workers that wait for a step outlasts the end.
func TestIdleLaneEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		l := work.NewLane[int](8)
		var lane sync.WaitGroup
		lane.Go(func() { l.Run(ctx, func(context.Context, int) {}) })
		l.Submit(1)
		synctest.Wait()
		stop()
		lane.Wait()
	})
}
