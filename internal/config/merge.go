package config

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
)

// Digest returns the SHA-256 of the file, as 64 hexadecimal digits.
func (c *Config) Digest() string { return c.digest }

// At returns c with what belongs to one process as in own: every setting that only a
// restart changes, such as where it listens, its provider and where secrets come from.
func (c *Config) At(own *Config) *Config {
	out := *c
	keepOwn(reflect.ValueOf(&out).Elem(), reflect.ValueOf(own).Elem())
	return &out
}

// ChangeLimit is how many of a shard's members one reload may remove or replace.
func (s *Shard) ChangeLimit(members int) int {
	if s.MaxChange == nil {
		return max(10, nstance.Count{N: 20, Percent: true}.Of(members))
	}
	return s.MaxChange.Of(members)
}

// Groups returns the groups of the configuration, fully merged, sorted by key.
// The caller owns the result.
func (c *Config) Groups() []nstance.Group {
	out := make([]nstance.Group, len(c.groups))
	for i, g := range c.groups {
		out[i] = clone(g)
	}
	return out
}

// clone copies what the copy's owner could otherwise change in g.
func clone(g nstance.Group) nstance.Group {
	d := &g.Definition
	d.InstanceTypes = slices.Clone(d.InstanceTypes)
	d.Subnets = slices.Clone(d.Subnets)
	d.LoadBalancers = slices.Clone(d.LoadBalancers)
	d.Track = slices.Clone(d.Track)
	d.Args = slices.Clone(d.Args)
	d.Vars = maps.Clone(d.Vars)
	d.GivenVars = slices.Clone(d.GivenVars)
	cloneFiles(d)
	return g
}

// merge makes one group of a checked configuration.
func (c *Config) merge(key nstance.GroupKey, g Group) nstance.Group {
	t := c.Templates[g.Template]
	shape := g.over(t.Shape)
	merged := nstance.Group{
		Key:            key,
		Template:       string(g.Template),
		Size:           orZero(shape.Size),
		DrainTimeout:   c.Shard.DefaultDrainTimeout,
		Rollout:        nstance.Rollout(g.Rollout),
		Expiry:         nstance.Expiry(c.Shard.Expiry),
		Protect:        g.Protect,
		Order:          g.Order,
		OnRebalance:    g.OnRebalance,
		OnMaintenance:  g.OnMaintenance,
		OnDrainTimeout: g.OnDrainTimeout,
		Static:         true,
		Definition: nstance.Definition{
			Kind:                t.Kind,
			Arch:                t.Arch,
			Role:                t.Role,
			InstanceTypes:       shape.types(),
			SubnetPool:          string(shape.SubnetPool),
			Subnets:             c.Shard.SubnetPools[shape.SubnetPool],
			Args:                mergeArgs(c.Defaults.Args, t.Args, g.Args),
			Vars:                mergeVars(c.Defaults.Vars, t.Vars, g.Vars),
			Market:              shape.Market.definition(),
			LaunchTimeout:       t.LaunchTimeout,
			RegistrationTimeout: t.RegistrationTimeout,
		},
	}
	if g.DrainTimeout != nil {
		merged.DrainTimeout = *g.DrainTimeout
	}
	if g.OnReclaim != nstance.ReclaimDrain { // which is the zero value of a group
		merged.OnReclaim = g.OnReclaim
	}
	if g.WarmPool != nil {
		merged.WarmPool = nstance.WarmPool{Size: g.WarmPool.Size, Mode: g.WarmPool.Mode, MaxAge: g.WarmPool.MaxAge, NoReturn: !g.WarmPool.Return}
	}
	if g.Spread != nil {
		merged.Spread = nstance.Spread(*g.Spread)
	}
	merged.Definition.Files, merged.Definition.Certificates = t.definitions(c)
	merged.Definition.PostApply = t.PostApply
	merged.Definition.Image, merged.Definition.Track = c.Images[t.Image].ID, t.Track
	merged.Definition.LoadBalancers = shape.LoadBalancers
	if t.UserData != nil {
		merged.Definition.UserData = t.UserData.definition()
	}
	return clone(merged)
}

func orZero(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

// over returns s with what it leaves open taken from base. Args and Vars are
// merged elsewhere.
func (s Shape) over(base Shape) Shape {
	if s.Size == nil {
		s.Size = base.Size
	}
	if len(s.types()) == 0 {
		s.InstanceType, s.InstanceTypes = base.InstanceType, base.InstanceTypes
	}
	if s.SubnetPool == "" {
		s.SubnetPool = base.SubnetPool
	}
	if s.Market == nil {
		s.Market = base.Market
	}
	if s.LoadBalancers == nil {
		s.LoadBalancers = base.LoadBalancers
	}
	return s
}

func (s Shape) types() []string {
	if s.InstanceType != "" {
		return []string{s.InstanceType}
	}
	return s.InstanceTypes
}

func (m *Market) definition() nstance.Market {
	if m == nil {
		return nstance.Market{Type: nstance.OnDemand}
	}
	out := nstance.Market{Type: m.Type, MaxPrice: m.MaxPrice, FallbackAfter: m.FallbackAfter, ReturnAfter: m.ReturnAfter, OnDemandBase: m.OnDemandBase}
	if m.FallbackWhen != nil {
		out.FallbackWhen = nstance.ReclaimLimit(*m.FallbackWhen)
	}
	if m.Fallback != "none" {
		out.Fallback = nstance.MarketType(m.Fallback)
	}
	return out
}

func mergeVars(levels ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, vars := range levels {
		maps.Copy(out, vars)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// mergeArgs merges objects deeply; anything else replaces what it falls on.
func mergeArgs(levels ...json.RawMessage) json.RawMessage {
	out := map[string]any{}
	for _, raw := range levels {
		out = deepMerge(out, decodeArgs(raw))
	}
	merged, err := json.Marshal(out)
	if err == nil {
		merged, err = confighash.Canonical(merged)
	}
	if err != nil {
		panic("config: canonical arguments do not merge: " + err.Error())
	}
	return merged
}

// decodeArgs decodes what confighash.Canonical made.
func decodeArgs(raw json.RawMessage) map[string]any {
	if raw == nil {
		return nil
	}
	var v map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		panic("config: canonical arguments do not decode: " + err.Error())
	}
	return v
}

func deepMerge(base, over map[string]any) map[string]any {
	for k, v := range over {
		b, okB := base[k].(map[string]any)
		o, okO := v.(map[string]any)
		if okB && okO {
			v = deepMerge(b, o)
		}
		base[k] = v
	}
	return base
}
