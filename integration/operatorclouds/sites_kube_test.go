//go:build kube

package operatorclouds_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	armsdk "github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	azfake "github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	ec2api "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/gcp"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/testcloud"
)

type object = map[string]any

// A site is a test cloud on a socket, with what a shard and its operator must know of it.
type site struct {
	testcloud.Cloud
	place      *shardtest.Place
	maxPrice   string                             // in the machines' spec; empty: the cloud has no such thing
	providerID func(m testcloud.Machine) string   // of the Node, as the cloud's controller manager writes it
	bought     func(m testcloud.Machine) any      // what the cloud has recorded of the purchase
	spot       any                                // what that must be
	left       func(m testcloud.Machine) []string // what the cloud still has of it
	refusal    string                             // how the cloud refuses a machine of group scarce
}

// delays are short, and longer than nothing.
var delays = testcloud.Delays{
	Visible: 50 * time.Millisecond, Start: 100 * time.Millisecond, Stop: 100 * time.Millisecond, Delete: 100 * time.Millisecond, Linger: time.Minute,
}

// newPlace returns the configuration of a shard with groups without members: machines of group
// nodes can be made, those of group hasty too, but only within seconds, and those of group
// scarce are of a type that is sold out.
func newPlace(kind provider.Kind, settings object, subnet string, image, template object, sold, soldOut string) *shardtest.Place {
	kind.Consistency = time.Second
	settings["kind"] = kind.Name
	of := func(instanceType string, launchTimeout time.Duration) object {
		out := object{
			"kind": "nde", "arch": "amd64", "image": "linux", "subnet_pool": "workers", "instance_type": instanceType,
			"userdata": object{"content": "{{.Nonce}}"}, "launch_timeout": launchTimeout.String(),
		}
		for name, value := range template {
			out[name] = value
		}
		return out
	}
	return &shardtest.Place{
		Kind: kind,
		Shard: object{
			"provider": settings, "subnet_pools": object{"workers": []string{subnet}}, "shutdown_timeout": "1s", "gc": object{"interval": "1s"},
		},
		Rest: object{
			"images":    object{"linux": image},
			"templates": object{"nodes": of(sold, 10*time.Minute), "hasty": of(sold, 3*time.Second), "scarce": of(soldOut, 3*time.Second)},
			"groups": object{"default": object{
				"nodes": object{"template": "nodes", "size": 0}, "hasty": object{"template": "hasty", "size": 0}, "scarce": object{"template": "scarce", "size": 0},
			}},
		},
	}
}

// serve serves a test cloud over a socket until the test ends.
func serve(t *testing.T, c interface {
	testcloud.Cloud
	http.Handler
}, start func(http.Handler) *httptest.Server) *httptest.Server {
	t.Helper()
	server := start(c)
	t.Cleanup(func() {
		server.Close()
		require.NoError(t, c.Close())
	})
	return server
}

