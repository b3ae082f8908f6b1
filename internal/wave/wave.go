// Package wave groups interruptions into waves: those whose notices came close together. The
// status page and nstance-admin top show waves first.
package wave

import (
	"cmp"
	"slices"
	"time"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// Bounds on a wave.
const (
	maxGap   = time.Minute      // between two notices of one wave
	maxSpan  = 15 * time.Minute // from its first notice to its last
	maxPools = 12               // listed of one wave
)

// A Count is how far the interruptions of a wave, or of one of its pools, are.
type Count struct {
	Machines   int `json:"machines"`
	Requested  int `json:"requested"`  // their replacements, those that are ready too
	Replaced   int `json:"replaced"`   // their replacements are ready
	Drained    int `json:"drained"`    // before the cloud's deadline
	Incomplete int `json:"incomplete"` // lost, or drained too late or not to the end
	Running    int `json:"running"`    // the machine is not deleted yet
}

// A Wave is interruptions whose notices came within a minute of one another. A machine
// counts once.
type Wave struct {
	ID        string    `json:"id"` // equal while the wave grows
	Began     time.Time `json:"began"`
	Last      time.Time `json:"last"`           // its latest notice
	Ended     time.Time `json:"ended,omitzero"` // when its last machine was gone; absent while one runs
	Rehearsal bool      `json:"rehearsal,omitempty"`
	Groups    []string  `json:"groups"` // tenant/group, sorted, at most 12
	Count
	Deadline        time.Time `json:"deadline,omitzero"`          // the cloud's earliest, of machines that run
	TightestSeconds *float64  `json:"tightest_seconds,omitempty"` // least time from the end of a drain to the cloud's deadline; below zero: missed; absent: no drain with a deadline has ended
	Pools           []Pool    `json:"pools"`                      // the largest first, at most 12
	PoolsOmitted    int       `json:"pools_omitted,omitempty"`

	Members []*apiv1.Interruption `json:"-"` // by the time of their notices
}

// A Pool is the part of a wave in one pool. Empty fields are not known.
type Pool struct {
	InstanceType string `json:"instance_type"`
	Zone         string `json:"zone"`
	Market       string `json:"market"`
	Count
}

// A Result says how an interruption ended, or that it has not.
type Result string

// The results.
const (
	Running   Result = "running"   // the drain has not ended
	Drained   Result = "drained"   // before the cloud's deadline
	Late      Result = "late"      // drained after it
	CutShort  Result = "cut short" // the drain's deadline came first
	Failed    Result = "failed"    // the drain failed
	Lost      Result = "lost"      // the machine was gone before its drain ended
	Withdrawn Result = "withdrawn"
	Ignored   Result = "ignored" // the notice dooms nothing
)

// Incomplete reports whether work on the machine may have been lost.
func (r Result) Incomplete() bool { return r == Late || r == CutShort || r == Failed || r == Lost }

// ResultOf returns the result of an interruption.
func ResultOf(i *apiv1.Interruption) Result {
	deadline, drained := wire.TimeOf(i.GetNotice().GetDeadline()), wire.TimeOf(i.GetDrainedAt())
	switch {
	case i.GetIgnored() != "":
		return Ignored
	case i.GetWithdrawn():
		return Withdrawn
	case i.GetDrainOutcome() == "drained" && !deadline.IsZero() && drained.After(deadline):
		return Late
	case i.GetDrainOutcome() == "drained":
		return Drained
	case i.GetDrainOutcome() == "cut short":
		return CutShort
	case i.GetDrainOutcome() == "failed":
		return Failed
	case !EndOf(i).IsZero():
		return Lost
	}
	return Running
}

// NoticedAt is what the times of an interruption are counted from.
func NoticedAt(i *apiv1.Interruption) time.Time {
	return wire.TimeOf(cmp.Or(i.GetDetectedAt(), i.GetReceivedAt()))
}

// EndOf returns when the machine was gone or its deletion was confirmed, whichever is known
// and came first; zero: it is there.
func EndOf(i *apiv1.Interruption) time.Time {
	return wire.TimeOf(cmp.Or(i.GetGoneAt(), i.GetDeletedAt()))
}

// Over reports whether nothing more happens to an interruption.
func Over(i *apiv1.Interruption) bool {
	return i.GetIgnored() != "" || i.GetWithdrawn() || !EndOf(i).IsZero()
}

// Of returns the waves of interruptions in any order: those that run first, by their
// deadlines, then the others, the latest first. What was withdrawn or ignored is in none.
func Of(list []*apiv1.Interruption) []*Wave {
	list = slices.DeleteFunc(slices.Clone(list), func(i *apiv1.Interruption) bool { return i.GetIgnored() != "" || i.GetWithdrawn() })
	slices.SortStableFunc(list, func(a, b *apiv1.Interruption) int {
		return cmp.Or(NoticedAt(a).Compare(NoticedAt(b)), cmp.Compare(a.GetInstance(), b.GetInstance()), cmp.Compare(a.GetEventId(), b.GetEventId()))
	})
	open := map[bool]*Wave{} // by whether it is a rehearsal
	var all []*Wave
	for _, i := range list {
		at, w := NoticedAt(i), open[i.GetRehearsal()]
		if w == nil || at.Sub(w.Last) > maxGap || at.Sub(w.Began) > maxSpan {
			w = &Wave{ID: at.UTC().Format("20060102T150405.000") + i.GetInstance(), Began: at, Rehearsal: i.GetRehearsal()}
			open[i.GetRehearsal()], all = w, append(all, w)
		}
		w.Last, w.Members = at, append(w.Members, i)
	}
	for _, w := range all {
		w.count()
	}
	slices.SortStableFunc(all, compare)
	return all
}

func compare(a, b *Wave) int {
	if (a.Running > 0) != (b.Running > 0) {
		return b.Running - a.Running
	}
	if a.Running > 0 {
		return cmp.Or(CompareDeadlines(a.Deadline, b.Deadline), b.Began.Compare(a.Began))
	}
	return b.Began.Compare(a.Began)
}

// CompareDeadlines orders deadlines; those that are not known come last.
func CompareDeadlines(a, b time.Time) int {
	if a.IsZero() != b.IsZero() {
		return map[bool]int{true: 1, false: -1}[a.IsZero()]
	}
	return a.Compare(b)
}

func (w *Wave) count() {
	latest := map[string]*apiv1.Interruption{} // of each machine, by instance
	for _, i := range w.Members {
		latest[i.GetInstance()] = i
	}
	pools, groups := map[Pool]*Count{}, map[string]bool{}
	for _, i := range w.Members {
		w.time(i)
		if latest[i.GetInstance()] != i {
			continue
		}
		key := Pool{InstanceType: i.GetInstanceType(), Zone: i.GetZone(), Market: i.GetMarket()}
		if pools[key] == nil {
			pools[key] = &Count{}
		}
		groups[i.GetTenant()+"/"+i.GetGroup()] = true
		w.add(i)
		pools[key].add(i)
	}
	if w.Running > 0 {
		w.Ended = time.Time{}
	}
	w.list(pools, groups)
}

// time adds the times of an interruption.
func (w *Wave) time(i *apiv1.Interruption) {
	deadline := wire.TimeOf(i.GetNotice().GetDeadline())
	if end := EndOf(i); end.After(w.Ended) {
		w.Ended = end
	}
	if !Over(i) && !deadline.IsZero() && (w.Deadline.IsZero() || deadline.Before(w.Deadline)) {
		w.Deadline = deadline
	}
	end := wire.TimeOf(i.GetDrainedAt())
	if end.IsZero() {
		end = EndOf(i)
	}
	if left := deadline.Sub(end).Seconds(); !deadline.IsZero() && !end.IsZero() && (w.TightestSeconds == nil || left < *w.TightestSeconds) {
		w.TightestSeconds = &left
	}
}

func (w *Wave) list(pools map[Pool]*Count, groups map[string]bool) {
	for p, n := range pools {
		p.Count = *n
		w.Pools = append(w.Pools, p)
	}
	slices.SortFunc(w.Pools, func(a, b Pool) int {
		return cmp.Or(b.Machines-a.Machines, cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.Market, b.Market))
	})
	w.PoolsOmitted = max(0, len(w.Pools)-maxPools)
	w.Pools = w.Pools[:min(len(w.Pools), maxPools)]
	for g := range groups {
		w.Groups = append(w.Groups, g)
	}
	slices.Sort(w.Groups)
	w.Groups = w.Groups[:min(len(w.Groups), maxPools)]
}

func (c *Count) add(i *apiv1.Interruption) {
	c.Machines++
	if i.GetReplacement() != "" {
		c.Requested++
	}
	if i.GetReplacementReadyAt() != nil {
		c.Replaced++
	}
	switch r := ResultOf(i); {
	case r == Drained:
		c.Drained++
	case r.Incomplete():
		c.Incomplete++
	}
	if !Over(i) {
		c.Running++
	}
}
