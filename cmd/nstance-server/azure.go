package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	armsdk "github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// Names in the test cloud that the scenarios use.
const (
	azureSubscription  = "00000000-0000-0000-0000-000000000001"
	azureLocation      = "westeurope"
	azureGroup         = "machines"
	azureNetworks      = "/subscriptions/" + azureSubscription + "/resourceGroups/" + azureNetworkGroup + "/providers/Microsoft.Network/"
	azureNetworkGroup  = "net"
	azureSubnet        = azureNetworks + "virtualNetworks/main/subnets/workers"
	azureServerSubnet  = azureNetworks + "virtualNetworks/main/subnets/servers"
	azureLeaderAddress = "10.1.0.100"
	azureImage         = "Canonical:ubuntu-24_04-lts:server:24.04.202611010"
	azureSize          = "Standard_D2s_v5"
	azureSizeARM       = "Standard_D2ps_v5"
	azureToken         = "secret"
	azureKey           = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBxO6yq0 demo"
)

// azureServers are the network interfaces of the machines that servers run on.
var azureServers = []string{"server-a", "server-b"}

// azureMachines matches requests that make a machine.
var azureMachines = regexp.MustCompile(`(?i)/providers/Microsoft\.Compute/virtualMachines/[^/]+$`)

// devAzure is Azure for single-machine mode.
func devAzure() *dev.Cloud {
	return &dev.Cloud{
		Kind: azure.Kind(), Protocol: imds.Azure, Consistency: time.Second, TLS: true,
		New: func(h testcloud.Hypervisor) (dev.TestServer, error) {
			return armtest.New(&armtest.Options{
				Subscription: azureSubscription, Location: azureLocation, ResourceGroup: azureGroup, Tokens: map[string][]string{azureToken: nil},
				Subnets: map[string]int{azureSubnet: 1000, azureServerSubnet: 100}, Hypervisor: h,
				Sizes:  []armtest.Size{{Name: azureSize, Cores: 2}, {Name: azureSizeARM, Cores: 2, Arch: "Arm64"}},
				Delays: testcloud.Delays{Visible: 50 * time.Millisecond, Start: 100 * time.Millisecond, Stop: 100 * time.Millisecond, Delete: 100 * time.Millisecond},
			}), nil
		},
		Prepare:   prepareAzure,
		Holder:    azureHolder,
		Configure: configureAzure,
		Creates: func(r *http.Request, _ []byte) bool {
			return r.Method == http.MethodPut && azureMachines.MatchString(r.URL.Path)
		},
	}
}

func azureTokenFile(api dev.API) string { return filepath.Join(api.Dir, "azure-token") }

func configureAzure(file, shard, template map[string]any, api dev.API, n int) {
	shard["provider"] = map[string]any{"region": azureLocation, "options": map[string]any{
		"subscription_id": azureSubscription, "resource_group": azureGroup, "endpoint": api.Endpoint, "ca_file": api.CAFile,
		"credential": "token_file", "token_file": azureTokenFile(api), "network_interface": azureNetworks + "networkInterfaces/" + azureServers[n],
	}}
	shard["leader_address"] = azureLeaderAddress
	shard["subnet_pools"] = map[string]any{"workers": []string{azureSubnet}}
	file["images"] = map[string]any{"ubuntu": map[string]any{"id": azureImage}}
	template["image"], template["subnet_pool"], template["instance_type"] = "ubuntu", "workers", azureSize
	if runtime.GOARCH == "arm64" {
		template["instance_type"] = azureSizeARM
	}
	template["args"] = map[string]any{"ssh_public_keys": []string{azureKey}}
}

// prepareAzure writes the token file and makes the network interfaces of the
// machines that servers run on.
func prepareAzure(ctx context.Context, api dev.API) error {
	if err := os.WriteFile(azureTokenFile(api), []byte(azureToken+"\n"), 0o600); err != nil {
		return nstance.Errorf(nstance.Denied, "%w", err)
	}
	client, err := azureInterfaces(api)
	if err != nil {
		return err
	}
	for _, name := range azureServers {
		poller, err := client.BeginCreateOrUpdate(ctx, azureNetworkGroup, name, armnetwork.Interface{
			Location: new(azureLocation),
			Properties: &armnetwork.InterfacePropertiesFormat{IPConfigurations: []*armnetwork.InterfaceIPConfiguration{{
				Name: new("primary"),
				Properties: &armnetwork.InterfaceIPConfigurationPropertiesFormat{
					Primary: new(true), Subnet: &armnetwork.Subnet{ID: new(azureServerSubnet)},
				},
			}}},
		}, nil)
		if err == nil {
			_, err = poller.PollUntilDone(ctx, nil)
		}
		if err != nil {
			return nstance.Errorf(nstance.Internal, "network interface %s: %w", name, err)
		}
	}
	return nil
}

// azureInterfaces returns the SDK's client for network interfaces.
func azureInterfaces(api dev.API) (*armnetwork.InterfacesClient, error) {
	pem, err := os.ReadFile(api.CAFile)
	if err != nil {
		return nil, nstance.Errorf(nstance.Internal, "%w", err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(pem)
	config := cloud.AzurePublic
	config.Services = map[cloud.ServiceName]cloud.ServiceConfiguration{cloud.ResourceManager: {Endpoint: api.Endpoint, Audience: api.Endpoint}}
	return armnetwork.NewInterfacesClient(azureSubscription, azureCredential{}, &armsdk.ClientOptions{
		DisableRPRegistration: true,
		ClientOptions: policy.ClientOptions{Cloud: config, Transport: &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: trusted}, DisableKeepAlives: true,
		}}},
	})
}

// azureCredential is the token that the test cloud accepts.
type azureCredential struct{}

// GetToken implements azcore.TokenCredential.
func (azureCredential) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: azureToken, ExpiresOn: time.Now().Add(time.Hour)}, nil
}

// azureHolder finds the leader address in the answers of the cloud.
func azureHolder(ctx context.Context, api dev.API) (dev.Holder, error) {
	client, err := azureInterfaces(api)
	if err != nil {
		return dev.Holder{}, err
	}
	for n, name := range azureServers {
		got, err := client.Get(ctx, azureNetworkGroup, name, nil)
		if err != nil {
			return dev.Holder{}, nstance.Errorf(nstance.Unavailable, "leader address: %w", err)
		}
		if slices.ContainsFunc(got.Properties.IPConfigurations, func(c *armnetwork.InterfaceIPConfiguration) bool {
			return *c.Properties.PrivateIPAddress == azureLeaderAddress
		}) {
			return dev.Holder{Address: azureLeaderAddress, Server: n, At: name}, nil
		}
	}
	return dev.Holder{}, nstance.Errorf(nstance.Unavailable, "no server has leader address %s", azureLeaderAddress)
}
