package ledger

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// A Running is an instance that has not ended.
type Running struct {
	Pool  Pool
	Since time.Time
}

// A Rate is what happened in one pool within a period.
type Rate struct {
	Pool     Pool
	Machines time.Duration // that machines ran, all together
	Reclaims int           // machines that the cloud took back, with a notice or without one
	Unwarned int           // of those, without a notice

	Notices       int           // with a deadline
	MinNotice     time.Duration // from their receipt to their deadline
	MedianNotice  time.Duration
	Drains        int // for a notice, that have ended
	DrainsInTime  int
	noticeLengths []time.Duration
}

// PerDay returns reclaims for a day that a machine runs; 0 if none ran.
func (r *Rate) PerDay() float64 {
	if r.Machines <= 0 {
		return 0
	}
	return float64(r.Reclaims) / (r.Machines.Hours() / 24)
}

// Rates returns what happened in each pool between two times, sorted by pool. running are
// the instances that have not ended. Rehearsals do not count: skip says which notices are
// some. An error means that the ledger was not read as a whole; problems are objects that
// are missing in the result.
func (r *Reader) Rates(ctx context.Context, from, to time.Time, running []Running, skip func(nstance.Notice) bool) (rates []Rate, problems []Problem, err error) {
	pools := map[Pool]*Rate{}
	of := func(p Pool) *Rate {
		if pools[p] == nil {
			pools[p] = &Rate{Pool: p}
		}
		return pools[p]
	}
	for _, m := range running {
		of(m.Pool).Machines += overlap(m.Since, to, from, to)
	}
	seen := map[nstance.InstanceID]bool{}
	for day, err := range r.Days(ctx, from, time.Time{}) {
		if err != nil {
			return nil, nil, err
		}
		problems = append(problems, day.Problems...)
		for i := range day.Lives {
			if l := &day.Lives[i]; !seen[l.ID] {
				seen[l.ID] = true
				of(l.Pool).add(l, from, to, skip)
			}
		}
	}
	for _, p := range pools {
		p.finish()
		if p.Machines > 0 || p.Reclaims > 0 {
			rates = append(rates, *p)
		}
	}
	slices.SortFunc(rates, func(a, b Rate) int {
		return cmp.Or(cmp.Compare(a.Pool.InstanceType, b.Pool.InstanceType), cmp.Compare(a.Pool.Zone, b.Pool.Zone), cmp.Compare(a.Pool.Market, b.Pool.Market))
	})
	return rates, problems, nil
}

// add counts a life.
func (r *Rate) add(l *Life, from, to time.Time, skip func(nstance.Notice) bool) {
	end := l.DeletedAt
	if !l.GoneAt.IsZero() {
		end = l.GoneAt
	}
	if l.Outcome != NeverLaunched {
		r.Machines += overlap(l.CreatedAt, end, from, to)
	}
	noticed, rehearsed := false, false
	for _, n := range l.Notices {
		i := Interruption{Notice: n}
		at := i.At()
		switch {
		case skip != nil && skip(n):
			rehearsed = true
			continue
		case n.Kind != nstance.Reclaim || at.Before(from) || !at.Before(to):
			continue
		}
		noticed = true
		if !n.Deadline.IsZero() {
			r.noticeLengths = append(r.noticeLengths, max(0, n.Deadline.Sub(at)))
		}
	}
	unwarned := !noticed && !rehearsed && l.Loss == nstance.LossReclaimed && !l.GoneAt.Before(from) && l.GoneAt.Before(to)
	if noticed || unwarned {
		r.Reclaims++
	}
	if unwarned {
		r.Unwarned++
	}
	if noticed && l.Drain != nil {
		r.Drains++
		if l.Outcome == Drained {
			r.DrainsInTime++
		}
	}
}

func (r *Rate) finish() {
	if r.Notices = len(r.noticeLengths); r.Notices == 0 {
		return
	}
	slices.Sort(r.noticeLengths)
	r.MinNotice, r.MedianNotice, r.noticeLengths = r.noticeLengths[0], r.noticeLengths[(r.Notices-1)/2], nil
}

// overlap returns how much of one period lies in another one.
func overlap(start, end, from, to time.Time) time.Duration {
	if start.Before(from) {
		start = from
	}
	if end.After(to) {
		end = to
	}
	return max(0, end.Sub(start))
}
