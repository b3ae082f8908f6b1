package registration

import (
	"hash/maphash"
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/buckets"
)

// sourceBuckets is how many token buckets all sources share. A source is assigned to one
// by a keyed hash. So memory is bounded, and an attacker cannot choose an address
// that shares a bucket with another source.
const sourceBuckets = 4096

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
	seed    maphash.Seed
	each    []*rate.Limiter
	global  *rate.Limiter
	holders *buckets.Buckets
}

func newLimits(each, global, holder Limit) *limits {
	l := &limits{
		seed: maphash.MakeSeed(), each: make([]*rate.Limiter, sourceBuckets), global: global.limiter(),
		holders: buckets.New(holder.PerSecond, holder.Burst),
	}
	for i := range l.each {
		l.each[i] = each.limiter()
	}
	return l
}

// source admits or refuses a registration. IPv6 sources are counted by their /64,
// because one host may use every address of it.
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

// subject admits or refuses a renewal or recovery.
func (l *limits) subject(id nstance.Identity, now time.Time) error {
	if !l.holders.Allow(string(id.Role)+"/"+string(id.Tenant)+"/"+id.Subject, now) {
		return throttled("too many renewals by %s", id.Subject)
	}
	return nil
}

func (l *limits) of(key string) *rate.Limiter {
	return l.each[maphash.String(l.seed, key)%sourceBuckets]
}

func throttled(format string, args ...any) error {
	return refuseField(nstance.Throttled, "", "repeat with growing delays", format, args...)
}
