package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/testcloud"
	"github.com/nstance-go/nstance/internal/testcloud/gce"
	"github.com/nstance-go/nstance/provider/gcp"
	"github.com/nstance-go/nstance/server/dev"
)

// What the scenarios use of the test cloud.
const (
	gcpProject = "test-project"
	gcpZone    = "us-central1-a"
	gcpAccount = "nstance@test-project.iam.gserviceaccount.com"
)

// devGCP is Compute Engine for single-machine mode.
func devGCP() *dev.Cloud {
	var cloud *gce.Cloud
	return &dev.Cloud{
		Kind: gcp.Kind(), Protocol: imds.GCP, Consistency: time.Second,
		New: func(h testcloud.Hypervisor) (dev.TestServer, error) {
			cloud = gce.New(&gce.Options{
				Project: gcpProject, Account: gcpAccount, Hypervisor: h,
				Images: []gce.Image{{
					Project: "debian-cloud", Name: "debian-12-bookworm-v20261101", Family: "debian-12", Arch: nstance.Arch(runtime.GOARCH),
					Created: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC),
				}},
				Delays: testcloud.Delays{Visible: 50 * time.Millisecond, Start: 100 * time.Millisecond, Stop: 100 * time.Millisecond, Delete: 100 * time.Millisecond},
			})
			return cloud, nil
		},
		Prepare: func(_ context.Context, api dev.API) error {
			if err := os.WriteFile(gcpKeyFile(api), cloud.KeyFile(api.Endpoint), 0o600); err != nil {
				return nstance.Errorf(nstance.Denied, "%w", err)
			}
			return nil
		},
		Configure: func(file, shard, template map[string]any, api dev.API, _ int) {
			shard["provider"] = map[string]any{"zone": gcpZone, "options": map[string]any{
				"project": gcpProject, "endpoint": api.Endpoint, "credentials_file": gcpKeyFile(api),
			}}
			shard["subnet_pools"] = map[string]any{"workers": []string{"default"}}
			file["images"] = map[string]any{"debian": map[string]any{"owner": "debian-cloud", "name": "debian-12-*"}}
			template["image"], template["subnet_pool"], template["instance_type"] = "debian", "workers", "e2-small"
			if runtime.GOARCH == "arm64" {
				template["instance_type"] = "t2a-standard-1"
			}
		},
		Creates: func(r *http.Request, _ []byte) bool {
			return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/instances")
		},
	}
}

func gcpKeyFile(api dev.API) string { return filepath.Join(api.Dir, "gcp-key.json") }
