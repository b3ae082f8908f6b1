package s3_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/aws/s3"
	"github.com/nstance-go/nstance/internal/test/linklocal"
)

// TestCredentialsWithoutProxy: a proxy would answer with the role of its own machine.
func TestCredentialsWithoutProxy(t *testing.T) {
	linklocal.CheckDirect(t, "169.254.1.2", func(ctx context.Context) {
		t.Setenv("AWS_ACCESS_KEY_ID", "")
		t.Setenv("AWS_EC2_METADATA_DISABLED", "false")
		s, err := s3.Open(ctx, "s3://bucket?region=eu-west-1", nil)
		require.NoError(t, err)
		_, err = s.Get(ctx, "a")
		require.Error(t, err)
	}, "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://169.254.1.2")
}
