package spottest

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
)

const quietPeriod = 100 * time.Millisecond // without any notice

type item struct {
	notice nstance.Notice
	err    error
}

// watcher runs one watch and keeps its items.
type watcher struct {
	calls *conformance.Calls
	items chan item // closed when the watch has ended
}

// start watches until the subtest ends, and fails the test if the watch continues after
// that.
func start(t *testing.T, d recorded) *watcher {
	t.Helper()
	return startWith(t.Context(), t, d)
}

func startWith(ctx context.Context, t *testing.T, d recorded) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{calls: d.calls, items: make(chan item, 256)}
	go func() {
		defer close(w.items)
		for n, err := range d.Watch(ctx) {
			d.calls.Record("Watch", noticeWords(n), err)
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
	require.Error(t, it.err, "unexpected notice: %s", noticeWords(it.notice))
	return it.err
}

// quiet skips errors for the quiet period, in which no notice may come.
func (w *watcher) quiet(t *testing.T) {
	t.Helper()
	for n := range w.during(t, quietPeriod) {
		require.Fail(t, "unexpected notice", "%s", noticeWords(n))
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

// outage breaks the cloud until the detector has read it, and restores it. Seen gets the
// notices before that.
func (w *watcher) outage(t *testing.T, cloud Cloud, seen func(nstance.Notice)) {
	t.Helper()
	cloud.Break()
	for {
		it := w.next(t, "error", func(item) bool { return true })
		if it.err != nil {
			break
		}
		seen(it.notice)
	}
	cloud.Restore()
}

// ended waits for the end of the watch.
func (w *watcher) ended(t *testing.T) {
	t.Helper()
	limit := w.calls.Run().Limit()
	late := time.After(limit)
	for {
		select {
		case _, running := <-w.items:
			if !running {
				return
			}
		case <-late:
			w.calls.Run().Waste(limit)
			t.Fatalf("Watch hangs: it has not returned %s after its context ended", limit)
		}
	}
}

func (w *watcher) next(t *testing.T, what string, wanted func(item) bool) item {
	t.Helper()
	limit := w.calls.Run().Limit()
	late := time.After(limit)
	for {
		select {
		case it, running := <-w.items:
			if !running {
				t.Fatalf("Watch has returned while its context lasts and a %s was due; the call before: %s", what, w.calls.Last())
			}
			if wanted(it) {
				return it
			}
		case <-late:
			w.calls.Run().Waste(limit)
			t.Fatalf("Watch has yielded no %s within %s; the call before: %s", what, limit, w.calls.Last())
		}
	}
}
