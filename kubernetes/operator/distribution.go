package operator

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// capacityRetry is for how long a shard that had no capacity is asked for no more than it
// has. Then the even split is tried again.
const capacityRetry = 10 * time.Minute

// Kinds of holds of a group for which no permitted shape can be had.
const (
	holdCapacity = "capacity"       // every one is sold out
	holdAvoided  = "avoided"        // every one is in a pool that an administrator or the cloud avoids
	holdRefused  = "create_refused" // every one is refused, one of them for another reason than capacity
)

// A capacityLimit is how many machines a shard had when it had no capacity for more.
type capacityLimit struct {
	machines int32
	retryAt  time.Time
}

// limitOf returns the limit of a shard's group; nil: it may be asked for any number. While
// the group is short, the limit follows what it has.
func limitOf(g *infrav1.NstanceShardGroup, before *capacityLimit, now time.Time) *capacityLimit {
	if before != nil && !now.Before(before.retryAt) {
		before = nil
	}
	if !lacksCapacity(g) {
		return before
	}
	retryAt := now.Add(capacityRetry)
	if before != nil {
		retryAt = before.retryAt
	}
	return &capacityLimit{machines: machinesOf(g), retryAt: retryAt}
}

// machinesOf is how many machines a shard has of its group, those that boot included.
func machinesOf(g *infrav1.NstanceShardGroup) int32 {
	return ptr.Deref(g.Status.Ready, 0) + ptr.Deref(g.Status.Booting, 0)
}

// lacksCapacity reports whether a shard has fewer machines than it is asked for because
// every permitted shape is sold out, refused or avoided. What it said about an earlier size does not count.
func lacksCapacity(g *infrav1.NstanceShardGroup) bool {
	return g.Status.ObservedGeneration == g.Generation && machinesOf(g) < ptr.Deref(g.Status.Size, 0) &&
		slices.ContainsFunc(g.Status.Holds, func(h infrav1.Hold) bool {
			return h.Kind == holdCapacity || h.Kind == holdAvoided || h.Kind == holdRefused
		})
}

// split divides replicas over shards as evenly as can be. A shard with a limit gets no more
// than that, and the others what is missing. If all are limited, all are asked for what is
// missing: the first that has capacity gets it.
func split(replicas int32, shards []string, has, limits map[string]int32) map[string]int32 {
	out, open, left := map[string]int32{}, slices.Clone(shards), replicas
	for len(open) > 0 {
		parts := splitEvenly(left, open, has)
		var limited []string
		for _, name := range open {
			if limit, ok := limits[name]; ok && limit < parts[name] {
				limited = append(limited, name)
				out[name] = limit
				left -= limit
			} else {
				out[name] = parts[name]
			}
		}
		if limited == nil {
			return out
		}
		open = slices.DeleteFunc(open, func(name string) bool { return slices.Contains(limited, name) })
	}
	for name, n := range splitEvenly(left, shards, has) {
		out[name] += n
	}
	return out
}

// splitEvenly gives the rest to those that have more already, so that no machine moves,
// else to the earlier ones.
func splitEvenly(replicas int32, shards []string, has map[string]int32) map[string]int32 {
	out, n := map[string]int32{}, int32(len(shards))
	order := slices.Clone(shards)
	slices.SortStableFunc(order, func(a, b string) int { return cmp.Compare(has[b], has[a]) })
	for i, name := range order {
		out[name] = replicas / n
		if int32(i) < replicas%n {
			out[name]++
		}
	}
	return out
}

// withSurplus has shards that shrink keep as many of their machines as are not ready at the
// others: what returns to a shard is drained elsewhere only once it is ready. has is how
// many machines each shard has and may keep.
func withSurplus(sizes map[string]int32, shards []string, has, ready map[string]int32) map[string]int32 {
	missing, out := int32(0), map[string]int32{}
	for _, name := range shards {
		if has[name] <= sizes[name] {
			missing += max(0, sizes[name]-ready[name])
		}
	}
	for _, name := range shards {
		kept := min(max(0, has[name]-sizes[name]), missing)
		out[name] = sizes[name] + kept
		missing -= kept
	}
	return out
}

// sizes returns the size of each shard's part. has is how many machines each is asked for
// at present, without those that are chosen to go.
func (s *poolState) sizes(shards []string, has map[string]int32, now time.Time) map[string]int32 {
	replicas := ptr.Deref(s.owner.Spec.Replicas, 1)
	if s.pool.Spec.Distribution != infrav1.DistributionFailover {
		return split(replicas, shards, has, nil)
	}
	limits, ready, present := map[string]int32{}, map[string]int32{}, map[string]int32{}
	for _, name := range shards {
		g := s.groups[name]
		if g == nil {
			continue
		}
		ready[name], present[name] = ptr.Deref(g.Status.Ready, 0), min(has[name], machinesOf(g))
		if g.Status.Ready == nil { // clusterctl move moves no status: the shard may have them all
			present[name] = has[name]
		}
		if limit := limitOf(g, s.formerLimit(name), now); limit != nil {
			s.limits[name], limits[name] = limit, limit.machines
		}
	}
	return withSurplus(split(replicas, shards, has, limits), shards, present, ready)
}

// formerLimit returns the limit that the pool's status has for a shard; nil: none.
func (s *poolState) formerLimit(shard string) *capacityLimit {
	for _, at := range s.pool.Status.Shards {
		if at.Name == shard && at.Limit != nil && at.RetryAt != nil {
			return &capacityLimit{machines: *at.Limit, retryAt: at.RetryAt.Time}
		}
	}
	return nil
}

// showOn sets what a shard's status says of a limit.
func (l *capacityLimit) showOn(at *infrav1.PoolShard) {
	retryAt := metav1.NewTime(l.retryAt)
	at.Limit, at.RetryAt = &l.machines, &retryAt
	at.Message = fmt.Sprintf("no capacity for more than %d machines: other shards have the rest; retry at %s", l.machines, l.retryAt.UTC().Format(time.RFC3339))
}

// nextRetry is how long it takes until a shard may be asked for more again; 0: none waits.
func (s *poolState) nextRetry(now time.Time) (wait time.Duration) {
	for _, l := range s.limits {
		if left := max(l.retryAt.Sub(now), time.Second); wait == 0 || left < wait {
			wait = left
		}
	}
	return wait
}
