package reconcile_test

import (
	"context"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// hostCloud is a provider that chooses hosts: the next machine is on the next of them.
type hostCloud struct {
	nstance.Provider
	mu     sync.Mutex
	next   []string
	hosts  map[nstance.InstanceID]string
	limits []int // of the creates
}

func (c *hostCloud) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	c.mu.Lock()
	c.limits = append(c.limits, spec.HostLimit)
	if c.hosts[spec.ID] == "" {
		c.hosts[spec.ID], c.next = c.next[0], c.next[1:]
	}
	c.mu.Unlock()
	spec.HostLimit = 0
	m, err := c.Provider.Create(ctx, spec)
	return c.on(m), err
}

func (c *hostCloud) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	m, err := c.Provider.Get(ctx, id)
	return c.on(m), err
}

func (c *hostCloud) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		for m, err := range c.Provider.List(ctx, owner) {
			if !yield(c.on(m), err) {
				return
			}
		}
	}
}

func (c *hostCloud) on(m nstance.Machine) nstance.Machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	m.Zone = c.hosts[m.ID]
	return m
}

// count returns how many of these machines are on each host.
func (c *hostCloud) count(ids []nstance.InstanceID) map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{}
	for _, id := range ids {
		out[c.hosts[id]]++
	}
	return out
}

// TestSpreadByHost: each create says how many machines of its group one host may have, no
// shape is preferred for it, and members leave the most crowded host first.
func TestSpreadByHost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Subnets: map[string]int{"a": 100, "b": 100}})
		defer w.close()
		cloud := &hostCloud{Provider: w.cloud, next: []string{"1", "2", "2", "2", "3", "1"}, hosts: map[nstance.InstanceID]string{}}
		w.wrap = func(o *leaderEnv) { o.provider = cloud }
		g := webGroup(6)
		g.Definition.Subnets = []string{"a", "b"}
		w.startLeader(g)
		w.advance(2 * time.Minute)
		w.requireMembers(6)
		require.Equal(t, []int{0, 0, 0, 0, 0, 0}, cloud.limits)
		require.Equal(t, map[string]int{"1": 2, "2": 3, "3": 1}, cloud.count(w.ready()))
		before := w.ready()

		g.Spread = nstance.Spread{By: nstance.SpreadHost, MaxShare: nstance.Count{N: 33, Percent: true}}
		w.setGroupAndAdvance(g, 5*time.Minute)
		require.Equal(t, before, w.ready(), "nothing moves")
		g.Size = 3
		w.changeLeader(g)
		w.advance(10 * time.Minute)
		w.requireMembers(3)
		require.Equal(t, map[string]int{"1": 1, "2": 1, "3": 1}, cloud.count(w.ready()))

		cloud.limits, cloud.next, g.Size = nil, []string{"4", "4", "4"}, 6
		w.setGroupAndAdvance(g, 2*time.Minute)
		w.requireMembers(6)
		require.Equal(t, []int{2, 2, 2}, cloud.limits)
		require.Equal(t, map[string]int{"a": 6}, w.perSubnet())
	})
}

// TestSpreadByHostIsRefused: a provider that does not choose hosts makes no machine of such a
// group, and the reason names the field.
func TestSpreadByHostIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		g := webGroup(1)
		g.Spread = nstance.Spread{By: nstance.SpreadHost, MaxShare: nstance.Count{N: 1}}
		w.startLeader(g)
		w.advance(time.Minute)
		require.Empty(t, w.cloud.Machines())
		held := w.first(nstance.EventHoldStarted, func(nstance.Event) bool { return true })
		require.Contains(t, held.Reason, "spread.by: this provider does not choose hosts (use zone or pool)")
	})
}
