package s3_test

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestDated(t *testing.T) {
	storagetest.Dated(t, func(t *testing.T, off time.Duration) storage.Store {
		p, err := faultproxy.New(service(t))
		require.NoError(t, err)
		t.Cleanup(p.Close)
		srv := httptest.NewServer(faultproxy.ShiftDate(p, func() time.Duration { return off }))
		t.Cleanup(srv.Close)
		return open(t, srv.URL, "")
	})
}
