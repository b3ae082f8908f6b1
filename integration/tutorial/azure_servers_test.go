//go:build servers && linux

package tutorial_test

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/internal/imds"
)

// onAzure returns a subscription with the page's network and gallery. The identity of the
// server's machine has the page's role.
func onAzure(w *world) (*site, error) {
	const (
		subscription = "/subscriptions/00000000-0000-0000-0000-000000000001"
		infra        = subscription + "/resourceGroups/infra"
		token, all   = "eyJ.server", "eyJ.operator"
	)
	text, err := w.read("azure-role.json")
	if err != nil {
		return nil, err
	}
	var role struct{ Actions []string }
	if err := json.Unmarshal(text, &role); err != nil {
		return nil, err
	}
	c := armtest.New(&armtest.Options{
		ResourceGroup: "nstance-machines", Tokens: map[string][]string{token: role.Actions, all: nil}, Delays: delays, Hypervisor: w.hypervisor,
		Subnets: map[string]int{infra + "/providers/Microsoft.Network/virtualNetworks/main/subnets/machines": 100},
		Sizes:   []armtest.Size{{Name: "Standard_D2s_v5", Cores: 2}, {Name: "Standard_D2as_v5", Cores: 2}},
		Images:  []armtest.Image{{ID: infra + "/providers/Microsoft.Compute/galleries/house/images/worker-1/versions/1.0.0"}},
	})
	metadata := imds.New(&imds.Options{Protocol: imds.Azure})
	metadata.SetRaw("metadata/identity/oauth2/token", bearer(token))
	prints := func(text string) func(string) (string, error) {
		return func(string) (string, error) { return text + "\n", nil }
	}
	const identity = "00000000-0000-0000-0000-000000000002"
	assign := "az role assignment create --role Nstance --assignee-object-id " + identity + " --assignee-principal-type ServicePrincipal --scope "
	return &site{
		Cloud: c, port: "443", metadata: metadata, hosts: []string{"management.azure.com"}, api: c,
		commands: commands{
			prepared: []string{
				"az group create --name nstance-machines --location westeurope",
				"az role definition create --role-definition @docs/providers/azure-role.json",
				"az identity create --name nstance --resource-group infra --location westeurope",
				assign + subscription + "/resourceGroups/nstance-machines", assign + infra, assign + subscription,
				"az vm identity assign --name server --resource-group infra --identities nstance",
			},
			acts: map[string]func(string) (string, error){
				"az group show -n nstance-machines --query id -o tsv":                        prints(subscription + "/resourceGroups/nstance-machines"),
				"az group show -n infra --query id -o tsv":                                   prints(infra),
				"az account show --query id -o tsv":                                          prints(strings.TrimPrefix(subscription, "/subscriptions/")),
				"az identity show -n nstance -g infra --query principalId -o tsv":            prints(identity),
				"az vm list --resource-group nstance-machines --query [0].name --output tsv": nameOfRunning(c),
				"az vm delete --resource-group nstance-machines --name ": func(rest string) (string, error) {
					name, yes, _ := strings.Cut(rest, " ")
					if yes != "--yes" {
						return "", errNoStandIn
					}
					id := subscription + "/resourceGroups/nstance-machines/providers/Microsoft.Compute/virtualMachines/" + name
					return "", call(c, http.MethodDelete, "https://management.azure.com"+id+"?api-version=2024-11-01", all, "")
				},
			},
		},
	}, nil
}
