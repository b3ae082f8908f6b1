package groups

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
)

// A view is what a configuration and the overlays make of every group, and what is summed
// over groups. An edit brings it up to date for its own group alone.
type view struct {
	conf    *config.Config
	writeID string // of the overlays
	groups  map[nstance.GroupKey]viewedGroup
	tenants map[nstance.TenantID]usage
	pending map[nstance.GroupKey]string // why definitions are
	types   counts                      // instance types that groups name
	digests counts                      // definitions that overlays name
}

// A viewedGroup is what one group contributes.
type viewedGroup struct {
	usage
	types  []string
	digest string
}

// usage is what the groups of a tenant amount to.
type usage struct {
	size    int // instances, but for groups that are being removed
	dynamic int // groups that the API has created
	bytes   int // of overrides
}

func (u usage) plus(o usage, sign int) usage {
	return usage{u.size + sign*o.size, u.dynamic + sign*o.dynamic, u.bytes + sign*o.bytes}
}

// counts says how often something is named.
type counts map[string]int

func (c counts) add(name string, n int) {
	if c[name] += n; c[name] == 0 {
		delete(c, name)
	}
}

// newView returns the view of all groups.
func newView(conf *config.Config, file overlays, all []resolution) *view {
	v := &view{
		conf: conf, writeID: file.WriteID, groups: map[nstance.GroupKey]viewedGroup{}, tenants: map[nstance.TenantID]usage{},
		pending: map[nstance.GroupKey]string{}, types: counts{}, digests: counts{},
	}
	for _, p := range file.Groups {
		v.set(p.key(), p.overlay, nil)
	}
	for i := range all {
		v.set(all[i].Key, file.of(all[i].Key), &all[i])
	}
	return v
}

// of returns what a group contributes; r nil: there is no such group.
func (v *view) of(key nstance.GroupKey, e overlay, r *resolution) viewedGroup {
	if r == nil && !e.isGroup() && e.Empty() {
		return viewedGroup{}
	}
	out := viewedGroup{usage: usage{bytes: e.Bytes()}, digest: e.definition()}
	if !v.conf.Static(key) && e.isGroup() {
		out.dynamic = 1
	}
	if r == nil {
		return out
	}
	if !r.Removing {
		out.size = r.Size
	}
	out.types = slices.Concat(r.Definition.InstanceTypes, r.configured.Definition.InstanceTypes)
	return out
}

// set brings the view up to date for one group, and returns what the group contributed
// before and does now; r nil: there is no such group.
func (v *view) set(key nstance.GroupKey, e overlay, r *resolution) (was, is viewedGroup) {
	was, is = v.groups[key], v.of(key, e, r)
	v.add(key, was, -1)
	v.add(key, is, 1)
	if v.groups[key] = is; r == nil && is.bytes == 0 {
		delete(v.groups, key)
	}
	if delete(v.pending, key); r != nil && r.Pending != "" {
		v.pending[key] = r.Pending
	}
	return was, is
}

func (v *view) add(key nstance.GroupKey, g viewedGroup, n int) {
	v.tenants[key.Tenant] = v.tenants[key.Tenant].plus(g.usage, n)
	for _, name := range g.types {
		v.types.add(name, n)
	}
	if g.digest != "" {
		v.digests.add(g.digest, n)
	}
}

// with returns what a tenant's groups amount to if the overlay of one is e.
func (v *view) with(key nstance.GroupKey, e overlay) usage {
	was := v.groups[key]
	return v.tenants[key.Tenant].plus(was.usage, -1).plus(v.of(key, e, nil).usage, 1)
}

// sizes returns the sum of the sizes of a tenant's groups except one.
func (v *view) sizes(except nstance.GroupKey) int {
	return v.tenants[except.Tenant].size - v.groups[except].size
}

func (v *view) problems() (out []string) {
	byName := func(a, b nstance.GroupKey) int { return strings.Compare(a.String(), b.String()) }
	for _, key := range slices.SortedFunc(maps.Keys(v.pending), byName) {
		out = append(out, fmt.Sprintf("group %s has a pending definition: %s", key, v.pending[key]))
	}
	return out
}
