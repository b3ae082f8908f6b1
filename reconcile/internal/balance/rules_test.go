package balance_test

import (
	"context"
	"errors"
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

// A cloud has any number of load balancers and a shard's members of them.
type cloud struct {
	mu        sync.Mutex
	desired   map[string]map[string]balance.Membership // by name of the load balancer, then by provider ID
	frozen    bool
	in        map[string]map[string]bool // by ID of the load balancer; nil: it does not exist
	calls     []string
	suspects  []string
	withdrawn []string
	asked     []balance.Target            // with all members
	refuse    func(call, id string) error // of one machine
	listErr   error
	over      error // why the term has ended
}

func (c *cloud) Members(t balance.Target, all bool) (out []balance.Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if all {
		c.asked = append(c.asked, t)
	}
	for _, id := range slices.Sorted(maps.Keys(c.desired[t.Name])) {
		m := c.desired[t.Name][id]
		if t.Removed && !c.frozen {
			m = balance.Out
		}
		out = append(out, balance.Member{Machine: nstance.Machine{ID: nstance.InstanceID(id), ProviderID: id}, Membership: m, Frozen: c.frozen})
	}
	return out
}

func (c *cloud) Withdrawn(machines []nstance.Machine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range machines {
		c.withdrawn = append(c.withdrawn, m.ProviderID)
	}
}

func (c *cloud) Suspect(id nstance.InstanceID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.suspects = append(c.suspects, string(id))
}

func (c *cloud) BalancerMembers(_ context.Context, lb nstance.LoadBalancer) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, "list "+lb.ID)
	switch {
	case c.listErr != nil:
		return nil, c.listErr
	case c.in[lb.ID] == nil:
		return nil, nstance.NotFound
	}
	return slices.Collect(maps.Keys(c.in[lb.ID])), nil
}

func (c *cloud) JoinBalancer(_ context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	return c.change("join", lb, machines)
}

func (c *cloud) LeaveBalancer(_ context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	return c.change("leave", lb, machines)
}

func (c *cloud) change(call string, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, fmt.Sprint(call, " ", lb.ID, " ", len(machines)))
	for _, m := range machines {
		if c.refuse == nil {
			break
		}
		if err := c.refuse(call, m.ProviderID); err != nil {
			return err
		}
	}
	for _, m := range machines {
		if call == "join" {
			c.in[lb.ID][m.ProviderID] = true
		} else {
			delete(c.in[lb.ID], m.ProviderID)
		}
	}
	return nil
}

// want sets the members that a load balancer should have.
func (c *cloud) want(name string, m balance.Membership, ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.desired == nil {
		c.desired = map[string]map[string]balance.Membership{}
	}
	if c.desired[name] == nil {
		c.desired[name] = map[string]balance.Membership{}
	}
	for _, id := range ids {
		c.desired[name][id] = m
	}
}

func (c *cloud) members(id string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.in[id]))
}

// next returns the calls since the last time.
func (c *cloud) next() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls = nil
	return calls
}

