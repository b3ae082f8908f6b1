package faultproxy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/storage"
)

// CheckSeparate requires that a store opened by URL can be opened again with connections
// of its own, and that neither keeps silent ones. service accepts every write; open
// opens the store at its address.
func CheckSeparate(t *testing.T, service http.Handler, open func(addr string) storage.Store) {
	t.Helper()
	h := httptest.NewServer(service)
	t.Cleanup(h.Close)
	wire, err := NewWire(h.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(wire.Close)
	s := open(wire.Addr())
	write := func(ctx context.Context, s storage.Store) error {
		_, err := s.PutIfAbsent(ctx, "a", []byte("1"))
		return err
	}
	require.NoError(t, write(t.Context(), s))
	require.NoError(t, write(t.Context(), s))
	require.Equal(t, 1, wire.Accepted())
	separate := storage.Separate(s)
	require.NoError(t, write(t.Context(), separate))
	require.Equal(t, 2, wire.Accepted())

	wire.Silence()
	for _, store := range []storage.Store{s, separate} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		require.Error(t, write(ctx, store))
		cancel()
		require.NoError(t, write(t.Context(), store))
	}
	require.Equal(t, 4, wire.Accepted())
}
