package gcp_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/gcp/internal/discovery"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

const (
	project = "test-project"
	zone    = "us-central1-a"
	image   = "projects/debian-cloud/global/images/family/debian-12"
	token   = "test-token"
)

// authorized adds a bearer token to each request.
type authorized struct {
	base  http.RoundTripper
	token string
}

func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+a.token)
	return a.base.RoundTrip(r)
}

// serve serves a cloud over a socket; every request and answer is compared with
// the discovery document.
func serve(t *testing.T, o *gcetest.Options) (*gcetest.Cloud, string) {
	t.Helper()
	if o == nil {
		o = &gcetest.Options{}
	}
	o.Token = token
	cloud := gcetest.New(o)
	server := httptest.NewServer(discovery.Handler(t, cloud))
	t.Cleanup(func() { require.NoError(t, cloud.Close()) })
	t.Cleanup(server.Close)
	return cloud, server.URL
}

// open returns a provider of a cloud, for a server on the machine self.
func open(t *testing.T, url, self string) *gcp.Provider {
	t.Helper()
	return openIn(t, url, self)
}

// openTwo is open for a shard of two zones.
func openTwo(t *testing.T, url, self string) *gcp.Provider {
	t.Helper()
	return openIn(t, url, self, second)
}

func openIn(t *testing.T, url, self string, further ...string) *gcp.Provider {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	p, err := gcp.New(t.Context(), zone, &gcp.Options{
		Project: project, Zones: further, Endpoint: url, Instance: self, HTTP: &http.Client{Transport: authorized{transport, token}},
	})
	require.NoError(t, err)
	return p
}

func newCloud(t *testing.T, o *gcetest.Options) (*gcetest.Cloud, *gcp.Provider) {
	t.Helper()
	cloud, url := serve(t, o)
	return cloud, open(t, url, "")
}

func shape(s *nstance.MachineSpec) { s.Image, s.InstanceType, s.Subnet = image, "e2-small", "default" }

// spec returns a valid spec.
func spec(t testing.TB) nstance.MachineSpec {
	t.Helper()
	now := time.Now().UTC().Truncate(time.Millisecond)
	id, err := nstance.NewInstanceID("tst", now)
	require.NoError(t, err)
	s := nstance.MachineSpec{
		ID: id, Owner: nstance.Owner{Installation: "0123456789abcdef", Cluster: "prod", Shard: "a", Tenant: "default"}, Group: "web",
		CreatedAt: now, Epoch: 3, Arch: nstance.AMD64, UserData: []byte("#cloud-config\n"), Token: string(id) + "-1",
	}
	shape(&s)
	return s
}

// server creates a machine for a server, and returns its name.
func server(t *testing.T, p *gcp.Provider) string {
	t.Helper()
	s := spec(t)
	m, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := p.Get(t.Context(), m.ID)
		return err == nil
	}, time.Minute, time.Millisecond)
	return string(m.ID)
}

func conform(t *testing.T, o func() *gcetest.Options) { conformIn(t, o, open, shape) }

// conformIn runs the suite with providers of open and specs of shape.
func conformIn(t *testing.T, o func() *gcetest.Options, open func(t *testing.T, url, self string) *gcp.Provider, shape func(*nstance.MachineSpec)) {
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		o := o()
		o.Faults = &testcloud.Faults{}
		_, url := serve(t, o)
		p := open(t, url, "")
		return providertest.Subject{
			Break:    o.Faults.Outage,
			Again:    func() nstance.Provider { return open(t, url, "") },
			Provider: open(t, url, server(t, p)), Elsewhere: open(t, url, server(t, p)), Shape: shape, Spot: true, Park: p.ParkModes(),
			Address: "10.0.0.200", NoAddress: "192.0.2.1",
			Image: nstance.ImageQuery{Owner: "debian-cloud", Name: "debian-12-*", Arch: nstance.AMD64}, Subnets: []string{"default"},
			Types: []string{"e2-small", "t2a-standard-1"}, Balancer: nstance.LoadBalancer{Name: "front", ID: "web"},
			BadArgs: map[string]json.RawMessage{
				"disk_size_gb":       json.RawMessage(`{"disk_size_gb": "ten"}`),
				"termination_action": json.RawMessage(`{"termination_action": "KEEP"}`),
				"labels":             json.RawMessage(`{"labels": {"nstance-shard": "b"}}`),
				"provisioning_model": json.RawMessage(`{"provisioning_model": "SPOT"}`),
				"preemption_notice":  json.RawMessage(`{"preemption_notice": "30s"}`),
			},
			UserData: func(ctx context.Context, m nstance.Machine) (data []byte, err error) {
				for ctx.Err() == nil {
					if data, err = userData(ctx, url, m); err == nil {
						break
					}
				}
				return data, err
			},
			Wait: 10 * time.Second,
		}
	})
}

// userData reads the machine's user data as the metadata service would return it.
func userData(ctx context.Context, url string, m nstance.Machine) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/compute/v1/projects/"+project+"/zones/"+m.Zone+"/instances/"+string(m.ID), nil)
	if err != nil {
		return nil, err
	}
	answer, err := (&http.Client{Transport: authorized{http.DefaultTransport, token}}).Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var i struct {
		Metadata struct {
			Items []struct{ Key, Value string }
		}
	}
	if err := json.NewDecoder(answer.Body).Decode(&i); err != nil {
		return nil, err
	}
	for _, item := range i.Metadata.Items {
		if item.Key == "user-data" {
			return []byte(item.Value), nil
		}
	}
	return nil, nstance.Errorf(nstance.NotFound, "no user data")
}

// TestConformance runs the suite against a fast cloud.
func TestConformance(t *testing.T) {
	conform(t, func() *gcetest.Options {
		return &gcetest.Options{PageSize: 5, Groups: []gcetest.Group{{Name: "web", Type: "GCE_VM_IP_PORT", Port: 80}}}
	})
}

// TestConformanceLate runs it against a slow one, whose pages may be empty.
func TestConformanceLate(t *testing.T) {
	conform(t, func() *gcetest.Options {
		return &gcetest.Options{
			PageSize: 3, ScanPages: true, Groups: []gcetest.Group{{Name: "web", Type: "GCE_VM_IP"}},
			Delays: testcloud.Delays{Visible: 10 * time.Millisecond, Start: 20 * time.Millisecond, Stop: 5 * time.Millisecond, Delete: 20 * time.Millisecond},
		}
	})
}

// TestConformanceInTwoZones runs it with machines that are in two zones by turns, and a load
// balancer that has a group in each.
func TestConformanceInTwoZones(t *testing.T) {
	var turn atomic.Int64
	conformIn(t, func() *gcetest.Options {
		return &gcetest.Options{
			PageSize: 3, ScanPages: true,
			Groups: []gcetest.Group{{Name: "web", Zone: zone, Type: "GCE_VM_IP"}, {Name: "web", Zone: second, Type: "GCE_VM_IP"}},
			Delays: testcloud.Delays{Start: 10 * time.Millisecond, Stop: 5 * time.Millisecond, Delete: 10 * time.Millisecond},
		}
	}, openTwo, func(s *nstance.MachineSpec) {
		shape(s)
		if turn.Add(1)%2 == 0 {
			s.Subnet = secondSubnet
		}
	})
}

func TestNodeProviderID(t *testing.T) {
	_, p := newCloud(t, nil)
	m, err := p.Create(t.Context(), spec(t))
	require.NoError(t, err)
	require.Equal(t, "gce://"+project+"/"+zone+"/"+string(m.ID), p.NodeProviderID(m))
}
