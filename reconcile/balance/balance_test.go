package balance_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/balance"
)

var front = nstance.LoadBalancer{Name: "front", ID: "lb-1"}

// A shard is a source and a provider with one load balancer.
type shard struct {
	mu        sync.Mutex
	wanted    map[string]balance.Membership // by provider ID
	frozen    bool
	in        map[string]bool
	withdrawn []string
	asked     int         // times that members were asked for
	onAsked   func(n int) // called before the nth answer
	refuse    error       // of every change
	joinDelay time.Duration
}

func newShard(wanted map[string]balance.Membership, in ...string) *shard {
	s := &shard{wanted: wanted, in: map[string]bool{}}
	for _, id := range in {
		s.in[id] = true
	}
	return s
}

func (s *shard) Members(_ balance.Target, _ bool) (out []balance.Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.onAsked != nil {
		s.onAsked(s.asked)
	}
	for _, id := range slices.Sorted(maps.Keys(s.wanted)) {
		out = append(out, balance.Member{Machine: nstance.Machine{ProviderID: id}, Membership: s.wanted[id], Frozen: s.frozen})
	}
	return out
}

func (s *shard) Withdrawn(machines []nstance.Machine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range machines {
		s.withdrawn = append(s.withdrawn, m.ProviderID)
	}
}

func (s *shard) Suspect(nstance.InstanceID) {}

func (s *shard) BalancerMembers(context.Context, nstance.LoadBalancer) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.in)), nil
}

func (s *shard) JoinBalancer(_ context.Context, _ nstance.LoadBalancer, machines []nstance.Machine) error {
	if s.joinDelay > 0 {
		<-time.After(s.joinDelay)
	}
	return s.change(machines, true)
}

func (s *shard) LeaveBalancer(_ context.Context, _ nstance.LoadBalancer, machines []nstance.Machine) error {
	return s.change(machines, false)
}

func (s *shard) change(machines []nstance.Machine, in bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		return s.refuse
	}
	for _, m := range machines {
		s.in[m.ProviderID] = in
		if !in {
			delete(s.in, m.ProviderID)
		}
	}
	return nil
}

func (s *shard) members() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.in))
}

func (s *shard) want(id string, m balance.Membership) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted[id] = m
}

// keep runs a keeper of s in a bubble.
func keep(t *testing.T, s *shard, test func(t *testing.T, k *balance.Keeper)) {
	synctest.Test(t, func(t *testing.T) {
		k := balance.New(s, balance.Options{Check: func() error { return nil }, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
		k.Configure([]nstance.LoadBalancer{front})
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		running.Go(func() { k.Run(ctx, s) })
		test(t, k)
	})
}

func pass(d time.Duration) {
	<-time.After(d) // of the bubble
	synctest.Wait()
}

func all(balance.Target) bool { return true }

func TestMembersFollow(t *testing.T) {
	s := newShard(map[string]balance.Membership{"a": balance.In, "b": balance.Unchanged, "c": balance.Out, "d": balance.Unchanged}, "c", "d", "foreign")
	keep(t, s, func(t *testing.T, k *balance.Keeper) {
		require.Equal(t, []string{"front"}, k.Attached("b", true), "it is not known yet which are members")
		require.Empty(t, k.Attached("b", false))
		pass(time.Second)
		require.Equal(t, []string{"a", "d", "foreign"}, s.members())
		require.Equal(t, []string{"c"}, s.withdrawn)
		require.Equal(t, []string{"front"}, k.Attached("a", true))
		require.Empty(t, k.Attached("b", true))
		s.want("a", balance.Out)
		pass(time.Minute)
		require.Contains(t, s.members(), "a", "nothing was marked")
		k.Mark(all)
		pass(time.Second)
		require.Equal(t, []string{"d", "foreign"}, s.members())
	})
}

// TestMemberLeavesBeforeItJoins: a deletion that begins between the two questions
// is not joined, and one that begins later finds that the machine is about to be.
func TestMemberLeavesBeforeItJoins(t *testing.T) {
	s := newShard(map[string]balance.Membership{"a": balance.In, "b": balance.In})
	s.onAsked = func(n int) {
		if n == 2 {
			s.wanted["a"] = balance.Out
		}
	}
	s.joinDelay = time.Minute
	keep(t, s, func(t *testing.T, k *balance.Keeper) {
		pass(time.Second)
		require.Equal(t, []string{"front"}, k.Attached("b", true), "its join has no answer yet")
		require.Empty(t, k.Attached("a", true))
		pass(time.Minute)
		require.Equal(t, []string{"b"}, s.members())
	})
}

func TestFailureIsRepeated(t *testing.T) {
	s := newShard(map[string]balance.Membership{"a": balance.In})
	s.refuse = nstance.Errorf(nstance.Unavailable, "no answer")
	keep(t, s, func(t *testing.T, k *balance.Keeper) {
		pass(time.Second)
		require.Len(t, k.Failures(), 1)
		require.Equal(t, "front", k.Failures()[0].Name)
		require.Equal(t, []string{"front"}, k.Attached("a", true), "the call may have landed")
		s.mu.Lock()
		s.refuse = nil
		s.mu.Unlock()
		pass(time.Minute)
		require.Equal(t, []string{"a"}, s.members())
		require.Empty(t, k.Failures())
	})
}

// TestRemovedIsLeft: from a load balancer that is not configured any more members
// are withdrawn, unless a freeze keeps them.
func TestRemovedIsLeft(t *testing.T) {
	s := newShard(map[string]balance.Membership{"a": balance.Unchanged}, "a")
	s.frozen = true
	keep(t, s, func(t *testing.T, k *balance.Keeper) {
		pass(time.Second)
		k.Configure(nil)
		pass(time.Hour)
		require.Equal(t, []string{"front"}, k.Names(), "a freeze detains a member")
		s.mu.Lock()
		s.frozen, s.wanted["a"] = false, balance.Out
		s.mu.Unlock()
		k.Thaw()
		pass(time.Second)
		require.Empty(t, s.members())
		require.Empty(t, k.Names())
	})
}

func TestDeletedMachineIsWithdrawn(t *testing.T) {
	s := newShard(map[string]balance.Membership{}, "gone")
	keep(t, s, func(t *testing.T, k *balance.Keeper) {
		pass(time.Second)
		k.WithdrawDeleted(nstance.Machine{ProviderID: "gone"}, []string{"front", "unknown"})
		k.CompareAll(false)
		pass(time.Second)
		require.Empty(t, s.members())
	})
}

// A machine that is ready joins, and leaves when its removal begins.
func Example() {
	s := newShard(map[string]balance.Membership{"i-1": balance.In})
	k := balance.New(s, balance.Options{Check: func() error { return nil }, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	k.Configure([]nstance.LoadBalancer{front})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { k.Run(ctx, s) })
	for len(s.members()) == 0 {
		<-time.After(10 * time.Millisecond)
	}
	fmt.Println("joined:", s.members())
	s.want("i-1", balance.Out)
	k.Mark(func(t balance.Target) bool { return t.Name == "front" })
	for len(s.members()) > 0 {
		<-time.After(10 * time.Millisecond)
	}
	fmt.Println("left")
	stop()
	running.Wait()
	// Output:
	// joined: [i-1]
	// left
}
