package gcp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/compute/metadata"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/spot"
	"github.com/nstance-go/nstance/spot/spottest"
)

// googleClient is Google's own client, of a service at this URL.
func googleClient(t *testing.T, serviceURL string) *metadata.Client {
	t.Helper()
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(serviceURL, "http://"))
	return metadata.NewClient(&http.Client{})
}

// The test service is one to Google's client too.
func TestGoogleClientReadsTestService(t *testing.T) {
	s := spottest.NewServer(t, &spottest.Options{
		Protocol: imds.GCP, Spot: true, InstanceID: "4711", Zone: "europe-west1-b", UserData: []byte("data"),
	})
	client := googleClient(t, s.URL)
	for name, read := range map[string]func(context.Context) (string, error){
		"4711":           client.InstanceIDWithContext,
		"europe-west1-b": client.ZoneWithContext,
		"data": func(ctx context.Context) (string, error) {
			return client.InstanceAttributeValueWithContext(ctx, "user-data")
		},
		"TRUE": func(ctx context.Context) (string, error) {
			return client.GetWithContext(ctx, "/instance/scheduling/preemptible")
		},
	} {
		got, err := read(t.Context())
		require.NoError(t, err, name)
		require.Equal(t, name, got)
	}
	names, err := client.InstanceAttributesWithContext(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"user-data"}, names)
	_, err = client.GetWithContext(t.Context(), "instance/shutdown-details/stop-state")
	require.ErrorAs(t, err, new(metadata.NotDefinedError))
}

// Google's client and the detector subscribe to the same value, and see each change.
func TestGoogleClientSubscribesToTestService(t *testing.T) {
	s := spottest.NewServer(t, &spottest.Options{Protocol: imds.GCP, Spot: true})
	client := googleClient(t, s.URL)
	ctx, stop := context.WithCancel(t.Context())
	values, ended := make(chan string), make(chan struct{})
	go func() {
		defer close(ended)
		_ = client.SubscribeWithContext(ctx, "instance/preempted", func(ctx context.Context, v string, _ bool) error {
			select {
			case values <- v:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	defer func() { stop(); <-ended }()
	require.Equal(t, "FALSE", <-values)
	s.Reclaim("terminate", time.Time{})
	require.Equal(t, "TRUE", <-values)
	s.Withdraw()
	require.Equal(t, "FALSE", <-values)
}

// A subscriptionRecord is a service with one value, TRUE, that records its requests.
type subscriptionRecord struct {
	mu       sync.Mutex
	requests []*http.Request
	second   chan struct{} // closed after two requests
}

func (s *subscriptionRecord) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/computeMetadata/v1/instance/preempted" {
		http.NotFound(w, r)
		return
	}
	s.mu.Lock()
	s.requests = append(s.requests, r.Clone(context.Background()))
	number := len(s.requests)
	s.mu.Unlock()
	switch {
	case number == 2:
		close(s.second)
		fallthrough
	case number > 2:
		<-r.Context().Done()
		return
	}
	w.Header().Set("Etag", "a tag/1")
	w.Header().Set("Metadata-Flavor", "Google")
	_, _ = w.Write([]byte("TRUE"))
}

// subscription returns the first two requests of a subscriber.
func subscription(t *testing.T, subscribe func(ctx context.Context, serviceURL string)) (first, second *http.Request) {
	t.Helper()
	s := &subscriptionRecord{second: make(chan struct{})}
	web := httptest.NewServer(s)
	defer web.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); subscribe(ctx, web.URL) }()
	select {
	case <-s.second:
	case <-time.After(time.Minute):
		t.Error("no second request within a minute")
	}
	stop()
	<-ended
	s.mu.Lock()
	defer s.mu.Unlock()
	require.GreaterOrEqual(t, len(s.requests), 2)
	return s.requests[0], s.requests[1]
}

// The detector waits for a change as Google's client does. It adds only a limit of the
// wait.
func TestGCPSubscribesLikeGoogleClient(t *testing.T) {
	theirFirst, theirSecond := subscription(t, func(ctx context.Context, serviceURL string) {
		_ = googleClient(t, serviceURL).SubscribeWithContext(ctx, "instance/preempted",
			func(context.Context, string, bool) error { return nil })
	})
	ourFirst, ourSecond := subscription(t, func(ctx context.Context, serviceURL string) {
		d, err := spot.NewGCP(&spot.Options{BaseURL: serviceURL})
		if err != nil {
			t.Error(err)
			return
		}
		for n, err := range d.Watch(ctx) {
			if err == nil && n.Kind != nstance.Reclaim {
				t.Errorf("%+v", n)
			}
		}
	})
	for _, pair := range [][2]*http.Request{{theirFirst, ourFirst}, {theirSecond, ourSecond}} {
		require.Equal(t, pair[0].Method, pair[1].Method)
		require.Equal(t, pair[0].Header.Get("Metadata-Flavor"), pair[1].Header.Get("Metadata-Flavor"))
		require.Equal(t, pair[0].URL.Path, pair[1].URL.Path)
		ours := pair[1].URL.Query()
		ours.Del("timeout_sec")
		require.Equal(t, pair[0].URL.Query(), ours)
	}
	require.Equal(t, url.Values{"wait_for_change": {"true"}, "last_etag": {"a tag/1"}}, theirSecond.URL.Query())
}
