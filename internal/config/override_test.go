package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/stretchr/testify/require"
)

func span(d time.Duration) *config.Duration { return new(config.Duration(d)) }

// everything is an override in which nothing is absent.
func everything() config.Override {
	return config.Override{
		Size: new(7), InstanceTypes: []string{"a", "b"}, Vars: map[string]string{"k": "v"}, Template: "web", SubnetPool: "edge", BootstrapData: "1f",
		Args: json.RawMessage(`{"disk":{"size":9}}`), DrainTimeout: span(90 * time.Second), Protect: new(true), LoadBalancers: []string{"back", "front"},
		Rollout: &config.Pace{MaxSurge: "20%", MinReady: span(time.Minute), HaltAfter: new(0)},
		Market: &config.Purchase{Type: nstance.Spot, MaxPrice: "0.05", Fallback: nstance.OnDemand, FallbackAfter: config.Duration(time.Minute), ReturnAfter: config.Duration(time.Hour), OnDemandBase: "20%",
			FallbackWhen: &config.Reclaims{Reclaims: 3, Window: config.Duration(time.Hour)}},
		Spread: &config.Dispersal{By: nstance.SpreadType, MaxShare: "30%"}, OnReclaim: nstance.ReclaimCordon,
		OnRebalance: nstance.NoticeReplace, OnMaintenance: nstance.NoticeIgnore, OnDrainTimeout: nstance.DrainTimeoutWait, Order: nstance.OrderSteadiest,
		WarmPool: &config.Reserve{Size: 2, Mode: nstance.ParkHibernated, MaxAge: config.Duration(time.Hour), NoReturn: true},
	}
}

func TestOverrideHasEveryField(t *testing.T) {
	all := reflect.ValueOf(everything())
	for i := range all.NumField() {
		if name := all.Type().Field(i).Name; name != "InstanceType" { // InstanceTypes says the same, and more
			require.False(t, all.Field(i).IsZero(), "the tests of overrides pass over %s", name)
		}
	}
}

// fieldOf returns the field that an error names.
func fieldOf(t *testing.T, err error) string {
	t.Helper()
	e, ok := errors.AsType[*nstance.Error](err)
	require.True(t, ok, "%v", err)
	require.NotEmpty(t, e.Remedy, "%v", err)
	return e.Field
}

func TestStaticGroupsAreRestricted(t *testing.T) {
	c := full(t)
	web := nstance.GroupKey{Tenant: "default", Group: "web"}
	for field, o := range map[string]config.Override{
		"template": {Template: "web"}, "subnet_pool": {SubnetPool: "edge"}, "args": {Args: json.RawMessage(`{"a":1}`)},
		"load_balancers": {LoadBalancers: []string{"front"}}, "drain_timeout": {DrainTimeout: span(0)},
		"rollout": {Rollout: &config.Pace{MaxSurge: "2"}}, "protect": {Protect: new(false)},
		"market": {Market: &config.Purchase{Type: nstance.Spot}}, "spread": {Spread: &config.Dispersal{MaxShare: "50%"}}, "on_reclaim": {OnReclaim: nstance.ReclaimDrain},
		"order": {Order: nstance.OrderListed}, "warm_pool": {WarmPool: &config.Reserve{}}, "on_rebalance": {OnRebalance: nstance.NoticeIgnore}, "on_maintenance": {OnMaintenance: nstance.NoticeIgnore},
		"on_drain_timeout": {OnDrainTimeout: nstance.DrainTimeoutDelete},
	} {
		t.Run(field, func(t *testing.T) {
			require.Equal(t, field, o.Restricted())
			_, err := c.Overlay(web, o)
			require.ErrorIs(t, err, nstance.Invalid)
			require.Equal(t, field, fieldOf(t, err))
		})
	}
	t.Run("but not in these", func(t *testing.T) {
		o := config.Override{Size: new(0), InstanceTypes: []string{"x", "y"}, Vars: map[string]string{"a": "b"}, BootstrapData: "1f"}
		require.Empty(t, o.Restricted())
		g, err := c.Overlay(web, o)
		require.NoError(t, err)
		require.Equal(t, "1f", g.BootstrapData)
		require.Equal(t, []string{"x", "y"}, g.Definition.InstanceTypes)
		require.True(t, g.Static)
	})
}

