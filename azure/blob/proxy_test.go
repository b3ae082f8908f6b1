package blob_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/azure/blob"
	"github.com/nstance-go/nstance/internal/test/linklocal"
)

// TestCredentialsWithoutProxy: a proxy would answer with the identity of its own machine.
func TestCredentialsWithoutProxy(t *testing.T) {
	linklocal.CheckDirect(t, "169.254.1.2", func(ctx context.Context) {
		s, err := blob.Open(ctx, "azblob://box?storage_account=account", nil)
		require.NoError(t, err)
		_, err = s.Get(ctx, "a")
		require.Error(t, err)
	}, "IDENTITY_ENDPOINT=http://169.254.1.2/token", "IDENTITY_HEADER=x")
}
