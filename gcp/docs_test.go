package gcp_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/test/doctest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

var roleFile = doctest.Docs("providers/gcp-role.yaml")

// TestDocument compares the generated parts of the document with the code.
func TestDocument(t *testing.T) {
	doctest.Kind(t, gcp.Kind(), "args of templates and groups on Google Cloud")
	table := &strings.Builder{}
	fmt.Fprintln(table, "| permission | needed for |\n|---|---|")
	for _, p := range role(t) {
		fmt.Fprintf(table, "| `%s` | %s |\n", p, needs[p].what)
	}
	doctest.Section(t, doctest.Docs("providers/gcp.md"), "permissions", table.String())
}

// TestWalkthrough parses the configuration of the document as a server does.
func TestWalkthrough(t *testing.T) {
	text := string(doctest.Example(t, gcp.Kind()))
	c, err := config.Parse("server.jsonc", []byte(text), gcp.Kind())
	require.NoError(t, err)
	require.Equal(t, 200, c.Shard.CreateRate.Burst)
	_, err = config.Parse("server.jsonc", []byte(strings.Replace(text, "disk_size_gb", "disk_size", 1)), gcp.Kind())
	require.ErrorContains(t, err, "disk_size_gb")
}

// role returns the permissions of the published role.
func role(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(roleFile)
	require.NoError(t, err)
	var out []string
	for line := range strings.Lines(string(b)) {
		if p, ok := strings.CutPrefix(line, "- "); ok {
			out = append(out, strings.TrimSpace(p))
		}
	}
	require.True(t, slices.IsSorted(out))
	return out
}

// need is a call that fails without a permission.
type need struct {
	what string
	try  func(t *testing.T, p *gcp.Provider) error
}

func creating(change func(*nstance.MachineSpec)) func(*testing.T, *gcp.Provider) error {
	return func(t *testing.T, p *gcp.Provider) error {
		s := spec(t)
		change(&s)
		_, err := p.Create(t.Context(), s)
		return err
	}
}

func with(args string) func(*testing.T, *gcp.Provider) error {
	return creating(func(s *nstance.MachineSpec) { s.Args = []byte(args) })
}

// made calls do with a machine.
func made(do func(*testing.T, *gcp.Provider, nstance.Machine) error) func(*testing.T, *gcp.Provider) error {
	return func(t *testing.T, p *gcp.Provider) error {
		s := spec(t)
		m, err := p.Create(t.Context(), s)
		if err != nil {
			return err
		}
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
			if m, err = p.Get(t.Context(), s.ID); err != nil || m.Status == nstance.StatusRunning {
				break
			}
		}
		if err != nil {
			return err
		}
		return do(t, p, m)
	}
}

func parking(mode nstance.ParkMode, wake bool) func(*testing.T, *gcp.Provider) error {
	return made(func(t *testing.T, p *gcp.Provider, m nstance.Machine) error {
		err := p.Park(t.Context(), m, mode)
		if err == nil && wake {
			require.Eventually(t, func() bool {
				m, err := p.Get(t.Context(), m.ID)
				return err == nil && m.Status == nstance.StatusStopped
			}, time.Minute, time.Millisecond)
			err = p.Wake(t.Context(), m)
		}
		return err
	})
}

func balancing(id string, leave bool) func(*testing.T, *gcp.Provider) error {
	return made(func(t *testing.T, p *gcp.Provider, m nstance.Machine) error {
		lb := nstance.LoadBalancer{Name: "front", ID: id}
		err := p.JoinBalancer(t.Context(), lb, []nstance.Machine{m})
		if err == nil && leave {
			err = p.LeaveBalancer(t.Context(), lb, []nstance.Machine{m})
		}
		return err
	})
}

const instanceGroup = "zones/us-central1-a/instanceGroups/old"

