package config

import (
	"cmp"
	"errors"
	"fmt"
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
	d.webhooks(c.Webhooks)
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
	d.groups(c)
	if len(d.problems) == 0 {
		d.tryAll(c)
	}
}

// groups reports what Validate refuses of the shard's settings, the templates and the
// groups.
func (d *decoder) groups(c *Config) {
	d.valid("shard", c.sampleGroup(""))
	for _, name := range c.templateNames() {
		d.valid(join("templates", string(name)), c.sampleGroup(name))
	}
	for _, g := range c.groups {
		d.valid(groupPath(g.Key), g)
	}
}

// valid reports each field of a group that Validate refuses, where the file has it.
func (d *decoder) valid(at string, g nstance.Group) {
	for _, err := range fieldErrors(validateGroup(g)) {
		d.wrong(d.inherited(at, g.Template, err.Field), err.Remedy, "%s", err.Msg)
	}
}

// fieldErrors returns the errors that err joins.
func fieldErrors(err error) (out []*nstance.Error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			out = append(out, fieldErrors(err)...)
		}
	} else if e, ok := errors.AsType[*nstance.Error](err); ok {
		out = append(out, e)
	}
	return out
}

// inherited returns where the file has a field of a group: what the group says itself,
// else its template, else what is beneath both.
func (d *decoder) inherited(at, template, field string) string {
	for path := field; path != ""; path = path[:max(strings.LastIndexAny(path, ".["), 0)] {
		for _, base := range []string{at, join("templates", template), "defaults", "shard"} {
			if d.given(base + "." + path) {
				return base + "." + field
			}
		}
	}
	return strings.TrimSuffix(at+"."+field, ".")
}

// sampleGroup returns a group of a template that says nothing else.
func (c *Config) sampleGroup(name TemplateName) nstance.Group {
	return c.merge(nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "sample"}, Group{Template: name})
}

func groupPath(key nstance.GroupKey) string {
	return join(join("groups", string(key.Tenant)), string(key.Group))
}

// wrong reports a problem with the setting at path, once. An absent setting is
// reported where its nearest enclosing object is.
func (d *decoder) wrong(path, remedy, format string, args ...any) {
	text := path + ": " + fmt.Sprintf(format, args...)
	if d.said[text] {
		return
	}
	d.said[text] = true
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
}

func (d *decoder) group(c *Config, path string, g Group) {
	d.shape(c, path, g.Shape)
	t, ok := c.Templates[g.Template]
	if !ok {
		d.wrong(join(path, "template"), nearest.Remedy(string(g.Template), plain(c.templateNames())), "template %q is not defined", g.Template)
		return
	}
	d.order(c, path, g, t)
	if g.Spread != nil && g.Spread.By == nstance.SpreadHost && !c.placesOnHosts() {
		d.wrong(join(join(path, "spread"), "by"), anyHostRemedy, anyHost, c.kind.Name)
	}
	if g.WarmPool != nil {
		if wrong, remedy := c.unparkable(g.WarmPool.Mode); wrong != "" {
			d.wrong(join(join(path, "warm_pool"), "mode"), remedy, "%s", wrong)
		}
	}
	if g.Size == nil && t.Size == nil {
		d.wrong(join(path, "size"), "add it here or to the template", "is missing")
	}
}

// order refuses a choice by price where the provider has no prices, or there is no choice.
func (d *decoder) order(c *Config, path string, g Group, t Template) {
	s := g.over(t.Shape)
	shapes := max(1, len(s.types())) * max(1, len(c.Shard.SubnetPools[s.SubnetPool]))
	switch {
	case g.Order != nstance.OrderCheapest:
	case !c.priced():
		d.wrong(join(path, "order"), unpricedRemedy, unpriced, c.kind.Name)
	case shapes < 2:
		d.wrong(join(path, "order"), "list several instance_types, or use a subnet pool with several zones", "cheapest has one shape to choose from")
	}
}

const (
	unpriced       = "provider %s has no prices"
	unpricedRemedy = "use listed or steadiest"
)

// priced reports whether the provider, as far as it is known, says what machines cost.
func (c *Config) priced() bool { return c.kind == nil || c.kind.Prices }

const (
	anyHost       = "provider %s does not choose hosts"
	anyHostRemedy = "use zone or pool"
)

// placesOnHosts reports whether the provider, as far as it is known, chooses the hosts of
// machines.
func (c *Config) placesOnHosts() bool { return c.kind == nil || c.kind.Hosts }

// unparkable says why the provider, as far as it is known, has no machines that wait in a
// mode, and what to do; empty: it has.
func (c *Config) unparkable(mode nstance.ParkMode) (wrong, remedy string) {
	if c.kind == nil || mode == "" || mode == nstance.ParkRunning || slices.Contains(c.kind.Park, mode) {
		return "", ""
	}
	return fmt.Sprintf("provider %s cannot have machines %s", c.kind.Name, mode), "use " + strings.Join(append(plain(c.kind.Park), string(nstance.ParkRunning)), " or ")
}

func (d *decoder) shape(c *Config, path string, s Shape) {
	if s.InstanceType != "" && s.InstanceTypes != nil {
		d.wrong(join(path, "instance_type"), "keep one of them", "is given beside instance_types")
	}
	if _, ok := c.Shard.SubnetPools[s.SubnetPool]; s.SubnetPool != "" && !ok {
		d.wrong(join(path, "subnet_pool"), nearest.Remedy(string(s.SubnetPool), plain(c.poolNames())), "subnet pool %q is not in shard.subnet_pools", s.SubnetPool)
	}
	d.balancers(c, path, s.LoadBalancers)
	if s.Market != nil && s.Market.Type == nstance.Spot && c.kind != nil && !c.kind.Spot {
		d.wrong(join(join(path, "market"), "type"), "use on-demand", "provider %s has no spot capacity", c.kind.Name)
	}
}

func plain[T ~string](names []T) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = string(n)
	}
	return out
}
