package conformance_test

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
	"github.com/nstance-go/nstance/internal/conformance"
)

// run runs check as the only subtest of a run. Since a run makes subtests, only the
// body is in a bubble.
func run(t *testing.T, check func(*testing.T, *conformance.Calls)) {
	t.Helper()
	conformance.NewRun(time.Minute).Test(t, "run", func(t *testing.T, c *conformance.Calls) {
		synctest.Test(t, func(t *testing.T) { check(t, c) })
	})
}

func TestCall(t *testing.T) {
	run(t, func(t *testing.T, c *conformance.Calls) {
		_, err := conformance.Call(t.Context(), c, "Get(a)", func(context.Context) (int, error) { return 0, errors.New("sorry") })
		require.EqualError(t, err, "sorry", "as it is")
		for range 3 {
			got, err := conformance.Call(t.Context(), c, "Get(a)", func(context.Context) (int, error) { return 7, nil })
			require.NoError(t, err)
			require.Equal(t, 7, got)
		}
		require.Equal(t, "Get(a) answered 7 3 times", c.Last())
	})
}

func TestCallBounds(t *testing.T) {
	t.Run("a call that ends with its context", func(t *testing.T) {
		run(t, func(t *testing.T, c *conformance.Calls) {
			began := time.Now()
			_, err := conformance.Call(t.Context(), c, "Get(a)", func(ctx context.Context) (int, error) {
				<-ctx.Done()
				return 0, nstance.Errorf(nstance.Unavailable, "%w", ctx.Err())
			})
			require.ErrorContains(t, err, "Get(a) gave no answer within 1m0s")
			require.Equal(t, nstance.Internal, nstance.CodeOf(err), "its own code would look like an answer")
			require.Equal(t, time.Minute, time.Since(began))
			require.Equal(t, time.Minute, c.Run().Limit(), "one more")
		})
	})
	t.Run("a call that hangs, until the run is used up", func(t *testing.T) {
		run(t, func(t *testing.T, c *conformance.Calls) {
			end := make(chan struct{})
			defer close(end)
			hang := func(context.Context) (int, error) { <-end; return 0, nil }
			began := time.Now()
			for range 2 {
				_, err := conformance.Call(t.Context(), c, "Get(a)", hang)
				require.ErrorContains(t, err, "Get(a) hangs")
			}
			_, err := conformance.Call(t.Context(), c, "Get(a)", hang)
			require.ErrorContains(t, err, "Get(a) was not called")
			require.Less(t, time.Since(began), 150*time.Second)
		})
	})
	t.Run("a context that ends earlier is the caller's", func(t *testing.T) {
		run(t, func(t *testing.T, c *conformance.Calls) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := conformance.Call(ctx, c, "Get(a)", func(ctx context.Context) (int, error) { return 0, ctx.Err() })
			require.Equal(t, context.Canceled, err)
		})
	})
	t.Run("a panic", func(t *testing.T) {
		run(t, func(t *testing.T, c *conformance.Calls) {
			_, err := conformance.Call(t.Context(), c, "Get(a)", func(context.Context) (int, error) { panic("oh") })
			require.ErrorContains(t, err, "Get(a) panics: oh")
		})
	})
}

func count(n int) func(context.Context) iter.Seq2[int, error] {
	return func(context.Context) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := range n {
				if !yield(i, nil) {
					return
				}
			}
		}
	}
}

func TestSequence(t *testing.T) {
	run(t, func(t *testing.T, c *conformance.Calls) {
		var got []int
		for v, err := range conformance.Sequence(t.Context(), c, "List()", count(3)) {
			require.NoError(t, err)
			got = append(got, v)
		}
		require.Equal(t, []int{0, 1, 2}, got)
		require.Equal(t, "List() answered 3 entries", c.Last())
		for range conformance.Sequence(t.Context(), c, "List()", count(3)) {
			break
		}
		require.Equal(t, "List() answered 1 entries", c.Last())
	})
	t.Run("one that hangs after an entry", func(t *testing.T) {
		run(t, func(t *testing.T, c *conformance.Calls) {
			end := make(chan struct{})
			defer close(end)
			var errs []error
			for _, err := range conformance.Sequence(t.Context(), c, "List()", func(context.Context) iter.Seq2[int, error] {
				return func(yield func(int, error) bool) { yield(1, nil); <-end }
			}) {
				errs = append(errs, err)
			}
			require.Len(t, errs, 2)
			require.NoError(t, errs[0])
			require.ErrorContains(t, errs[1], "List() hangs: its sequence has not gone on for 1m0s, after 1 entries")
		})
	})
}

// Each answer is recorded, and shown in the log of a subtest that fails.
func ExampleCall() {
	_ = func(t *testing.T) {
		run := conformance.NewRun(10 * time.Second)
		run.Test(t, "answers", func(t *testing.T, c *conformance.Calls) {
			if _, err := conformance.Call(t.Context(), c, "Ping()", func(context.Context) (int, error) { return 0, nil }); err != nil {
				t.Fatal(c.Last())
			}
		})
	}
	fmt.Println(conformance.NewRun(10 * time.Second).Limit())
	// Output: 10s
}
