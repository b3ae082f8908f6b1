package secrets_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/clouds/secrets"
	"github.com/nstance-go/nstance/internal/config"
)

func TestOpen(t *testing.T) {
	for _, good := range []string{
		"env://APP_", "file:///run/secrets", "awssecretsmanager://?region=r", "awsparamstore://?region=r&prefix=/prod/", "azurekeyvault://v",
	} {
		src, err := secrets.Open(t.Context(), good)
		require.NoError(t, err, good)
		require.NotNil(t, src, good)
		require.NoError(t, config.SecretSource(good).Validate("source"), "the configuration permits it")
	}
	src, err := secrets.Open(t.Context(), "store:")
	require.NoError(t, err)
	require.Nil(t, src, "every server has it")
	for _, bad := range []string{"", "store://x", "vault://x", "gcpsecretmanager://x", "env://", "file://"} {
		_, err := secrets.Open(t.Context(), bad)
		require.ErrorIs(t, err, nstance.Invalid, bad)
		require.ErrorContains(t, err, "shard.secrets.source")
	}
}
