package ledger

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/notice"
)

// Rates say what happened in each pool within a period.
type Rates struct {
	Since, Until time.Time // Since is later than asked for if nothing is known before
	Pools        []Rate    // sorted by pool
	Problems     []Problem // objects that are missing in the rates
}

// A Rate is what happened in one pool within a period. Rehearsals do not count.
type Rate struct {
	Pool        Pool
	MachineTime time.Duration // that machines ran, all together
	PricedTime  time.Duration // of MachineTime, that of machines with a known price
	Cost        float64       // of PricedTime, by the prices at launch, in the cloud's currency
	Notices     map[nstance.NoticeKind]int
	Reclaims    int       // machines that the cloud took back, with a notice or without one
	Unwarned    int       // of those, without a notice; spot machines that ended without a known cause are among them
	TooLate     int       // of those, with a notice received at its deadline or later, or gone before their drain began
	LastReclaim time.Time // when the latest of them was announced, or seen

	Measured     int           // notices of reclaims with a deadline
	MedianNotice time.Duration // from their receipt to their deadline
	P10Notice    time.Duration // one notice of ten is shorter, or as short
	Drains       int           // of reclaimed machines, that have ended
	DrainsInTime int           // of those, that ended before deadline and machine

	Recommended          int // machines that the cloud recommended to rebalance
	RecommendedReclaimed int // of those, reclaimed within followWithin

	noticeLengths []time.Duration
}

// RatePeriod is what rates are about unless something else is asked for.
const RatePeriod = 30 * 24 * time.Hour

// followWithin is how soon a reclaim must follow a recommendation to count as foretold.
const followWithin = time.Hour

// PerHundredHours returns reclaims for 100 hours that a machine runs; 0 if none ran.
func (r *Rate) PerHundredHours() float64 {
	if r.MachineTime <= 0 {
		return 0
	}
	return 100 * float64(r.Reclaims) / r.MachineTime.Hours()
}

// PerDay returns reclaims in the pool for each day of a period.
func (r *Rate) PerDay(period time.Duration) float64 {
	if period <= 0 {
		return 0
	}
	return float64(r.Reclaims) / (period.Hours() / 24)
}

// Rates returns what happened between two times to the lives that the ledger has, and to
// those of instances that have not ended. keep chooses lives by their tenant. An error
// means that the ledger was not read as a whole.
func (r *Reader) Rates(ctx context.Context, since, until time.Time, open []Life, keep func(nstance.TenantID) bool) (Rates, error) {
	c := &counter{
		since: since, until: until, earliest: until, pools: map[Pool]*Rate{},
		of: map[nstance.InstanceID]Pool{}, taken: map[nstance.InstanceID]time.Time{}, recommended: map[nstance.InstanceID]bool{},
		advised: map[ignoredKey]bool{},
	}
	for i := range open {
		if keep(open[i].Tenant) {
			c.life(&open[i])
		}
	}
	var ended []Life
	var ignored []Ignored
	var problems []Problem
	for day, err := range r.Days(ctx, since, time.Time{}) {
		if err != nil {
			return Rates{}, err
		}
		problems = append(problems, day.Problems...)
		ignored = append(ignored, day.Ignored...)
		ended = append(ended, day.Lives...)
	}
	ended = earliest(ended)
	for i := range ended {
		if keep(ended[i].Tenant) {
			c.life(&ended[i])
		}
	}
	for i := range ignored {
		if keep(ignored[i].Tenant) {
			c.ignored(&ignored[i])
		}
	}
	return Rates{Since: c.earliest, Until: until, Pools: c.rates(), Problems: problems}, nil
}

// A counter counts lives once each, by their pools.
type counter struct {
	since, until time.Time
	earliest     time.Time // that anything is known of, not before since
	pools        map[Pool]*Rate
	of           map[nstance.InstanceID]Pool
	taken        map[nstance.InstanceID]time.Time // when the cloud took them back, or said so
	advised      map[ignoredKey]bool
	recommended  map[nstance.InstanceID]bool
}

// An ignoredKey identifies an entry, which may be written twice.
type ignoredKey struct {
	id      nstance.InstanceID
	eventID string
	at      time.Time
}

func (c *counter) within(at time.Time) bool { return !at.Before(c.since) && at.Before(c.until) }

func (c *counter) pool(p Pool) *Rate {
	if c.pools[p] == nil {
		c.pools[p] = &Rate{Pool: p, Notices: map[nstance.NoticeKind]int{}}
	}
	return c.pools[p]
}

