package aws_test

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// pipe is a listener in memory, for synctest bubbles.
type pipe struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipe() *pipe { return &pipe{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipe) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
	case <-ctx.Done():
	}
	return nil, net.ErrClosed
}

func (p *pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipe) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// late delays a call by d, half of it before the effect.
func late(h http.Handler, d time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-time.After(d / 2)
		h.ServeHTTP(w, r)
		<-time.After(d / 2)
	})
}

// newDistantWorld returns a world in the bubble: an account with AWS's default rate
// limits, 200 ms away.
func newDistantWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, faults: &testcloud.Faults{}, url: "http://ec2.example"}
	w.cloud = ec2test.New(&ec2test.Options{Buckets: ec2test.AccountBuckets(), Faults: w.faults})
	p := newPipe()
	server := &http.Server{Handler: late(w.cloud, 200*time.Millisecond), ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(p) }()
	transport := &http.Transport{DialContext: p.dial, MaxIdleConnsPerHost: 100}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-ended, http.ErrServerClosed)
		require.NoError(t, w.cloud.Close())
	})
	conf := account()
	conf.HTTPClient = &http.Client{Transport: transport}
	var err error
	w.Provider, err = aws.New(conf, &aws.Options{Endpoint: w.url, ELBEndpoint: w.url, STSEndpoint: w.url})
	require.NoError(t, err)
	return w
}

// TestHundredMachines: simultaneous creates take as long as the account's rate limit: 5
// at once, the other 95 at 2 a second, and one call. None is throttled or repeated.
func TestHundredMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDistantWorld(t)
		kind := aws.Kind()
		client, err := provider.New(w.Provider, &provider.Options{Rate: kind.Rate, Burst: kind.Burst})
		require.NoError(t, err)
		began := time.Now()
		errs := make(chan error, 100)
		for range 100 {
			spec := w.spec()
			go func() {
				for {
					ok, at := client.Reserve(time.Now())
					if ok {
						break
					}
					<-time.After(time.Until(at))
				}
				_, err := client.Create(t.Context(), spec)
				errs <- err
			}()
		}
		for range 100 {
			require.NoError(t, <-errs)
		}
		took := time.Since(began)
		t.Logf("100 machines took %s of virtual time", took)
		require.InDelta(t, (95*time.Second/2 + 200*time.Millisecond).Seconds(), took.Seconds(), 1)
		require.Equal(t, 100, w.faults.Calls()["RunInstances"])
		require.Len(t, w.cloud.Machines(), 100)
	})
}

// TestThrottledLaunch: beyond the limit a launch is refused once, and the provider does
// not repeat it.
func TestThrottledLaunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDistantWorld(t)
		errs := make(chan error, 8)
		for range 8 {
			spec := w.spec()
			go func() {
				_, err := w.Create(t.Context(), spec)
				errs <- err
			}()
		}
		throttled := 0
		for range 8 {
			if err := <-errs; err != nil {
				w.refused(nstance.Throttled, err)
				throttled++
			}
		}
		require.Equal(t, 3, throttled)
		require.Equal(t, 8, w.faults.Calls()["RunInstances"])
		require.Len(t, w.cloud.Machines(), 5)
	})
}
