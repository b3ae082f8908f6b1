package aws

import (
	"context"
	"net/http"
	"net/url"
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

// TestElsewhere: what belongs to the machine that asks is not asked through a proxy, which would
// answer for its own machine.
func TestElsewhere(t *testing.T) {
	proxy := elsewhere(func(*http.Request) (*url.URL, error) { return url.Parse("http://proxy") })
	for address, direct := range map[string]bool{
		"http://169.254.169.254": true, "http://[fd00:ec2::254]:80": true, "http://169.254.170.2/v2/credentials": true, "http://[fd00:ec2::23]": true,
		"http://127.0.0.1": false, "http://[fd00:ec3::1]": false, "https://ec2.eu-west-1.amazonaws.com": false, "https://169.254.169.254.example": false,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		require.NoError(t, err)
		by, err := proxy(r)
		require.NoError(t, err)
		require.Equal(t, direct, by == nil, address)
	}
}
