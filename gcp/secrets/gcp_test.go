package secrets_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	secretmanager "cloud.google.com/go/secretmanager/apiv1"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp/internal/adc/adctest"
	"github.com/nstance-go/nstance/gcp/secrets"
	"github.com/nstance-go/nstance/storage/secret"
)

// A service speaks the REST form of Secret Manager v1: an error is a JSON object
// with the status in words beside the number.
type service struct {
	mu      sync.Mutex
	answers map[string][]answer // by name; the last one stays
	asked   int
}

type answer struct {
	status int
	body   string
}

func fault(status int, word string) answer {
	return answer{status, fmt.Sprintf(`{"error":{"code":%d,"message":"about hunter2","status":%q}}`, status, word)}
}

func value(v string, flip int64) answer {
	sum := int64(crc32.Checksum([]byte(v), crc32.MakeTable(crc32.Castagnoli))) ^ flip
	return answer{200, fmt.Sprintf(`{"name":"projects/1/secrets/db/versions/3","payload":{"data":%q,"dataCrc32c":"%d"}}`, base64.StdEncoding.EncodeToString([]byte(v)), sum)}
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	name, ok := strings.CutPrefix(r.URL.Path, "/v1/projects/p1/secrets/app-")
	name, version := strings.CutSuffix(name, "/versions/latest:access")
	a := fault(404, "NOT_FOUND")
	if left := s.answers[name]; len(left) > 0 && ok && version && r.Method == http.MethodGet {
		if a = left[0]; len(left) > 1 {
			s.answers[name] = left[1:]
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body)
}

func TestGet(t *testing.T) {
	s := &service{answers: map[string][]answer{
		"db":        {value("hunter2", 0)},
		"recovers":  {fault(503, "UNAVAILABLE"), fault(429, "RESOURCE_EXHAUSTED"), value("hunter2", 0)},
		"denied":    {fault(403, "PERMISSION_DENIED")},
		"login":     {fault(401, "UNAUTHENTICATED")},
		"disabled":  {fault(400, "FAILED_PRECONDITION")},
		"throttled": {fault(429, "RESOURCE_EXHAUSTED")},
		"broken":    {fault(500, "INTERNAL")},
		"gateway":   {{404, "<html>no such host</html>"}},
		"garbled":   {{200, "<html>sign in to this network</html>"}},
		"unnamed":   {{200, "{}"}},
		"damaged":   {value("hunter2", 1)},
		"empty":     {value("", 0)},
		"long":      {value(strings.Repeat("x", secret.MaxSize+1), 0)},
	}}
	front := httptest.NewServer(s)
	t.Cleanup(front.Close)
	client, err := secretmanager.NewRESTClient(t.Context(), option.WithEndpoint(front.URL), option.WithoutAuthentication())
	require.NoError(t, err)
	src := secrets.New(client, "p1", "app-")
	for _, name := range []string{"db", "recovers"} {
		data, err := src.Get(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, "hunter2", string(data))
	}
	for name, code := range map[string]nstance.Code{
		"absent": nstance.NotFound, "denied": nstance.Denied, "login": nstance.Denied, "disabled": nstance.Invalid,
		"throttled": nstance.Throttled, "broken": nstance.Unavailable, "gateway": nstance.Unavailable, "garbled": nstance.Unavailable, "unnamed": nstance.Unavailable,
		"damaged": nstance.Unavailable, "empty": nstance.Invalid, "long": nstance.Invalid, "a.b": nstance.Invalid, "nonce": nstance.Invalid,
	} {
		_, err := src.Get(t.Context(), name)
		require.ErrorIs(t, err, code, name)
		require.NotContains(t, err.Error(), "hunter2", name)
	}
	require.LessOrEqual(t, s.asked, 1+3+12*3, "the client asks three times at most")
	front.Close()
	_, err = src.Get(t.Context(), "db")
	require.ErrorIs(t, err, nstance.Unavailable)
}

func TestOpen(t *testing.T) {
	for _, bad := range []string{"gcpsecretmanager://", "gcpsecretmanager://projects/", "gcpsecretmanager://projects/a/b", "gcpsecretmanager://p1", "gcpsecretmanager://projects/p1?x=1"} {
		_, err := secrets.Open(t.Context(), bad)
		require.ErrorIs(t, err, nstance.Invalid, bad)
	}
}

func TestNoToken(t *testing.T) {
	adctest.CheckNoToken(t, func(file string) func(context.Context) error {
		t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
		src, err := secrets.Open(t.Context(), "gcpsecretmanager://projects/p1")
		require.NoError(t, err)
		return func(ctx context.Context) error {
			_, err := src.Get(ctx, "db")
			return err
		}
	})
}
