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

// A lateContext has ended when it is asked, and just before that something happens.
type lateContext struct {
	context.Context
	before func()
}

// Done implements context.Context.
func (c lateContext) Done() <-chan struct{} {
	c.before()
	over := make(chan struct{})
	close(over)
	return over
}

// TestSlotThatComesTooLate: a slot that a call is granted while its context ends is not lost.
func TestSlotThatComesTooLate(t *testing.T) {
	q := fair.NewQueue[string](1, 1, 10)
	late := 0
	for range 100 { // half of the calls find first that their context has ended
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		hold, err := q.Acquire(ctx, "a")
		require.NoError(t, err, "a slot is free")
		release, err := q.Acquire(lateContext{ctx, hold}, "b")
		if err == nil {
			release()
		} else {
			late++
		}
		cancel()
	}
	require.Positive(t, late)
}
