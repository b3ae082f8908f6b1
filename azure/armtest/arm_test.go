package armtest_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/azure/armtest"
)

// TestClientGone: calls whose client has gone away are carried out all the same,
// and end nothing but themselves.
func TestClientGone(t *testing.T) {
	c := armtest.New(nil)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		r := httptest.NewRequestWithContext(gone, http.MethodGet, "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/machines"+
			"/providers/Microsoft.Compute/virtualMachines/x?api-version=2024-07-01", nil)
		r.Header.Set("Authorization", "Bearer any")
		w := httptest.NewRecorder()
		c.ServeHTTP(w, r)
		require.Equal(t, http.StatusNotFound, w.Code, w.Body.String())
	}
}
