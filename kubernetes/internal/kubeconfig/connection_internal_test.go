package kubeconfig

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A hangingServer answers requests after a time, and sends the end of its answers after another.
type hangingServer struct{ before, within time.Duration }

func (h hangingServer) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(h.before):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(slowBody{r.Context(), time.After(h.within)})}, nil
}

type slowBody struct {
	ctx context.Context
	end <-chan time.Time
}

func (b slowBody) Read([]byte) (int, error) {
	select {
	case <-b.end:
		return 0, io.EOF
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

// TestRequestTime: a request ends after a minute, also in the middle of its answer. A watch does not.
func TestRequestTime(t *testing.T) {
	const soon, late = 50 * time.Second, 70 * time.Second
	for name, c := range map[string]struct {
		server hangingServer
		path   string
		ended  time.Duration // 0: it succeeds
	}{
		"answered soon":               {hangingServer{before: soon}, "/api/v1/nodes", 0},
		"no answer":                   {hangingServer{before: late}, "/api/v1/nodes", time.Minute},
		"an answer that does not end": {hangingServer{before: soon, within: soon}, "/api/v1/nodes", time.Minute},
		"a watch":                     {hangingServer{within: time.Hour}, "/api/v1/nodes?watch=true", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := &Connection{refused: func() {}, now: &way{server: &url.URL{Scheme: "https", Host: "server"}, transport: c.server}}
				began := time.Now()
				resp, err := (&http.Client{Transport: conn}).Get("https://server" + c.path)
				if err == nil {
					_, err = io.ReadAll(resp.Body)
					require.NoError(t, resp.Body.Close())
				}
				if c.ended == 0 {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, c.ended, time.Since(began))
			})
		})
	}
}
