package webhook

import (
	"cmp"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	// maxNamed is how many instances a message names.
	maxNamed = 100
	// maxCounted is of how many instances a message says which pools they are of.
	maxCounted = 10_000
)

// A Wave is what one message says of the events that an endpoint had gathered.
type Wave struct {
	Count     int                  `json:"count"`              // of the events
	Last      time.Time            `json:"last"`               // time of the last event
	Deadline  *time.Time           `json:"deadline,omitempty"` // the earliest that a notice has; nil: none has one
	Groups    []GroupCount         `json:"groups"`             // those with most events first
	Pools     []PoolCount          `json:"pools"`              // likewise, as far as they are known, of the first 10,000 events
	Instances []nstance.InstanceID `json:"instances"`          // of the first 100 events
}

// A GroupCount says how many events are of a group.
type GroupCount struct {
	Tenant nstance.TenantID `json:"tenant"`
	Group  nstance.GroupID  `json:"group"`
	Count  int              `json:"count"`
}

// A PoolCount says how many events are of a pool.
type PoolCount struct {
	Pool
	Count int `json:"count"`
}

// gathered are the events that one message stands for.
type gathered struct {
	count     int
	last      time.Time
	deadline  time.Time
	groups    map[nstance.GroupKey]int
	instances []nstance.InstanceID // at most maxCounted
}

func (g *gathered) add(m Message) {
	g.count++
	g.last = m.Time
	if m.Notice != nil && !m.Notice.Deadline.IsZero() && (g.deadline.IsZero() || m.Notice.Deadline.Before(g.deadline)) {
		g.deadline = m.Notice.Deadline
	}
	if g.groups == nil {
		g.groups = map[nstance.GroupKey]int{}
	}
	g.groups[nstance.GroupKey{Tenant: m.Tenant, Group: m.Group}]++
	if len(g.instances) < maxCounted {
		g.instances = append(g.instances, m.Instance)
	}
}

// wave returns nil for a single event, whose message says it all.
func (g *gathered) wave(pool func(nstance.InstanceID) *Pool) *Wave {
	if g.count < 2 {
		return nil
	}
	w := &Wave{Count: g.count, Last: g.last, Groups: g.groupCounts(), Pools: g.poolCounts(pool), Instances: g.instances[:min(maxNamed, len(g.instances))]}
	if !g.deadline.IsZero() {
		w.Deadline = &g.deadline
	}
	return w
}

func (g *gathered) groupCounts() []GroupCount {
	out := make([]GroupCount, 0, len(g.groups))
	for key, n := range g.groups {
		out = append(out, GroupCount{key.Tenant, key.Group, n})
	}
	slices.SortFunc(out, func(a, b GroupCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Group, b.Group))
	})
	return out
}

func (g *gathered) poolCounts(pool func(nstance.InstanceID) *Pool) []PoolCount {
	counts := map[Pool]int{}
	for _, id := range g.instances {
		if p := pool(id); p != nil {
			counts[*p]++
		}
	}
	out := make([]PoolCount, 0, len(counts))
	for p, n := range counts {
		out = append(out, PoolCount{p, n})
	}
	slices.SortFunc(out, func(a, b PoolCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.Market, b.Market))
	})
	return out
}
