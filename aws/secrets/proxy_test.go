package secrets_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/aws/secrets"
	"github.com/nstance-go/nstance/internal/test/linklocal"
)

// TestCredentialsWithoutProxy: a proxy would answer with the role of its own machine.
func TestCredentialsWithoutProxy(t *testing.T) {
	linklocal.CheckDirect(t, "169.254.1.2", func(ctx context.Context) {
		src, err := secrets.Open(ctx, "awssecretsmanager://?region=eu-west-1")
		require.NoError(t, err)
		_, err = src.Get(ctx, "db")
		require.Error(t, err)
	}, "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://169.254.1.2")
}
