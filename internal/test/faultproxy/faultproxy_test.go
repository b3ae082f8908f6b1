package faultproxy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/faultproxy"
)

// A counter answers with the number of requests and the request's body.
type counter struct{ n atomic.Int32 }

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("X-Host", r.Host)
	fmt.Fprintf(w, "%d %s%s", c.n.Add(1), body, r.Header.Get("If-Match"))
}

func setUp(t *testing.T) (*counter, *faultproxy.Proxy, func(method, body string) (string, error)) {
	t.Helper()
	back := &counter{}
	srv := httptest.NewServer(back)
	t.Cleanup(srv.Close)
	p, err := faultproxy.New(srv.URL)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	front := httptest.NewServer(p)
	t.Cleanup(front.Close)
	client := &http.Client{Timeout: 300 * time.Millisecond}
	return back, p, func(method, body string) (string, error) {
		req, err := http.NewRequestWithContext(t.Context(), method, front.URL, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("If-Match", "tag")
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		if host := resp.Header.Get("X-Host"); host != "" {
			require.Equal(t, req.URL.Host, host, "what the client signed")
		}
		data, err := io.ReadAll(resp.Body)
		return strconv.Itoa(resp.StatusCode) + " " + string(data), err
	}
}

func TestModes(t *testing.T) {
	for _, c := range []struct {
		name   string
		fault  faultproxy.Fault
		answer string // empty: none
		landed int32
	}{
		{"refuse", faultproxy.Fault{Mode: faultproxy.Refuse, Status: 409, Body: "busy"}, "409 busy", 0},
		{"replace", faultproxy.Fault{Mode: faultproxy.Replace, Status: 412, Body: "no"}, "412 no", 1},
		{"cut", faultproxy.Fault{Mode: faultproxy.Cut}, "", 0},
		{"lose", faultproxy.Fault{Mode: faultproxy.LoseAnswer}, "", 1},
		{"hang", faultproxy.Fault{Mode: faultproxy.Hang}, "", 1},
		{"stale", faultproxy.Fault{Mode: faultproxy.Stale}, "200 1 hellotag", 1},
		{"strip", faultproxy.Fault{Mode: faultproxy.Strip, Headers: []string{"If-Match"}}, "200 1 hello", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			back, p, do := setUp(t)
			p.Inject(c.fault)
			got, err := do(http.MethodPut, "hello")
			require.Equal(t, c.answer == "", err != nil, "%v", err)
			require.Equal(t, c.answer, got)
			require.Equal(t, c.landed, back.n.Load())
			got, err = do(http.MethodPut, "again")
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("200 %d againtag", c.landed+1), got, "only one request was affected")
			require.Equal(t, 2, p.Count(http.MethodPut))
			require.Equal(t, 1, p.FaultsHit())
		})
	}
}

func TestStaleRepeatsItsFirstAnswer(t *testing.T) {
	back, p, do := setUp(t)
	p.Inject(faultproxy.Fault{Mode: faultproxy.Stale, Times: -1})
	for range 3 {
		got, err := do(http.MethodGet, "")
		require.NoError(t, err)
		require.Equal(t, "200 1 tag", got)
	}
	p.ClearFaults()
	got, err := do(http.MethodGet, "")
	require.NoError(t, err)
	require.Equal(t, "200 2 tag", got)
	require.EqualValues(t, 2, back.n.Load())
}

func TestMatchingRequests(t *testing.T) {
	_, p, do := setUp(t)
	p.Inject(faultproxy.Fault{
		Mode: faultproxy.Refuse, Status: 503, Skip: 1, Times: 2,
		Match: func(r *http.Request) bool { return r.Method == http.MethodPut },
	})
	var got []string
	for _, method := range []string{"PUT", "GET", "PUT", "GET", "PUT", "PUT"} {
		answer, err := do(method, "")
		require.NoError(t, err)
		got = append(got, answer[:3])
	}
	require.Equal(t, []string{"200", "200", "503", "200", "503", "200"}, got)
}

// The service carries the write out, and the client never learns it.
func ExampleProxy() {
	back := &counter{}
	srv := httptest.NewServer(back)
	defer srv.Close()
	proxy, err := faultproxy.New(srv.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	front := httptest.NewServer(proxy)
	defer front.Close()

	proxy.Inject(faultproxy.Fault{Mode: faultproxy.LoseAnswer})
	_, err = http.Post(front.URL, "text/plain", strings.NewReader("a write"))
	fmt.Println("an answer:", err == nil)
	fmt.Println("landed:", back.n.Load())
	// Output:
	// an answer: false
	// landed: 1
}

func TestDated(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"nothing said": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") },
		"with another": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", "Fri, 20 Nov 2026 10:00:07 GMT")
			w.WriteHeader(http.StatusTeapot)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			faultproxy.ShiftDate(h, func() time.Duration { return time.Hour }).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			date, err := http.ParseTime(w.Header().Get("Date"))
			require.NoError(t, err)
			require.InDelta(t, time.Hour.Seconds(), time.Until(date).Seconds(), 10)
		})
	}
}
