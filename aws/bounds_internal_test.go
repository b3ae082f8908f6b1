package aws

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestDeletionsAreBounded: while messages cannot be deleted, the oldest are forgotten.
func TestDeletionsAreBounded(t *testing.T) {
	w := &queueWatch{deletionAdded: make(chan struct{}, 1)}
	for n := range maxDeletions + 10 {
		w.delete(strconv.Itoa(n))
	}
	require.Len(t, w.deletions, maxDeletions)
	require.Equal(t, "10", w.deletions[0])
	require.Equal(t, strconv.Itoa(maxDeletions+9), w.deletions[maxDeletions-1])
}

// TestLookupUnderwayIsKept: no look-up that callers wait for makes room for another.
func TestLookupUnderwayIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lookups
		found := func(context.Context) ([]string, error) { return []string{"a"}, nil }
		answer := make(chan struct{})
		asked := 0
		wait := func() {
			_, _ = l.get(t.Context(), "slow", func(context.Context) ([]string, error) {
				asked++
				<-answer
				return []string{"a"}, nil
			})
		}
		go wait()
		synctest.Wait()
		for n := range 2 * maxLookups {
			_, err := l.get(t.Context(), strconv.Itoa(n), found)
			require.NoError(t, err)
		}
		go wait()
		synctest.Wait()
		close(answer)
		synctest.Wait()
		require.Equal(t, 1, asked)
		require.LessOrEqual(t, len(l.answers), maxLookups)
	})
}
