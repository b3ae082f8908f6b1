package registration

import (
	"hash/maphash"
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/nstance-go/nstance"
)

// buckets is how many token buckets all sources share. A source is assigned to
// one by a keyed hash, so memory is bounded whatever strangers send, and nobody
// can choose whom to starve: two busy sources meet in one bucket by chance only.
const buckets = 4096

// A Limit is a token bucket. Zero fields mean the default.
type Limit struct {
	PerSecond float64
	Burst     int
}

func (l Limit) or(d Limit) Limit {
	if l.PerSecond == 0 {
		l.PerSecond = d.PerSecond
	}
	if l.Burst == 0 {
		l.Burst = d.Burst
	}
	return l
}

func (l Limit) validate(field string) error {
	if l.PerSecond > 0 && l.Burst > 0 {
		return nil
	}
	return nstance.FieldError(field, "use positive numbers, or zero for the default", "is %v per second, burst %d", l.PerSecond, l.Burst)
}

func (l Limit) limiter() *rate.Limiter { return rate.NewLimiter(rate.Limit(l.PerSecond), l.Burst) }

type limits struct {
	seed   maphash.Seed
	each   []*rate.Limiter
	global *rate.Limiter
}

func newLimits(each, global Limit) *limits {
	l := &limits{seed: maphash.MakeSeed(), each: make([]*rate.Limiter, buckets), global: global.limiter()}
	for i := range l.each {
		l.each[i] = each.limiter()
	}
	return l
}

// source admits or refuses a registration. IPv6 hosts are counted by their /64,
// of which a single host may use every address.
func (l *limits) source(addr netip.Addr, now time.Time) error {
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		addr = netip.PrefixFrom(addr, 64).Masked().Addr()
	}
	if !l.of(addr.String()).AllowN(now, 1) {
		return throttled("too many registrations from %s", addr)
	}
	if !l.global.AllowN(now, 1) {
		return throttled("too many registrations")
	}
	return nil
}

// subject admits or refuses a renewal. Its source has been authenticated, so
// that strangers' registrations do not count against it.
func (l *limits) subject(id nstance.Identity, now time.Time) error {
	if !l.of(string(id.Tenant)+"/"+id.Subject).AllowN(now, 1) {
		return throttled("too many renewals by %s", id.Subject)
	}
	return nil
}

func (l *limits) of(key string) *rate.Limiter { return l.each[maphash.String(l.seed, key)%buckets] }

func throttled(format string, args ...any) error {
	return refuseField(nstance.Throttled, "", "repeat with growing delays", format, args...)
}
