package nstance

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/rules"
)

// The largest values of a group. A shard is made for 10,000 machines, and durations
// must not overflow when they are added.
const (
	maxGroupSize = 100_000
	maxHaltAfter = 1000
	maxReclaims  = 100 // of which a group remembers when they were
	maxPrice     = 32  // characters
)

// The bounds of durations. In seconds or minutes without a unit, each that is within them
// would be less than the least: such a mistake is never in force.
const (
	day         = 24 * time.Hour
	minWait     = time.Second // what is waited for
	maxWait     = 90 * day
	minAge      = time.Minute      // beyond which machines are replaced
	maxAge      = 3650 * day       // of limits too
	minValidity = 10 * time.Minute // of certificates
	maxValidity = 825 * day
)

// Validate returns nil, or an Invalid error that names each wrong field below field
// (empty: as it stands in g) and the remedy. A group without a definition may lack
// everything but its key.
func (g Group) Validate(field string) error {
	v := validator{prefix: field}
	v.rule("tenant", rules.Name(string(g.Key.Tenant)))
	v.rule("group", rules.Name(string(g.Key.Group)))
	v.count("size", g.Size, maxGroupSize)
	v.limit("drain_timeout", g.DrainTimeout)
	v.quantity("rollout.max_surge", g.Rollout.MaxSurge)
	v.wait("rollout.min_ready", g.Rollout.MinReady)
	v.count("rollout.halt_after", g.Rollout.HaltAfter, maxHaltAfter)
	v.age("expiry.eligible_age", g.Expiry.EligibleAge)
	v.age("expiry.forced_age", g.Expiry.ForcedAge)
	v.age("expiry.on_demand_age", g.Expiry.OnDemandAge)
	if e := g.Expiry; e.ForcedAge > 0 && e.EligibleAge > e.ForcedAge {
		v.wrong("expiry.eligible_age", "make it the smaller of the two", "is longer than forced_age")
	}
	v.spread(g)
	v.order(g)
	v.warmPool(g.WarmPool)
	v.word("on_reclaim", string(g.OnReclaim), "", string(ReclaimDrain), string(ReclaimCordon))
	v.word("on_rebalance", string(g.OnRebalance), "", string(NoticeIgnore), string(NoticeReplace), string(NoticeCordon))
	v.word("on_maintenance", string(g.OnMaintenance), "", string(NoticeIgnore), string(NoticeReplace))
	v.word("on_drain_timeout", string(g.OnDrainTimeout), "", string(DrainTimeoutDelete), string(DrainTimeoutWait))
	v.rule("owner", rules.Owner(g.Owner))
	if g.Definition.Kind != "" {
		v.add(g.Definition.validate(field))
	}
	return v.err()
}

// order refuses a choice by price among one shape: nothing would be chosen.
func (v *validator) order(g Group) {
	v.word("order", string(g.Order), "", string(OrderListed), string(OrderCheapest), string(OrderSteadiest))
	shapes := max(1, len(g.Definition.InstanceTypes)) * max(1, len(g.Definition.Subnets))
	if g.Definition.Kind != "" && g.Order == OrderCheapest && shapes < 2 {
		v.wrong("order", "list several instance_types, or subnets in several zones", "cheapest has one shape to choose from")
	}
}

// validate is Validate for what d says.
func (d Definition) validate(field string) error {
	v := validator{prefix: field}
	v.rule("kind", rules.InstanceKind(string(d.Kind)))
	v.word("arch", string(d.Arch), string(AMD64), string(ARM64))
	v.word("role", string(d.Role), "", string(MachineWorker), string(MachineControlPlane))
	v.words("instance_types", d.InstanceTypes)
	v.words("subnets", d.Subnets)
	v.words("load_balancers", d.LoadBalancers)
	v.object("args", d.Args)
	v.userData(d.UserData)
	if _, unnamed := d.Vars[""]; unnamed {
		v.wrong("vars", "give it a name", "a name is empty")
	}
	v.market(d.Market, d.Role)
	v.files(d)
	for _, track := range d.Track {
		v.word("track", string(track), string(TrackVars), string(TrackImage), string(TrackUserData), string(TrackSecrets))
	}
	v.limit("launch_timeout", d.LaunchTimeout)
	v.limit("registration_timeout", d.RegistrationTimeout)
	return v.err()
}