// onAWS returns an account of AWS.
func onAWS(t *testing.T, h *hypervisor) *site {
	const region = "us-east-1"
	catalog, capacity := ec2test.DefaultCatalog(region), &testcloud.Capacity{}
	capacity.Set(testcloud.Shape{Type: "c5.large", Zone: catalog.Subnets[0].Zone, Spot: true}, 0)
	c := ec2test.New(&ec2test.Options{Region: region, Catalog: catalog, IDTag: "nstance:instance-id", Hypervisor: h, Delays: delays, Capacity: capacity})
	url := serve(t, c, httptest.NewServer).URL
	key := ec2test.DefaultCredential
	client := ec2api.New(ec2api.Options{
		Region: region, BaseEndpoint: &url, Credentials: credentials.NewStaticCredentialsProvider(key.AccessKeyID, key.SecretAccessKey, ""),
	})
	type request struct {
		Type     types.SpotInstanceType
		Behavior types.InstanceInterruptionBehavior
		MaxPrice string
	}
	return &site{
		Cloud: c,
		place: newPlace(aws.Kind(), object{"region": region, "options": object{"endpoint": url, "elb_endpoint": url, "sts_endpoint": url}},
			catalog.Subnets[0].ID, object{"owner": catalog.Images[0].Owner, "name": "debian-12-amd64-*"}, nil, "m5.large", "c5.large"),
		maxPrice:   "0.05",
		providerID: func(m testcloud.Machine) string { return "aws:///" + m.Zone + "/" + m.Handle },
		bought: func(m testcloud.Machine) any {
			out, err := client.DescribeSpotInstanceRequests(t.Context(), &ec2api.DescribeSpotInstanceRequestsInput{
				Filters: []types.Filter{{Name: new("instance-id"), Values: []string{m.Handle}}},
			})
			require.NoError(t, err)
			require.Len(t, out.SpotInstanceRequests, 1)
			r := out.SpotInstanceRequests[0]
			return request{r.Type, r.InstanceInterruptionBehavior, awssdk.ToString(r.SpotPrice)}
		},
		spot: request{types.SpotInstanceTypeOneTime, types.InstanceInterruptionBehaviorTerminate, "0.05"},
		left: func(m testcloud.Machine) (names []string) {
			machines, err := client.DescribeInstances(t.Context(), &ec2api.DescribeInstancesInput{InstanceIds: []string{m.Handle}})
			require.NoError(t, err)
			if state := machines.Reservations[0].Instances[0].State.Name; state != types.InstanceStateNameTerminated {
				names = append(names, "machine "+string(state))
			}
			interfaces, err := client.DescribeNetworkInterfaces(t.Context(), &ec2api.DescribeNetworkInterfacesInput{})
			require.NoError(t, err)
			for _, i := range interfaces.NetworkInterfaces {
				if i.Attachment != nil && awssdk.ToString(i.Attachment.InstanceId) == m.Handle {
					names = append(names, awssdk.ToString(i.NetworkInterfaceId))
				}
			}
			return names
		},
		refusal: "InsufficientInstanceCapacity",
	}
}

// onGCP returns a project of Google Cloud that deletes what it takes back.
func onGCP(t *testing.T, h *hypervisor) *site { return newGCP(t, h, "DELETE") }

// onGCPStopped returns a project of Google Cloud that stops what it takes back.
func onGCPStopped(t *testing.T, h *hypervisor) *site { return newGCP(t, h, "STOP") }

func newGCP(t *testing.T, h *hypervisor, action string) *site {
	const zone = "us-central1-a"
	capacity := &testcloud.Capacity{}
	capacity.Set(testcloud.Shape{Type: "e2-standard-2", Zone: zone, Spot: true}, 0)
	c := gcetest.New(&gcetest.Options{Account: "nstance@test-project.iam.gserviceaccount.com", Hypervisor: h, Delays: delays, Capacity: capacity})
	url := serve(t, c, httptest.NewServer).URL
	key := filepath.Join(t.TempDir(), "key.json")
	require.NoError(t, os.WriteFile(key, c.KeyFile(url), 0o600))
	client, err := compute.NewInstancesRESTClient(t.Context(), option.WithEndpoint(url), option.WithAuthCredentialsFile(option.ServiceAccount, key))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	type scheduling struct {
		Model, Action string
		Restart       bool
	}
	return &site{
		Cloud: c,
		place: newPlace(gcp.Kind(), object{"zone": zone, "options": object{"project": "test-project", "endpoint": url, "credentials_file": key}},
			"default", object{"owner": "debian-cloud", "name": "debian-12-*"}, object{"args": object{"termination_action": action}}, "e2-small", "e2-standard-2"),
		providerID: func(m testcloud.Machine) string { return "gce://test-project/" + m.Zone + "/" + path.Base(m.Handle) },
		bought: func(m testcloud.Machine) any {
			i, err := client.Get(t.Context(), &computepb.GetInstanceRequest{Project: "test-project", Zone: m.Zone, Instance: path.Base(m.Handle)})
			require.NoError(t, err)
			s := i.GetScheduling()
			return scheduling{s.GetProvisioningModel(), s.GetInstanceTerminationAction(), s.GetAutomaticRestart()}
		},
		spot: scheduling{"SPOT", action, false},
		left: func(m testcloud.Machine) []string {
			names := c.Disks()
			for _, machine := range c.Machines() {
				names = append(names, machine.Handle)
			}
			return slices.DeleteFunc(names, func(name string) bool { return path.Base(name) != path.Base(m.Handle) })
		},
		refusal: "ZONE_RESOURCE_POOL_EXHAUSTED",
	}
}

