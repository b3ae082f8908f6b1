package gcs_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/gcp/gcs"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestDated(t *testing.T) {
	storagetest.Dated(t, func(t *testing.T, off time.Duration) storage.Store {
		h := httptest.NewServer(faultproxy.ShiftDate(http.HandlerFunc(accept), func() time.Duration { return off }))
		t.Cleanup(h.Close)
		t.Setenv("STORAGE_EMULATOR_HOST", h.Listener.Addr().String())
		s, err := gcs.Open(t.Context(), "gs://bucket", nil)
		require.NoError(t, err)
		return s
	})
	t.Run("not over a client of the caller", func(t *testing.T) {
		_, s := open(t, accept)
		_, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
		require.NoError(t, err)
		_, ok := s.(storage.Dated).Date()
		require.False(t, ok)
	})
}
