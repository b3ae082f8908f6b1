package server

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/server/config"
	"github.com/nstance-go/nstance/storage"
)

// groupsFile is what groups/{shard}.jsonc holds.
type groupsFile struct {
	storage.Header
	Groups map[string]entry `json:"groups"` // by tenant/group
}

// An entry is what is durable of a group beside the configuration.
type entry struct {
	config.Override
	Dynamic  bool     `json:"dynamic,omitempty"`  // made through the API, or not configured any more
	Base     *base    `json:"base,omitempty"`     // what configuration or template made of it last, without Override
	Last     string   `json:"last,omitempty"`     // digest of what it is made from while it is not known what it should be made from
	Was      *base    `json:"was,omitempty"`      // what it is while Override makes no sense
	Removing *removal `json:"removing,omitempty"` // it goes, and its managed members with it
}

// A base is a group as configuration or template made it, so that it can go on
// without them.
type base struct {
	Template     string          `json:"template,omitempty"`
	Size         int             `json:"size"`
	Definition   string          `json:"definition"` // digest
	DrainTimeout config.Duration `json:"drain_timeout"`
	Rollout      *config.Pace    `json:"rollout"`
	Protect      bool            `json:"protect,omitempty"`
}

// A last is what an open group is.
type last struct {
	digest string // of what it is made from
	whole  *base  // nil: the rest is what is wanted
}

// A removal says who wants a group to go, and since when.
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

func (f groupsFile) of(key nstance.GroupKey) entry { return f.Groups[key.String()] }

// keys returns the keys of the entries in order; what is no key is left alone.
func (f groupsFile) keys() (out []nstance.GroupKey) {
	for _, name := range slices.Sorted(maps.Keys(f.Groups)) {
		tenant, group, _ := strings.Cut(name, "/")
		key := nstance.GroupKey{Tenant: nstance.TenantID(tenant), Group: nstance.GroupID(group)}
		if key.Tenant.Validate("tenant") == nil && key.Group.Validate("group") == nil {
			out = append(out, key)
		}
	}
	return out
}

// use returns how many groups of a tenant the API made, and how many bytes it says
// of all its groups.
func (f groupsFile) use(conf *config.Config, tenant nstance.TenantID) (groups, bytes int) {
	for name, e := range f.Groups {
		of, group, _ := strings.Cut(name, "/")
		if of != string(tenant) {
			continue
		}
		if key := (nstance.GroupKey{Tenant: tenant, Group: nstance.GroupID(group)}); !conf.Static(key) && e.exists() {
			groups++
		}
		bytes += e.Bytes()
	}
	return groups, bytes
}

// exists reports whether the entry by itself makes a group.
func (e entry) exists() bool { return e.Template != "" || e.Base != nil }

// definitions returns the digests that the entry names.
func (e entry) definitions() (out []string) {
	if e.Base != nil {
		out = append(out, e.Base.Definition)
	}
	if e.Last != "" { // which is also that of Was
		out = append(out, e.Last)
	}
	return out
}

// protected reports whether the group must not be deleted.
func (e entry) protected() bool {
	if e.Protect != nil {
		return *e.Protect
	}
	return e.Base != nil && e.Base.Protect
}

// alone reports whether a group stands on its last definition, which is complete.
func (e entry) alone(conf *config.Config, key nstance.GroupKey) bool {
	_, templated := conf.Templates[e.Template]
	return !conf.Static(key) && !templated
}

// overlay returns what is laid over the group if it is configured. What it was
// as a dynamic group counts no more then.
func (e entry) overlay() config.Override {
	if e.Dynamic {
		return config.Override{}
	}
	return e.Override
}

// set returns what the API says of a group.
func (e entry) set(static bool) config.Override {
	if static {
		return e.overlay()
	}
	return e.Override
}

func (f *groupsFile) put(key nstance.GroupKey, e entry) {
	if f.Groups == nil {
		f.Groups = map[string]entry{}
	}
	f.Groups[key.String()] = e
}

// settle brings the file in step with a configuration.
func (f *groupsFile) settle(conf *config.Config, bases map[nstance.GroupKey]*base, lasts map[nstance.GroupKey]*last, gone []nstance.GroupKey) {
	for key, b := range bases {
		e := f.of(key)
		switch {
		case conf.Static(key):
			e = entry{Override: e.overlay(), Base: b}
		case e.exists():
			e.Base = b
		default:
			continue
		}
		f.put(key, e)
	}
	for _, key := range f.keys() {
		e := f.of(key)
		e.Last, e.Was = "", nil
		if l := lasts[key]; l != nil {
			e.Last, e.Was = l.digest, l.whole
		}
		e.Dynamic = e.Dynamic || !conf.Static(key) && e.exists() // or else it was configured
		f.put(key, e)
	}
	for _, key := range gone {
		if f.of(key).Removing != nil {
			delete(f.Groups, key.String())
		}
	}
}