// onAzure returns a subscription of Azure. Its controller manager writes the resource group
// in lower case.
func onAzure(t *testing.T, h *hypervisor) *site {
	const (
		subscription = "00000000-0000-0000-0000-000000000001"
		subnet       = "/subscriptions/" + subscription + "/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/main/subnets/workers"
		key          = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBxO6yq0 test"
	)
	c := armtest.New(&armtest.Options{
		Subscription: subscription, ResourceGroup: "Machines", Tokens: map[string][]string{"secret": nil, "fake_token": nil}, Subnets: map[string]int{subnet: 100}, Hypervisor: h, Delays: delays,
		Sizes: []armtest.Size{{Name: "Standard_D2s_v5", Cores: 2}, {Name: "Standard_D4s_v5", Cores: 4}},
	})
	c.Capacity.Set(testcloud.Shape{Type: "Standard_D4s_v5", Spot: true}, 0)
	server := serve(t, c, httptest.NewTLSServer)
	ca, token := filepath.Join(t.TempDir(), "ca.pem"), filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	require.NoError(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	services := map[cloud.ServiceName]cloud.ServiceConfiguration{cloud.ResourceManager: {Endpoint: server.URL, Audience: server.URL}}
	client, err := armcompute.NewVirtualMachinesClient(subscription, &azfake.TokenCredential{}, &armsdk.ClientOptions{
		DisableRPRegistration: true, ClientOptions: policy.ClientOptions{Cloud: cloud.Configuration{Services: services}, Transport: server.Client()},
	})
	require.NoError(t, err)
	type purchase struct {
		Priority armcompute.VirtualMachinePriorityTypes
		Policy   armcompute.VirtualMachineEvictionPolicyTypes
		MaxPrice float64
	}
	return &site{
		Cloud: c,
		place: newPlace(azure.Kind(), object{"region": "westeurope", "options": object{
			"subscription_id": subscription, "resource_group": "Machines", "endpoint": server.URL, "ca_file": ca, "credential": "token_file", "token_file": token,
		}}, subnet, object{"id": "Canonical:ubuntu-24_04-lts:server:24.04.202611010"}, object{"args": object{"ssh_public_keys": []string{key}}}, "Standard_D2s_v5", "Standard_D4s_v5"),
		maxPrice: "0.05",
		providerID: func(m testcloud.Machine) string {
			return "azure://" + strings.Replace(m.Handle, "/resourceGroups/Machines/", "/resourceGroups/machines/", 1)
		},
		bought: func(m testcloud.Machine) any {
			vm, err := client.Get(t.Context(), "Machines", path.Base(m.Handle), nil)
			require.NoError(t, err)
			p := vm.Properties
			return purchase{*p.Priority, *p.EvictionPolicy, *p.BillingProfile.MaxPrice}
		},
		spot: purchase{armcompute.VirtualMachinePriorityTypesSpot, armcompute.VirtualMachineEvictionPolicyTypesDeallocate, 0.05},
		left: func(m testcloud.Machine) []string {
			return slices.DeleteFunc(c.Left(), func(name string) bool { return !strings.Contains(name, path.Base(m.Handle)) })
		},
		refusal: "SkuNotAvailable",
	}
}

// sites are the clouds, by what their metadata services are called.
var sites = []struct {
	name, protocol string
	open           func(*testing.T, *hypervisor) *site
}{
	{"aws", imds.AWS, onAWS},
	{"gcp", imds.GCP, onGCP},
	{"gcp, stopped", imds.GCP, onGCPStopped},
	{"azure", imds.Azure, onAzure},
}
