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
	"github.com/nstance-go/nstance/reconcile/internal/balance"
)

var front = nstance.LoadBalancer{Name: "front", ID: "lb-1"}

// shard is a source and a provider with one load balancer.
type shard struct {
	mu        sync.Mutex
	desired   map[string]balance.Membership // by provider ID
	frozen    bool
	in        map[string]bool
	withdrawn []string
	listCalls int         // calls of BalancerMembers
	onList    func(n int) // called before the nth answer
	changeErr error       // error of every change
	joinDelay time.Duration
}

func newShard(wanted map[string]balance.Membership, in ...string) *shard {
	s := &shard{desired: wanted, in: map[string]bool{}}
	for _, id := range in {
		s.in[id] = true
	}
	return s
}

func (s *shard) Members(_ balance.Target, _ bool) (out []balance.Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listCalls++
	if s.onList != nil {
		s.onList(s.listCalls)
	}
	for _, id := range slices.Sorted(maps.Keys(s.desired)) {
		out = append(out, balance.Member{Machine: nstance.Machine{ProviderID: id}, Membership: s.desired[id], Frozen: s.frozen})
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
	if s.changeErr != nil {
		return s.changeErr
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

func (s *shard) setMembership(id string, m balance.Membership) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.desired[id] = m
}

// withKeeper runs a keeper of s in a bubble.
func withKeeper(t *testing.T, s *shard, test func(t *testing.T, k *balance.Keeper)) {
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

func advance(d time.Duration) {
	<-time.After(d) // virtual time
	synctest.Wait()
}

func all(balance.Target) bool { return true }

func TestMembersFollow(t *testing.T) {
	s := newShard(map[string]balance.Membership{"a": balance.In, "b": balance.Unchanged, "c": balance.Out, "d": balance.Unchanged}, "c", "d", "foreign")
	withKeeper(t, s, func(t *testing.T, k *balance.Keeper) {
		require.Equal(t, []string{"front"}, k.Attached("b", true), "members not listed yet")
		require.Empty(t, k.Attached("b", false))
		advance(time.Second)
		require.Equal(t, []string{"a", "d", "foreign"}, s.members())
		require.Equal(t, []string{"c"}, s.withdrawn)
		require.Equal(t, []string{"front"}, k.Attached("a", true))
		require.Empty(t, k.Attached("b", true))
		s.setMembership("a", balance.Out)
		advance(time.Minute)
		require.Contains(t, s.members(), "a", "not marked")
		k.Mark(all)
		advance(time.Second)
		require.Equal(t, []string{"d", "foreign"}, s.members())
	})
}

// TestMemberLeavesBeforeItJoins: a deletion that begins between the two reads of the
// source is not joined. One that begins later sees the join in flight.
func TestMemberLeavesBeforeItJoins(t *testing.T) {
	s := newShard(map[string]balance.Membership{"a": balance.In, "b": balance.In})
	s.onList = func(n int) {
		if n == 2 {
			s.desired["a"] = balance.Out
		}
	}
	s.joinDelay = time.Minute
	withKeeper(t, s, func(t *testing.T, k *balance.Keeper) {
		advance(time.Second)
		require.Equal(t, []string{"front"}, k.Attached("b", true), "join in flight")
		require.Empty(t, k.Attached("a", true))
		advance(time.Minute)
		require.Equal(t, []string{"b"}, s.members())
	})
}

func TestFailureIsRepeated(t *testing.T) {
	s := newShard(map[string]balance.Membership{"a": balance.In})
	s.changeErr = nstance.Errorf(nstance.Unavailable, "no answer")
	withKeeper(t, s, func(t *testing.T, k *balance.Keeper) {
		advance(time.Second)
		require.Len(t, k.Failures(), 1)
		require.Equal(t, "front", k.Failures()[0].Name)
		require.Equal(t, []string{"front"}, k.Attached("a", true), "the call may have landed")
		s.mu.Lock()
		s.changeErr = nil
		s.mu.Unlock()
		advance(time.Minute)
		require.Equal(t, []string{"a"}, s.members())
		require.Empty(t, k.Failures())
	})
}

// TestRemovedBalancerIsLeft: members leave a load balancer that is no longer configured,
// unless a freeze keeps them.
func TestRemovedBalancerIsLeft(t *testing.T) {
	s := newShard(map[string]balance.Membership{"a": balance.Unchanged}, "a")
	s.frozen = true
	withKeeper(t, s, func(t *testing.T, k *balance.Keeper) {
		advance(time.Second)
		k.Configure(nil)
		advance(time.Hour)
		require.Equal(t, []string{"front"}, k.Names(), "a freeze keeps a member")
		s.mu.Lock()
		s.frozen, s.desired["a"] = false, balance.Out
		s.mu.Unlock()
		k.Thaw()
		advance(time.Second)
		require.Empty(t, s.members())
		require.Empty(t, k.Names())
	})
}

func TestDeletedMachineIsWithdrawn(t *testing.T) {
	s := newShard(map[string]balance.Membership{}, "gone")
	withKeeper(t, s, func(t *testing.T, k *balance.Keeper) {
		advance(time.Second)
		k.WithdrawDeleted(nstance.Machine{ProviderID: "gone"}, []string{"front", "unknown"})
		k.CompareAll(false)
		advance(time.Second)
		require.Empty(t, s.members())
	})
}

// TestDeletedMachineIsAMember: for a machine that the source names, the source decides, also
// where it was thought to be deleted.
func TestDeletedMachineIsAMember(t *testing.T) {
	for _, want := range []balance.Membership{balance.In, balance.Unchanged} {
		s := newShard(map[string]balance.Membership{"kept": want}, "kept", "gone")
		withKeeper(t, s, func(t *testing.T, k *balance.Keeper) {
			advance(time.Second)
			k.WithdrawDeleted(nstance.Machine{ProviderID: "kept"}, []string{"front"})
			k.WithdrawDeleted(nstance.Machine{ProviderID: "gone"}, []string{"front"})
			k.CompareAll(false)
			advance(time.Second)
			require.Equal(t, []string{"kept"}, s.members())
		})
	}
}

// A machine joins when it is ready and leaves when its removal begins.
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
	s.setMembership("i-1", balance.Out)
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
