package freeport_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/freeport"
)

func TestAddress(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		a, err := freeport.Address()
		require.NoError(t, err)
		require.False(t, seen[a], "each once")
		seen[a] = true
		l, err := net.Listen("tcp", a)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		require.Less(t, l.Addr().(*net.TCPAddr).Port, 32_768, "no socket gets it that has none of its own")
	}
}
