//go:build linux

package dev_test

import (
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/dev"
)

// The truth is kept in a directory that is not the shard's own, so that it is
// seen that nothing stays there either.
func TestKill(t *testing.T) {
	t.Parallel()
	tmp, away := t.TempDir(), t.TempDir()
	var out screen
	err := dev.Run(t.Context(), &dev.Options{
		Temp: tmp, Scenario: dev.Kill, Count: 3, Seed: 7, JSON: true, Out: &out, HTTP: "127.0.0.1:0",
		Storage: (&url.URL{Scheme: "file", Path: away}).String(),
	})
	require.NoError(t, err, out.String())
	s := lastLine(t, out.String())
	nothingLost(t, s)
	require.EqualValues(t, 7, *s.Seed)
	require.Equal(t, 3, *s.Kills)
	require.Equal(t, 3, strings.Count(out.String(), `"event":"killed"`))
	require.Positive(t, *s.ServerKills)
	for _, dir := range []string{tmp, away} {
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}
