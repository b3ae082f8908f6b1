package config_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// rackArgs are the arguments of kind rack.
type rackArgs struct {
	Volumes []struct {
		Size int `json:"size"`
	} `json:"volumes"`
	Serial string `json:"serial"`
}

// rack is a kind of provider as a program may bring it.
var rack = provider.Kind{
	Name: "rack", MaxUserData: 40, Rate: 2, Burst: 5, Balancers: true,
	BalancerArgs: &struct {
		Weight int `json:"weight" doc:"share of the traffic"`
	}{},
	Open: simcloud.Kind().Open,
	Check: func(s provider.Settings) error {
		var o struct {
			Row int `json:"row"`
		}
		if err := provider.DecodeOptions(s.Options, &o); err != nil {
			return err
		}
		if s.Zone == "" {
			return nstance.FieldError("zone", "name it", "is missing")
		}
		return nil
	},
	CheckSpec: func(_ provider.Settings, spec nstance.MachineSpec) error {
		var a rackArgs
		if err := provider.DecodeArgs(spec.Args, &a, provider.Managed{"name": "leave it out"}); err != nil {
			return err
		}
		for i, v := range a.Volumes {
			if v.Size < 1 {
				return nstance.FieldError("args.volumes["+string(rune('0'+i))+"].size", "use 1 or more", "%d is too small", v.Size)
			}
		}
		if spec.InstanceType == "" {
			return nstance.FieldError("instance_type", "name one", "is missing")
		}
		if spec.InstanceType == "half" {
			return nstance.FieldError("instance_type", "use whole", "no such type")
		}
		if a.Serial == "none" {
			return nstance.FieldError("args.serial", "write another", "is not a serial number")
		}
		return nil
	},
}

func rackConfig(shard, template, group string) []byte {
	return []byte(`{
"cluster": {"id": "demo"},
"shard": {"id": "a", "provider": {"kind": "rack", "zone": "z"}` + shard + `},
"templates": {"web": {"kind": "web", "arch": "amd64"` + template + `}},
"groups": {"default": {"web": {"template": "web", "size": 1` + group + `}}}}`)
}

