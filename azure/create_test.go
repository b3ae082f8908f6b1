package azure_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/testcloud"
)

const (
	putVM     = "VirtualMachinesClient.BeginCreateOrUpdate"
	getVM     = "VirtualMachinesClient.Get"
	deleteVM  = "VirtualMachinesClient.BeginDelete"
	putNIC    = "InterfacesClient.BeginCreateOrUpdate"
	deleteNIC = "InterfacesClient.BeginDelete"
)

func code(t *testing.T, want nstance.Code, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, want, nstance.CodeOf(err), "%v", err)
}

// TestLostAnswer repeats a create after a lost answer: the condition of the second PUT
// finds the machine.
func TestLostAnswer(t *testing.T) {
	cloud, p := open(t, nil)
	s := newSpec(t)
	cloud.Faults.Next(putVM, testcloud.Fault{Lost: testcloud.LostAnswer})
	_, err := p.Create(t.Context(), s)
	code(t, nstance.Ambiguous, err)
	m, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, s.ID, m.ID)
	require.Len(t, cloud.Machines(), 1)
	require.Equal(t, 1, cloud.Faults.Calls()[putNIC], "an interface that is there is left as it is")
}

// TestNoHiddenRetries: a throttled or failed call is made once, and its error returned.
func TestNoHiddenRetries(t *testing.T) {
	for status, want := range map[int]nstance.Code{429: nstance.Throttled, 503: nstance.Ambiguous, 408: nstance.Ambiguous} {
		cloud, p := open(t, nil)
		refusal := &armtest.Refusal{Status: status, Code: "ServerBusy", Message: "busy", Header: map[string]string{"Retry-After": "1"}}
		cloud.Faults.Next(putVM, testcloud.Fault{Answer: refusal.ServeHTTP})
		_, err := p.Create(t.Context(), newSpec(t))
		code(t, want, err)
		require.Equal(t, 1, cloud.Faults.Calls()[putVM])
	}
}

// TestInterfaceFails: before the machine's request, no error is ambiguous.
func TestInterfaceFails(t *testing.T) {
	cloud, p := open(t, nil)
	s := newSpec(t)
	cloud.Faults.Next(putNIC, testcloud.Fault{Lost: testcloud.LostAnswer})
	_, err := p.Create(t.Context(), s)
	code(t, nstance.Unavailable, err)
	require.Zero(t, cloud.Faults.Calls()[putVM])
	_, err = p.Create(t.Context(), s)
	require.NoError(t, err)

	full, p := open(t, &armtest.Options{Subnets: map[string]int{subnetA: 0}})
	_, err = p.Create(t.Context(), newSpec(t))
	code(t, nstance.Capacity, err)
	require.Zero(t, full.Faults.Calls()[putVM])
}

// TestInterfaceTakesTime waits for an interface that Azure is still creating: a machine
// that refers to it would be refused.
func TestInterfaceTakesTime(t *testing.T) {
	_, p := open(t, &armtest.Options{Network: 30 * time.Millisecond})
	m, err := p.Create(t.Context(), newSpec(t))
	require.NoError(t, err)
	require.Len(t, m.Addresses, 1)
}

// TestNeverCreatedAgain: a machine that Azure has had is not put again, even after Azure
// has deleted it.
func TestNeverCreatedAgain(t *testing.T) {
	cloud, p := open(t, nil)
	s := newSpec(t)
	s.Market, s.Args = nstance.Spot, args(t, map[string]any{"eviction_policy": "Delete"})
	m, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	require.NoError(t, cloud.Reclaim(m.ProviderID, 0))
	_, err = p.Get(t.Context(), s.ID)
	code(t, nstance.NotFound, err)
	_, err = p.Create(t.Context(), s)
	code(t, nstance.Ambiguous, err)
	require.Empty(t, cloud.Machines())
	require.Equal(t, 1, cloud.Faults.Calls()[putVM])
}

// TestRequestBody reads the machine through the API.
func TestRequestBody(t *testing.T) {
	_, server := serve(t, nil)
	p, err := azure.New(options(t, server))
	require.NoError(t, err)
	s := newSpec(t)
	s.Market, s.MaxPrice = nstance.Spot, "0.035"
	s.Args = args(t, map[string]any{
		"zone": "2", "terminate_notice": "7m", "security_type": "TrustedLaunch", "tags": map[string]string{"team": "x"},
		"os_disk": map[string]any{"size_gb": 30, "type": "Premium_LRS"}, "plan": map[string]any{"name": "n", "product": "p", "publisher": "u"},
		"user_assigned_identities": []string{"/subscriptions/x/resourceGroups/g/providers/Microsoft.ManagedIdentity/userAssignedIdentities/i"},
	})
	m, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, "2", m.Zone)
	got := raw(t, server.Client(), server.URL+m.ProviderID+"?api-version=2025-04-01")
	for _, want := range []string{
		`"priority":"Spot"`, `"evictionPolicy":"Deallocate"`, `"maxPrice":0.035`, `"deleteOption":"Delete"`, `"zones":["2"]`,
		`"notBeforeTimeout":"PT7M"`, `"securityType":"TrustedLaunch"`, `"team":"x"`, `"diskSizeGB":30`, `"storageAccountType":"Premium_LRS"`,
		`"product":"p"`, `"computerName":"` + string(s.ID) + `"`, `"nstance-instance-id":"` + string(s.ID) + `"`, `"nstance-address":"10.`,
	} {
		require.Contains(t, got, want)
	}
	require.NotContains(t, got, "customData")
	require.Equal(t, 2, strings.Count(got, `"deleteOption":"Delete"`), "disk and interface")

	regular, err := p.Create(t.Context(), newSpec(t))
	require.NoError(t, err)
	got = raw(t, server.Client(), server.URL+regular.ProviderID+"?api-version=2025-04-01")
	require.Contains(t, got, `"priority":"Regular"`)
	require.NotContains(t, got, "evictionPolicy")
	require.NotContains(t, got, "billingProfile")
}

