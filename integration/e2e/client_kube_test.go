//go:build kube

package e2e_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	discovery "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/nstance-go/nstance/internal/sleep"
)

// How often a client asks, how long it waits for an answer, and how many failures it reports.
const (
	requestInterval = 5 * time.Millisecond
	requestTimeout  = 10 * time.Second
	shownFailures   = 5
)

// A serviceClient sends requests to a Service, each over a connection of its own, to an
// endpoint that it chooses as kube-proxy does: among those that are ready, or else those
// that end and still serve.
type serviceClient struct {
	namespace string
	slices    discovery.EndpointSliceLister
	http      *http.Client

	requests, failed int
	failures         []string // the first ones
}

// newServiceClient sends requests until the function that it returns is called.
func (w *world) newServiceClient(service string) (stop func() *serviceClient) {
	w.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(servers.Client, 0, informers.WithNamespace(w.namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = labels.Set{discoveryv1.LabelServiceName: service}.String()
		}))
	c := &serviceClient{namespace: w.namespace, slices: factory.Discovery().V1().EndpointSlices().Lister()}
	c.http = &http.Client{Timeout: requestTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			var d net.Dialer
			return d.DialContext(ctx, "unix", filepath.Join(w.network, host))
		},
	}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	factory.Start(ctx.Done())
	synced := factory.WaitForCacheSync(w.Context().Done())
	var asking sync.WaitGroup
	stop = sync.OnceValue(func() *serviceClient {
		cancel()
		asking.Wait()
		factory.Shutdown()
		return c
	})
	w.Cleanup(func() { stop() })
	for kind, ok := range synced {
		require.True(w, ok, kind)
	}
	asking.Go(func() {
		for sleep.For(ctx, requestInterval) {
			c.request()
		}
	})
	return stop
}

// request sends one request. It is not cancelled: every one that was sent is counted.
func (c *serviceClient) request() {
	c.requests++
	if err := c.ask(); err != nil {
		c.failed++
		if c.failed <= shownFailures {
			c.failures = append(c.failures, time.Now().Format("15:04:05.000 ")+err.Error())
		}
	}
}

func (c *serviceClient) ask() error {
	endpoint, err := c.choose()
	if err != nil {
		return err
	}
	resp, err := c.http.Get("http://" + net.JoinHostPort(endpoint.Addresses[0], "80"))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	name, err := io.ReadAll(resp.Body)
	if err == nil && (endpoint.TargetRef == nil || string(name) != endpoint.TargetRef.Name) {
		err = fmt.Errorf("%s answers %s as %q", endpoint.Addresses[0], resp.Status, name)
	}
	return err
}

func (c *serviceClient) choose() (discoveryv1.Endpoint, error) {
	list, err := c.slices.EndpointSlices(c.namespace).List(labels.Everything())
	if err != nil {
		return discoveryv1.Endpoint{}, err
	}
	var ready, ending []discoveryv1.Endpoint
	for _, s := range list {
		for _, e := range s.Endpoints {
			switch {
			case ptr.Deref(e.Conditions.Ready, true):
				ready = append(ready, e)
			case ptr.Deref(e.Conditions.Serving, false) && ptr.Deref(e.Conditions.Terminating, false):
				ending = append(ending, e)
			}
		}
	}
	if len(ready) == 0 {
		ready = ending
	}
	if len(ready) == 0 {
		return discoveryv1.Endpoint{}, fmt.Errorf("no endpoint is ready")
	}
	return ready[rand.IntN(len(ready))], nil
}
