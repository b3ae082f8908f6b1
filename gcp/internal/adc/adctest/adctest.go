// Package adctest is for tests of what uses Google's credentials.
package adctest

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// AccountKey is the key file of a service account whose tokens are requested at a URL.
func AccountKey(t *testing.T, tokenURL string) []byte {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	out, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": "p", "private_key_id": "1", "client_email": "a@p.iam.gserviceaccount.com", "client_id": "1",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "token_uri": tokenURL,
	})
	require.NoError(t, err)
	return out
}

// CheckNoToken requires that calls end with their contexts while the token endpoint does not
// answer. open returns a call of a client with the credentials in a file.
func CheckNoToken(t *testing.T, open func(file string) func(context.Context) error) {
	t.Helper()
	end := make(chan struct{})
	h := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
	t.Cleanup(h.Close)
	t.Cleanup(func() { close(end) })
	file := filepath.Join(t.TempDir(), "key.json")
	require.NoError(t, os.WriteFile(file, AccountKey(t, h.URL), 0o600))
	call := open(file)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	errs := make(chan error, 2)
	for range cap(errs) {
		go func() { errs <- call(ctx) }()
	}
	for range cap(errs) {
		select {
		case err := <-errs:
			require.ErrorIs(t, err, nstance.Unavailable)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		case <-time.After(8 * time.Second): // less than a request for a token may take
			require.FailNow(t, "a call outlives its context")
		}
	}
}
