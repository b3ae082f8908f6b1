package config

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/nearest"
)

// check reports what is wrong between settings that are each right by
// themselves, and merges the groups if nothing is.
func (d *decoder) check(c *Config) {
	if e := c.Shard.Expiry; e.ForcedAge > 0 && e.EligibleAge > e.ForcedAge {
		d.wrong("shard.expiry.eligible_age", "make it the smaller of the two", "is longer than forced_age")
	}
	for name, cert := range c.Certificates {
		d.certificate(join("certificates", string(name)), cert)
	}
	d.provider(c)
	for name, image := range c.Images {
		d.image(c, join("images", string(name)), image)
	}
	for name, lb := range c.LoadBalancers {
		d.balancer(c, join("load_balancers", string(name)), lb)
	}
	for name, t := range c.Templates {
		d.template(c, join("templates", string(name)), t)
	}
	for tenant, groups := range c.Declared {
		for name, g := range groups {
			d.group(c, join(join("groups", string(tenant)), string(name)), g)
		}
	}
	d.pools(c, "shard.dynamic_subnet_pools", c.Shard.DynamicSubnetPools)
	for i, text := range c.Shard.UserDataNetworks {
		if p, err := netip.ParsePrefix(text); err != nil || p != p.Masked() {
			d.wrong(index("shard.userdata_networks", i), "write an address and its bits, such as 127.0.0.0/8", "%q is no network", clip.Quote(text))
		}
	}
	for id, t := range c.Tenants {
		d.tenant(c, join("tenants", string(id)), t)
	}
	if len(d.problems) > 0 {
		return
	}
	for tenant, groups := range c.Declared {
		for name, g := range groups {
			c.groups = append(c.groups, c.merge(nstance.GroupKey{Tenant: tenant, Group: name}, g))
		}
	}
	slices.SortFunc(c.groups, func(a, b nstance.Group) int {
		return cmp.Or(cmp.Compare(a.Key.Tenant, b.Key.Tenant), cmp.Compare(a.Key.Group, b.Key.Group))
	})
	d.tryAll(c)
}

// wrong reports a problem with the setting at path. An absent setting is
// reported where its nearest enclosing object is.
func (d *decoder) wrong(path, remedy, format string, args ...any) {
	for at := path; ; at = at[:max(strings.LastIndexAny(at, ".["), 0)] {
		if offset, ok := d.at[at]; ok || at == "" {
			d.fail(path, offset, remedy, format, args...)
			return
		}
	}
}

func (d *decoder) template(c *Config, path string, t Template) {
	d.shape(c, path, t.Shape)
	d.files(c, path, t)
	d.provisioning(c, path, t)
	if t.Market.spot() && t.Role == controlPlane {
		d.controlPlaneOnSpot(path)
	}
}

func (d *decoder) group(c *Config, path string, g Group) {
	d.shape(c, path, g.Shape)
	t, ok := c.Templates[g.Template]
	if !ok {
		d.wrong(join(path, "template"), nearest.Remedy(string(g.Template), plain(c.templateNames())), "template %q is not defined", g.Template)
		return
	}
	if g.Size == nil && t.Size == nil {
		d.wrong(join(path, "size"), "add it here or to the template", "is missing")
	}
	if g.Market.spot() && t.Role == controlPlane {
		d.controlPlaneOnSpot(path)
	}
}

func (d *decoder) shape(c *Config, path string, s Shape) {
	if s.InstanceType != "" && s.InstanceTypes != nil {
		d.wrong(join(path, "instance_type"), "keep one of them", "is given beside instance_types")
	}
	if _, ok := c.Shard.SubnetPools[s.SubnetPool]; s.SubnetPool != "" && !ok {
		d.wrong(join(path, "subnet_pool"), nearest.Remedy(string(s.SubnetPool), plain(c.poolNames())), "subnet pool %q is not in shard.subnet_pools", s.SubnetPool)
	}
	d.balancers(c, path, s.LoadBalancers)
	if s.Market != nil {
		d.market(c, join(path, "market"), s.Market)
	}
}

func (d *decoder) market(c *Config, path string, m *Market) {
	if m.spot() && c.kind != nil && !c.kind.Spot {
		d.wrong(join(path, "type"), "use on-demand", "provider %s has no spot capacity", c.kind.Name)
	}
	const remedy = "remove it, or set type to spot"
	if m.MaxPrice != "" && !m.spot() {
		d.wrong(join(path, "max_price"), remedy, "means nothing on on-demand capacity")
	}
	if m.Fallback != noFallback && !m.spot() {
		d.wrong(join(path, "fallback"), remedy, "means nothing on on-demand capacity")
	}
	if m.FallbackAfter > 0 && m.Fallback == noFallback {
		d.wrong(join(path, "fallback_after"), "remove it, or set fallback", "means nothing without fallback")
	}
	if m.ReturnAfter > 0 && m.Fallback == noFallback {
		d.wrong(join(path, "return_after"), "remove it, or set fallback", "means nothing without fallback")
	}
	if m.OnDemandBase.N > 0 && !m.spot() {
		d.wrong(join(path, "on_demand_base"), remedy, "means nothing on on-demand capacity")
	}
}

const (
	controlPlane = "control-plane"
	noFallback   = "none"
)

func (d *decoder) controlPlaneOnSpot(path string) {
	d.wrong(join(join(path, "market"), "type"), "use on-demand, or another template", "spot is refused for role control-plane")
}

func plain[T ~string](names []T) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = string(n)
	}
	return out
}
