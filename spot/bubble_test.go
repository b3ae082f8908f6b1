package spot_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/spot"
)

// inProcess calls a handler instead of opening a socket, so that a detector and its
// cloud can share a synctest bubble.
type inProcess struct{ http.Handler }

func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

// hung is a service that accepts requests and never answers.
func hung(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func options(h http.Handler) *spot.Options {
	return &spot.Options{BaseURL: "http://metadata.test", Client: &http.Client{Transport: inProcess{h}}}
}

func newAWS(t *testing.T, h http.Handler) *spot.AWS {
	t.Helper()
	d, err := spot.NewAWS(options(h))
	require.NoError(t, err)
	return d
}

func newGCP(t *testing.T, h http.Handler) *spot.GCP {
	t.Helper()
	d, err := spot.NewGCP(options(h))
	require.NoError(t, err)
	return d
}

// record is everything that a watch has yielded, with the time of each.
type record struct {
	mu      sync.Mutex
	notices []nstance.Notice
	errs    []error
	at      []time.Time // of the notices
}

func (r *record) take(n nstance.Notice, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.errs = append(r.errs, err)
		return
	}
	r.notices = append(r.notices, n)
	r.at = append(r.at, time.Now())
}

// after advances virtual time and returns what has been yielded so far.
func (r *record) after(t *testing.T, d time.Duration) ([]nstance.Notice, []error) {
	t.Helper()
	wait(t, d)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.notices, r.errs
}

// wait advances virtual time.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-t.Context().Done():
	case <-time.After(d):
	}
	synctest.Wait()
}

// bubble runs f in a synctest bubble, which fails if a watch leaks a goroutine.
func bubble(t *testing.T, name string, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// follow watches d until the bubble ends.
func follow(t *testing.T, d nstance.SpotDetector) *record {
	t.Helper()
	r := &record{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n, err := range d.Watch(ctx) {
			r.take(n, err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	synctest.Wait()
	return r
}

func aws() *imds.Server { return imds.New(&imds.Options{Spot: true, RequireToken: true}) }

func gcp() *imds.Server { return imds.New(&imds.Options{Protocol: imds.GCP, Spot: true}) }

func TestWatchTiming(t *testing.T) {
	bubble(t, "aws: the first poll is at once, the next ones an interval apart", func(t *testing.T) {
		s := aws()
		r := follow(t, newAWS(t, s))
		require.Equal(t, 1, s.Requests(imds.AWSAction))
		r.after(t, time.Minute-time.Millisecond)
		require.Equal(t, 30, s.Requests(imds.AWSAction))
	})
	bubble(t, "aws: keys are read at the same moments again after an error", func(t *testing.T) {
		s := aws()
		s.Fail(503, 1, imds.AWSMaintenance)
		r := follow(t, newAWS(t, s))
		r.after(t, 4*spot.DefaultPollInterval-time.Millisecond)
		before := s.Requests("")
		r.after(t, 2*time.Millisecond)
		require.Equal(t, before+4, s.Requests(""))
		r.after(t, spot.DefaultPollInterval-2*time.Millisecond)
		require.Equal(t, before+4, s.Requests(""))
	})
	bubble(t, "aws: a notice is yielded within an interval", func(t *testing.T) {
		s := aws()
		r := follow(t, newAWS(t, s))
		wait(t, time.Millisecond)
		published := time.Now()
		s.Reclaim("terminate", published.Add(2*time.Minute))
		notices, errs := r.after(t, spot.DefaultPollInterval)
		require.Empty(t, errs)
		require.Len(t, notices, 1)
		require.LessOrEqual(t, r.at[0].Sub(published), spot.DefaultPollInterval)
	})
	bubble(t, "gcp: a notice is yielded at once, whenever it comes", func(t *testing.T) {
		s := gcp()
		r := follow(t, newGCP(t, s))
		for i := range 20 {
			wait(t, 2*spot.DefaultPollInterval+time.Duration(i)*977*time.Millisecond)
			published := time.Now()
			s.Reclaim("", time.Time{})
			synctest.Wait()
			require.Len(t, r.notices, 2*i+1)
			require.Equal(t, published, r.at[2*i])
			wait(t, 2*spot.DefaultPollInterval)
			s.Withdraw()
			synctest.Wait()
			require.True(t, r.notices[2*i+1].Cancelled)
		}
		require.Empty(t, r.errs)
	})
	bubble(t, "gcp: quiet keys cost one request in ten seconds", func(t *testing.T) {
		s := gcp()
		follow(t, newGCP(t, s)).after(t, time.Hour)
		require.InDelta(t, 360, s.Requests(imds.GCPPreempted), 2)
		require.InDelta(t, 360, s.Requests(imds.GCPMaintenanceEvent), 2)
		require.InDelta(t, 1800, s.Requests(imds.GCPStopState), 2, "a missing key cannot be waited on")
	})
	bubble(t, "gcp: an error is retried within a second", func(t *testing.T) {
		s := gcp()
		r := follow(t, newGCP(t, s))
		s.Fail(503, 1, imds.GCPPreempted)
		synctest.Wait()
		s.Reclaim("", time.Time{})
		notices, errs := r.after(t, time.Second)
		require.Len(t, errs, 1)
		require.Len(t, notices, 1)
	})
	bubble(t, "a service that ignores the wait is polled, not hammered", func(t *testing.T) {
		var requests atomic.Int64
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/"+imds.GCPPreempted {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			requests.Add(1)
			w.Header().Set("Etag", time.Now().String())
			_, _ = w.Write([]byte("FALSE"))
		})
		follow(t, newGCP(t, h)).after(t, time.Minute)
		require.InDelta(t, 31, requests.Load(), 2)
	})
	bubble(t, "a hanging key delays no other and is given up", func(t *testing.T) {
		s := aws()
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/"+imds.AWSMaintenance {
				hung(w, r)
			}
			s.ServeHTTP(w, r)
		})
		r := follow(t, newAWS(t, h))
		s.Reclaim("terminate", time.Now().Add(time.Hour))
		notices, errs := r.after(t, 5*time.Second)
		require.Len(t, notices, 1)
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], nstance.Unavailable)
		require.ErrorContains(t, errs[0], "no answer within 2s")
	})
	bubble(t, "a long poll that dies unnoticed is given up well before 30 s", func(t *testing.T) {
		s := gcp()
		var revived atomic.Bool
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !revived.Load() && r.URL.Query().Get("wait_for_change") != "" {
				hung(w, r)
			}
			s.ServeHTTP(w, r)
		})
		r := follow(t, newGCP(t, h))
		synctest.Wait()
		revived.Store(true)
		s.Reclaim("", time.Time{})
		notices, _ := r.after(t, 13*time.Second+time.Millisecond)
		require.Len(t, notices, 1)
	})
}