func TestTemplated(t *testing.T) {
	c := full(t)
	key := nstance.GroupKey{Tenant: "blue", Group: "new"}
	base, err := c.Templated(key, "web")
	require.NoError(t, err)
	t.Run("is what a group in the configuration that says nothing else is", func(t *testing.T) {
		want := nstance.Group{
			Key: key, Template: "web", Size: 1, DrainTimeout: 2 * time.Minute,
			Rollout: nstance.Rollout{MaxSurge: nstance.Count{N: 1}, HaltAfter: 2},
			Expiry:  nstance.Expiry{EligibleAge: 7 * 24 * time.Hour, ForcedAge: 252 * time.Hour, OnDemandAge: 24 * time.Hour},
			Order:   nstance.OrderListed, OnRebalance: nstance.NoticeIgnore, OnMaintenance: nstance.NoticeReplace, OnDrainTimeout: nstance.DrainTimeoutDelete,
		}
		require.Equal(t, "workers", base.Definition.SubnetPool, "the template's")
		require.Equal(t, map[string]string{"region": "eu", "color": "blue", "level": "template"}, base.Definition.Vars)
		want.Definition = base.Definition
		require.Equal(t, want, base)
	})
	t.Run("everything laid over it", func(t *testing.T) {
		g, err := c.Lay(base, everything())
		require.NoError(t, err)
		require.Equal(t, 7, g.Size)
		require.Equal(t, []string{"a", "b"}, g.Definition.InstanceTypes)
		require.Equal(t, "v", g.Definition.Vars["k"])
		require.Equal(t, "blue", g.Definition.Vars["color"])
		require.Equal(t, []string{"subnet-3"}, g.Definition.Subnets)
		require.JSONEq(t, `{"disk": {"size": 9, "type": "gp3"}, "name": "{{.Instance.ID}}", "tags": ["all"]}`, string(g.Definition.Args))
		require.Equal(t, 90*time.Second, g.DrainTimeout)
		require.Equal(t, nstance.Rollout{MaxSurge: nstance.Count{N: 20, Percent: true}, MinReady: time.Minute}, g.Rollout)
		require.True(t, g.Protect)
		require.Equal(t, nstance.NoticeReplace, g.OnRebalance)
		require.Equal(t, nstance.OrderSteadiest, g.Order)
		require.Equal(t, nstance.NoticeIgnore, g.OnMaintenance)
		require.Equal(t, nstance.DrainTimeoutWait, g.OnDrainTimeout)
		require.Equal(t, nstance.Spread{By: nstance.SpreadType, MaxShare: nstance.Count{N: 30, Percent: true}}, g.Spread)
		require.Equal(t, nstance.ReclaimCordon, g.OnReclaim)
		require.Equal(t, everything().Spread, config.DispersalOf(g.Spread))
		g, err = c.Lay(g, config.Override{Spread: &config.Dispersal{MaxShare: "3"}})
		require.NoError(t, err)
		require.Equal(t, nstance.Spread{By: nstance.SpreadPool, MaxShare: nstance.Count{N: 3}}, g.Spread)
		g, err = c.Lay(g, config.Override{Spread: &config.Dispersal{}, OnReclaim: nstance.ReclaimDrain})
		require.NoError(t, err)
		require.Zero(t, g.Spread)
		require.Empty(t, g.OnReclaim)
		require.Nil(t, config.DispersalOf(g.Spread))
		require.Equal(t, []string{"back", "front"}, g.Definition.LoadBalancers)
		require.Equal(t, nstance.Market{Type: nstance.Spot, MaxPrice: "0.05", Fallback: nstance.OnDemand, FallbackAfter: time.Minute, ReturnAfter: time.Hour, OnDemandBase: nstance.Count{N: 20, Percent: true},
			FallbackWhen: nstance.ReclaimLimit{Reclaims: 3, Window: time.Hour}}, g.Definition.Market)
		again, err := c.Templated(key, "web")
		require.NoError(t, err)
		require.Equal(t, base, again, "the template is untouched")
	})
	t.Run("no such template", func(t *testing.T) {
		_, err := c.Templated(key, "wep")
		require.ErrorIs(t, err, nstance.Invalid)
		require.Equal(t, "template", fieldOf(t, err))
		require.ErrorContains(t, err, `did you mean "web"`)
	})
}

