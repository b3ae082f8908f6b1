package azure

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWriters: one writer at a time has a name, and one that gives up waiting leaves nothing
// behind.
func TestWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w writers
		unlock, err := w.lock(t.Context(), "a")
		require.NoError(t, err)
		other, err := w.lock(t.Context(), "b")
		require.NoError(t, err)
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = w.lock(impatient, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		inside, most, done := 0, 0, make(chan struct{})
		for range 10 {
			go func() {
				unlock, err := w.lock(t.Context(), "a")
				if err == nil {
					inside++
					most = max(most, inside)
					<-time.After(time.Second)
					inside--
					unlock()
				}
				done <- struct{}{}
			}()
		}
		synctest.Wait()
		require.Zero(t, most, "the first has it")
		unlock()
		for range 10 {
			<-done
		}
		require.Equal(t, 1, most)
		other()
		require.Empty(t, w.held)
	})
}
