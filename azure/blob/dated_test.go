package blob_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestDated(t *testing.T) {
	storagetest.Dated(t, func(t *testing.T, off time.Duration) storage.Store {
		skewed := faultproxy.ShiftDate(http.HandlerFunc(accept), func() time.Duration { return off })
		_, s := open(t, skewed.ServeHTTP)
		return s
	})
}
