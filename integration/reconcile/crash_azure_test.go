//go:build servers

package reconcile_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

const (
	azureSubscription = "00000000-0000-0000-0000-000000000001"
	azureNetwork      = "/subscriptions/" + azureSubscription + "/resourceGroups/net/providers/Microsoft.Network/"
	azureSubnet       = azureNetwork + "virtualNetworks/main/subnets/a"
	azurePool         = azureNetwork + "loadBalancers/front/backendAddressPools/front"
)

// armSite is Azure: a machine is an interface and a virtual machine, each created by a
// long-running operation.
func armSite(h testcloud.Hypervisor) *site {
	cloud := armtest.New(&armtest.Options{
		Hypervisor: h, Subnets: map[string]int{azureSubnet: 251}, Pools: []string{azurePool}, PageSize: 2,
		Delays: testcloud.Delays{Visible: 2 * time.Second, Start: 20 * time.Second, Stop: 2 * time.Second, Delete: 5 * time.Second}, Network: time.Second,
	})
	return &site{
		cloud: cloud, capacity: &cloud.Capacity,
		provider: func(_ string, client *http.Client) nstance.Provider {
			p, err := azure.New(azure.Options{
				Subscription: azureSubscription, ResourceGroup: "machines", Location: "westeurope",
				Endpoint: "http://127.0.0.1", Tokens: azureToken{}, Transport: client,
			})
			if err != nil {
				panic(err)
			}
			return p
		},
		shape: func(s *nstance.MachineSpec) {
			s.Image, s.InstanceType, s.Subnet = "Canonical:ubuntu-24_04-lts:server:24.04.202611010", "Standard_D2s_v5", azureSubnet
			s.Args = json.RawMessage(`{"ssh_public_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBxO6yq0 test"]}`)
		},
		balancer: nstance.LoadBalancer{Name: "front", ID: azurePool},
		setCapacity: func(n int) {
			cloud.Capacity.Set(testcloud.Shape{Type: "Standard_D2s_v5", Spot: true}, n-len(cloud.Machines()))
		},
		operation: func(r *http.Request, _ []byte) (string, bool) {
			kind := "other"
			for _, word := range []string{"virtualMachines", "networkInterfaces", "disks", "virtualNetworks", "loadBalancers", "operations"} {
				if strings.Contains(r.URL.Path, word) {
					kind = word
					break
				}
			}
			return r.Method + " " + kind, r.Method != http.MethodGet
		},
	}
}

// azureToken is a credential that the test cloud accepts.
type azureToken struct{}

func (azureToken) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: "any", ExpiresOn: time.Now().Add(time.Hour)}, nil
}

func TestServersCrashOnAzure(t *testing.T) { crashOverHTTP(t, armSite) }
