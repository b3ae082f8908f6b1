package config_test

import (
	"testing"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/stretchr/testify/require"
)

func merged(t *testing.T, defaults, tmpl, group string) nstance.Group {
	t.Helper()
	c, err := config.Parse("c", []byte(`{"cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "sim"}},
		"defaults": {`+defaults+`},
		"templates": {"web": {"kind": "web", "arch": "amd64", "size": 1, `+tmpl+`}},
		"groups": {"default": {"web": {"template": "web", `+group+`}}}}`))
	require.NoError(t, err)
	return c.Groups()[0]
}

func TestMerge(t *testing.T) {
	t.Run("objects in args merge deeply", func(t *testing.T) {
		g := merged(t, `"args": {"o": {"a": 1, "p": {"x": 1}}}`, `"args": {"o": {"b": 2, "p": {"y": 2}}}`, `"args": {"o": {"a": 3}}`)
		require.JSONEq(t, `{"o": {"a": 3, "b": 2, "p": {"x": 1, "y": 2}}}`, string(g.Definition.Args))
	})
	t.Run("everything else in args replaces", func(t *testing.T) {
		g := merged(t, `"args": {"l": [1, 2], "o": {"a": 1}, "n": 1}`, `"args": {"l": [3], "o": 5}`, `"args": {"n": null}`)
		require.JSONEq(t, `{"l": [3], "o": 5, "n": null}`, string(g.Definition.Args))
	})
	t.Run("an object replaces what is none", func(t *testing.T) {
		g := merged(t, `"args": {"o": 5}`, ``, `"args": {"o": {"a": 1}}`)
		require.JSONEq(t, `{"o": {"a": 1}}`, string(g.Definition.Args))
	})
	t.Run("long numbers survive", func(t *testing.T) {
		g := merged(t, ``, `"args": {"n": 9007199254740993}`, ``)
		require.Equal(t, `{"n":9007199254740993}`, string(g.Definition.Args))
	})
	t.Run("vars merge", func(t *testing.T) {
		g := merged(t, `"vars": {"a": "1", "b": "1"}`, `"vars": {"b": "2", "c": "2"}`, `"vars": {"c": "3", "d": ""}`)
		require.Equal(t, map[string]string{"a": "1", "b": "2", "c": "3", "d": ""}, g.Definition.Vars)
	})
	t.Run("size 0 of a group stands", func(t *testing.T) {
		require.Zero(t, merged(t, ``, ``, `"size": 0`).Size)
		require.Equal(t, 1, merged(t, ``, ``, ``).Size)
	})
	t.Run("a group's instance type replaces a template's list", func(t *testing.T) {
		g := merged(t, ``, `"instance_types": ["a", "b"]`, `"instance_type": "c"`)
		require.Equal(t, []string{"c"}, g.Definition.InstanceTypes)
	})
	t.Run("a group's market replaces the template's as a whole", func(t *testing.T) {
		g := merged(t, ``, `"market": {"type": "spot", "max_price": "1"}`, `"market": {"type": "spot"}`)
		require.Equal(t, nstance.Market{Type: nstance.Spot}, g.Definition.Market)
	})
	t.Run("spelling changes no hash", func(t *testing.T) {
		a := merged(t, ``, `"args": {"a": 1, "b": {"c": [1.0]}}`, ``)
		b := merged(t, `"args": {"b": {"c": [1]}}`, ``, `"args": {"a": 1e0}`)
		require.Equal(t, a.Definition, b.Definition)
	})
}

func TestGroupsAreCopies(t *testing.T) {
	c := full(t)
	g := c.Groups()[1]
	g.Definition.Vars["color"] = "changed"
	g.Definition.InstanceTypes[0] = "changed"
	g.Definition.Subnets[0] = "changed"
	g.Definition.Args[1] = 'x'
	for _, g := range c.Groups() {
		for _, list := range [][]string{g.Definition.LoadBalancers, g.Definition.PostApply} {
			for i := range list {
				list[i] = "changed"
			}
		}
	}
	require.Equal(t, full(t).Groups(), c.Groups())
}

func TestOverlay(t *testing.T) {
	c := full(t)
	web := nstance.GroupKey{Tenant: "default", Group: "web"}
	base := c.Groups()[1]
	t.Run("nothing", func(t *testing.T) {
		g, err := c.Overlay(web, config.Override{})
		require.NoError(t, err)
		require.Equal(t, base, g)
	})
	t.Run("everything", func(t *testing.T) {
		g, err := c.Overlay(web, config.Override{
			Size: new(0), InstanceType: new("t4g.large"), Vars: map[string]string{"color": "red", "new": "1"},
		})
		require.NoError(t, err)
		want := c.Groups()[1]
		want.Size = 0
		want.Definition.InstanceTypes = []string{"t4g.large"}
		want.Definition.Vars = map[string]string{"region": "eu", "level": "group", "color": "red", "new": "1"}
		want.Definition.GivenVars = []string{"color", "new"}
		require.Equal(t, want, g)
		require.Equal(t, base, c.Groups()[1], "the static group is untouched")
	})
	t.Run("a variable with its configured value is not given", func(t *testing.T) {
		g, err := c.Overlay(web, config.Override{Vars: map[string]string{"color": base.Definition.Vars["color"]}})
		require.NoError(t, err)
		require.Empty(t, g.Definition.GivenVars)
	})
	t.Run("only another instance type drifts", func(t *testing.T) {
		g, err := c.Overlay(web, config.Override{InstanceType: new("t4g.large")})
		require.NoError(t, err)
		changes := confighash.InfraChanges(base.Definition, g.Definition)
		require.Len(t, changes, 1)
		require.Equal(t, "instance_types", changes[0].Path)
	})
	t.Run("refusals", func(t *testing.T) {
		_, err := c.Overlay(nstance.GroupKey{Tenant: "default", Group: "db"}, config.Override{})
		require.ErrorIs(t, err, nstance.NotFound)
		for _, o := range []config.Override{
			{Size: new(-1)}, {Size: new(100001)}, {InstanceType: new("")}, {Vars: map[string]string{"": "x"}},
		} {
			_, err := c.Overlay(web, o)
			require.ErrorIs(t, err, nstance.Invalid)
		}
	})
}
