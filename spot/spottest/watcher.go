package spottest

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

const (
	patience = 10 * time.Second       // for what must happen, on a loaded machine
	silence  = 100 * time.Millisecond // for what must not
)

type item struct {
	notice nstance.Notice
	err    error
}

// A watcher runs one watch and keeps what it yields.
type watcher struct {
	items chan item // closed when the watch has ended
}

// start watches until the subtest ends, and has the test fail if the watch
// outlives it.
func start(t *testing.T, d nstance.SpotDetector) *watcher {
	t.Helper()
	return startWith(t.Context(), t, d)
}

func startWith(ctx context.Context, t *testing.T, d nstance.SpotDetector) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{items: make(chan item, 256)}
	go func() {
		defer close(w.items)
		for n, err := range d.Watch(ctx) {
			select {
			case w.items <- item{n, err}:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		w.ended(t)
	})
	return w
}

// notice returns the next notice and passes over errors.
func (w *watcher) notice(t *testing.T) nstance.Notice {
	t.Helper()
	return w.next(t, "notice", func(it item) bool { return it.err == nil }).notice
}

// trouble returns the next error. A notice before it is one too many.
func (w *watcher) trouble(t *testing.T) error {
	t.Helper()
	it := w.next(t, "error", func(item) bool { return true })
	require.Error(t, it.err, "a notice that nobody expected: %+v", it.notice)
	return it.err
}

// quiet passes over errors for a moment in which no notice may come.
func (w *watcher) quiet(t *testing.T) {
	t.Helper()
	for n := range w.during(t, silence) {
		require.Fail(t, "a notice that nobody expected", "%+v", n)
	}
}

// during yields the notices of the next d.
func (w *watcher) during(t *testing.T, d time.Duration) iter.Seq[nstance.Notice] {
	return func(yield func(nstance.Notice) bool) {
		for over := time.After(d); ; {
			select {
			case it, running := <-w.items:
				require.True(t, running, "the watch has ended")
				if it.err == nil && !yield(it.notice) {
					return
				}
			case <-over:
				return
			}
		}
	}
}

// ended waits for the end of the watch.
func (w *watcher) ended(t *testing.T) {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case _, running := <-w.items:
			if !running {
				return
			}
		case <-late:
			require.FailNow(t, "the watch has not ended")
		}
	}
}

func (w *watcher) next(t *testing.T, what string, wanted func(item) bool) item {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case it, running := <-w.items:
			require.True(t, running, "the watch has ended while a %s was due", what)
			if wanted(it) {
				return it
			}
		case <-late:
			require.FailNow(t, "no "+what+" within "+patience.String())
		}
	}
}
