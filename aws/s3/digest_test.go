package s3_test

import (
	"crypto/md5"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws/s3"
)

// TestObjectLock: a bucket with object lock refuses a write without a checksum, behind another
// endpoint too, and what a store explains is kept.
func TestObjectLock(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "x")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "y")
	digests := make(chan string, 1)
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		digests <- r.Header.Get("Content-Md5")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`<Error><Code>InvalidRequest</Code><Message>Content-MD5 is required for
			Put requests with Object Lock</Message></Error>`))
	}))
	defer store.Close()
	s, err := s3.Open(t.Context(), "s3://b?endpoint="+store.URL+"&use_path_style=true&region=us-east-1", nil)
	require.NoError(t, err)
	_, err = s.PutIfAbsent(t.Context(), "a", []byte("content"))
	sum := md5.Sum([]byte("content"))
	require.Equal(t, base64.StdEncoding.EncodeToString(sum[:]), <-digests)
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, "400 InvalidRequest: Content-MD5 is required for Put requests with Object Lock")
}
