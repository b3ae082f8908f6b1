package azure_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/azure"
)

// TestSeparateConnections: a store opened by URL can be opened again with connections of
// its own, and neither keeps silent ones.
func TestSeparateConnections(t *testing.T) {
	h := httptest.NewServer(http.HandlerFunc(accept))
	t.Cleanup(h.Close)
	wire, err := faultproxy.NewWire(h.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(wire.Close)
	for _, k := range []string{"SAS_TOKEN", "CONNECTION_STRING", "DOMAIN", "PROTOCOL", "IS_LOCAL_EMULATOR"} {
		t.Setenv("AZURE_STORAGE_"+k, "")
	}
	t.Setenv("AZURE_STORAGEBLOB_CONNECTIONSTRING", "")
	t.Setenv("AZURE_STORAGE_ACCOUNT", "account")
	t.Setenv("AZURE_STORAGE_KEY", "a2V5")
	s, err := azure.Open(t.Context(), "azblob://box?protocol=http&localemu=true&domain="+wire.Addr(), nil)
	require.NoError(t, err)
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