func raw(t *testing.T, client *http.Client, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer secret")
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	var out json.RawMessage
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&out))
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", out)
	return string(out)
}

// TestCheckSpec refuses offline what Azure would refuse.
func TestCheckSpec(t *testing.T) {
	settings := provider.Settings{Region: "westeurope", Options: json.RawMessage(`{"subscription_id": "` + subscription + `", "resource_group": "machines"}`)}
	kind := azure.Kind()
	require.NoError(t, kind.Check(settings))
	require.NoError(t, kind.CheckSpec(settings, newSpec(t)))
	for field, change := range map[string]func(*nstance.MachineSpec){
		"userdata":                func(s *nstance.MachineSpec) { s.UserData = make([]byte, 65536) },
		"instance_type":           func(s *nstance.MachineSpec) { s.InstanceType = "" },
		"subnet_pool":             func(s *nstance.MachineSpec) { s.Subnet = "subnet-1" },
		"image":                   func(s *nstance.MachineSpec) { s.Image = "ubuntu" },
		"market.max_price":        func(s *nstance.MachineSpec) { s.Market, s.MaxPrice = nstance.Spot, "0" },
		"args.ssh_public_keys":    func(s *nstance.MachineSpec) { s.Args = nil },
		"args.ssh_public_keys[0]": func(s *nstance.MachineSpec) { s.Args = args(t, map[string]any{"ssh_public_keys": []string{"secret"}}) },
		"args.admin_username":     func(s *nstance.MachineSpec) { s.Args = args(t, map[string]any{"admin_username": "root"}) },
		"args.eviction_policy":    func(s *nstance.MachineSpec) { s.Args = args(t, map[string]any{"eviction_policy": "delete"}) },
		"args.zone":               func(s *nstance.MachineSpec) { s.Args = args(t, map[string]any{"zone": "westeurope-1"}) },
		"args.os_disk.type": func(s *nstance.MachineSpec) {
			s.Args = args(t, map[string]any{"os_disk": map[string]any{"type": "fast"}})
		},
		"args.os_disk.ephemeral": func(s *nstance.MachineSpec) {
			s.Park, s.Args = nstance.ParkStopped, args(t, map[string]any{"os_disk": map[string]any{"ephemeral": true}})
		},
		"args.tags.nstance-shard": func(s *nstance.MachineSpec) {
			s.Args = args(t, map[string]any{"tags": map[string]string{"nstance-shard": "b"}})
		},
		"args.tags.example.dev/id": func(s *nstance.MachineSpec) {
			s.Args = args(t, map[string]any{"tags": map[string]string{"example.dev/id": "b"}})
		},
		"args.terminate_notice":       func(s *nstance.MachineSpec) { s.Args = args(t, map[string]any{"terminate_notice": "1m"}) },
		"args.plan.product":           func(s *nstance.MachineSpec) { s.Args = args(t, map[string]any{"plan": map[string]any{"name": "n"}}) },
		"args.security_type":          func(s *nstance.MachineSpec) { s.Args = args(t, map[string]any{"security_type": "high"}) },
		"args.network_security_group": func(s *nstance.MachineSpec) { s.Args = args(t, map[string]any{"network_security_group": "g"}) },
		"args.vm_size":                func(s *nstance.MachineSpec) { s.Args = args(t, map[string]any{"vm_size": "x"}) },
	} {
		t.Run(field, func(t *testing.T) {
			s := newSpec(t)
			change(&s)
			err := kind.CheckSpec(settings, s)
			code(t, nstance.Invalid, err)
			var e *nstance.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, field, e.Field)
		})
	}
}

// TestCheckOptions refuses settings that cannot be opened.
func TestCheckOptions(t *testing.T) {
	const good = `"subscription_id": "` + subscription + `", "resource_group": "machines"`
	for options, field := range map[string]string{
		`{"resource_group": "machines"}`:                   "options.subscription_id",
		`{"subscription_id": "` + subscription + `"}`:      "options.resource_group",
		`{` + good + `, "endpoint": "http://example.com"}`: "options.endpoint",
		`{` + good + `, "cloud": "moon"}`:                  "options.cloud",
		`{` + good + `, "credential": "token_file"}`:       "options.token_file",
		`{` + good + `, "subscription": "x"}`:              "options.subscription",
		`{` + good + `, "tokens": "x"}`:                    "options.tokens",
	} {
		err := azure.Kind().Check(provider.Settings{Region: "westeurope", Options: json.RawMessage(options)})
		var e *nstance.Error
		require.ErrorAs(t, err, &e, options)
		require.Equal(t, field, e.Field)
	}
}
