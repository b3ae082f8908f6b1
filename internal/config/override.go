package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/nearest"
)

// An Override is what the API says of a group: what it changed of a static one,
// or all there is of a dynamic one. What is nil or empty is as beneath it: in
// the configuration, in the template, or in the last definition of a group that
// is no longer configured. Its JSON is how groups/{shard}.jsonc spells it.
type Override struct {
	Size          *int              `json:"size,omitempty"`
	InstanceType  *string           `json:"instance_type,omitempty"`  // replaces the whole list
	InstanceTypes []string          `json:"instance_types,omitempty"` // the same for several; never beside InstanceType
	Vars          map[string]string `json:"vars,omitempty"`           // merged over those beneath

	// BootstrapData is the name of what machines made from now on find in their user
	// data. The data is stored apart.
	BootstrapData string `json:"bootstrap_data,omitempty"`

	// What follows is for dynamic groups only.
	Template       TemplateName               `json:"template,omitempty"`
	SubnetPool     PoolName                   `json:"subnet_pool,omitempty"`
	Args           json.RawMessage            `json:"args,omitempty"` // canonical; merged over those beneath
	LoadBalancers  []string                   `json:"load_balancers,omitempty"`
	DrainTimeout   *Duration                  `json:"drain_timeout,omitempty"`
	Rollout        *Pace                      `json:"rollout,omitempty"`
	Protect        *bool                      `json:"protect,omitempty"`
	Market         *Purchase                  `json:"market,omitempty"` // replaces the whole
	Spread         *Dispersal                 `json:"spread,omitempty"` // replaces the whole; without MaxShare there is none
	Order          nstance.ShapeOrder         `json:"order,omitempty"`
	WarmPool       *Reserve                   `json:"warm_pool,omitempty"` // replaces the whole; without Size there is none
	OnReclaim      nstance.ReclaimAction      `json:"on_reclaim,omitempty"`
	OnRebalance    nstance.NoticeAction       `json:"on_rebalance,omitempty"`
	OnMaintenance  nstance.NoticeAction       `json:"on_maintenance,omitempty"`
	OnDrainTimeout nstance.DrainTimeoutAction `json:"on_drain_timeout,omitempty"`
}

// A Purchase is a Market as the API says it.
type Purchase struct {
	Type          nstance.MarketType `json:"type"`
	MaxPrice      string             `json:"max_price,omitempty"`
	Fallback      nstance.MarketType `json:"fallback,omitempty"` // on-demand, or empty for none
	FallbackAfter Duration           `json:"fallback_after,omitempty"`
	ReturnAfter   Duration           `json:"return_after,omitempty"`
	OnDemandBase  string             `json:"on_demand_base,omitempty"` // a count or a percentage
	FallbackWhen  *Reclaims          `json:"fallback_when,omitempty"`
}

// Reclaims is a ReclaimLimit as the API says it.
type Reclaims struct {
	Reclaims int      `json:"reclaims"`
	Window   Duration `json:"window"`
}

// A Reserve is a WarmPool as the API says it.
type Reserve struct {
	Size     int              `json:"size,omitempty"`
	Mode     nstance.ParkMode `json:"mode,omitempty"` // empty: stopped
	MaxAge   Duration         `json:"max_age,omitempty"`
	NoReturn bool             `json:"no_return,omitempty"`
}

// A Dispersal is a Spread as the API says it.
type Dispersal struct {
	By       nstance.SpreadBy `json:"by,omitempty"`        // empty: pool
	MaxShare string           `json:"max_share,omitempty"` // a count or a percentage
}

// A Pace is a Rollout of which any part may be absent.
type Pace struct {
	MaxSurge  string    `json:"max_surge,omitempty"` // a count or a percentage
	MinReady  *Duration `json:"min_ready,omitempty"`
	HaltAfter *int      `json:"halt_after,omitempty"`
}

// A Duration is written as in the configuration, such as "90s".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	t, wrong := parseDuration(string(text))
	if wrong != "" {
		return nstance.Errorf(nstance.Invalid, "%q %s", clip.Quote(string(text)), wrong)
	}
	*d = Duration(t)
	return nil
}

// Empty reports whether o says nothing.
func (o Override) Empty() bool { return Difference(o, Override{}) == "" }

// Over returns o laid over base: what o says replaces what base says. Variables
// that are present but empty give up those of base; likewise lists and args.
func (o Override) Over(base Override) Override {
	o.Rollout = o.Rollout.over(base.Rollout)
	out, from := reflect.ValueOf(&base).Elem(), reflect.ValueOf(o)
	for i := range from.NumField() {
		if f := from.Field(i); !f.IsZero() {
			out.Field(i).Set(f)
		}
	}
	switch {
	case o.InstanceType != nil:
		base.InstanceTypes = nil
	case o.InstanceTypes != nil:
		base.InstanceType = nil
	}
	if string(base.Args) == "{}" {
		base.Args = nil
	}
	return base
}

