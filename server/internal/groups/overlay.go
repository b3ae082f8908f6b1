package groups

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/validate"
)

// overlays is what groups/{shard}.jsonc holds.
type overlays struct {
	records.Header
	Groups parts `json:"groups"`
}

var _ records.Parted[overlays] = overlays{}

// An overlay is what is durable of a group beside the configuration.
type overlay struct {
	config.Override            // what the API has changed
	Dynamic         bool       `json:"dynamic,omitempty"`   // created through the API, or no longer configured
	Effective       *effective `json:"effective,omitempty"` // nil: it never had a whole definition
	Removing        *removal   `json:"removing,omitempty"`  // the group is being removed
	Owner           string     `json:"owner,omitempty"`     // of configured groups too
}

// An effective is a group as it was last in effect, so that it can go on without the
// configuration and while a definition is pending.
type effective struct {
	Template       string                     `json:"template,omitempty"`
	Size           int                        `json:"size"`
	Definition     string                     `json:"definition"` // digest
	DrainTimeout   config.Duration            `json:"drain_timeout"`
	Rollout        *config.Pace               `json:"rollout"`
	Protect        bool                       `json:"protect,omitempty"`
	Spread         *config.Dispersal          `json:"spread,omitempty"`
	Order          nstance.ShapeOrder         `json:"order,omitempty"`
	WarmPool       *config.Reserve            `json:"warm_pool,omitempty"`
	OnReclaim      nstance.ReclaimAction      `json:"on_reclaim,omitempty"`
	OnRebalance    nstance.NoticeAction       `json:"on_rebalance,omitempty"`
	OnMaintenance  nstance.NoticeAction       `json:"on_maintenance,omitempty"`
	OnDrainTimeout nstance.DrainTimeoutAction `json:"on_drain_timeout,omitempty"`
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
		OnRebalance: spec.OnRebalance, OnMaintenance: spec.OnMaintenance, OnDrainTimeout: spec.OnDrainTimeout,
	}
}

// group returns the group with a definition. Where rollout or spread cannot be read
// there is neither.
func (e *effective) group(key nstance.GroupKey, def nstance.Definition) nstance.Group {
	spec := nstance.Group{Key: key, Template: e.Template, Size: e.Size, Definition: def, DrainTimeout: time.Duration(e.DrainTimeout), Protect: e.Protect}
	if laid, err := config.LaySettings(spec, config.Override{Rollout: e.Rollout, Spread: e.Spread, Order: e.Order, WarmPool: e.WarmPool, OnReclaim: e.OnReclaim, OnRebalance: e.OnRebalance, OnMaintenance: e.OnMaintenance, OnDrainTimeout: e.OnDrainTimeout}); err == nil {
		return laid
	}
	return spec
}

// keys returns the keys of the overlays in order, without invalid ones.
func (f overlays) keys() (out []nstance.GroupKey) {
	for _, p := range f.Groups {
		if key := p.key(); validate.Name("tenant", key.Tenant) == nil && validate.Name("group", key.Group) == nil {
			out = append(out, key)
		}
	}
	return out
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