func (c *cloud) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// keep runs a keeper of c in a bubble, with load balancers that are named as their IDs.
func (c *cloud) keep(t *testing.T, test func(t *testing.T, k *balance.Keeper), names ...string) {
	synctest.Test(t, func(t *testing.T) {
		check := func() error {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.over
		}
		k := balance.New(c, balance.Options{Check: check, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
		k.Configure(balancers(names...))
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		running.Go(func() { k.Run(ctx, c) })
		advance(time.Second)
		test(t, k)
	})
}

func balancers(names ...string) (out []nstance.LoadBalancer) {
	for _, name := range names {
		out = append(out, nstance.LoadBalancer{Name: name, ID: "id-" + name})
	}
	return out
}

// newCloud returns a cloud with the load balancer id-a.
func newCloud(in ...string) *cloud {
	c := &cloud{in: map[string]map[string]bool{"id-a": {}}}
	for _, id := range in {
		c.in["id-a"][id] = true
	}
	return c
}

// TestBatches: calls are about a hundred machines at most, those that leave first, and end with
// the term.
func TestBatches(t *testing.T) {
	c := newCloud()
	for i := range 250 {
		c.want("a", balance.In, fmt.Sprintf("m%03d", i))
	}
	c.in["id-a"]["x"] = true
	c.want("a", balance.Out, "x")
	c.keep(t, func(t *testing.T, k *balance.Keeper) {
		require.Equal(t, []string{"list id-a", "leave id-a 1", "join id-a 100", "join id-a 100", "join id-a 50"}, c.next())
		c.set(func() { c.over = errors.New("over") })
		c.want("a", balance.In, "late")
		c.want("a", balance.Out, "m000")
		k.Mark(all)
		advance(time.Second)
		require.Empty(t, c.next())
		require.Contains(t, c.members("id-a"), "m000")
	}, "a")
}

// TestRefusedMember: one machine that is refused delays no other one. One that the provider does
// not know is reported, others are not, and it is tried again.
func TestRefusedMember(t *testing.T) {
	for _, call := range []string{"join", "leave"} {
		for _, code := range []nstance.Code{nstance.NotFound, nstance.Invalid, nstance.Unavailable} {
			c := newCloud()
			for i := range 5 {
				id := fmt.Sprint("m", i)
				c.want("a", balance.In, id)
				if call == "leave" {
					c.want("a", balance.Out, id)
					c.in["id-a"][id] = true
				}
			}
			c.refuse = func(did, id string) error {
				if did == call && id == "m2" {
					return nstance.Errorf(code, "m2 is refused")
				}
				return nil
			}
			c.keep(t, func(t *testing.T, k *balance.Keeper) {
				name := call + " " + string(code)
				others := []string{"m0", "m1", "m3", "m4"}
				switch {
				case code == nstance.Unavailable && call == "join":
					require.Empty(t, c.members("id-a"), name)
				case code == nstance.Unavailable:
					require.Len(t, c.members("id-a"), 5, name)
					require.Empty(t, c.withdrawn, name)
				case call == "join":
					require.Equal(t, others, c.members("id-a"), name)
				default:
					require.Equal(t, []string{"m2"}, c.members("id-a"), name)
					require.Equal(t, others, c.withdrawn, name)
				}
				if code == nstance.NotFound {
					require.Equal(t, []string{"m2"}, c.suspects, name)
				} else {
					require.Empty(t, c.suspects, name)
				}
				require.Len(t, k.Failures(), 1, name)
				require.ErrorContains(t, k.Failures()[0].Err, "m2 is refused")
				c.set(func() { c.refuse = nil })
				advance(2 * time.Minute)
				require.Empty(t, k.Failures(), name)
				require.Len(t, c.members("id-a"), map[string]int{"join": 5, "leave": 0}[call], name)
			}, "a")
		}
	}
}

// TestTakenApart: a batch that is taken apart is left when the provider answers no more, and not asked
// for machine by machine.
func TestTakenApart(t *testing.T) {
	for _, code := range []nstance.Code{nstance.Throttled, nstance.Unavailable} {
		c := newCloud()
		for i := range 50 {
			c.want("a", balance.In, fmt.Sprintf("m%02d", i))
		}
		c.refuse = func(_, id string) error {
			if id == "m00" {
				return nstance.Errorf(nstance.Invalid, "m00 is refused")
			}
			return code
		}
		c.keep(t, func(t *testing.T, k *balance.Keeper) {
			require.Equal(t, []string{"list id-a", "join id-a 50", "join id-a 1", "join id-a 1"}, c.next(), code)
			require.ErrorContains(t, k.Failures()[0].Err, "m00 is refused")
			c.set(func() { c.refuse = nil })
			advance(2 * time.Minute)
			require.Len(t, c.members("id-a"), 50)
			require.Empty(t, k.Failures())
		}, "a")
	}
}

// TestPace: a load balancer that fails is asked less and less often, its failure is as old as the
// first one, and success makes both as they were.
func TestPace(t *testing.T) {
	c := newCloud()
	c.listErr = nstance.Errorf(nstance.Unavailable, "no answer")
	c.want("a", balance.In, "m")
	c.keep(t, func(t *testing.T, k *balance.Keeper) {
		began := k.Failures()[0].Since
		advance(time.Hour)
		n := len(c.next())
		require.GreaterOrEqual(t, n, 60)
		require.LessOrEqual(t, n, 68)
		require.Equal(t, began, k.Failures()[0].Since)
		k.Mark(all)
		k.CompareAll(true)
		advance(200 * time.Millisecond)
		require.Empty(t, c.next(), "what changes meanwhile waits too")
		c.set(func() { c.listErr = nil })
		advance(time.Minute)
		require.Empty(t, k.Failures())
		require.Equal(t, []string{"m"}, c.members("id-a"))
		c.next()

		advance(time.Hour)
		require.Empty(t, c.next(), "nothing is asked for nothing")
		c.set(func() { c.listErr = nstance.Errorf(nstance.Unavailable, "no answer again") })
		k.CompareAll(true)
		advance(500 * time.Millisecond)
		require.WithinDuration(t, time.Now(), k.Failures()[0].Since, time.Second)
		c.next()
		advance(time.Second)
		require.Equal(t, []string{"list id-a"}, c.next(), "after the first wait")
	}, "a")
}

// TestAfterAFailure: what had no answer may have happened: members are listed again and all are
// compared, whatever was marked.
func TestAfterAFailure(t *testing.T) {
	c := newCloud()
	c.want("a", balance.In, "m1")
	c.keep(t, func(t *testing.T, k *balance.Keeper) {
		c.set(func() {
			c.refuse = func(string, string) error { return nstance.Errorf(nstance.Ambiguous, "no answer") }
			c.asked = nil
		})
		c.want("a", balance.In, "m2")
		k.Mark(all)
		advance(500 * time.Millisecond)
		require.Empty(t, c.asked, "those that are marked")
		c.set(func() {
			c.refuse = nil
			delete(c.in["id-a"], "m1") // by another party
		})
		c.next()
		advance(time.Second)
		require.Equal(t, []string{"list id-a", "join id-a 2"}, c.next())
		require.NotEmpty(t, c.asked)
	}, "a")
}

// TestMissingBalancer: a load balancer that does not exist is a failure while it is configured.
// Once it has been made its members join.
func TestMissingBalancer(t *testing.T) {
	c := newCloud()
	c.want("b", balance.In, "m")
	c.keep(t, func(t *testing.T, k *balance.Keeper) {
		require.ErrorIs(t, k.Failures()[0].Err, nstance.NotFound)
		require.Empty(t, k.Attached("m", true), "it sends no traffic")
		require.NotContains(t, c.next(), "join id-b 1")
		c.set(func() { c.in["id-b"] = map[string]bool{} })
		advance(time.Minute)
		require.Equal(t, []string{"m"}, c.members("id-b"))
		c.set(func() { c.in["id-b"] = nil })
		k.Configure(nil)
		k.CompareAll(true)
		advance(time.Minute)
		require.Empty(t, k.Names(), "a missing one that is not configured is left")
	}, "b")
}

// TestRemovedBalancer: it is tried to be left for five minutes, and a machine deleted meanwhile
// leaves too. Configured again it is an ordinary one.
func TestRemovedBalancer(t *testing.T) {
	stuck := func(call, _ string) error {
		if call == "leave" {
			return nstance.Errorf(nstance.Unavailable, "no answer")
		}
		return nil
	}
	c := newCloud()
	c.want("a", balance.In, "m1", "m2")
	c.keep(t, func(t *testing.T, k *balance.Keeper) {
		c.set(func() { c.refuse = stuck })
		k.Configure(nil)
		advance(4 * time.Minute)
		require.Equal(t, []string{"a"}, k.Names())
		require.Empty(t, k.Attached("m1", true), "it delays no deletion")
		k.Configure(balancers("a"))
		c.set(func() { c.refuse = nil })
		advance(2 * time.Minute)
		require.Equal(t, []string{"m1", "m2"}, c.members("id-a"))
		require.Equal(t, []string{"a"}, k.Attached("m1", true))

		c.set(func() { c.refuse = stuck })
		k.Configure(nil)
		advance(4 * time.Minute)
		require.Equal(t, []string{"a"}, k.Names(), "its five minutes began with its removal")
		advance(3 * time.Minute)
		require.Empty(t, k.Names())
	}, "a")
}

// TestNameOfAnotherBalancer: the name of a load balancer that now stands for another one: members
// leave the one and join the other.
func TestNameOfAnotherBalancer(t *testing.T) {
	c := newCloud("m", "foreign")
	c.in["id-new"] = map[string]bool{}
	c.want("a", balance.In, "m")
	c.keep(t, func(t *testing.T, k *balance.Keeper) {
		c.set(func() {
			c.refuse = func(call, _ string) error {
				if call == "leave" {
					return nstance.Errorf(nstance.Unavailable, "no answer")
				}
				return nil
			}
		})
		k.Configure([]nstance.LoadBalancer{{Name: "a", ID: "id-new"}})
		advance(time.Minute)
		require.Equal(t, []string{"a", "a (was id-a)"}, k.Names())
		require.Equal(t, []string{"m"}, c.members("id-new"))
		c.set(func() { c.refuse = nil })
		advance(time.Minute)
		require.Equal(t, []string{"a"}, k.Names())
		require.Equal(t, []string{"foreign"}, c.members("id-a"))
		require.Equal(t, []string{"m"}, c.members("id-new"))
	}, "a")
}

// TestDeletedUnderAnotherName: machines that were deleted while they may have been members leave a
// load balancer that has another name meanwhile.
func TestDeletedUnderAnotherName(t *testing.T) {
	c := newCloud("gone")
	c.keep(t, func(t *testing.T, k *balance.Keeper) {
		c.set(func() { c.refuse = func(string, string) error { return nstance.Unavailable } })
		k.WithdrawDeleted(nstance.Machine{ID: "gone", ProviderID: "gone"}, []string{"a"})
		k.Configure(nil)
		advance(time.Minute)
		k.Configure([]nstance.LoadBalancer{{Name: "b", ID: "id-a"}})
		c.set(func() { c.refuse = nil })
		advance(2 * time.Minute)
		require.Equal(t, []string{"b"}, k.Names())
		require.Empty(t, c.members("id-a"))
		require.Equal(t, []string{"gone"}, c.withdrawn)
	}, "a")
}

// TestSeveral: each is settled by itself, and names are sorted.
func TestSeveral(t *testing.T) {
	c := newCloud()
	names := []string{"d", "c", "b", "a"}
	for _, name := range names {
		c.in["id-"+name] = map[string]bool{}
		c.want(name, balance.In, "m")
	}
	c.keep(t, func(t *testing.T, k *balance.Keeper) {
		require.Equal(t, []string{"a", "b", "c", "d"}, k.Names())
		require.Equal(t, []string{"a", "b", "c", "d"}, k.Attached("m", true))
		c.next()
		c.want("b", balance.Out, "m")
		c.want("c", balance.Out, "m")
		k.Mark(func(t balance.Target) bool { return t.Name == "b" })
		advance(time.Second)
		require.Equal(t, []string{"leave id-b 1"}, c.next())
		require.Equal(t, []string{"a", "c", "d"}, k.Attached("m", true))
		c.set(func() { c.asked = nil })
		k.MarkAll(func(t balance.Target) bool { return t.Name == "c" })
		advance(time.Second)
		require.Equal(t, []string{"leave id-c 1"}, c.next())
		require.Equal(t, []balance.Target{{Name: "c"}}, c.asked)
	}, names...)
}

// TestFailureOfOneBatch: a batch that fails is a failure, whatever becomes of the others.
func TestFailureOfOneBatch(t *testing.T) {
	for _, refused := range []string{"m000", "m249"} {
		c := newCloud()
		for i := range 250 {
			c.want("a", balance.In, fmt.Sprintf("m%03d", i))
		}
		c.refuse = func(_, id string) error {
			if id == refused {
				return nstance.Errorf(nstance.Invalid, "%s is refused", id)
			}
			return nil
		}
		c.keep(t, func(t *testing.T, k *balance.Keeper) {
			require.Len(t, c.members("id-a"), 249)
			require.Len(t, k.Failures(), 1)
			require.ErrorContains(t, k.Failures()[0].Err, refused+" is refused")
		}, "a")
	}
}

// TestRemovedBalancerIsLeftAtOnce, however long the next attempt at it was to wait.
func TestRemovedBalancerIsLeftAtOnce(t *testing.T) {
	c := newCloud()
	c.want("a", balance.In, "m")
	c.keep(t, func(t *testing.T, k *balance.Keeper) {
		c.set(func() { c.refuse = func(string, string) error { return nstance.Unavailable } })
		c.want("a", balance.In, "late")
		k.Mark(all)
		advance(30 * time.Minute)
		c.set(func() { c.refuse = nil })
		k.Configure(nil)
		advance(500 * time.Millisecond)
		require.Empty(t, c.members("id-a"))
		require.Empty(t, k.Names())
	}, "a")
}

// TestConfiguredAgainWhileItIsLeft: a load balancer that is configured again while its members are
// being withdrawn gets them back.
func TestConfiguredAgainWhileItIsLeft(t *testing.T) {
	c := newCloud()
	c.want("a", balance.In, "m1", "m2")
	c.keep(t, func(t *testing.T, k *balance.Keeper) {
		var again sync.Once
		c.set(func() {
			c.refuse = func(call, _ string) error {
				if call == "leave" {
					again.Do(func() { k.Configure(balancers("a")) })
				}
				return nil
			}
		})
		k.Configure(nil)
		advance(time.Minute)
		require.Equal(t, []string{"m1", "m2"}, c.members("id-a"))
		require.Equal(t, []string{"a"}, k.Names())
	}, "a")
}

// TestListedAgain: what is to be listed again is, although a comparison without that was asked for
// at the same time.
func TestListedAgain(t *testing.T) {
	c := newCloud()
	c.keep(t, func(t *testing.T, k *balance.Keeper) {
		c.next()
		k.CompareAll(true)
		k.CompareAll(false)
		advance(time.Minute)
		require.Equal(t, []string{"list id-a"}, c.next())
	}, "a")
}

// TestDeletedAreBounded: so many deleted machines of one load balancer are remembered, and no more.
func TestDeletedAreBounded(t *testing.T) {
	var ids []string
	for i := range 1010 {
		ids = append(ids, fmt.Sprint("m", i))
	}
	c := newCloud(ids...)
	c.keep(t, func(t *testing.T, k *balance.Keeper) {
		for _, id := range ids {
			k.WithdrawDeleted(nstance.Machine{ID: nstance.InstanceID(id), ProviderID: id}, []string{"a"})
		}
		k.CompareAll(false)
		advance(time.Hour)
		require.Len(t, c.withdrawn, 1000)
	}, "a")
}