func (c *counter) life(l *Life) {
	if _, counted := c.of[l.ID]; counted {
		return
	}
	c.of[l.ID] = l.Pool
	r := c.pool(l.Pool)
	if l.launched() {
		r.ran(c.overlap(l.CreatedAt, cmp.Or(l.GoneAt, l.DeletedAt, c.until)), l.Price)
	}
	warned, reclaim := false, []Interruption{}
	for _, i := range l.Interruptions() {
		rehearsed, takes := notice.Rehearsed(i.Notice), i.Notice.Kind == nstance.Reclaim && !i.Withdrawn
		warned = warned || takes // a rehearsal too: then the cloud took nothing
		if rehearsed || !c.within(i.At()) {
			continue
		}
		r.Notices[i.Notice.Kind]++
		if takes {
			reclaim = append(reclaim, i)
		}
	}
	switch {
	case len(reclaim) > 0:
		c.taken[l.ID] = reclaim[0].At()
		r.reclaimed(l, reclaim)
	case !warned && c.within(l.GoneAt) && notice.TakenBack(l.Loss, l.Pool.Market, !l.RegisteredAt.IsZero()):
		c.taken[l.ID] = l.GoneAt
		r.Reclaims++
		r.Unwarned++
		r.tookBack(l.GoneAt)
	}
}

// ran counts the time that a machine ran.
func (r *Rate) ran(t time.Duration, pricePerHour float64) {
	r.MachineTime += t
	if pricePerHour > 0 {
		r.PricedTime += t
		r.Cost += t.Hours() * pricePerHour
	}
}

// reclaimed counts a machine that was taken back with notices.
func (r *Rate) reclaimed(l *Life, notices []Interruption) {
	r.Reclaims++
	late := l.Outcome == GoneNoDrain
	for _, i := range notices {
		r.tookBack(i.At())
		if deadline := i.Notice.Deadline; !deadline.IsZero() {
			left := deadline.Sub(i.At())
			r.noticeLengths = append(r.noticeLengths, max(0, left))
			late = late || left <= 0
		}
	}
	if late {
		r.TooLate++
	}
	if l.Drain != nil && l.Outcome != "" {
		r.Drains++
		if l.Outcome == Drained {
			r.DrainsInTime++
		}
	}
}

func (r *Rate) tookBack(at time.Time) {
	if at.After(r.LastReclaim) {
		r.LastReclaim = at
	}
}

// ignored counts a notice that doomed nothing. Its pool is that of its instance.
func (c *counter) ignored(i *Ignored) {
	interruption := i.Interruption()
	at := interruption.At()
	key := ignoredKey{i.ID, i.Notice.EventID, i.At}
	if notice.Rehearsed(i.Notice) || !c.within(at) || c.advised[key] {
		return
	}
	c.advised[key] = true
	r := c.pool(c.of[i.ID])
	r.Notices[i.Notice.Kind]++
	if i.Notice.Kind != nstance.Rebalance || c.recommended[i.ID] {
		return
	}
	c.recommended[i.ID] = true
	r.Recommended++
	if taken := c.taken[i.ID]; !taken.Before(at) && taken.Sub(at) <= followWithin {
		r.RecommendedReclaimed++
	}
}

func (c *counter) rates() (all []Rate) {
	for _, r := range c.pools {
		if n := len(r.noticeLengths); n > 0 {
			slices.Sort(r.noticeLengths)
			r.Measured, r.P10Notice, r.MedianNotice, r.noticeLengths = n, r.noticeLengths[(n-1)/10], r.noticeLengths[(n-1)/2], nil
		}
		if r.MachineTime > 0 || r.Reclaims > 0 || len(r.Notices) > 0 {
			all = append(all, *r)
		}
	}
	slices.SortFunc(all, func(a, b Rate) int {
		return cmp.Or(cmp.Compare(a.Pool.InstanceType, b.Pool.InstanceType), cmp.Compare(a.Pool.Zone, b.Pool.Zone), cmp.Compare(a.Pool.Market, b.Pool.Market))
	})
	return all
}

// overlap returns how much of a time lies in the period.
func (c *counter) overlap(start, end time.Time) time.Duration {
	if start.Before(c.since) {
		start = c.since
	}
	if end.After(c.until) {
		end = c.until
	}
	if start.Before(c.earliest) {
		c.earliest = start
	}
	return max(0, end.Sub(start))
}
