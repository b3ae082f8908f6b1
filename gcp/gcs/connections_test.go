package gcs_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/gcp/gcs"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/storage"
)

func TestSeparateConnections(t *testing.T) {
	faultproxy.CheckSeparate(t, http.HandlerFunc(accept), func(addr string) storage.Store {
		t.Setenv("STORAGE_EMULATOR_HOST", addr)
		s, err := gcs.Open(t.Context(), "gs://bucket", nil)
		require.NoError(t, err)
		return s
	})
}
