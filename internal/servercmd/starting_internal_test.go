package servercmd

import (
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/freeport"
)

// TestStartingPagesFreeTheirPort: when they are closed the server itself can listen there, even
// if they were opened a moment ago.
func TestStartingPagesFreeTheirPort(t *testing.T) {
	address, err := freeport.Address()
	require.NoError(t, err)
	pages := startingPages{address: address, log: slog.New(slog.DiscardHandler)}
	for range 2000 {
		pages.open(t.Context())
		require.NotNil(t, pages.web)
		pages.close()
		own, err := net.Listen("tcp", address)
		require.NoError(t, err)
		require.NoError(t, own.Close())
	}
}