func TestOverrideErrors(t *testing.T) {
	c := full(t)
	base, err := c.Templated(nstance.GroupKey{Tenant: "default", Group: "new"}, "web")
	require.NoError(t, err)
	for name, r := range map[string]struct {
		field string
		o     config.Override
	}{
		"a negative size":              {"size", config.Override{Size: new(-1)}},
		"an empty type":                {"instance_types", config.Override{InstanceTypes: []string{"a", ""}}},
		"a type twice":                 {"instance_types", config.Override{InstanceTypes: []string{"a", "a"}}},
		"a pool that is not there":     {"subnet_pool", config.Override{SubnetPool: "wrokers"}},
		"args that are no object":      {"args", config.Override{Args: json.RawMessage(`[1]`)}},
		"args of two objects":          {"args", config.Override{Args: json.RawMessage(`{} {}`)}},
		"args that do not render":      {"args.a.b[1]", config.Override{Args: json.RawMessage(`{"a": {"b": ["", "{{.Vars"]}}`)}},
		"a negative drain":             {"drain_timeout", config.Override{DrainTimeout: span(-1)}},
		"an endless drain":             {"drain_timeout", config.Override{DrainTimeout: span(4000 * 24 * time.Hour)}},
		"a surge that is no count":     {"rollout.max_surge", config.Override{Rollout: &config.Pace{MaxSurge: "some"}}},
		"a surge of more than all":     {"rollout.max_surge", config.Override{Rollout: &config.Pace{MaxSurge: "101%"}}},
		"a negative min_ready":         {"rollout.min_ready", config.Override{Rollout: &config.Pace{MinReady: span(-1)}}},
		"a negative halt":              {"rollout.halt_after", config.Override{Rollout: &config.Pace{HaltAfter: new(-1)}}},
		"a market that is none":        {"market.type", config.Override{Market: &config.Purchase{Type: "auction"}}},
		"a price of on-demand":         {"market.max_price", config.Override{Market: &config.Purchase{Type: nstance.OnDemand, MaxPrice: "1"}}},
		"a price that is none":         {"market.max_price", config.Override{Market: &config.Purchase{Type: nstance.Spot, MaxPrice: "-1"}}},
		"a fallback of on-demand":      {"market.fallback", config.Override{Market: &config.Purchase{Type: nstance.OnDemand, Fallback: nstance.OnDemand}}},
		"a fallback to spot":           {"market.fallback", config.Override{Market: &config.Purchase{Type: nstance.Spot, Fallback: nstance.Spot}}},
		"a return from no fallback":    {"market.return_after", config.Override{Market: &config.Purchase{Type: nstance.Spot, ReturnAfter: 1}}},
		"a return in no time":          {"market.return_after", config.Override{Market: &config.Purchase{Type: nstance.Spot, Fallback: nstance.OnDemand, ReturnAfter: -1}}},
		"a base of on-demand":          {"market.on_demand_base", config.Override{Market: &config.Purchase{Type: nstance.OnDemand, OnDemandBase: "1"}}},
		"another end of a drain":       {"on_drain_timeout", config.Override{OnDrainTimeout: "kill"}},
		"another way to reclaim":       {"on_reclaim", config.Override{OnReclaim: "stop"}},
		"a share of words":             {"spread.max_share", config.Override{Spread: &config.Dispersal{MaxShare: "some"}}},
		"a spread without a share":     {"spread.max_share", config.Override{Spread: &config.Dispersal{By: nstance.SpreadZone}}},
		"an unknown order":             {"order", config.Override{Order: "dearest"}},
		"an unknown reaction":          {"on_rebalance", config.Override{OnRebalance: "panic"}},
		"a cordon for maintenance":     {"on_maintenance", config.Override{OnMaintenance: nstance.NoticeCordon}},
		"a spread by rack":             {"spread.by", config.Override{Spread: &config.Dispersal{By: "rack", MaxShare: "1"}}},
		"a spread beside a bad surge":  {"spread.max_share", config.Override{Spread: &config.Dispersal{MaxShare: "some"}, Rollout: &config.Pace{MaxSurge: "2"}}},
		"a base of words":              {"market.on_demand_base", config.Override{Market: &config.Purchase{Type: nstance.Spot, OnDemandBase: "some"}}},
		"a wait for no fallback":       {"market.fallback_after", config.Override{Market: &config.Purchase{Type: nstance.Spot, FallbackAfter: 1}}},
		"a balancer twice":             {"load_balancers", config.Override{LoadBalancers: []string{"back", "back"}}},
		"a balancer that is not there": {"load_balancers", config.Override{LoadBalancers: []string{"fornt"}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.Lay(base, r.o)
			require.ErrorIs(t, err, nstance.Invalid)
			require.Equal(t, r.field, fieldOf(t, err))
		})
	}
	t.Run("more instance types than a provider is asked about", func(t *testing.T) {
		var types []string
		for n := range 65 {
			types = append(types, fmt.Sprint("t", n))
		}
		_, err := c.Lay(base, config.Override{InstanceTypes: types})
		require.ErrorIs(t, err, nstance.Invalid)
		require.Equal(t, "instance_types", fieldOf(t, err))
		_, err = c.Lay(base, config.Override{InstanceTypes: types[:64]})
		require.NoError(t, err)
	})
	t.Run("spot for a control plane", func(t *testing.T) {
		base.Definition.Role = "control-plane"
		_, err := c.Lay(base, config.Override{Market: &config.Purchase{Type: nstance.Spot}})
		require.ErrorIs(t, err, nstance.Invalid)
		require.Equal(t, "market.type", fieldOf(t, err))
	})
}