// over returns p laid over base.
func (p *Pace) over(base *Pace) *Pace {
	if p == nil || base == nil {
		return cmp.Or(p, base)
	}
	out := Pace{MaxSurge: cmp.Or(p.MaxSurge, base.MaxSurge), MinReady: cmp.Or(p.MinReady, base.MinReady), HaltAfter: cmp.Or(p.HaltAfter, base.HaltAfter)}
	return &out
}

// Difference returns the name of the first field in which two overrides differ,
// in the order of their names, or "".
func Difference(a, b Override) string {
	return append(Differences(a, b), "")[0]
}

// Differences returns the names of all fields in which two overrides differ, in
// order.
func Differences(a, b Override) (names []string) {
	fa, fb := a.fields(), b.fields()
	for name := range fa {
		if string(fa[name]) != string(fb[name]) {
			names = append(names, name)
		}
	}
	for name := range fb {
		if _, both := fa[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// fields returns what o says, by name, equal things in equal bytes.
func (o Override) fields() map[string]json.RawMessage {
	if o.InstanceType != nil {
		o.InstanceTypes, o.InstanceType = []string{*o.InstanceType}, nil
	}
	data, err := json.Marshal(o)
	out := map[string]json.RawMessage{}
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		panic("config: an override is not JSON: " + err.Error()) // its args are canonical
	}
	return out
}

// Restricted returns the first field of o that only dynamic groups have, or "".
func (o Override) Restricted() string {
	o.Size, o.InstanceType, o.InstanceTypes, o.Vars, o.BootstrapData = nil, nil, nil, nil, ""
	return Difference(o, Override{})
}

// Static reports whether the configuration has this group.
func (c *Config) Static(key nstance.GroupKey) bool { return c.find(key) >= 0 }

func (c *Config) find(key nstance.GroupKey) int {
	return slices.IndexFunc(c.groups, func(g nstance.Group) bool { return g.Key == key })
}

// Overlay returns the configuration's group at key with o laid over it. It
// fails with NotFound when the configuration has no such group, and with
// Invalid, naming the field, when o makes no sense or says what may not be
// changed of a static group. Whether the caller may override anything is not
// checked here.
func (c *Config) Overlay(key nstance.GroupKey, o Override) (nstance.Group, error) {
	i := c.find(key)
	if i < 0 {
		return nstance.Group{}, nstance.Errorf(nstance.NotFound, "group %s is not in the configuration", key)
	}
	if field := o.Restricted(); field != "" {
		return nstance.Group{}, nstance.FieldError(field, "change it in the configuration",
			"group %s is in the configuration: only size, instance types, vars and bootstrap data may be changed through the API", key)
	}
	return c.Lay(clone(c.groups[i]), o)
}

// Templated returns the dynamic group that a template by itself makes. It fails
// with Invalid, naming the field, when there is no such template.
func (c *Config) Templated(key nstance.GroupKey, name TemplateName) (nstance.Group, error) {
	if _, ok := c.Templates[name]; !ok {
		return nstance.Group{}, nstance.FieldError("template", nearest.Remedy(string(name), plain(c.templateNames())), "template %q is not defined", clip.Quote(string(name)))
	}
	g := Group{Template: name}
	setDefaults(reflect.ValueOf(&g).Elem())
	merged := c.merge(key, g)
	merged.Static = false
	return merged, nil
}

// SizeOf returns the size that a template gives its groups, if it gives one.
func (c *Config) SizeOf(name TemplateName) (int, bool) {
	size := c.Templates[name].Size
	return orZero(size), size != nil
}

// Released returns a group that is no longer configured, as it is now: what
// belongs to the shard and not to the group is as the configuration says today.
func (c *Config) Released(g nstance.Group) nstance.Group {
	g = clone(g)
	g.Static, g.Expiry = false, nstance.Expiry(c.Shard.Expiry)
	if subnets, ok := c.Shard.SubnetPools[PoolName(g.Definition.SubnetPool)]; ok {
		g.Definition.Subnets = slices.Clone(subnets)
	}
	return g
}

// Lay returns g with o laid over it, the template of o apart. It fails with
// Invalid, naming each field, when o makes no sense.
func (c *Config) Lay(g nstance.Group, o Override) (nstance.Group, error) {
	g, err := lay(g, o, laySettings, layShape, layArgs, layMarket, c.layPlace)
	if g.Order == nstance.OrderCheapest && !c.priced() {
		err = errors.Join(err, nstance.FieldError("order", unpricedRemedy, unpriced, c.kind.Name))
	}
	if g.Spread.By == nstance.SpreadHost && !c.placesOnHosts() {
		err = errors.Join(err, nstance.FieldError("spread.by", anyHostRemedy, anyHost, c.kind.Name))
	}
	if wrong, remedy := c.unparkable(g.WarmPool.Mode); wrong != "" {
		err = errors.Join(err, nstance.FieldError("warm_pool.mode", remedy, "%s", wrong))
	}
	return g, errors.Join(validateGroup(g), err)
}

// LaySettings is Lay for what stands beside the definition: size, drain timeout,
// rollout and protection.
func LaySettings(g nstance.Group, o Override) (nstance.Group, error) {
	g, err := lay(g, o, laySettings)
	settings := g
	settings.Definition = nstance.Definition{}
	return g, errors.Join(validateGroup(settings), err)
}

func lay(g nstance.Group, o Override, steps ...func(*nstance.Group, Override) error) (nstance.Group, error) {
	g = clone(g)
	var errs []error
	for _, step := range steps {
		errs = append(errs, step(&g, o))
	}
	return g, errors.Join(errs...)
}

// validateGroup is the group's own Validate, before its user data is fetched.
func validateGroup(g nstance.Group) error {
	if u := &g.Definition.UserData; u.Source == nstance.SourceURL && u.Fetched == nil {
		u.Fetched = []byte{}
	}
	return g.Validate("")
}

// maxInstanceTypes is how many a group may name through the API: the provider is
// asked about each.
const maxInstanceTypes = 64

// layShape lays what may be changed of the definition of any group.
func layShape(g *nstance.Group, o Override) error {
	switch {
	case o.InstanceType != nil && *o.InstanceType == "":
		return nstance.FieldError("instance_type", "leave it out instead", "is empty")
	case o.InstanceType != nil:
		g.Definition.InstanceTypes = []string{*o.InstanceType}
	case len(o.InstanceTypes) > 0:
		if n := len(o.InstanceTypes); n > maxInstanceTypes {
			return nstance.FieldError("instance_types", "use at most 64", "%d are too many", n)
		}
		g.Definition.InstanceTypes = slices.Clone(o.InstanceTypes)
	}
	g.Definition.GivenVars = givenVars(g.Definition, o.Vars)
	g.Definition.Vars = mergeVars(g.Definition.Vars, o.Vars)
	return nil
}

// givenVars returns which variables of d are set through the API once vars are laid over
// its own. One that has the configured value is the configuration's.
func givenVars(d nstance.Definition, vars map[string]string) []string {
	given := slices.Clone(d.GivenVars)
	for name, value := range vars {
		if own, ok := d.Vars[name]; (!ok || own != value) && !slices.Contains(given, name) {
			given = append(given, name)
		}
	}
	slices.Sort(given)
	return given
}

func laySettings(g *nstance.Group, o Override) (err error) {
	g.Size = *cmp.Or(o.Size, &g.Size)
	g.BootstrapData = cmp.Or(o.BootstrapData, g.BootstrapData)
	g.Protect = *cmp.Or(o.Protect, &g.Protect)
	g.Order = cmp.Or(o.Order, g.Order)
	g.OnRebalance, g.OnMaintenance = cmp.Or(o.OnRebalance, g.OnRebalance), cmp.Or(o.OnMaintenance, g.OnMaintenance)
	g.OnDrainTimeout = cmp.Or(o.OnDrainTimeout, g.OnDrainTimeout)
	g.DrainTimeout = time.Duration(*cmp.Or(o.DrainTimeout, new(Duration(g.DrainTimeout))))
	switch o.OnReclaim {
	case "":
	case nstance.ReclaimDrain:
		g.OnReclaim = ""
	default:
		g.OnReclaim = o.OnReclaim
	}
	if o.WarmPool != nil {
		g.WarmPool = o.WarmPool.pool()
	}
	if o.Spread != nil {
		g.Spread, err = o.Spread.spread()
	}
	if o.Rollout == nil {
		return err
	}
	r := &g.Rollout
	r.MinReady = time.Duration(*cmp.Or(o.Rollout.MinReady, new(Duration(r.MinReady))))
	r.HaltAfter = *cmp.Or(o.Rollout.HaltAfter, &r.HaltAfter)
	if o.Rollout.MaxSurge != "" {
		surge, wrong := parseCount("rollout.max_surge", o.Rollout.MaxSurge)
		r.MaxSurge, err = surge, errors.Join(err, wrong)
	}
	return err
}

func (r *Reserve) pool() nstance.WarmPool {
	if *r == (Reserve{}) {
		return nstance.WarmPool{}
	}
	return nstance.WarmPool{Size: r.Size, Mode: cmp.Or(r.Mode, nstance.ParkStopped), MaxAge: time.Duration(r.MaxAge), NoReturn: r.NoReturn}
}

// ReserveOf returns a warm pool as the API says it; nil: none.
func ReserveOf(p nstance.WarmPool) *Reserve {
	if p == (nstance.WarmPool{}) {
		return nil
	}
	return &Reserve{Size: p.Size, Mode: p.Mode, MaxAge: Duration(p.MaxAge), NoReturn: p.NoReturn}
}

func (d *Dispersal) spread() (s nstance.Spread, err error) {
	if *d == (Dispersal{}) {
		return s, nil
	}
	if d.MaxShare != "" {
		s.MaxShare, err = parseCount("spread.max_share", d.MaxShare)
	}
	s.By = cmp.Or(d.By, nstance.SpreadPool)
	return s, err
}

// DispersalOf returns a spread as the API says it; nil: none.
func DispersalOf(s nstance.Spread) *Dispersal {
	if s == (nstance.Spread{}) {
		return nil
	}
	return &Dispersal{By: s.By, MaxShare: s.MaxShare.String()}
}

// parseCount reads a count such as 1 or a percentage such as 20%.
func parseCount(field, s string) (c nstance.Count, err error) {
	err = c.UnmarshalText([]byte(s))
	if e, ok := errors.AsType[*nstance.Error](err); ok {
		e.Field = field
	}
	return c, err
}

// PaceOf returns a rollout in which nothing is absent.
func PaceOf(r nstance.Rollout) *Pace {
	ready, surge := Duration(r.MinReady), strconv.Itoa(r.MaxSurge.N)
	if r.MaxSurge.Percent {
		surge += "%"
	}
	return &Pace{MaxSurge: surge, MinReady: &ready, HaltAfter: &r.HaltAfter}
}

func layArgs(g *nstance.Group, o Override) error {
	if o.Args == nil {
		return nil
	}
	args, err := ParseArgs(o.Args)
	if err == nil {
		g.Definition.Args = mergeArgs(g.Definition.Args, args)
	}
	return err
}

// ParseArgs returns the canonical spelling of args. It fails with Invalid,
// naming the field, for what the configuration would not accept either.
func ParseArgs(args json.RawMessage) (json.RawMessage, error) {
	if offset := tooDeep(args); offset >= 0 {
		return nil, nstance.FieldError("args", "flatten it", "more than %d levels of nesting", maxDepth)
	}
	canonical, err := confighash.Canonical(args)
	if err != nil {
		return nil, err
	}
	return canonical, noTemplates("args", decodeArgs(canonical))
}

// noTemplates refuses strings below v that would be rendered: what comes through
// the API is data.
func noTemplates(path string, v any) error {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range sortedKeys(v) {
			if err := noTemplates(join(path, key), v[key]); err != nil {
				return err
			}
		}
	case []any:
		for i := range v {
			if err := noTemplates(index(path, i), v[i]); err != nil {
				return err
			}
		}
	case string:
		if strings.Contains(v, "{{") {
			return nstance.FieldError(path, "write the value itself, or use a template of the configuration", "looks like a template: only those of the configuration are rendered")
		}
	}
	return nil
}

func layMarket(g *nstance.Group, o Override) (err error) {
	m := o.Market
	if m == nil {
		return nil
	}
	var base nstance.Count
	if m.OnDemandBase != "" {
		base, err = parseCount("market.on_demand_base", m.OnDemandBase)
	}
	g.Definition.Market = nstance.Market{
		Type: cmp.Or(m.Type, nstance.OnDemand), MaxPrice: m.MaxPrice, Fallback: m.Fallback, FallbackAfter: time.Duration(m.FallbackAfter),
		ReturnAfter: time.Duration(m.ReturnAfter), OnDemandBase: base,
	}
	if when := m.FallbackWhen; when != nil {
		g.Definition.Market.FallbackWhen = nstance.ReclaimLimit{Reclaims: when.Reclaims, Window: time.Duration(when.Window)}
	}
	return err
}

func (c *Config) layPlace(g *nstance.Group, o Override) error {
	if o.SubnetPool != "" {
		subnets, ok := c.Shard.SubnetPools[o.SubnetPool]
		if !ok {
			return nstance.FieldError("subnet_pool", nearest.Remedy(string(o.SubnetPool), plain(c.poolNames())), "subnet pool %q is not in shard.subnet_pools", clip.Quote(string(o.SubnetPool)))
		}
		g.Definition.SubnetPool, g.Definition.Subnets = string(o.SubnetPool), slices.Clone(subnets)
	}
	if len(o.LoadBalancers) == 0 {
		return nil
	}
	for _, name := range o.LoadBalancers {
		if _, ok := c.LoadBalancers[BalancerName(name)]; !ok {
			return nstance.FieldError("load_balancers", nearest.Remedy(name, plain(c.balancerNames())), "load balancer %q is not in load_balancers", clip.Quote(name))
		}
	}
	g.Definition.LoadBalancers = slices.Clone(o.LoadBalancers)
	return nil
}
