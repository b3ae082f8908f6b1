package web_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/web"
)

const eventually = time.Minute

// A station serves a status that a test changes.
type station struct {
	*testing.T
	http   *httptest.Server
	ending chan struct{}
	asked  atomic.Int32

	mu     sync.Mutex
	status web.Status
}

func newStation(t *testing.T, status web.Status) *station {
	s := &station{T: t, ending: make(chan struct{}), status: status}
	s.http = httptest.NewUnstartedServer(web.Handler(&web.Options{Status: s.now, Leading: func() bool { return true }, Ending: s.ending}))
	s.http.Config.ReadTimeout = 1500 * time.Millisecond // as if it were the server's: a stream lasts longer
	s.http.Config.WriteTimeout = 1500 * time.Millisecond
	s.http.Start()
	t.Cleanup(s.http.Close)
	return s
}

func (s *station) now(context.Context) web.Status {
	s.asked.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *station) set(status web.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

type frame struct {
	First    bool
	Sections map[string]json.RawMessage
	Rows     []web.Instance
	Gone     []string
}

// open opens a stream. next returns its next frame, and false at its end.
func (s *station) open() (resp *http.Response, next func() (frame, bool)) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 3*eventually)
	s.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.http.URL+"/stream", nil)
	require.NoError(s, err)
	resp, err = s.http.Client().Do(req)
	require.NoError(s, err)
	s.Cleanup(func() { _ = resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	return resp, func() (f frame, ok bool) {
		for lines.Scan() {
			if data, is := strings.CutPrefix(lines.Text(), "data: "); is {
				require.NoError(s, json.Unmarshal([]byte(data), &f))
				return f, true
			}
		}
		return f, false
	}
}

func TestStream(t *testing.T) {
	one, two, three := web.Instance{ID: "1", State: "ready"}, web.Instance{ID: "2", State: "ready"}, web.Instance{ID: "3"}
	s := newStation(t, web.Status{Shard: "s1", LeaderAddress: "a:1", Instances: []web.Instance{one, two}})
	resp, next := s.open()
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))

	f, ok := next()
	require.True(t, ok)
	require.True(t, f.First, "the first frame has everything")
	require.JSONEq(t, `"s1"`, string(f.Sections["shard"]))
	require.ElementsMatch(t, []web.Instance{one, two}, f.Rows)

	two.State = "draining"
	s.set(web.Status{Shard: "s1", Instances: []web.Instance{two, three}})
	f, ok = next()
	for ok && len(f.Rows) == 0 { // sent before the change
		f, ok = next()
	}
	require.True(t, ok)
	require.False(t, f.First)
	require.ElementsMatch(t, []web.Instance{two, three}, f.Rows, "what has changed, and no more")
	require.Equal(t, []string{"1"}, f.Gone)
	require.Equal(t, map[string]json.RawMessage{"leader_address": json.RawMessage("null")}, f.Sections)

	f, ok = next()
	require.True(t, ok, "a stream outlives the server's timeouts")
	require.Equal(t, frame{Sections: map[string]json.RawMessage{}}, f)

	close(s.ending)
	_, ok = next()
	require.False(t, ok, "streams do not keep a server from ending")
}

func TestStreamsAskOnce(t *testing.T) {
	s := newStation(t, web.Status{Shard: "s1"})
	var nexts []func() (frame, bool)
	for range 8 {
		_, next := s.open()
		nexts = append(nexts, next)
	}
	for range 2 {
		for _, next := range nexts {
			_, ok := next()
			require.True(t, ok)
		}
	}
	require.LessOrEqual(t, s.asked.Load(), int32(8), "not once for each frame of each stream")
}

// TestStatusIsAskedForOnce: whatever the number of requests, the shard is asked once in an interval.
func TestStatusIsAskedForOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		h := web.Handler(&web.Options{
			Status:  func(context.Context) web.Status { asked.Add(1); return web.Status{Version: "1"} },
			Leading: func() bool { return true },
		})
		for interval := range int32(2) {
			var readers sync.WaitGroup
			for range 500 {
				readers.Go(func() {
					w := httptest.NewRecorder()
					h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/status.json", nil))
					assert.Equal(t, http.StatusOK, w.Code)
					assert.Contains(t, w.Body.String(), `"version":"1"`)
				})
			}
			readers.Wait()
			require.Equal(t, interval+1, asked.Load())
			<-time.After(time.Second)
		}
	})
}

func TestStreamsAreBounded(t *testing.T) {
	s := newStation(t, web.Status{})
	s.http.Client().Transport.(*http.Transport).MaxConnsPerHost = 0
	var last *http.Response
	for range 65 {
		last, _ = s.open()
	}
	require.Equal(t, http.StatusServiceUnavailable, last.StatusCode)
	require.NotEmpty(t, last.Header.Get("Retry-After"))
	close(s.ending)
	require.Eventually(t, func() bool {
		resp, _ := s.open()
		return resp.StatusCode == http.StatusOK
	}, eventually, 10*time.Millisecond, "those that end make room")
}
