package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/kubernetes/internal/snapshot"
)

// Example shares a listing that is not older than a minute.
func Example() {
	listings := 0
	s := snapshot.New(func(context.Context) (int, error) {
		listings++
		return listings, nil
	})
	for range 3 {
		n, err := s.Since(context.Background(), time.Now().Add(-time.Minute))
		fmt.Println(n, err)
	}
	// Output:
	// 1 <nil>
	// 1 <nil>
	// 1 <nil>
}

// TestHangs: calls that wait for a listing without an answer fail together with it.
func TestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var listings atomic.Int64
		s := snapshot.New(func(ctx context.Context) (int, error) {
			listings.Add(1)
			<-ctx.Done()
			return 0, ctx.Err()
		})
		began := time.Now()
		var callers sync.WaitGroup
		for range 100 {
			callers.Go(func() {
				_, err := s.Since(t.Context(), time.Now())
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		require.Equal(t, 5*time.Second, time.Since(began))
		require.EqualValues(t, 1, listings.Load())
	})
}

// TestFails: a listing that failed is repeated a second later, and its error is not that of a caller
// which has given up.
func TestFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure, listings := errors.New("no"), 0
		s := snapshot.New(func(ctx context.Context) (int, error) {
			listings++
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
			return listings, failure
		})
		gone, cancel := context.WithCancel(t.Context())
		for range 2 {
			_, err := s.Since(t.Context(), time.Now())
			require.ErrorIs(t, err, failure)
		}
		require.Equal(t, 1, listings)
		<-time.After(time.Second)
		cancel()
		_, _ = s.Since(gone, time.Now())
		failure = nil
		value, err := s.Since(t.Context(), time.Now())
		require.NoError(t, err)
		require.Equal(t, listings, value)
		failure = errors.New("again")
		_, err = s.Since(t.Context(), time.Now().Add(time.Second))
		require.ErrorIs(t, err, failure)
		again, err := s.Since(t.Context(), time.Now().Add(-time.Second))
		require.NoError(t, err, "what was listed before is still known")
		require.Equal(t, value, again)
	})
}
