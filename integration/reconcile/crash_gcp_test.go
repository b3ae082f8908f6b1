//go:build servers

package reconcile_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

func gceSite(h testcloud.Hypervisor) *site { return gceSiteIn(h) }

// gceSiteIn is Google Cloud: creates are accepted and fail later, deletes are slow, pages
// of filtered lists may be empty. Its shard has one zone, and further ones.
func gceSiteIn(h testcloud.Hypervisor, further ...string) *site {
	capacity := &testcloud.Capacity{}
	cloud := gcetest.New(&gcetest.Options{
		Capacity: capacity, Hypervisor: h, ScanPages: true, PageSize: 3, Groups: []gcetest.Group{{Name: "front", Type: "GCE_VM_IP_PORT", Port: 80}},
		Delays: testcloud.Delays{Visible: 2 * time.Second, Start: 20 * time.Second, Delete: 5 * time.Second},
	})
	return &site{
		cloud: gceCloud{cloud}, capacity: capacity,
		provider: func(url string, client *http.Client) nstance.Provider {
			p, err := gcp.New(context.Background(), "us-central1-a", &gcp.Options{Project: "test-project", Zones: further, Endpoint: url, HTTP: client})
			if err != nil {
				panic(err)
			}
			return p
		},
		shape: func(s *nstance.MachineSpec) {
			s.Image, s.InstanceType, s.Subnet = "projects/debian-cloud/global/images/family/debian-12", "e2-small", "default"
		},
		balancer: nstance.LoadBalancer{Name: "front", ID: "front"},
		setCapacity: func(n int) {
			capacity.Set(testcloud.Shape{Type: "e2-small", Zone: "us-central1-a", Spot: true}, n-len(cloud.Machines()))
		},
		operation: func(r *http.Request, _ []byte) (string, bool) {
			name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
			switch {
			case r.Method == http.MethodPost && name == "instances":
				return "insert", true
			case r.Method == http.MethodDelete:
				return "delete", true
			case strings.HasPrefix(name, "tst") || r.Method == http.MethodGet && !strings.HasSuffix(name, "s"):
				return "get", false
			}
			return name, r.Method == http.MethodPost && !strings.HasPrefix(name, "list")
		},
	}
}

// gceCloud names machines as the provider does.
type gceCloud struct{ *gcetest.Cloud }

var (
	gceHandle = strings.NewReplacer("projects/test-project/zones/", "gce://test-project/", "/instances/", "/")
	gcePath   = strings.NewReplacer("gce://test-project/us-central1-a/", "projects/test-project/zones/us-central1-a/instances/",
		"gce://test-project/us-central1-b/", "projects/test-project/zones/us-central1-b/instances/")
)

func (c gceCloud) Machines() []testcloud.Machine {
	all := c.Cloud.Machines()
	for i := range all {
		all[i].Handle = gceHandle.Replace(all[i].Handle)
	}
	return all
}

func (c gceCloud) Reclaim(handle string, notice time.Duration) error {
	return c.Cloud.Reclaim(gcePath.Replace(handle), notice)
}

func (c gceCloud) Fail(handle string) error {
	return c.Cloud.Fail(gcePath.Replace(handle))
}

func TestServersCrashOnGCE(t *testing.T) { crashOverHTTP(t, gceSite) }
