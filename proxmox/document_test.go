package proxmox_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/test/doctest"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/proxmox"
)

var document = doctest.Docs("providers/proxmox.md")

func TestTables(t *testing.T) {
	doctest.Kind(t, proxmox.Kind(), "args of templates and groups for kind proxmox")
}

// TestWalkthrough: the configuration in the document is whole.
func TestWalkthrough(t *testing.T) {
	example := string(doctest.Example(t, proxmox.Kind()))
	conf, err := config.Parse("rack1.jsonc", []byte(example), proxmox.Kind())
	require.NoError(t, err)
	kind, ok := conf.Kind()
	require.True(t, ok)
	require.Equal(t, "proxmox", kind.Name)
	for bad, field := range map[string]string{
		`{"template": 9000, "any_node": true}`: `{"template": 9000, "template_name": "x"}`,
		`"size": 3`:                            `"size": 3, "market": {"type": "spot"}`,
		`"instance_type": "small"`:             `"instance_type": "smal"`,
	} {
		_, err = config.Parse("rack1.jsonc", []byte(strings.Replace(example, bad, field, 1)), proxmox.Kind())
		require.Error(t, err, field)
	}
}

// TestFirstDayArgs: what the document's first day suggests for args is accepted.
func TestFirstDayArgs(t *testing.T) {
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	rows := regexp.MustCompile("(?m)^   \\| .* \\| `(\"[^`]*)`").FindAllSubmatch(text, -1)
	require.Greater(t, len(rows), 5)
	settings := provider.Settings{Options: []byte(`{"endpoint": "https://pve1:8006", "instance_types": {"small": {"cores": 1, "memory": 512}},
		"address_pools": {"lan": {"first": "10.7.0.10", "last": "10.7.0.12", "prefix_length": 24}}}`)}
	for _, row := range rows {
		s := newBench(t, nil).specOf(`{"template": 9000, ` + string(row[1]) + `}`)
		require.NoError(t, proxmox.Kind().CheckSpec(settings, s), string(row[1]))
	}
}

func TestCheck(t *testing.T) {
	k := proxmox.Kind()
	for options, field := range map[string]string{
		`{"endpoint": "https://pve1:8006"}`: "",
		`{}`:                                "options.endpoint",
		`{"endpoint": "pve1:8006"}`:         "options.endpoint",
		`{"endpoint": "https://pve1:8006/api2/json"}`:                                     "options.endpoint",
		`{"endpoint": "https://pve1:8006", "vmid_min": 99}`:                               "options.vmid_min",
		`{"endpoint": "https://pve1:8006", "vmid_max": 1000000000}`:                       "options.vmid_max",
		`{"endpoint": "https://pve1:8006", "token": "x"}`:                                 "options.token",
		`{"endpoint": "https://pve1:8006", "poll_interval": "5ns"}`:                       "options.poll_interval",
		`{"endpoint": "https://pve1:8006", "poll_interval": "2m"}`:                        "options.poll_interval",
		`{"endpoint": "https://pve1:8006", "notice_interval": "10ns"}`:                    "options.notice_interval",
		`{"endpoint": "https://pve1:8006", "nodes": ["../x"]}`:                            "options.nodes",
		`{"endpoint": "https://pve1:8006", "instance_types": {"Big": {}}}`:                "options.instance_types",
		`{"endpoint": "https://pve1:8006", "instance_types": {"big": {"cores": "four"}}}`: "options.instance_types.big.cores",
	} {
		err := k.Check(provider.Settings{Options: []byte(options)})
		if field == "" {
			require.NoError(t, err)
			continue
		}
		requireField(t, field, err, options)
	}
}

func TestCheckSpec(t *testing.T) {
	settings := provider.Settings{Options: []byte(`{"endpoint": "https://pve1:8006", "instance_types": {"small": {"cores": 1, "memory": 512}}}`)}
	for name, c := range map[string]struct {
		change func(*nstance.MachineSpec)
		field  string
	}{
		"as it should be":      {func(*nstance.MachineSpec) {}, ""},
		"image as template":    {func(s *nstance.MachineSpec) { s.Args, s.Image = nil, "debian-13" }, ""},
		"no template":          {func(s *nstance.MachineSpec) { s.Args = nil }, "args.template"},
		"two templates":        {func(s *nstance.MachineSpec) { s.Image = "9001" }, "args.template"},
		"three templates":      {func(s *nstance.MachineSpec) { s.Args, s.Image = []byte(`{"template": 1, "template_name": "x"}`), "y" }, "args.template"},
		"spot":                 {func(s *nstance.MachineSpec) { s.Market = nstance.Spot }, "market.type"},
		"unknown type":         {func(s *nstance.MachineSpec) { s.InstanceType = "smal" }, "instance_type"},
		"user data":            {func(s *nstance.MachineSpec) { s.UserData = make([]byte, 1<<20+1) }, "userdata"},
		"bridge":               {func(s *nstance.MachineSpec) { s.Subnet = "vmbr0,firewall=0" }, "subnet"},
		"VLAN without subnet":  {func(s *nstance.MachineSpec) { s.Args = []byte(`{"template": 9000, "vlan": 3}`) }, "args.vlan"},
		"installation":         {func(s *nstance.MachineSpec) { s.Owner.Installation = "ABC" }, "owner.installation"},
		"cicustom":             {func(s *nstance.MachineSpec) { s.Args = []byte(`{"template": 9000, "cicustom": "x"}`) }, "args.cicustom"},
		"misspelt":             {func(s *nstance.MachineSpec) { s.Args = []byte(`{"template": 9000, "memry": 3}`) }, "args.memry"},
		"storage of a link":    {func(s *nstance.MachineSpec) { s.Args = []byte(`{"template": 9000, "storage": "x"}`) }, "args.storage"},
		"memory out of bounds": {func(s *nstance.MachineSpec) { s.Args = []byte(`{"template": 9000, "memory": 1}`) }, "args.memory"},
	} {
		b := newBench(t, nil)
		s := b.spec()
		c.change(&s)
		err := proxmox.Kind().CheckSpec(settings, s)
		_, made := b.p.Create(t.Context(), s)
		if c.field == "" {
			require.NoError(t, err)
			continue
		}
		requireField(t, c.field, err, name)
		requireField(t, c.field, made, name+" in Create")
		require.Empty(t, b.cloud.Machines())
	}
}

func requireField(t *testing.T, field string, err error, what string) {
	t.Helper()
	e := &nstance.Error{}
	require.ErrorAs(t, err, &e, what)
	require.Equal(t, nstance.Invalid, e.Code, what)
	require.True(t, strings.HasPrefix(e.Field, field), "%s: field %s, not %s: %v", what, e.Field, field, err)
}
