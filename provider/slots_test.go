package provider_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// TestSlotsOfAKind: hanging calls of one kind do not delay other kinds.
func TestSlotsOfAKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := func() { <-time.After(time.Minute) }
		c := client(t, scripted{
			create: func(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
				if s.Group == "slow" {
					hang()
				}
				return nstance.Machine{ID: s.ID, Owner: s.Owner}, nil
			},
			delete: func(context.Context, nstance.Machine) error { hang(); return nil },
		}, &provider.Options{Width: 2, Timeout: time.Hour})
		var wg sync.WaitGroup
		defer wg.Wait()
		slow := spec(t)
		slow.Group = "slow"
		start := time.Now()
		for range 10 {
			wg.Go(func() { _ = c.Delete(t.Context(), nstance.Machine{ID: slow.ID, Owner: slow.Owner}) })
		}
		synctest.Wait()
		_, err := c.Create(t.Context(), spec(t))
		require.NoError(t, err)
		require.Zero(t, time.Since(start), "deletes hold up no create")
		for range 10 {
			wg.Go(func() { _, _ = c.Create(t.Context(), slow) })
		}
		synctest.Wait()
		_, err = c.Create(provider.Urgent(t.Context()), spec(t))
		require.NoError(t, err)
		require.Zero(t, time.Since(start), "creates hold up no urgent one")
		_, err = c.Create(t.Context(), spec(t))
		require.NoError(t, err)
		require.Positive(t, time.Since(start))
	})
}

// TestUrgentDelete: a delete takes a slot of the deletes, whatever its context is.
func TestUrgentDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, scripted{delete: func(context.Context, nstance.Machine) error {
			<-time.After(time.Minute)
			return nil
		}}, &provider.Options{Width: 1, Timeout: time.Hour})
		urgent, start := provider.Urgent(t.Context()), time.Now()
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { _ = c.Delete(urgent, nstance.Machine{ID: spec(t).ID, Owner: owner}) })
		synctest.Wait()
		_, err := c.Create(urgent, spec(t))
		require.NoError(t, err)
		require.Zero(t, time.Since(start))
	})
}

// TestEndedContext: nothing is sent for a caller that has gone, even if a slot is free.
func TestEndedContext(t *testing.T) {
	asked := 0
	c := client(t, scripted{get: func(_ context.Context, id nstance.InstanceID) (nstance.Machine, error) {
		asked++
		return nstance.Machine{ID: id}, nil
	}}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 { // of two channels that are ready, select takes any
		_, err := c.Get(ctx, spec(t).ID)
		require.ErrorIs(t, err, nstance.Unavailable)
	}
	require.Zero(t, asked)
}

func TestWidth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		c := client(t, scripted{create: func(_ context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
			most.Store(max(most.Load(), now.Add(1)))
			<-time.After(time.Second)
			now.Add(-1)
			return nstance.Machine{ID: s.ID, Owner: s.Owner}, nil
		}}, &provider.Options{Width: 4})
		start := time.Now()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				_, err := c.Create(t.Context(), spec(t))
				require.NoError(t, err)
			})
		}
		wg.Wait()
		require.EqualValues(t, 4, most.Load())
		require.Equal(t, 3*time.Second, time.Since(start))
	})
}
