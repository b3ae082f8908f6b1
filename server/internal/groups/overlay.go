package groups

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/server/config"
	"github.com/nstance-go/nstance/storage"
)

// overlays is what groups/{shard}.jsonc holds.
type overlays struct {
	storage.Header
	Groups map[string]overlay `json:"groups"` // by tenant/group
}

// An overlay is what is durable of a group beside the configuration.
type overlay struct {
	config.Override          // what the API has changed
	Dynamic         bool     `json:"dynamic,omitempty"`  // created through the API, or no longer configured
	Base            *base    `json:"base,omitempty"`     // the group without Override
	LastDefinition  string   `json:"last,omitempty"`     // digest; of an unresolved group
	LastGroup       *base    `json:"was,omitempty"`      // of a group whose Override is invalid
	Removing        *removal `json:"removing,omitempty"` // the group is being removed
}

// A base is a group as configuration or template defined it last, so that it can go
// on without them.
type base struct {
	Template     string          `json:"template,omitempty"`
	Size         int             `json:"size"`
	Definition   string          `json:"definition"` // digest
	DrainTimeout config.Duration `json:"drain_timeout"`
	Rollout      *config.Pace    `json:"rollout"`
	Protect      bool            `json:"protect,omitempty"`
}

// A lastState is what an unresolved group is.
type lastState struct {
	definition string // digest
	group      *base  // nil: all but the definition is resolved
}

// A removal says who removed a group, and when.
type removal struct {
	At time.Time `json:"at"`
	By string    `json:"by"`
}

func baseOf(spec nstance.Group, digest string) *base {
	return &base{
		Template: spec.Template, Size: spec.Size, Definition: digest, DrainTimeout: config.Duration(spec.DrainTimeout),
		Rollout: config.PaceOf(spec.Rollout), Protect: spec.Protect,
	}
}

func (b *base) group(conf *config.Config, key nstance.GroupKey, def nstance.Definition) (nstance.Group, error) {
	spec := nstance.Group{Key: key, Template: b.Template, Size: b.Size, Definition: def, DrainTimeout: time.Duration(b.DrainTimeout), Protect: b.Protect}
	return conf.Lay(spec, config.Override{Rollout: b.Rollout})
}

func (f overlays) of(key nstance.GroupKey) overlay { return f.Groups[key.String()] }

// keys returns the keys of the overlays in order, without invalid ones.
func (f overlays) keys() (out []nstance.GroupKey) {
	for _, name := range slices.Sorted(maps.Keys(f.Groups)) {
		tenant, group, _ := strings.Cut(name, "/")
		key := nstance.GroupKey{Tenant: nstance.TenantID(tenant), Group: nstance.GroupID(group)}
		if key.Tenant.Validate("tenant") == nil && key.Group.Validate("group") == nil {
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
func (e overlay) isGroup() bool { return e.Template != "" || e.Base != nil }

// definitions returns the digests that the overlay names.
func (e overlay) definitions() (out []string) {
	if e.Base != nil {
		out = append(out, e.Base.Definition)
	}
	if e.LastDefinition != "" { // also that of LastGroup
		out = append(out, e.LastDefinition)
	}
	return out
}

// protected reports whether the group must not be deleted.
func (e overlay) protected() bool {
	if e.Protect != nil {
		return *e.Protect
	}
	return e.Base != nil && e.Base.Protect
}

// standalone reports whether a group rests on its last definition, which is
// resolved.
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

// settle makes the overlays follow a configuration.
func (f *overlays) settle(conf *config.Config, bases map[nstance.GroupKey]*base, lasts map[nstance.GroupKey]*lastState, removed []nstance.GroupKey) {
	for key, b := range bases {
		e := f.of(key)
		switch {
		case conf.Static(key):
			e = overlay{Override: e.staticOverride(), Base: b}
		case e.isGroup():
			e.Base = b
		default:
			continue
		}
		f.put(key, e)
	}
	for _, key := range f.keys() {
		e := f.of(key)
		e.LastDefinition, e.LastGroup = "", nil
		if l := lasts[key]; l != nil {
			e.LastDefinition, e.LastGroup = l.definition, l.group
		}
		e.Dynamic = e.Dynamic || !conf.Static(key) && e.isGroup() // a group that was configured
		f.put(key, e)
	}
	for _, key := range removed {
		if f.of(key).Removing != nil {
			delete(f.Groups, key.String())
		}
	}
}
