package agent // tests the drainer without sessions

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// A drainerBench is a drainer in a bubble with a hook that runs until the test ends it.
type drainerBench struct {
	*drainer
	finish chan nstance.Outcome

	guard   sync.Mutex
	runs    int // hooks that were called
	ended   int // hooks that were stopped
	results []*apiv1.DrainResult
}

func (b *drainerBench) hookRuns() int  { b.guard.Lock(); defer b.guard.Unlock(); return b.runs }
func (b *drainerBench) hookStops() int { b.guard.Lock(); defer b.guard.Unlock(); return b.ended }

// sentResults returns the results of commands.
func (b *drainerBench) sentResults() []*apiv1.DrainResult {
	return b.resultsOf(func(r *apiv1.DrainResult) bool { return r.GetGeneration() > 0 })
}

// loneResults returns the results of drains by the agent itself.
func (b *drainerBench) loneResults() []*apiv1.DrainResult {
	return b.resultsOf(func(r *apiv1.DrainResult) bool { return r.GetGeneration() == 0 })
}

func (b *drainerBench) resultsOf(is func(*apiv1.DrainResult) bool) (found []*apiv1.DrainResult) {
	b.guard.Lock()
	defer b.guard.Unlock()
	for _, r := range b.results {
		if is(r) {
			found = append(found, r)
		}
	}
	return found
}

func (b *drainerBench) drainHook(ctx context.Context, _ nstance.Drain) (nstance.Outcome, string) {
	b.count(&b.runs)
	select {
	case <-ctx.Done():
		b.count(&b.ended)
		return nstance.OutcomeFailed, "stopped"
	case o := <-b.finish:
		return o, "done"
	}
}

func (b *drainerBench) count(n *int) {
	b.guard.Lock()
	defer b.guard.Unlock()
	*n++
}

func (b *drainerBench) recordResult(r *apiv1.DrainResult) {
	b.guard.Lock()
	defer b.guard.Unlock()
	b.results = append(b.results, r)
}

func testDrainer(t *testing.T, f func(t *testing.T, b *drainerBench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &drainerBench{finish: make(chan nstance.Outcome)}
		b.drainer = newDrainer(b.drainHook, func(r *apiv1.DrainResult) {
			if assert.True(t, b.mu.TryLock(), "it is reported without the lock: the mailbox has its own") {
				b.mu.Unlock()
			}
			b.recordResult(r)
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- b.Run(ctx) }()
		f(t, b)
		cancel()
		require.NoError(t, <-over)
	})
}

func (b *drainerBench) endHook(o nstance.Outcome) {
	b.finish <- o
	synctest.Wait()
}

func drainWithin(generation uint64, d time.Duration) nstance.Drain {
	return nstance.Drain{Generation: generation, Deadline: time.Now().Add(d)}
}

func TestDrainerCommands(t *testing.T) {
	t.Parallel()
	t.Run("the hook runs once per generation, and its outcome is sent for each request", func(t *testing.T) {
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			b.command(drainWithin(3, time.Minute))
			synctest.Wait()
			b.command(drainWithin(3, time.Minute))
			b.endHook(nstance.OutcomeDrained)
			require.Len(t, b.sentResults(), 1)
			b.command(drainWithin(3, time.Minute))
			synctest.Wait()
			require.Equal(t, 1, b.hookRuns())
			require.Len(t, b.sentResults(), 2)
			require.EqualValues(t, 3, b.sentResults()[1].GetGeneration())
			require.Equal(t, "drained", b.sentResults()[1].GetOutcome())
		})
	})
	t.Run("a deadline ends the hook, and an earlier one tightens", func(t *testing.T) {
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			began := time.Now()
			b.command(drainWithin(3, time.Hour))
			synctest.Wait()
			b.command(drainWithin(3, time.Minute))
			b.command(drainWithin(3, 2*time.Hour)) // later: ignored
			<-time.After(59 * time.Second)
			synctest.Wait()
			require.Empty(t, b.sentResults())
			<-time.After(time.Second)
			synctest.Wait()
			require.Len(t, b.sentResults(), 1)
			require.Equal(t, "failed", b.sentResults()[0].GetOutcome())
			require.Equal(t, time.Minute, time.Since(began))
		})
	})
	t.Run("a cancel stops it and no result is sent", func(t *testing.T) {
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			b.command(drainWithin(3, time.Hour))
			synctest.Wait()
			b.cancel(2) // of an older one
			synctest.Wait()
			require.Zero(t, b.hookStops())
			b.cancel(3)
			synctest.Wait()
			require.Equal(t, 1, b.hookStops())
			require.Empty(t, b.sentResults())
		})
	})
	t.Run("a cancel of a newer one stops it too", func(t *testing.T) {
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			b.command(drainWithin(3, time.Hour))
			synctest.Wait()
			b.cancel(4) // of a generation that the agent did not receive
			synctest.Wait()
			require.Equal(t, 1, b.hookStops())
			require.Empty(t, b.sentResults())
		})
	})
	t.Run("a cancel does not stop the agent's own drain", func(t *testing.T) {
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			b.fallback(drainWithin(0, time.Hour), "event")
			synctest.Wait()
			b.cancel(3)
			synctest.Wait()
			require.Zero(t, b.hookStops())
			b.endHook(nstance.OutcomeDrained)
		})
	})
	t.Run("an ended drain sends no result for another generation", func(t *testing.T) {
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			b.command(drainWithin(3, time.Hour))
			synctest.Wait()
			b.endHook(nstance.OutcomeDrained)
			b.command(drainWithin(5, time.Hour))
			synctest.Wait()
			require.Equal(t, 2, b.hookRuns())
			require.Len(t, b.sentResults(), 1, "nothing is known of it yet")
			b.endHook(nstance.OutcomeFailed)
			require.EqualValues(t, 5, b.sentResults()[1].GetGeneration())
			require.Equal(t, "failed", b.sentResults()[1].GetOutcome())
		})
	})
	t.Run("a new generation replaces the old, one hook at a time", func(t *testing.T) {
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			b.command(drainWithin(3, time.Hour))
			synctest.Wait()
			b.command(drainWithin(5, time.Hour))
			synctest.Wait()
			require.Equal(t, 1, b.hookStops())
			require.Equal(t, 2, b.hookRuns())
			b.endHook(nstance.OutcomeDrained)
			require.Len(t, b.sentResults(), 1)
			require.EqualValues(t, 5, b.sentResults()[0].GetGeneration())
		})
	})
	t.Run("a command without a generation starts nothing: no result could be sent", func(t *testing.T) {
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			b.command(drainWithin(0, time.Hour))
			synctest.Wait()
			require.Zero(t, b.hookRuns())
			require.False(t, b.busy())
		})
	})
	t.Run("a command without a deadline leaves the one that there is", func(t *testing.T) {
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			b.command(drainWithin(3, time.Hour))
			synctest.Wait()
			b.command(nstance.Drain{Generation: 3})
			<-time.After(59 * time.Minute)
			synctest.Wait()
			require.Zero(t, b.hookStops())
			<-time.After(time.Minute)
			synctest.Wait()
			require.Equal(t, 1, b.hookStops())
		})
	})
	t.Run("without a hook the result is a failure", func(t *testing.T) {
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			b.hook = nil
			b.command(drainWithin(3, time.Hour))
			synctest.Wait()
			require.Len(t, b.sentResults(), 1)
			require.Equal(t, "failed", b.sentResults()[0].GetOutcome())
		})
	})
	t.Run("the end of the agent is no outcome", func(t *testing.T) {
		var last *drainerBench
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			last = b
			b.command(drainWithin(3, time.Hour))
			synctest.Wait()
		})
		require.Equal(t, 1, last.hookStops())
		require.Empty(t, last.sentResults())
	})
}