func TestReleased(t *testing.T) {
	c := full(t)
	web := c.Groups()[1]
	web.Definition.Subnets = []string{"subnet-of-old"}
	shards := web.Expiry
	web.Expiry = nstance.Expiry{ForcedAge: time.Hour}
	g := c.Released(web)
	require.Equal(t, shards, g.Expiry, "the shard's of today")
	require.False(t, g.Static)
	require.Equal(t, []string{"subnet-3"}, g.Definition.Subnets, "the pool is the shard's")
	require.False(t, confighash.Drifted(hashOf(t, web), hashOf(t, g)))
	web.Definition.SubnetPool = "gone"
	require.Equal(t, []string{"subnet-of-old"}, c.Released(web).Definition.Subnets)
}

func hashOf(t *testing.T, g nstance.Group) confighash.Hash {
	h, err := confighash.Infra(g.Definition)
	require.NoError(t, err)
	return h
}

func TestOver(t *testing.T) {
	t.Run("what is absent stays", func(t *testing.T) {
		require.Empty(t, config.Difference(everything(), config.Override{}.Over(everything())))
	})
	t.Run("what is present replaces", func(t *testing.T) {
		require.Empty(t, config.Difference(everything(), everything().Over(config.Override{Size: new(1), Args: json.RawMessage(`{"x":1}`)})))
	})
	t.Run("one type replaces several, and the other way round", func(t *testing.T) {
		several, one := config.Override{InstanceTypes: []string{"a", "b"}}, config.Override{InstanceType: new("c")}
		require.Equal(t, one, one.Over(several))
		require.Equal(t, several, several.Over(one))
	})
	t.Run("what is empty gives up", func(t *testing.T) {
		o := config.Override{Vars: map[string]string{}, InstanceTypes: []string{}, Args: json.RawMessage(`{}`)}.Over(everything())
		require.Empty(t, o.Vars)
		require.Empty(t, o.InstanceTypes)
		require.Empty(t, o.Args)
	})
	t.Run("parts of a rollout", func(t *testing.T) {
		o := config.Override{Rollout: &config.Pace{HaltAfter: new(5)}}.Over(everything())
		require.Equal(t, &config.Pace{MaxSurge: "20%", MinReady: span(time.Minute), HaltAfter: new(5)}, o.Rollout)
		require.Equal(t, new(0), everything().Rollout.HaltAfter)
	})
}

