package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage"
)

// TestStoredSecrets: files never get the cluster's own keys, whatever a definition in storage
// names; a missing secret is named with what to do.
func TestStoredSecrets(t *testing.T) {
	store := storage.NewMemory()
	for _, name := range []string{"db", "nonce.key"} {
		_, err := store.PutIfAbsent(t.Context(), layout.SecretKey(name), []byte("of storage"))
		require.NoError(t, err)
	}
	secrets := storedSecrets{vault.New(store, nil)}
	data, err := secrets.Get(t.Context(), "db")
	require.NoError(t, err)
	require.Equal(t, "of storage", string(data))
	_, err = secrets.Get(t.Context(), "nonce.key")
	require.ErrorIs(t, err, nstance.Invalid)
	_, err = secrets.Get(t.Context(), "none")
	require.ErrorIs(t, err, nstance.NotFound)
	require.ErrorContains(t, err, "there is no secret none: store it with nstance-admin secret put")
}