func TestWatchWaitsForItsPollers(t *testing.T) {
	bubble(t, "even for one that is slow to notice", func(t *testing.T) {
		var active, served atomic.Int64
		h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			active.Add(1)
			defer active.Add(-1)
			served.Add(1)
			<-r.Context().Done()
			<-time.After(time.Second)
		})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		for range newGCP(t, h).Watch(ctx) {
			require.Fail(t, "there is nothing to yield")
		}
		require.EqualValues(t, 4, served.Load())
		require.Zero(t, active.Load())
	})
}

func TestErrorsAreReportedOnce(t *testing.T) {
	bubble(t, "the same error is yielded once, and again after a recovery", func(t *testing.T) {
		s := aws()
		r := follow(t, newAWS(t, s))
		for outage := range 3 {
			s.Fail(503, -1, imds.AWSAction)
			_, errs := r.after(t, 10*time.Minute)
			require.Len(t, errs, outage+1)
			require.ErrorIs(t, errs[outage], nstance.Unavailable)
			s.Recover()
			wait(t, 10*time.Second)
		}
	})
	bubble(t, "other errors are yielded too, a bounded number of times", func(t *testing.T) {
		s := aws()
		r := follow(t, newAWS(t, s))
		for status := 500; status < 530; status++ {
			s.Fail(status, -1, imds.AWSAction)
			wait(t, 10*time.Second)
		}
		_, errs := r.after(t, 0)
		require.Len(t, errs, 8)
	})
	bubble(t, "no status but 404 withdraws", func(t *testing.T) {
		s := aws()
		r := follow(t, newAWS(t, s))
		s.Reclaim("terminate", time.Now().Add(time.Hour))
		wait(t, 10*time.Second)
		for _, status := range []int{204, 301, 400, 401, 403, 405, 410, 429, 500, 503} {
			s.Fail(status, -1, imds.AWSAction)
			notices, _ := r.after(t, 30*time.Second)
			require.Len(t, notices, 1, "status %d", status)
		}
		s.Fail(404, -1, imds.AWSAction)
		notices, _ := r.after(t, 30*time.Second)
		require.Len(t, notices, 2)
		require.True(t, notices[1].Cancelled)
	})
	bubble(t, "a service that throttles is polled at the interval", func(t *testing.T) {
		s := aws()
		r := follow(t, newAWS(t, s))
		before := s.Requests(imds.AWSAction)
		s.Fail(429, -1, imds.AWSAction)
		_, errs := r.after(t, time.Minute)
		require.ErrorIs(t, errs[0], nstance.Throttled)
		require.LessOrEqual(t, s.Requests(imds.AWSAction)-before, 61, "never less than half an interval apart")
	})
}

func TestOversizedAnswer(t *testing.T) {
	bubble(t, "is an error that is yielded once and withdraws nothing", func(t *testing.T) {
		s := aws()
		r := follow(t, newAWS(t, s))
		s.Reclaim("terminate", time.Now().Add(time.Hour))
		wait(t, 10*time.Second)
		s.SetRaw(imds.AWSAction, string(make([]byte, 65<<10)))
		notices, errs := r.after(t, time.Minute)
		require.Len(t, notices, 1)
		require.Len(t, errs, 1)
		require.ErrorContains(t, errs[0], "exceeds 65536 bytes")
	})
}

func TestNetworkErrorsWithoutPorts(t *testing.T) {
	here := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 40001}
	cause := &net.OpError{Op: "read", Net: "tcp", Source: here, Addr: here, Err: errors.New("connection reset")}
	o := options(nil)
	o.Client.Transport = roundTrip(func(*http.Request) (*http.Response, error) { return nil, cause })
	d, err := spot.NewGCP(o)
	require.NoError(t, err)
	_, err = d.Interruptible(t.Context())
	require.ErrorIs(t, err, nstance.Unavailable)
	require.EqualError(t, err, "/computeMetadata/v1/instance/scheduling/preemptible: read: connection reset")
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
