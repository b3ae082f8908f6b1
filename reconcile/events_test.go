package reconcile_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// TestEvents: a loop over events may call the reconciler, and receives what the journal
// does, with the same numbers.
func TestEvents(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		w.mu.Lock()
		before := len(w.events)
		w.mu.Unlock()
		var got []nstance.Event
		done := make(chan struct{})
		events := w.r.Events(ctx)
		w.setGroups(webGroup(4))
		go func() {
			defer close(done)
			for e := range events {
				if e.Instance != "" {
					_, _ = w.r.Instance(e.Instance)
				}
				got = append(got, e)
			}
		}()
		w.advance(10 * time.Minute)
		cancel()
		<-done
		w.mu.Lock()
		defer w.mu.Unlock()
		require.NotEmpty(t, got)
		require.Equal(t, w.events[before:], got)
		for i, e := range got[1:] {
			require.Equal(t, got[i].Seq+1, e.Seq)
		}
	})
}

// TestSlowEvents: a loop that is too slow goes on with the latest events, and holds nothing
// up.
func TestSlowEvents(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var first, second nstance.Seq
		events := w.r.Events(ctx)
		require.NoError(t, w.r.Admin().Pause(ctx, web, ""))
		for e := range events {
			if first != 0 {
				second = e.Seq
				break
			}
			first = e.Seq
			for range 1100 {
				w.setGroups(webGroup(-1)) // refused, which is an alarm
			}
		}
		require.Greater(t, second, first+1)
		require.Less(t, second, first+1000, "the latest 1,024 are there")
	})
}