func TestDifference(t *testing.T) {
	require.True(t, config.Override{Vars: map[string]string{}}.Empty())
	require.Empty(t, config.Difference(config.Override{InstanceType: new("a")}, config.Override{InstanceTypes: []string{"a"}}))
	other := everything()
	other.Size, other.Vars = new(8), nil
	require.Equal(t, "size", config.Difference(everything(), other))
	other.Size = new(7)
	require.Equal(t, "vars", config.Difference(other, everything()))
	other.Size = nil
	require.Equal(t, []string{"size", "vars"}, config.Differences(other, everything()))
	require.Equal(t, []string{"size", "vars"}, config.Differences(everything(), other))
}

// What is stored must be read again as it was, by a person as well.
func TestOverrideIsStored(t *testing.T) {
	data, err := json.Marshal(everything())
	require.NoError(t, err)
	require.JSONEq(t, `{"size": 7, "instance_types": ["a", "b"], "vars": {"k": "v"}, "template": "web", "subnet_pool": "edge", "bootstrap_data": "1f",
		"args": {"disk": {"size": 9}}, "drain_timeout": "1m30s", "protect": true, "load_balancers": ["back", "front"],
		"rollout": {"max_surge": "20%", "min_ready": "1m0s", "halt_after": 0},
		"market": {"type": "spot", "max_price": "0.05", "fallback": "on-demand", "fallback_after": "1m0s", "return_after": "1h0m0s", "on_demand_base": "20%", "fallback_when": {"reclaims": 3, "window": "1h0m0s"}}, "spread": {"by": "type", "max_share": "30%"}, "order": "steadiest", "warm_pool": {"size": 2, "mode": "hibernated", "max_age": "1h0m0s", "no_return": true}, "on_reclaim": "cordon", "on_rebalance": "replace", "on_maintenance": "ignore", "on_drain_timeout": "wait"}`, string(data))
	var got config.Override
	require.NoError(t, json.Unmarshal(data, &got))
	require.Equal(t, everything(), got)
	require.NoError(t, json.Unmarshal([]byte(`{"drain_timeout": "2d"}`), &got))
	require.Equal(t, span(48*time.Hour), got.DrainTimeout)
	require.Error(t, json.Unmarshal([]byte(`{"drain_timeout": "soon"}`), &got))
	require.Equal(t, nstance.Rollout{MaxSurge: nstance.Count{N: 3}, HaltAfter: 1}, roundTrip(t, nstance.Rollout{MaxSurge: nstance.Count{N: 3}, HaltAfter: 1}))
	require.Equal(t, nstance.Rollout{MaxSurge: nstance.Count{N: 3, Percent: true}}, roundTrip(t, nstance.Rollout{MaxSurge: nstance.Count{N: 3, Percent: true}}))
}

func roundTrip(t *testing.T, r nstance.Rollout) nstance.Rollout {
	g, err := full(t).Lay(nstance.Group{Key: nstance.GroupKey{Tenant: "default", Group: "web"}}, config.Override{Rollout: config.PaceOf(r)})
	require.NoError(t, err)
	return g.Rollout
}
