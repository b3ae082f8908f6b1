package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/testcloud"
	"github.com/nstance-go/nstance/internal/testcloud/arm"
	"github.com/nstance-go/nstance/provider/azure"
	"github.com/nstance-go/nstance/server/dev"
)

// What the scenarios use of the test cloud.
const (
	azureSubscription = "00000000-0000-0000-0000-000000000001"
	azureGroup        = "machines"
	azureSubnet       = "/subscriptions/" + azureSubscription + "/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/main/subnets/workers"
	azureImage        = "Canonical:ubuntu-24_04-lts:server:24.04.202611010"
	azureToken        = "secret"
	azureKey          = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBxO6yq0 demo"
)

// azureMachines matches requests that make a machine.
var azureMachines = regexp.MustCompile(`(?i)/providers/Microsoft\.Compute/virtualMachines/[^/]+$`)

// devAzure is Azure for single-machine mode.
func devAzure() *dev.Cloud {
	return &dev.Cloud{
		Kind: azure.Kind(), Protocol: imds.Azure, Consistency: time.Second, TLS: true,
		New: func(h testcloud.Hypervisor) (dev.TestServer, error) {
			return arm.New(&arm.Options{
				Subscription: azureSubscription, ResourceGroup: azureGroup, Tokens: map[string][]string{azureToken: nil}, Subnets: map[string]int{azureSubnet: 1000}, Hypervisor: h,
				Delays: testcloud.Delays{Visible: 50 * time.Millisecond, Start: 100 * time.Millisecond, Stop: 100 * time.Millisecond, Delete: 100 * time.Millisecond},
			}), nil
		},
		Prepare: func(_ context.Context, api dev.API) error {
			if err := os.WriteFile(azureTokenFile(api), []byte(azureToken+"\n"), 0o600); err != nil {
				return nstance.Errorf(nstance.Denied, "%w", err)
			}
			return nil
		},
		Configure: configureAzure,
		Creates: func(r *http.Request, _ []byte) bool {
			return r.Method == http.MethodPut && azureMachines.MatchString(r.URL.Path)
		},
	}
}

func azureTokenFile(api dev.API) string { return filepath.Join(api.Dir, "azure-token") }

func configureAzure(file, shard, template map[string]any, api dev.API, _ int) {
	shard["provider"] = map[string]any{"region": "westeurope", "options": map[string]any{
		"subscription_id": azureSubscription, "resource_group": azureGroup, "endpoint": api.Endpoint, "ca_file": api.CAFile,
		"credential": "token_file", "token_file": azureTokenFile(api),
	}}
	shard["subnet_pools"] = map[string]any{"workers": []string{azureSubnet}}
	file["images"] = map[string]any{"ubuntu": map[string]any{"id": azureImage}}
	template["image"], template["subnet_pool"], template["instance_type"] = "ubuntu", "workers", "Standard_D2s_v5"
	if runtime.GOARCH == "arm64" {
		template["instance_type"] = "Standard_D2ps_v5"
	}
	template["args"] = map[string]any{"ssh_public_keys": []string{azureKey}}
}
