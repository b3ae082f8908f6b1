package adc

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"

	"github.com/nstance-go/nstance/internal/bucket"
)

// TestTokenTimeout: a request for a token ends without the callers' contexts.
func TestTokenTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		ctx := Context(ended)
		require.NoError(t, ctx.Err())
		client := ctx.Value(oauth2.HTTPClient).(*http.Client)
		client.Transport = bucket.Sender(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		_, err := client.Get("http://token") //nolint:noctx // as token sources do
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}
