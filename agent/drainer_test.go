package agent // the drainer is tested apart from sessions

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// A bench is a drainer at work in a bubble, with a hook that runs until told.
type bench struct {
	*drainer
	finish chan nstance.Outcome

	guard   sync.Mutex
	runs    int // hooks that were called
	ended   int // hooks that were stopped
	results []*apiv1.DrainResult
}

func (b *bench) ran() int     { b.guard.Lock(); defer b.guard.Unlock(); return b.runs }
func (b *bench) stopped() int { b.guard.Lock(); defer b.guard.Unlock(); return b.ended }

func (b *bench) told() []*apiv1.DrainResult {
	b.guard.Lock()
	defer b.guard.Unlock()
	return slices.Clone(b.results)
}

func (b *bench) drainHook(ctx context.Context, _ nstance.Drain) (nstance.Outcome, string) {
	b.count(&b.runs)
	select {
	case <-ctx.Done():
		b.count(&b.ended)
		return nstance.OutcomeFailed, "stopped"
	case o := <-b.finish:
		return o, "done"
	}
}

func (b *bench) count(n *int) {
	b.guard.Lock()
	defer b.guard.Unlock()
	*n++
}

func (b *bench) tell(r *apiv1.DrainResult) {
	b.guard.Lock()
	defer b.guard.Unlock()
	b.results = append(b.results, r)
}

func drained(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{finish: make(chan nstance.Outcome)}
		b.drainer = newDrainer(b.drainHook, b.tell, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- b.Run(ctx) }()
		f(t, b)
		cancel()
		require.NoError(t, <-over)
	})
}

func (b *bench) end(o nstance.Outcome) {
	b.finish <- o
	synctest.Wait()
}

func in(generation uint64, d time.Duration) nstance.Drain {
	return nstance.Drain{Generation: generation, Deadline: time.Now().Add(d)}
}

func TestDrainerCommands(t *testing.T) {
	t.Run("the hook runs once for a generation, and its outcome is told as often as asked", func(t *testing.T) {
		drained(t, func(t *testing.T, b *bench) {
			b.command(in(3, time.Minute))
			synctest.Wait()
			b.command(in(3, time.Minute))
			b.end(nstance.OutcomeDrained)
			require.Len(t, b.told(), 1)
			b.command(in(3, time.Minute))
			synctest.Wait()
			require.Equal(t, 1, b.ran())
			require.Len(t, b.told(), 2)
			require.EqualValues(t, 3, b.told()[1].GetGeneration())
			require.Equal(t, "drained", b.told()[1].GetOutcome())
		})
	})
	t.Run("a deadline ends the hook, and an earlier one tightens", func(t *testing.T) {
		drained(t, func(t *testing.T, b *bench) {
			began := time.Now()
			b.command(in(3, time.Hour))
			synctest.Wait()
			b.command(in(3, time.Minute))
			b.command(in(3, 2*time.Hour)) // later: ignored
			<-time.After(59 * time.Second)
			synctest.Wait()
			require.Empty(t, b.told())
			<-time.After(time.Second)
			synctest.Wait()
			require.Len(t, b.told(), 1)
			require.Equal(t, "failed", b.told()[0].GetOutcome())
			require.Equal(t, time.Minute, time.Since(began))
		})
	})
	t.Run("a cancel stops it and nothing is told", func(t *testing.T) {
		drained(t, func(t *testing.T, b *bench) {
			b.command(in(3, time.Hour))
			synctest.Wait()
			b.cancel(2) // of an older one
			synctest.Wait()
			require.Zero(t, b.stopped())
			b.cancel(3)
			synctest.Wait()
			require.Equal(t, 1, b.stopped())
			require.Empty(t, b.told())
		})
	})
	t.Run("a cancel of a newer one stops it too", func(t *testing.T) {
		drained(t, func(t *testing.T, b *bench) {
			b.command(in(3, time.Hour))
			synctest.Wait()
			b.cancel(4) // of one that it was not told of
			synctest.Wait()
			require.Equal(t, 1, b.stopped())
			require.Empty(t, b.told())
		})
	})
	t.Run("a cancel does not stop what no server asked for", func(t *testing.T) {
		drained(t, func(t *testing.T, b *bench) {
			b.fallback(in(0, time.Hour), "event")
			synctest.Wait()
			b.cancel(3)
			synctest.Wait()
			require.Zero(t, b.stopped())
			b.end(nstance.OutcomeDrained)
		})
	})
	t.Run("what has ended is not told of another generation", func(t *testing.T) {
		drained(t, func(t *testing.T, b *bench) {
			b.command(in(3, time.Hour))
			synctest.Wait()
			b.end(nstance.OutcomeDrained)
			b.command(in(5, time.Hour))
			synctest.Wait()
			require.Equal(t, 2, b.ran())
			require.Len(t, b.told(), 1, "nothing is known of it yet")
			b.end(nstance.OutcomeFailed)
			require.EqualValues(t, 5, b.told()[1].GetGeneration())
			require.Equal(t, "failed", b.told()[1].GetOutcome())
		})
	})
	t.Run("a new generation replaces the old, one hook at a time", func(t *testing.T) {
		drained(t, func(t *testing.T, b *bench) {
			b.command(in(3, time.Hour))
			synctest.Wait()
			b.command(in(5, time.Hour))
			synctest.Wait()
			require.Equal(t, 1, b.stopped())
			require.Equal(t, 2, b.ran())
			b.end(nstance.OutcomeDrained)
			require.Len(t, b.told(), 1)
			require.EqualValues(t, 5, b.told()[0].GetGeneration())
		})
	})
	t.Run("without a hook the answer is a failure", func(t *testing.T) {
		drained(t, func(t *testing.T, b *bench) {
			b.hook = nil
			b.command(in(3, time.Hour))
			synctest.Wait()
			require.Len(t, b.told(), 1)
			require.Equal(t, "failed", b.told()[0].GetOutcome())
		})
	})
	t.Run("the agent's own end is no outcome", func(t *testing.T) {
		var last *bench
		drained(t, func(t *testing.T, b *bench) {
			last = b
			b.command(in(3, time.Hour))
			synctest.Wait()
		})
		require.Equal(t, 1, last.stopped())
		require.Empty(t, last.told())
	})
}

