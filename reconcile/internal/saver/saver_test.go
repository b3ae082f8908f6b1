package saver_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/reconcile/internal/saver"
)

// A document is saved with delays and errors.
type document struct {
	s *saver.Saver

	mu    sync.Mutex
	err   error
	takes time.Duration
	tries int
}

func (d *document) save(ctx context.Context) (uint64, error) {
	d.mu.Lock()
	d.tries++
	err, takes := d.err, d.takes
	d.mu.Unlock()
	edits := d.s.Edits()
	sleep.For(ctx, takes)
	return edits, err
}

func (d *document) answer(err error, takes time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err, d.takes = err, takes
}

func (d *document) saves() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tries
}

// saved calls test with a document that is being saved. Stop ends that.
func saved(t *testing.T, test func(t *testing.T, d *document, stop func())) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		d := &document{s: saver.New()}
		var run sync.WaitGroup
		run.Go(func() { d.s.Run(ctx, d.save) })
		stop := func() { cancel(); run.Wait(); d.s.Close() }
		defer stop()
		test(t, d, stop)
	})
}

func TestAwait(t *testing.T) {
	t.Run("a change is durable once it is saved", func(t *testing.T) {
		saved(t, func(t *testing.T, d *document, _ func()) {
			require.NoError(t, d.s.Await(t.Context(), d.s.Edits()), "nothing has changed")
			d.answer(nil, time.Second)
			began := time.Now()
			d.s.Changed()
			require.NoError(t, d.s.Await(t.Context(), d.s.Edits()))
			require.Equal(t, time.Second, time.Since(began))
		})
	})
	t.Run("a change during an attempt is in the next", func(t *testing.T) {
		saved(t, func(t *testing.T, d *document, _ func()) {
			d.answer(nil, time.Second)
			d.s.Changed()
			synctest.Wait()
			began := time.Now()
			d.s.Changed()
			require.NoError(t, d.s.Await(t.Context(), d.s.Edits()))
			require.Equal(t, 2*time.Second, time.Since(began))
			require.Equal(t, 2, d.saves())
		})
	})
	t.Run("a failed attempt is an answer, and is repeated", func(t *testing.T) {
		saved(t, func(t *testing.T, d *document, _ func()) {
			d.answer(errors.New("the store is away"), 0)
			d.s.Changed()
			edit := d.s.Edits()
			err := d.s.Await(t.Context(), edit)
			require.ErrorIs(t, err, nstance.Unavailable)
			require.ErrorContains(t, err, "the store is away")
			d.answer(nil, 0)
			sleep.For(t.Context(), time.Second+time.Millisecond)
			synctest.Wait()
			require.NoError(t, d.s.Await(t.Context(), edit))
			require.Equal(t, 2, d.saves())
			sleep.For(t.Context(), time.Hour)
			require.Equal(t, 2, d.saves(), "nothing is left to save")
		})
	})
	t.Run("an earlier failure is no answer to a later change", func(t *testing.T) {
		saved(t, func(t *testing.T, d *document, _ func()) {
			d.answer(errors.New("the store is away"), 0)
			d.s.Changed()
			synctest.Wait()
			d.answer(nil, 0)
			d.s.Changed()
			require.NoError(t, d.s.Await(t.Context(), d.s.Edits()))
		})
	})
	t.Run("the caller gives up", func(t *testing.T) {
		saved(t, func(t *testing.T, d *document, _ func()) {
			d.answer(nil, time.Minute)
			d.s.Changed()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err := d.s.Await(ctx, d.s.Edits())
			require.ErrorIs(t, err, nstance.Unavailable)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
	})
	t.Run("the term ends", func(t *testing.T) {
		saved(t, func(t *testing.T, d *document, stop func()) {
			edit := d.s.Edits() + 1 // which no attempt holds
			var err error
			var wait sync.WaitGroup
			wait.Go(func() { err = d.s.Await(context.Background(), edit) })
			synctest.Wait()
			stop()
			wait.Wait()
			require.ErrorIs(t, err, nstance.Unavailable)
			require.ErrorContains(t, err, "this term is over")
		})
	})
}

// TestChangedLater: such changes are gathered, unless another one comes that is saved at once.
func TestChangedLater(t *testing.T) {
	saved(t, func(t *testing.T, d *document, _ func()) {
		for range 3 {
			d.s.ChangedLater()
			sleep.For(t.Context(), saver.Gather/4)
		}
		synctest.Wait()
		require.Zero(t, d.saves())
		sleep.For(t.Context(), saver.Gather)
		synctest.Wait()
		require.Equal(t, 1, d.saves())
		sleep.For(t.Context(), 2*saver.Gather)
		require.Equal(t, 2, d.saves(), "what came during the wait")
		d.s.ChangedLater()
		synctest.Wait()
		d.s.Changed()
		synctest.Wait()
		require.Equal(t, 3, d.saves())
	})
}

// TestEndDuringFailure: the end of a term ends the attempts.
func TestEndDuringFailure(t *testing.T) {
	saved(t, func(t *testing.T, d *document, stop func()) {
		d.answer(errors.New("the store is away"), 0)
		d.s.Changed()
		synctest.Wait()
		stop()
		require.Equal(t, 1, d.saves())
	})
}