func TestDrainerFallback(t *testing.T) {
	t.Parallel()
	t.Run("its outcome is sent for its notice, and again when a server asks", func(t *testing.T) {
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			b.fallback(drainWithin(0, time.Minute), "event")
			synctest.Wait()
			b.endHook(nstance.OutcomeDrained)
			require.Empty(t, b.sentResults())
			require.Len(t, b.loneResults(), 1)
			require.Equal(t, "event", b.loneResults()[0].GetEventId())
			require.Equal(t, "drained", b.loneResults()[0].GetOutcome())
			require.Equal(t, "done", b.loneResults()[0].GetMessage())
			b.command(drainWithin(4, time.Minute))
			synctest.Wait()
			require.Equal(t, 1, b.hookRuns())
			require.Len(t, b.sentResults(), 1)
			require.EqualValues(t, 4, b.sentResults()[0].GetGeneration())
		})
	})
	t.Run("a server adopts a running drain", func(t *testing.T) {
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			b.fallback(drainWithin(0, time.Hour), "event")
			synctest.Wait()
			b.command(drainWithin(4, time.Minute))
			b.withdraw("event", false) // the server decides now
			b.endHook(nstance.OutcomeDrained)
			require.Equal(t, 1, b.hookRuns())
			require.EqualValues(t, 4, b.sentResults()[0].GetGeneration())
			require.Len(t, b.loneResults(), 1, "no server had begun it")
		})
	})
	t.Run("a failed drain is tried again when a server asks", func(t *testing.T) {
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			b.fallback(drainWithin(0, time.Minute), "event")
			synctest.Wait()
			b.endHook(nstance.OutcomeFailed)
			b.command(drainWithin(4, time.Minute))
			synctest.Wait()
			b.endHook(nstance.OutcomeDrained)
			require.Equal(t, 2, b.hookRuns())
			require.Equal(t, "drained", b.sentResults()[0].GetOutcome())
		})
	})
	t.Run("a withdrawn notice stops it, and a later drain starts anew", func(t *testing.T) {
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			b.fallback(drainWithin(0, time.Hour), "event")
			synctest.Wait()
			b.withdraw("another", true)
			synctest.Wait()
			require.Zero(t, b.hookStops())
			b.withdraw("event", false)
			synctest.Wait()
			require.Equal(t, 1, b.hookStops())
			require.Empty(t, b.loneResults(), "there is no such notice any more")
			b.command(drainWithin(4, time.Minute))
			synctest.Wait()
			require.Equal(t, 2, b.hookRuns())
		})
	})
	t.Run("a drain that failed for a server is tried again for an unacknowledged notice", func(t *testing.T) {
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			b.command(drainWithin(4, time.Minute))
			synctest.Wait()
			b.endHook(nstance.OutcomeFailed)
			b.fallback(drainWithin(0, time.Minute), "event")
			synctest.Wait()
			require.Equal(t, 2, b.hookRuns())
			b.endHook(nstance.OutcomeDrained)
			require.Len(t, b.sentResults(), 1, "no server has asked for that one")
		})
	})
	t.Run("a drain for a server is not started twice", func(t *testing.T) {
		testDrainer(t, func(t *testing.T, b *drainerBench) {
			b.command(drainWithin(4, time.Minute))
			synctest.Wait()
			b.fallback(drainWithin(0, time.Minute), "event")
			b.endHook(nstance.OutcomeDrained)
			require.Equal(t, []string{"event"}, b.answeredNotices())
			require.Equal(t, 1, b.hookRuns())
		})
	})
}
