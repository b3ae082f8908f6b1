package s3_test

import (
	"net/http/httptest"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/aws/s3"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/storage"
)

const bucket = "nstance-test"

// TestMain gives all tests the same credentials, and none of this machine.
func TestMain(m *testing.M) {
	for k, v := range map[string]string{
		"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
		"AWS_PROFILE": "", "AWS_REGION": "", "AWS_DEFAULT_REGION": "",
	} {
		if err := os.Setenv(k, v); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// service starts an S3 server in this process and returns its URL.
func service(t *testing.T) string {
	t.Helper()
	back := s3mem.New()
	require.NoError(t, back.CreateBucket(bucket))
	srv := httptest.NewServer(gofakes3.New(back, gofakes3.WithLogger(gofakes3.DiscardLog())).Server())
	t.Cleanup(srv.Close)
	return srv.URL
}

// proxied puts a proxy in front of a service and returns its URL.
func proxied(t *testing.T, target string) (*faultproxy.Proxy, string) {
	t.Helper()
	p, err := faultproxy.New(target)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	srv := httptest.NewServer(p)
	t.Cleanup(srv.Close)
	return p, srv.URL
}

// open opens the bucket at a service, as a client of its own.
func open(t *testing.T, endpoint, more string) storage.Store {
	t.Helper()
	return openFor(t, endpoint, more, 20*time.Second)
}

// openFor is open with a time limit for each call.
func openFor(t *testing.T, endpoint, more string, timeout time.Duration) storage.Store {
	t.Helper()
	u := "s3://" + bucket + "?region=eu-west-1&use_path_style=true&endpoint=" + url.QueryEscape(endpoint) + more
	s, err := s3.Open(t.Context(), u, &s3.Options{Timeout: timeout})
	require.NoError(t, err)
	return s
}