func TestDrainerFallback(t *testing.T) {
	t.Run("its outcome is told when a server asks", func(t *testing.T) {
		drained(t, func(t *testing.T, b *bench) {
			b.fallback(in(0, time.Minute), "event")
			synctest.Wait()
			b.end(nstance.OutcomeDrained)
			require.Empty(t, b.told())
			b.command(in(4, time.Minute))
			synctest.Wait()
			require.Equal(t, 1, b.ran())
			require.Len(t, b.told(), 1)
			require.EqualValues(t, 4, b.told()[0].GetGeneration())
		})
	})
	t.Run("a server adopts one that runs", func(t *testing.T) {
		drained(t, func(t *testing.T, b *bench) {
			b.fallback(in(0, time.Hour), "event")
			synctest.Wait()
			b.command(in(4, time.Minute))
			b.withdraw("event") // the server decides now
			b.end(nstance.OutcomeDrained)
			require.Equal(t, 1, b.ran())
			require.EqualValues(t, 4, b.told()[0].GetGeneration())
		})
	})
	t.Run("one that failed is tried again when a server asks", func(t *testing.T) {
		drained(t, func(t *testing.T, b *bench) {
			b.fallback(in(0, time.Minute), "event")
			synctest.Wait()
			b.end(nstance.OutcomeFailed)
			b.command(in(4, time.Minute))
			synctest.Wait()
			b.end(nstance.OutcomeDrained)
			require.Equal(t, 2, b.ran())
			require.Equal(t, "drained", b.told()[0].GetOutcome())
		})
	})
	t.Run("a withdrawn notice stops it, and a later drain starts afresh", func(t *testing.T) {
		drained(t, func(t *testing.T, b *bench) {
			b.fallback(in(0, time.Hour), "event")
			synctest.Wait()
			b.withdraw("another")
			synctest.Wait()
			require.Zero(t, b.stopped())
			b.withdraw("event")
			synctest.Wait()
			require.Equal(t, 1, b.stopped())
			b.command(in(4, time.Minute))
			synctest.Wait()
			require.Equal(t, 2, b.ran())
		})
	})
	t.Run("one that has failed for a server is tried again for a notice that no server acknowledges", func(t *testing.T) {
		drained(t, func(t *testing.T, b *bench) {
			b.command(in(4, time.Minute))
			synctest.Wait()
			b.end(nstance.OutcomeFailed)
			b.fallback(in(0, time.Minute), "event")
			synctest.Wait()
			require.Equal(t, 2, b.ran())
			b.end(nstance.OutcomeDrained)
			require.Len(t, b.told(), 1, "no server has asked for that one")
		})
	})
	t.Run("a drain that a server asked for is not doubled", func(t *testing.T) {
		drained(t, func(t *testing.T, b *bench) {
			b.command(in(4, time.Minute))
			synctest.Wait()
			b.fallback(in(0, time.Minute), "event")
			b.end(nstance.OutcomeDrained)
			b.fallback(in(0, time.Minute), "event")
			synctest.Wait()
			require.Equal(t, 1, b.ran())
		})
	})
}