func TestProviderChecks(t *testing.T) {
	const whole = `, "instance_type": "whole"`
	for _, c := range []struct {
		name, text, want string
	}{
		{"an unknown kind", `{"cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "rakc"}}}`,
			`shard.provider.kind: c:1:68: this program has no provider "rakc" (did you mean "rack"?)`},
		{"an unknown option", `{"cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "rack", "options": {"rwo": 1}}}}`,
			`shard.provider.options.rwo: c:1:95: no such argument (did you mean "row"?)`},
		{"a missing zone", `{"cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "rack"}}}`,
			`shard.provider.zone: c:1:59: is missing (name it)`},
		{"an address that cannot move", string(rackConfig(`, "leader_address": "10.0.0.1"`, whole, "")),
			`shard.leader_address: c:3:83: provider rack has no addresses that move (leave it out, and give clients the addresses of all servers)`},
		{"prices where there are none", string(rackConfig("", whole, `, "instance_types": ["a", "b"], "order": "cheapest"`)),
			`groups.default.web.order: c:5:101: provider rack has no prices (use listed or steadiest)`},
		{"machines that cannot sleep", string(rackConfig("", whole, `, "warm_pool": {"size": 1, "mode": "hibernated"}`)),
			`groups.default.web.warm_pool.mode: c:5:95: provider rack cannot have machines hibernated (use running)`},
		{"hosts that are not its choice", string(rackConfig("", whole, `, "spread": {"by": "host", "max_share": "33%"}`)),
			`groups.default.web.spread.by: c:5:79: provider rack does not choose hosts (use zone or pool)`},
		{"spot where there is none", string(rackConfig("", whole, `, "market": {"type": "spot"}`)),
			`groups.default.web.market.type: c:5:81: provider rack has no spot capacity (use on-demand)`},
		{"arguments of a load balancer", string(rackConfig(`}, "load_balancers": {"front": {"id": "x", "args": {"wieght": 1}}`, whole, "")),
			`load_balancers.front.args.wieght: c:3:125: no such argument (did you mean "weight"?)`},
		{"an argument of a template", string(rackConfig("", whole+`, "args": {"volumes": [{"size": 0}]}`, "")),
			`templates.web.args.volumes[0].size: c:4:111: 0 is too small (use 1 or more)`},
		{"an argument of a group goes before", string(rackConfig("", whole+`, "args": {"volumes": [{"size": 1}]}`, `, "args": {"volumes": [{"size": 2}, {"size": 0}]}`)),
			`groups.default.web.args.volumes[1].size: c:5:105: 0 is too small (use 1 or more)`},
		{"an unknown argument", string(rackConfig("", whole+`, "args": {"volumse": []}`, "")),
			`templates.web.args.volumse: c:4:101: no such argument (did you mean "volumes"?)`},
		{"an argument that the system sets", string(rackConfig("", whole+`, "args": {"name": "x"}`, "")),
			`templates.web.args.name: c:4:98: is set by the system (leave it out)`},
		{"what an argument becomes", string(rackConfig("", whole+`, "args": {"serial": "{{.Vars.serial}}"}`, `, "vars": {"serial": "none"}`)),
			`templates.web.args.serial: c:4:100: is not a serial number (write another)`},
		{"one of several types", string(rackConfig("", `, "instance_types": ["whole", "half"]`, "")),
			`templates.web.instance_types[1]: c:4:83: no such type (use whole)`},
		{"a missing type", string(rackConfig("", "", "")),
			`groups.default.web.instance_type: c:5:31: is missing (name one)`},
		{"user data that becomes too long", string(rackConfig("", whole+`, "userdata": {"content": "{{.Vars.long}}"}`, `, "vars": {"long": "0123456789012345678901234567890123456789x"}`)),
			`templates.web.userdata: c:4:93: 41 bytes are more than the permitted 40 (shorten it, compress it, or fetch the rest at boot)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := config.Parse("c", []byte(c.text), rack)
			require.EqualError(t, err, c.want)
			require.ErrorIs(t, err, nstance.Invalid)
			_, err = config.Parse("c", []byte(c.text))
			require.NoError(t, err, "without kinds, nothing of it is known")
		})
	}
}

// TestSpreadByHost: only a provider that chooses hosts can spread over them, for groups of
// the configuration and of the API.
func TestSpreadByHost(t *testing.T) {
	spread := config.Override{Spread: &config.Dispersal{By: nstance.SpreadHost, MaxShare: "33%"}}
	c, err := config.Parse("c", rackConfig("", `, "instance_type": "whole"`, ""), rack)
	require.NoError(t, err)
	_, err = c.Lay(c.Groups()[0], spread)
	require.ErrorIs(t, err, nstance.Invalid)
	require.Equal(t, "spread.by", fieldOf(t, err))

	placing := rack
	placing.Hosts = true
	c, err = config.Parse("c", rackConfig("", `, "instance_type": "whole"`, `, "spread": {"by": "host", "max_share": "33%"}`), placing)
	require.NoError(t, err)
	require.Equal(t, nstance.SpreadHost, c.Groups()[0].Spread.By)
	_, err = c.Lay(c.Groups()[0], spread)
	require.NoError(t, err)
}

func TestProviderDefaults(t *testing.T) {
	c, err := config.Parse("c", rackConfig("", `, "instance_type": "whole"`, ""), rack)
	require.NoError(t, err)
	require.Equal(t, config.CreateRate{PerSecond: 2, Burst: 5}, c.Shard.CreateRate)
	kind, ok := c.Kind()
	require.True(t, ok)
	require.Equal(t, 40, kind.MaxUserData)
	c, err = config.Parse("c", rackConfig(`, "create_rate": {"burst": 9}`, `, "instance_type": "whole"`, ""), rack)
	require.NoError(t, err)
	require.Equal(t, config.CreateRate{PerSecond: 2, Burst: 9}, c.Shard.CreateRate)
}

// A template without members may be completed by requests.
func TestIncompleteTemplatesWithoutMembers(t *testing.T) {
	const incomplete = `, "args": {"serial": "{{.Vars.serial}}"}`
	_, err := config.Parse("c", []byte(`{"cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "rack", "zone": "z"}},
		"templates": {"web": {"kind": "web", "arch": "amd64"`+incomplete+`}}}`), rack)
	require.NoError(t, err)
	_, err = config.Parse("c", []byte(`{"cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "rack", "zone": "z"}},
		"templates": {"web": {"kind": "web", "arch": "amd64", "instance_type": "half"}}}`), rack)
	require.ErrorContains(t, err, "templates.web.instance_type: c:2:74: no such type")
}

// TestKindsAreChecked: a mistake in a kind is found before anything depends on it.
func TestKindsAreChecked(t *testing.T) {
	bad := rack
	bad.Open = nil
	_, err := config.Parse("c", rackConfig("", `, "instance_type": "whole"`, ""), bad)
	require.ErrorContains(t, err, "kinds.rack.open")
	_, _, err = config.Provider{Kind: "rack", Zone: "z"}.Open(t.Context(), provider.Kinds{bad}, nil)
	require.ErrorIs(t, err, nstance.Invalid)
}

// TestKindWithoutChecks: what the tags of a kind say is checked where it has no check of
// its own.
func TestKindWithoutChecks(t *testing.T) {
	bare := rack
	bare.Check, bare.CheckSpec = nil, nil
	bare.Options = &struct {
		Row int `json:"row" doc:"number of the row" required:"true"`
	}{}
	_, err := config.Parse("c", rackConfig("", `, "args": {"memory": 1}`, ""), bare)
	require.ErrorContains(t, err, "shard.provider.options.row: c:3:34: is missing")
	bare.Options = nil
	_, err = config.Parse("c", rackConfig("", `, "args": {"memory": 1}`, ""), bare)
	require.ErrorContains(t, err, "templates.web.args.memory: c:4:74: no such argument")
}

func TestProviderOpen(t *testing.T) {
	_, _, err := config.Provider{Kind: "aws"}.Open(t.Context(), kinds, nil)
	require.EqualError(t, err, `shard.provider.kind: this program has no provider "aws" (valid here: local, sim)`)
	_, _, err = config.Provider{Kind: "sim", Options: json.RawMessage(`{"sede": 1}`)}.Open(t.Context(), kinds, nil)
	e, ok := errors.AsType[*nstance.Error](err)
	require.True(t, ok)
	require.Equal(t, "shard.provider.options.sede", e.Field)
	p, end, err := config.Provider{Kind: "sim", Options: json.RawMessage(`{"load_balancers": ["lb"]}`)}.Open(t.Context(), kinds, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, end()) }()
	_, err = provider.AbilitiesOf(p).Balancers.BalancerMembers(t.Context(), nstance.LoadBalancer{ID: "lb"})
	require.NoError(t, err)
}
