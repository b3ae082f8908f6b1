package config_test

import (
	"encoding/json"
	"testing"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/stretchr/testify/require"
)

func TestAllowance(t *testing.T) {
	c := full(t)
	args := func(s string) config.Override { return config.Override{Args: json.RawMessage(s)} }
	t.Run("what is listed may be named", func(t *testing.T) {
		for _, o := range []config.Override{
			{}, {Size: new(3), Vars: map[string]string{"any": "thing"}, Protect: new(true)},
			{Template: "db", SubnetPool: "edge", InstanceType: new("m7i.large"), LoadBalancers: []string{"front"}}, {InstanceTypes: []string{"t4g.small", "m7i.large"}},
			args(`{}`), args(`{"disk": {"size": 1}}`), args(`{"tags": ["a"]}`), args(`{"tags": {"x": {"y": 1}}}`),
		} {
			require.NoError(t, c.Allowance("blue").Check(o))
		}
	})
	t.Run("everything else is refused by name", func(t *testing.T) {
		for field, o := range map[string]config.Override{
			"template": {Template: "spare"}, "load_balancers": {LoadBalancers: []string{"front", "back"}}, "subnet_pool": {SubnetPool: "workers"}, "instance_type": {InstanceType: new("x")},
			"instance_types": {InstanceTypes: []string{"t4g.small", "x"}},
			"args.disk.type": args(`{"disk": {"size": 1, "type": "gp3"}}`), "args.disk": args(`{"disk": null}`), "args.net": args(`{"net": {}}`),
			"args.role.x": args(`{"role": {"x": 1}, "tags": []}`),
		} {
			t.Run(field, func(t *testing.T) {
				err := c.Allowance("blue").Check(o)
				require.ErrorIs(t, err, nstance.Denied)
				require.Equal(t, field, fieldOf(t, err))
				require.ErrorContains(t, err, "tenants.blue.")
			})
		}
	})
	t.Run("a name with a dot is no path", func(t *testing.T) {
		require.ErrorIs(t, c.Allowance("blue").Check(args(`{"disk.size": 1}`)), nstance.Denied)
	})
	t.Run("a tenant that lists nothing names nothing, nor does one that is not listed", func(t *testing.T) {
		for _, id := range []nstance.TenantID{"green", "nobody"} {
			require.ErrorIs(t, c.Allowance(id).Check(config.Override{Template: "web"}), nstance.Denied)
			require.ErrorIs(t, c.Allowance(id).Check(args(`{"tags": []}`)), nstance.Denied)
			require.NoError(t, c.Allowance(id).Check(config.Override{Size: new(5)}))
			require.NoError(t, c.Allowance(id).Room("size", 1000, 1000), "a limit is what is set")
		}
	})
	t.Run("the default tenant is free unless it is listed", func(t *testing.T) {
		require.NoError(t, c.Allowance("default").Check(config.Override{Template: "web", InstanceType: new("x")}))
		listed, err := config.Parse("c", []byte(`{"cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "sim"}}, "tenants": {"default": {}}}`), kinds...)
		require.NoError(t, err)
		require.ErrorIs(t, listed.Allowance("default").Check(config.Override{InstanceType: new("x")}), nstance.Denied)
	})
	t.Run("the number of instances", func(t *testing.T) {
		a := c.Allowance("blue")
		require.NoError(t, a.Room("size", 8, 2))
		err := a.Room("size", 8, 3)
		require.ErrorIs(t, err, nstance.Quota)
		require.Equal(t, "size", fieldOf(t, err))
		require.NoError(t, a.Room("size", 50, -1), "fewer are never too many")
	})
}

func TestDynamicSubnetPools(t *testing.T) {
	c := full(t)
	require.NoError(t, c.MayDynamic(nstance.Group{}), "no pool at all")
	require.NoError(t, c.MayDynamic(nstance.Group{Definition: nstance.Definition{SubnetPool: "edge"}}))
	err := c.MayDynamic(nstance.Group{Definition: nstance.Definition{SubnetPool: "workers"}})
	require.ErrorIs(t, err, nstance.Invalid)
	require.Equal(t, "subnet_pool", fieldOf(t, err))
}

func TestBadTenants(t *testing.T) {
	for tenant, want := range map[string]string{
		`"templates": ["wep"]`:      `tenants.blue.templates[0]: c:4:`,
		`"subnet_pools": ["wep"]`:   `tenants.blue.subnet_pools[0]: c:4:`,
		`"allow_args": ["disk."]`:   `tenants.blue.allow_args[0]: c:4:`,
		`"load_balancers": ["x"]`:   `tenants.blue.load_balancers[0]: c:4:`,
		`"max_instances": -1`:       `tenants.blue.max_instances: c:4:`,
		`"instance_types": ["",""]`: `tenants.blue.instance_types[0]: c:4:`,
	} {
		_, err := config.Parse("c", []byte(`{"cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "sim"}},
"templates": {"web": {"kind": "web", "arch": "amd64"}},
"tenants":
{"blue": {`+tenant+`}}}`), kinds...)
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, want)
	}
	_, err := config.Parse("c", []byte(`{"cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "sim"}, "dynamic_subnet_pools": ["x"]}}`), kinds...)
	require.ErrorContains(t, err, "shard.dynamic_subnet_pools[0]")
}

// TestGrown: a tenant beyond its budget may make its groups fewer and shorter, and change them.
func TestGrown(t *testing.T) {
	b := config.Budget{Tenant: "blue", MaxGroups: 2, MaxGroupBytes: 100}
	for name, c := range map[string]struct {
		groupsBefore, groups, bytesBefore, bytes int
		field                                    string // that refuses it
	}{
		"up to the budget":       {1, 2, 50, 100, ""},
		"one group too many":     {2, 3, 50, 60, "tenants.blue.max_groups"},
		"too long":               {2, 2, 50, 101, "tenants.blue.max_group_bytes"},
		"no more than before":    {5, 5, 500, 500, ""},
		"fewer than before":      {5, 4, 500, 400, ""},
		"one more than too many": {5, 6, 500, 400, "tenants.blue.max_groups"},
	} {
		err := b.Grown(c.groupsBefore, c.groups, c.bytesBefore, c.bytes)
		if c.field == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, nstance.Quota, name)
		require.Equal(t, c.field, fieldOf(t, err), name)
	}
}
