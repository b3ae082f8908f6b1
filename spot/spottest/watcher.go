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
	waitTimeout = 10 * time.Second       // generous, for a loaded machine
	quietPeriod = 100 * time.Millisecond // without any notice
)

type item struct {
	notice nstance.Notice
	err    error
}

// watcher runs one watch and keeps its items.
type watcher struct {
	items chan item // closed when the watch has ended
}

// start watches until the subtest ends, and fails the test if the watch continues after
// that.
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

// notice returns the next notice and skips errors.
func (w *watcher) notice(t *testing.T) nstance.Notice {
	t.Helper()
	return w.next(t, "notice", func(it item) bool { return it.err == nil }).notice
}

// nextError returns the next error. A notice before it fails the test.
func (w *watcher) nextError(t *testing.T) error {
	t.Helper()
	it := w.next(t, "error", func(item) bool { return true })
	require.Error(t, it.err, "unexpected notice: %+v", it.notice)
	return it.err
}

// quiet skips errors for the quiet period, in which no notice may come.
func (w *watcher) quiet(t *testing.T) {
	t.Helper()
	for n := range w.during(t, quietPeriod) {
		require.Fail(t, "unexpected notice", "%+v", n)
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
	late := time.After(waitTimeout)
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
	late := time.After(waitTimeout)
	for {
		select {
		case it, running := <-w.items:
			require.True(t, running, "the watch has ended while a %s was due", what)
			if wanted(it) {
				return it
			}
		case <-late:
			require.FailNow(t, "no "+what+" within "+waitTimeout.String())
		}
	}
}
