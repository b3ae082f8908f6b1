package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/option"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// Names in the test cloud that the scenarios use.
const (
	gcpProject       = "test-project"
	gcpZone          = "us-central1-a"
	gcpAccount       = "nstance@test-project.iam.gserviceaccount.com"
	gcpImageProject  = "debian-cloud"
	gcpImage         = "debian-12-bookworm-v20261101"
	gcpLeaderAddress = "10.0.15.100"
)

// gcpServers are the machines that servers run on.
var gcpServers = []string{"server-a", "server-b"}

// devGCP is Compute Engine for single-machine mode.
func devGCP() *dev.Cloud {
	var server *gcetest.Cloud
	return &dev.Cloud{
		Kind: gcp.Kind(), Protocol: imds.GCP, Consistency: time.Second,
		New: func(h testcloud.Hypervisor) (dev.TestServer, error) {
			server = gcetest.New(&gcetest.Options{
				Project: gcpProject, Account: gcpAccount, Hypervisor: h,
				Images: []gcetest.Image{{
					Project: gcpImageProject, Name: gcpImage, Family: "debian-12", Arch: nstance.Arch(runtime.GOARCH),
					Created: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC),
				}},
				Delays: testcloud.Delays{Visible: 50 * time.Millisecond, Start: 100 * time.Millisecond, Stop: 100 * time.Millisecond, Delete: 100 * time.Millisecond},
			})
			return server, nil
		},
		Prepare: func(ctx context.Context, api dev.API) error {
			if err := os.WriteFile(gcpKeyFile(api), server.KeyFile(api.Endpoint), 0o600); err != nil {
				return nstance.Errorf(nstance.Denied, "%w", err)
			}
			return prepareGCP(ctx, api)
		},
		Holder: gcpHolder,
		Configure: func(file, shard, template map[string]any, api dev.API, n int) {
			shard["provider"] = map[string]any{"zone": gcpZone, "options": map[string]any{
				"project": gcpProject, "endpoint": api.Endpoint, "credentials_file": gcpKeyFile(api), "instance": gcpServers[n],
			}}
			shard["leader_address"] = gcpLeaderAddress
			shard["subnet_pools"] = map[string]any{"workers": []string{"default"}}
			file["images"] = map[string]any{"debian": map[string]any{"owner": gcpImageProject, "name": "debian-12-*"}}
			template["image"], template["subnet_pool"], template["instance_type"] = "debian", "workers", gcpType()
		},
		Creates: func(r *http.Request, _ []byte) bool {
			return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/instances")
		},
	}
}

func gcpType() string {
	if runtime.GOARCH == "arm64" {
		return "t2a-standard-1"
	}
	return "e2-small"
}

func gcpKeyFile(api dev.API) string { return filepath.Join(api.Dir, "gcp-key.json") }

func gcpInstances(ctx context.Context, api dev.API) (*compute.InstancesClient, error) {
	return compute.NewInstancesRESTClient(ctx, option.WithEndpoint(api.Endpoint), option.WithAuthCredentialsFile(option.ServiceAccount, gcpKeyFile(api)))
}

// prepareGCP starts the machines that servers run on: the leader address moves
// between their network interfaces.
func prepareGCP(ctx context.Context, api dev.API) error {
	client, err := gcpInstances(ctx, api)
	if err != nil {
		return nstance.Errorf(nstance.Internal, "machines for servers: %w", err)
	}
	defer client.Close()
	var ops []*compute.Operation
	for _, name := range gcpServers {
		op, err := client.Insert(ctx, &computepb.InsertInstanceRequest{Project: gcpProject, Zone: gcpZone, InstanceResource: &computepb.Instance{
			Name: &name, MachineType: new("zones/" + gcpZone + "/machineTypes/" + gcpType()),
			Disks: []*computepb.AttachedDisk{{Boot: new(true), AutoDelete: new(true), InitializeParams: &computepb.AttachedDiskInitializeParams{
				SourceImage: new("projects/" + gcpImageProject + "/global/images/" + gcpImage),
			}}},
			NetworkInterfaces: []*computepb.NetworkInterface{{Subnetwork: new("regions/" + gcpZone[:len(gcpZone)-2] + "/subnetworks/default")}},
		}})
		if err != nil {
			return nstance.Errorf(nstance.Internal, "machine %s for a server: %w", name, err)
		}
		ops = append(ops, op)
	}
	for _, op := range ops {
		if err := op.Wait(ctx); err != nil {
			return nstance.Errorf(nstance.Internal, "machines for servers: %w", err)
		}
	}
	return nil
}

// gcpHolder finds the leader address in the answers of the cloud.
func gcpHolder(ctx context.Context, api dev.API) (dev.Holder, error) {
	client, err := gcpInstances(ctx, api)
	if err != nil {
		return dev.Holder{}, nstance.Errorf(nstance.Internal, "leader address: %w", err)
	}
	defer client.Close()
	for n, name := range gcpServers {
		i, err := client.Get(ctx, &computepb.GetInstanceRequest{Project: gcpProject, Zone: gcpZone, Instance: name})
		if err != nil {
			return dev.Holder{}, nstance.Errorf(nstance.Unavailable, "leader address: %w", err)
		}
		if slices.ContainsFunc(i.GetNetworkInterfaces()[0].GetAliasIpRanges(), func(r *computepb.AliasIpRange) bool {
			return r.GetIpCidrRange() == gcpLeaderAddress+"/32"
		}) {
			return dev.Holder{Address: gcpLeaderAddress, Server: n, At: name + " " + i.GetNetworkInterfaces()[0].GetName()}, nil
		}
	}
	return dev.Holder{}, nstance.Errorf(nstance.Unavailable, "no server has leader address %s", gcpLeaderAddress)
}