// A validator collects what is wrong with the fields below a path.
type validator struct {
	prefix string
	errs   []error
}

func (v *validator) path(field string) string { return strings.TrimPrefix(v.prefix+"."+field, ".") }

func (v *validator) add(err error) { v.errs = append(v.errs, err) }

func (v *validator) wrong(field, remedy, format string, args ...any) {
	v.add(FieldError(v.path(field), remedy, format, args...))
}

// rule adds what a rule of internal/rules has found, nil for nothing.
func (v *validator) rule(field string, found *rules.Violation) {
	v.add(violation(v.path(field), found))
}

func violation(field string, found *rules.Violation) error {
	if found == nil {
		return nil
	}
	return FieldError(field, found.Remedy, "%s", found.Msg)
}

// err returns the first error with the others in its text.
func (v *validator) err() error { return errors.Join(v.errs...) }

func (v *validator) count(field string, n, most int) {
	if n < 0 || n > most {
		v.wrong(field, "use 0 to "+strconv.Itoa(most), "%d is out of range", n)
	}
}

func (v *validator) quantity(field string, c Count) {
	if c.N < 0 || c.N > maxGroupSize || c.Percent && c.N > 100 {
		v.wrong(field, "use 0 to 100000, or 0% to 100%", "%s is out of range", c)
	}
}

func (v *validator) wait(field string, d time.Duration) {
	v.rule(field, rules.Duration(d, minWait, maxWait))
}

// limit is the rule for what is to end by itself.
func (v *validator) limit(field string, d time.Duration) {
	v.rule(field, rules.Duration(d, minWait, maxAge))
}

func (v *validator) age(field string, d time.Duration) {
	v.rule(field, rules.Duration(d, minAge, maxAge))
}

func (v *validator) word(field, word string, known ...string) {
	if !slices.Contains(known, word) {
		v.wrong(field, "use "+strings.TrimPrefix(strings.Join(known, ", "), ", "), "%q is unknown", clip.Quote(word))
	}
}

// words refuses a list with an empty word or the same word twice.
func (v *validator) words(field string, list []string) {
	for i, word := range list {
		switch {
		case word == "":
			v.wrong(field, "leave it out", "word %d is empty", i+1)
		case slices.Contains(list[:i], word):
			v.wrong(field, "keep one of them", "%q is listed twice", clip.Quote(word))
		}
	}
}

func (v *validator) object(field string, data json.RawMessage) {
	var fields map[string]json.RawMessage
	if data = bytes.TrimSpace(data); len(data) > 0 && json.Unmarshal(data, &fields) != nil {
		v.wrong(field, "use a JSON object", "is none")
	}
}

func (v *validator) userData(u UserData) {
	v.word("userdata.source", string(u.Source), "", string(SourceInline), string(SourceURL))
	v.word("userdata.encoding", string(u.Encoding), "", string(EncodingPlain), string(EncodingBase64), string(EncodingGzip), string(EncodingBase64Gzip))
	if u.Source == SourceURL && u.Fetched == nil {
		v.wrong("userdata.fetched", "fetch the URL and put its bytes here", "is missing")
	}
}

