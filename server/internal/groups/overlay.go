package groups

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/validate"
)

// overlays is what groups/{shard}.jsonc holds.
type overlays struct {
	records.Header
	Groups map[string]overlay `json:"groups"` // by tenant/group
}

// An overlay is what is durable of a group beside the configuration.
type overlay struct {
	config.Override            // what the API has changed
	Dynamic         bool       `json:"dynamic,omitempty"`   // created through the API, or no longer configured
	Effective       *effective `json:"effective,omitempty"` // nil: it never had a whole definition
	Removing        *removal   `json:"removing,omitempty"`  // the group is being removed
}

// An effective is a group as it was last in effect, so that it can go on without the
// configuration and while a definition is pending.
type effective struct {
	Template      string                `json:"template,omitempty"`
	Size          int                   `json:"size"`
	Definition    string                `json:"definition"` // digest
	DrainTimeout  config.Duration       `json:"drain_timeout"`
	Rollout       *config.Pace          `json:"rollout"`
	Protect       bool                  `json:"protect,omitempty"`
	Spread        *config.Dispersal     `json:"spread,omitempty"`
	Order         nstance.ShapeOrder    `json:"order,omitempty"`
	WarmPool      *config.Reserve       `json:"warm_pool,omitempty"`
	OnReclaim     nstance.ReclaimAction `json:"on_reclaim,omitempty"`
	OnRebalance   nstance.NoticeAction  `json:"on_rebalance,omitempty"`
	OnMaintenance nstance.NoticeAction  `json:"on_maintenance,omitempty"`
}

// A removal says who removed a group, and when.
type removal struct {
	At time.Time `json:"at"`
	By string    `json:"by"`
}

func effectiveOf(spec nstance.Group, digest string) *effective {
	return &effective{
		Template: spec.Template, Size: spec.Size, Definition: digest, DrainTimeout: config.Duration(spec.DrainTimeout),
		Rollout: config.PaceOf(spec.Rollout), Protect: spec.Protect,
		Spread: config.DispersalOf(spec.Spread), Order: spec.Order, WarmPool: config.ReserveOf(spec.WarmPool), OnReclaim: spec.OnReclaim,
		OnRebalance: spec.OnRebalance, OnMaintenance: spec.OnMaintenance,
	}
}

// group returns the group with a definition. Where rollout or spread cannot be read
// there is neither.
func (e *effective) group(key nstance.GroupKey, def nstance.Definition) nstance.Group {
	spec := nstance.Group{Key: key, Template: e.Template, Size: e.Size, Definition: def, DrainTimeout: time.Duration(e.DrainTimeout), Protect: e.Protect}
	if laid, err := config.LaySettings(spec, config.Override{Rollout: e.Rollout, Spread: e.Spread, Order: e.Order, WarmPool: e.WarmPool, OnReclaim: e.OnReclaim, OnRebalance: e.OnRebalance, OnMaintenance: e.OnMaintenance}); err == nil {
		return laid
	}
	return spec
}

func (f overlays) of(key nstance.GroupKey) overlay { return f.Groups[key.String()] }

// keys returns the keys of the overlays in order, without invalid ones.
func (f overlays) keys() (out []nstance.GroupKey) {
	for _, name := range slices.Sorted(maps.Keys(f.Groups)) {
		tenant, group, _ := strings.Cut(name, "/")
		key := nstance.GroupKey{Tenant: nstance.TenantID(tenant), Group: nstance.GroupID(group)}
		if validate.Name("tenant", key.Tenant) == nil && validate.Name("group", key.Group) == nil {
			out = append(out, key)
		}
	}
	return out
}

// usage returns how many groups of a tenant the API has created, and how many bytes
// the overrides of all its groups have.
func (f overlays) usage(conf *config.Config, tenant nstance.TenantID) (groups, bytes int) {
	for name, e := range f.Groups {
		of, group, _ := strings.Cut(name, "/")
		if of != string(tenant) {
			continue
		}
		if key := (nstance.GroupKey{Tenant: tenant, Group: nstance.GroupID(group)}); !conf.Static(key) && e.isGroup() {
			groups++
		}
		bytes += e.Bytes()
	}
	return groups, bytes
}

// isGroup reports whether the overlay defines a group without the configuration.
func (e overlay) isGroup() bool { return e.Template != "" || e.Effective != nil }

// definition returns the digest of the definition in effect; empty: there is none.
func (e overlay) definition() string {
	if e.Effective == nil {
		return ""
	}
	return e.Effective.Definition
}

// standalone reports whether a group rests on its last definition, which is whole.
func (e overlay) standalone(conf *config.Config, key nstance.GroupKey) bool {
	_, templated := conf.Templates[e.Template]
	return !conf.Static(key) && !templated
}

// staticOverride returns what the API has changed of the group if it is configured.
// The override of a dynamic group no longer counts then.
func (e overlay) staticOverride() config.Override {
	if e.Dynamic {
		return config.Override{}
	}
	return e.Override
}

// override returns what the API has changed of the group.
func (e overlay) override(static bool) config.Override {
	if static {
		return e.staticOverride()
	}
	return e.Override
}

func (f *overlays) put(key nstance.GroupKey, e overlay) {
	if f.Groups == nil {
		f.Groups = map[string]overlay{}
	}
	f.Groups[key.String()] = e
}

// forget deletes the overlays of removed groups.
func (f *overlays) forget(removed []nstance.GroupKey) {
	for _, key := range removed {
		if f.of(key).Removing != nil {
			delete(f.Groups, key.String())
		}
	}
}
