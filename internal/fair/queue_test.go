package fair_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/fair"
)

func TestTenantsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := fair.NewQueue[nstance.TenantID](1, 1, 100)
		hold, err := q.Acquire(t.Context(), "red")
		require.NoError(t, err)
		served := make(chan nstance.TenantID, 100)
		wait := func(tenant nstance.TenantID) {
			go func() {
				release, err := q.Acquire(t.Context(), tenant)
				if err == nil {
					served <- tenant
					release()
				}
			}()
			synctest.Wait()
		}
		for range 50 {
			wait("red")
		}
		wait("blue")
		wait("blue")
		hold()
		synctest.Wait()
		var order []nstance.TenantID
		for range 4 {
			order = append(order, <-served)
		}
		require.Equal(t, []nstance.TenantID{"red", "blue", "red", "blue"}, order)
	})
}

func TestOneTenantLeavesSlots(t *testing.T) {
	q := fair.NewQueue[nstance.TenantID](4, 2, 1)
	for range 2 {
		_, err := q.Acquire(t.Context(), "red")
		require.NoError(t, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := q.Acquire(gone, "red")
		left <- err
	}()
	require.Eventually(t, func() bool { return q.Waiting("red") == 1 }, time.Minute, time.Millisecond)
	_, err := q.Acquire(t.Context(), "red")
	require.ErrorIs(t, err, nstance.Throttled)
	release, err := q.Acquire(t.Context(), "blue")
	require.NoError(t, err)
	release()
	cancel()
	require.ErrorIs(t, <-left, nstance.Unavailable)
	require.Zero(t, q.Waiting("red"))
}