// needs lists for each permission a call that fails without it.
var needs = map[string]need{
	"compute.instances.create":            {"creating machines", creating(func(*nstance.MachineSpec) {})},
	"compute.disks.create":                {"creating machines", creating(func(*nstance.MachineSpec) {})},
	"compute.subnetworks.use":             {"creating machines, `shard.leader_address`", creating(func(*nstance.MachineSpec) {})},
	"compute.instances.setLabels":         {"marking machines", creating(func(*nstance.MachineSpec) {})},
	"compute.disks.setLabels":             {"marking disks", creating(func(*nstance.MachineSpec) {})},
	"compute.instances.setMetadata":       {"user data", creating(func(*nstance.MachineSpec) {})},
	"compute.images.useReadOnly":          {"images of projects that are not public", creating(func(s *nstance.MachineSpec) { s.Image = "own" })},
	"compute.instances.setTags":           {"args with `network_tags`", with(`{"network_tags": ["web"]}`)},
	"compute.instances.setServiceAccount": {"args with `service_account`", with(`{"service_account": "default"}`)},
	"iam.serviceAccounts.actAs":           {"args with `service_account`, on that account", with(`{"service_account": "default"}`)},
	"compute.subnetworks.useExternalIp":   {"args with `external_ip` or `external_ipv6`", with(`{"external_ip": true}`)},
	"compute.snapshots.useReadOnly":       {"args with `disks[].snapshot`", with(`{"disks": [{"snapshot": "data"}]}`)},
	"compute.resourcePolicies.use": {"args with `placement_policy`", creating(func(s *nstance.MachineSpec) {
		s.InstanceType, s.Args = "n2-standard-2", []byte(`{"placement_policy": "apart"}`)
	})},
	"compute.instances.get": {"reading machines, and before each change of one", made(func(*testing.T, *gcp.Provider, nstance.Machine) error { return nil })},
	"compute.instances.list": {"listing machines", func(t *testing.T, p *gcp.Provider) error {
		for _, err := range p.List(t.Context(), spec(t).Owner) {
			return err
		}
		return nil
	}},
	"compute.zoneOperations.list": {"why a machine is absent or dead", func(t *testing.T, p *gcp.Provider) error {
		if _, err := p.Get(t.Context(), spec(t).ID); nstance.CodeOf(err) != nstance.NotFound {
			return err
		}
		return nil
	}},
	"compute.zoneOperations.get": {"load balancers, `shard.leader_address`", balancing("web", false)},
	"compute.instances.delete": {"deleting machines", made(func(t *testing.T, p *gcp.Provider, m nstance.Machine) error {
		return p.Delete(t.Context(), m)
	})},
	"compute.instances.stop":    {"parking machines of warm pools", parking(nstance.ParkStopped, false)},
	"compute.instances.start":   {"waking machines of warm pools", parking(nstance.ParkStopped, true)},
	"compute.instances.suspend": {"parking machines of warm pools with mode `hibernated`", parking(nstance.ParkHibernated, false)},
	"compute.instances.resume":  {"waking machines of warm pools with mode `hibernated`", parking(nstance.ParkHibernated, true)},
	"compute.instances.getSerialPortOutput": {"showing what machines print while they boot", made(func(t *testing.T, p *gcp.Provider, m nstance.Machine) error {
		_, err := p.ConsoleOutput(t.Context(), m)
		return err
	})},
	"compute.images.list": {"images that are looked for by name", func(t *testing.T, p *gcp.Provider) error {
		_, err := p.ResolveImage(t.Context(), nstance.ImageQuery{Owner: "debian-cloud", Name: "family/debian-12"})
		return err
	}},
	"compute.machineTypes.get": {"the architectures of instance types, and whether their machines can move to other hosts", func(t *testing.T, p *gcp.Provider) error {
		_, err := p.TypeArchs(t.Context(), []string{"e2-small"})
		return err
	}},
	"compute.subnetworks.get": {"counting the free addresses of subnets, `shard.leader_address`", func(t *testing.T, p *gcp.Provider) error {
		_, err := p.FreeAddresses(t.Context(), []string{"default"})
		return err
	}},
	"compute.instances.updateNetworkInterface": {"`shard.leader_address`", func(t *testing.T, p *gcp.Provider) error {
		return p.TakeAddress(t.Context(), "10.0.0.200")
	}},
	"compute.networkEndpointGroups.get":                    {"network endpoint groups", balancing("web", false)},
	"compute.networkEndpointGroups.attachNetworkEndpoints": {"network endpoint groups", balancing("web", false)},
	"compute.networkEndpointGroups.detachNetworkEndpoints": {"network endpoint groups", balancing("web", true)},
	"compute.instances.use":                                {"network endpoint groups and instance groups", balancing("web", false)},
	"compute.instanceGroups.list":                          {"instance groups", balancing(instanceGroup, false)},
	"compute.instanceGroups.update":                        {"instance groups", balancing(instanceGroup, true)},
}

// permitted returns a cloud whose caller has these permissions.
func permitted(permissions []string) *gcetest.Options {
	published := time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)
	return &gcetest.Options{
		Permissions: permissions,
		Types: []gcetest.MachineType{
			{Name: "e2-small", Arch: nstance.AMD64}, {Name: "n2-standard-2", Arch: nstance.AMD64}, {Name: "t2a-standard-1", Arch: nstance.ARM64},
		},
		Snapshots: []gcetest.Snapshot{{Name: "data"}}, Policies: []gcetest.PlacementPolicy{{Name: "apart"}},
		Groups: []gcetest.Group{{Name: "web", Type: "GCE_VM_IP_PORT", Port: 80}, {Name: "old"}},
		Images: []gcetest.Image{
			{Project: "debian-cloud", Name: "debian-12-bookworm-v20261001", Family: "debian-12", Arch: nstance.AMD64, Created: published},
			{Name: "own", Created: published},
		},
		Delays: testcloud.Delays{Stop: time.Millisecond},
	}
}

// TestRoleSuffices runs the suite with the permissions of the role only.
func TestRoleSuffices(t *testing.T) {
	permissions := role(t)
	conform(t, func() *gcetest.Options { return permitted(permissions) })
}

// TestRoleIsMinimal checks that each permission is needed for what the document
// says.
func TestRoleIsMinimal(t *testing.T) {
	all := role(t)
	require.ElementsMatch(t, all, slices.Collect(maps.Keys(needs)))
	for _, permission := range all {
		t.Run(permission, func(t *testing.T) {
			provider := func(permissions []string) *gcp.Provider {
				cloud, url := serve(t, permitted(nil))
				self := server(t, open(t, url, ""))
				cloud.Permit(permissions)
				return open(t, url, self)
			}
			require.NoError(t, needs[permission].try(t, provider(all)))
			others := slices.DeleteFunc(slices.Clone(all), func(p string) bool { return p == permission })
			err := needs[permission].try(t, provider(others))
			require.ErrorIs(t, err, nstance.Denied)
			require.ErrorContains(t, err, permission)
		})
	}
}