func (v *validator) market(m Market, role MachineRole) {
	spot := m.Type == Spot
	v.word("market.type", string(m.Type), "", string(OnDemand), string(Spot))
	v.word("market.fallback", string(m.Fallback), "", string(OnDemand))
	v.wait("market.fallback_after", m.FallbackAfter)
	v.wait("market.return_after", m.ReturnAfter)
	v.quantity("market.on_demand_base", m.OnDemandBase)
	if limit := m.FallbackWhen; limit != (ReclaimLimit{}) {
		if limit.Reclaims < 1 || limit.Reclaims > maxReclaims {
			v.wrong("market.fallback_when.reclaims", "use 1 to "+strconv.Itoa(maxReclaims), "%d is out of range", limit.Reclaims)
		}
		if v.wait("market.fallback_when.window", limit.Window); limit.Window == 0 {
			v.wrong("market.fallback_when.window", "use a time such as 30m", "is 0")
		}
	}
	if m.MaxPrice != "" && !isPrice(m.MaxPrice) {
		v.wrong("market.max_price", `write a positive decimal such as "0.05"`, "%q is not a price", clip.Quote(m.MaxPrice))
	}
	if spot && role == MachineControlPlane {
		v.wrong("market.type", "use on-demand, or another role", "spot is refused for role control-plane")
	}
	v.unused("market.max_price", !spot && m.MaxPrice != "", "set type to spot", "on on-demand capacity")
	v.unused("market.fallback", !spot && m.Fallback != "", "set type to spot", "on on-demand capacity")
	v.unused("market.on_demand_base", !spot && m.OnDemandBase != Count{}, "set type to spot", "on on-demand capacity")
	v.unused("market.fallback_after", m.Fallback == "" && m.FallbackAfter != 0, "set fallback", "without fallback")
	v.unused("market.fallback_when", m.Fallback == "" && m.FallbackWhen != ReclaimLimit{}, "set fallback to on-demand", "without fallback")
	v.unused("market.return_after", m.Fallback == "" && m.ReturnAfter != 0, "set fallback", "without fallback")
}

// unused refuses a field that has no effect where the group is as it is.
func (v *validator) unused(field string, given bool, instead, where string) {
	if given {
		v.wrong(field, "leave it out, or "+instead, "means nothing %s", where)
	}
}

// isPrice reports whether s is a positive decimal number.
func isPrice(s string) bool {
	whole, fraction, dotted := strings.Cut(s, ".")
	digits := whole + fraction
	return whole != "" && (fraction != "" || !dotted) && len(s) <= maxPrice && strings.Trim(digits, "0123456789") == "" && strings.Trim(digits, "0") != ""
}

func (v *validator) warmPool(p WarmPool) {
	if p == (WarmPool{}) {
		return
	}
	v.count("warm_pool.size", p.Size, maxGroupSize)
	v.word("warm_pool.mode", string(p.Mode), string(ParkStopped), string(ParkHibernated), string(ParkRunning))
	v.age("warm_pool.max_age", p.MaxAge)
}

func (v *validator) spread(g Group) {
	s, market := g.Spread, g.Definition.Market
	if s == (Spread{}) {
		return
	}
	v.word("spread.by", string(s.By), string(SpreadPool), string(SpreadType), string(SpreadZone), string(SpreadSubnet), string(SpreadMarket), string(SpreadHost))
	v.quantity("spread.max_share", s.MaxShare)
	if s.MaxShare.N == 0 {
		v.wrong("spread.max_share", "use a share such as 34%, or leave spread out", "is 0")
	}
	if s.By != SpreadMarket || g.Definition.Kind == "" {
		return
	}
	if market.Type != Spot {
		v.wrong("spread.by", "set market.type to spot, or use pool or zone", "market means nothing on on-demand capacity")
	}
	if market.OnDemandBase != (Count{}) {
		v.wrong("spread.by", "keep one of the two", "market says the same as market.on_demand_base")
	}
}

func (v *validator) files(d Definition) {
	for _, name := range slices.Sorted(maps.Keys(d.Certificates)) {
		v.rule("certificates."+name+".validity", rules.Duration(d.Certificates[name].Validity, minValidity, maxValidity))
	}
	kinds := []string{string(FileString), string(FileEnv), string(FileJSON), string(FileSecret), string(FileStorage), string(FileCertificate)}
	for _, path := range slices.Sorted(maps.Keys(d.Files)) {
		f, field := d.Files[path], "files."+path
		v.rule(field, rules.FilePath(path))
		v.word(field+".kind", string(f.Kind), kinds...)
		if f.Mode != 0 {
			v.rule(field+".mode", rules.FileMode(f.Mode))
		}
		if f.Kind == FileSecret {
			v.rule(field+".secret", rules.SecretName(f.Secret))
		}
		if _, named := d.Certificates[f.Certificate]; f.Kind == FileCertificate && !named {
			v.wrong(field+".certificate", "define it in certificates", "certificate %q is not defined", clip.Quote(f.Certificate))
		}
	}
}
