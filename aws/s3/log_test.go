package s3_test

import (
	"bytes"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLinesOfTheSDK: what the SDK logs by itself goes through package log, not around it to
// standard error.
func TestLinesOfTheSDK(t *testing.T) {
	var out bytes.Buffer
	before := log.Writer()
	log.SetOutput(&out)
	defer log.SetOutput(before)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", "no date")
		w.Header().Set("ETag", `"1"`)
	}))
	defer srv.Close()
	_, _ = open(t, srv.URL, "").Get(t.Context(), "a")
	require.Contains(t, out.String(), "aws sdk: failed to parse response Date header")
}
