package registration

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/nstance-go/nstance"
)

// buckets is how many token buckets all sources share. A source is assigned to one
// by a keyed hash. So memory is bounded, and an attacker cannot choose an address
// that shares a bucket with another source.
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
	seed    maphash.Seed
	each    []*rate.Limiter
	global  *rate.Limiter
	holders holderLimits
}

func newLimits(each, global, holder Limit) *limits {
	l := &limits{
		seed: maphash.MakeSeed(), each: make([]*rate.Limiter, buckets), global: global.limiter(),
		holders: holderLimits{limit: holder, of: map[string]*rate.Limiter{}},
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

// subject admits or refuses a renewal.
func (l *limits) subject(id nstance.Identity, now time.Time) error {
	if !l.holders.allow(string(id.Role)+"/"+string(id.Tenant)+"/"+id.Subject, now) {
		return throttled("too many renewals by %s", id.Subject)
	}
	return nil
}

// holderLimits has a bucket for each holder that has renewed recently. Holders are
// authenticated, so there are at most as many as records.
type holderLimits struct {
	limit Limit

	mu      sync.Mutex
	of      map[string]*rate.Limiter
	sweepAt int // size at which full buckets are removed
}

// minSweep is the number of buckets below which none is removed.
const minSweep = 1024

func (h *holderLimits) allow(holder string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	bucket := h.of[holder]
	if bucket == nil {
		if len(h.of) >= max(h.sweepAt, minSweep) {
			h.sweep(now)
		}
		bucket = h.limit.limiter()
		h.of[holder] = bucket
	}
	return bucket.AllowN(now, 1)
}

// sweep removes full buckets: a new bucket is equal to them.
func (h *holderLimits) sweep(now time.Time) {
	for holder, bucket := range h.of {
		if bucket.TokensAt(now) >= float64(h.limit.Burst) {
			delete(h.of, holder)
		}
	}
	h.sweepAt = 2 * len(h.of)
}

func (l *limits) of(key string) *rate.Limiter { return l.each[maphash.String(l.seed, key)%buckets] }

func throttled(format string, args ...any) error {
	return refuseField(nstance.Throttled, "", "repeat with growing delays", format, args...)
}
