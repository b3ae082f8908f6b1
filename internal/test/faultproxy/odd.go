package faultproxy

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// CheckOddAnswers requires that no call of a store takes an answer with status 200 and another
// body for the service's. more are further bodies; open opens the store at an address.
func CheckOddAnswers(t *testing.T, open func(t *testing.T, addr string) storage.Store, more ...string) {
	t.Helper()
	for _, body := range append(more, "", "{}", "[]", "null", "<html><body>Log in</body></html>") {
		t.Run(fmt.Sprintf("success with %q", body), func(t *testing.T) {
			h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }))
			t.Cleanup(h.Close)
			requireNoAnswers(t, open(t, h.Listener.Addr().String()))
		})
	}
}

func requireNoAnswers(t *testing.T, s storage.Store) {
	t.Helper()
	var err error
	for _, err = range s.List(t.Context(), "", "") {
	}
	require.ErrorIs(t, err, nstance.Unavailable, "list")
	err = nil
	for _, err = range storage.Folders(t.Context(), s, "") {
	}
	require.ErrorIs(t, err, nstance.Unavailable, "folders")
	_, err = s.Get(t.Context(), "a")
	require.ErrorIs(t, err, nstance.Unavailable, "get")
	_, err = s.PutIfAbsent(t.Context(), "a", []byte("1"))
	require.ErrorIs(t, err, nstance.Ambiguous, "put")
}
