package azure_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/internal/test/linklocal"
)

// TestCredentialsWithoutProxy: a proxy would answer with the identity of its own machine.
func TestCredentialsWithoutProxy(t *testing.T) {
	linklocal.CheckDirect(t, "169.254.1.2", func(ctx context.Context) {
		p, err := azure.New(azure.Options{
			Subscription: "00000000-0000-0000-0000-000000000001", ResourceGroup: "g", Location: "westeurope", Credential: "managed_identity",
		})
		require.NoError(t, err)
		id, err := nstance.NewInstanceID("tst", time.Now())
		require.NoError(t, err)
		_, err = p.Get(ctx, id)
		require.Error(t, err)
	}, "IDENTITY_ENDPOINT=http://169.254.1.2/token", "IDENTITY_HEADER=x")
}
