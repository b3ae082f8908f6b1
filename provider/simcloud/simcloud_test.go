package simcloud_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/simcloud"
)

func TestProvider(t *testing.T) {
	for name, o := range map[string]*simcloud.Options{
		"prompt": nil,
		"slow and eventually consistent": {
			Latency: simcloud.Delay{Min: time.Millisecond, Max: 3 * time.Millisecond}, Lag: simcloud.Delay{Min: 20 * time.Millisecond},
			Boot: simcloud.Delay{Min: 10 * time.Millisecond}, Shutdown: simcloud.Delay{Min: 10 * time.Millisecond},
			PageSize: 2, Width: 4,
		},
	} {
		t.Run(name, func(t *testing.T) {
			providertest.Run(t, func(t *testing.T) providertest.Subject {
				with := simcloud.Options{}
				if o != nil {
					with = *o
				}
				with.Addresses = []string{"10.0.0.100"}
				with.Subnets, with.Balancers = map[string]int{"subnet-1": 5}, []string{"lb-1"}
				with.Types = map[string][]nstance.Arch{"": {nstance.AMD64}, "small": {nstance.AMD64}}
				with.Images = []simcloud.Image{{ID: "img-1", Name: "base-1"}}
				c := simcloud.New(&with)
				t.Cleanup(c.Close)
				return providertest.Subject{
					Again:    func() nstance.Provider { return c.At("b") },
					Provider: c.At("a"), Address: "10.0.0.100", NoAddress: "10.0.0.101", Elsewhere: c.At("b").(nstance.AddressMover),
					Spot: true, Image: nstance.ImageQuery{Name: "base-*"}, Subnets: []string{"subnet-1"}, Types: []string{"small"},
					Balancer: nstance.LoadBalancer{ID: "lb-1"},
					Break: func() (restore func()) {
						c.Inject(simcloud.Fault{Times: -1})
						return c.ClearFaults
					},
					UserData: func(_ context.Context, m nstance.Machine) ([]byte, error) {
						s, _ := c.Spec(m.ID)
						return s.UserData, nil
					},
					BadArgs: map[string]json.RawMessage{
						"boot_delay": json.RawMessage(`{"boot_delay": "soon"}`),
					},
				}
			})
		})
	}
}

var owner = nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "a", Tenant: "default"}

func spec(t testing.TB, market nstance.MarketType) nstance.MachineSpec {
	t.Helper()
	now := time.Now().UTC()
	id, err := nstance.NewInstanceID("sim", now)
	require.NoError(t, err)
	return nstance.MachineSpec{ID: id, Owner: owner, CreatedAt: now, Market: market, InstanceType: "m1", Token: string(id)}
}

// TestLateEffectAfterAnswer: an effect after the answer does not touch the caller's
// data. The race detector checks it.
func TestLateEffectAfterAnswer(t *testing.T) {
	started := make(chan struct{})
	c := simcloud.New(&simcloud.Options{OnStart: func(nstance.Machine, nstance.MachineSpec) { close(started) }})
	defer c.Close()
	c.Inject(simcloud.Fault{Op: simcloud.OpCreate, Delay: 20 * time.Millisecond})
	_, err := c.Create(t.Context(), spec(t, nstance.OnDemand))
	require.ErrorIs(t, err, nstance.Ambiguous)
	<-started
}

// bubble runs f with a cloud in a synctest bubble and closes the cloud.
func bubble(t *testing.T, o *simcloud.Options, f func(t *testing.T, c *simcloud.Cloud)) {
	synctest.Test(t, func(t *testing.T) {
		c := simcloud.New(o)
		defer c.Close()
		f(t, c)
	})
}

func create(t *testing.T, c *simcloud.Cloud, s nstance.MachineSpec) nstance.Machine {
	t.Helper()
	m, err := c.Create(t.Context(), s)
	require.NoError(t, err)
	return m
}

func status(t *testing.T, c *simcloud.Cloud, id nstance.InstanceID) nstance.MachineStatus {
	t.Helper()
	m, err := c.Get(t.Context(), id)
	if errors.Is(err, nstance.NotFound) {
		return "gone"
	}
	require.NoError(t, err)
	return m.Status
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestTime(t *testing.T) {
	t.Run("a call takes its latency, and the effect happens halfway", func(t *testing.T) {
		bubble(t, &simcloud.Options{Latency: simcloud.Delay{Min: time.Second}}, func(t *testing.T, c *simcloud.Cloud) {
			start, s := time.Now(), spec(t, "")
			done := make(chan error, 1)
			go func() { _, err := c.Create(t.Context(), s); done <- err }()
			pass(499 * time.Millisecond)
			require.Empty(t, c.Machines())
			pass(2 * time.Millisecond)
			require.Len(t, c.Machines(), 1)
			require.NoError(t, <-done)
			require.Equal(t, time.Second, time.Since(start))
		})
	})
	t.Run("no more than width calls are served at once", func(t *testing.T) {
		bubble(t, &simcloud.Options{Latency: simcloud.Delay{Min: time.Second}, Width: 3}, func(t *testing.T, c *simcloud.Cloud) {
			start := time.Now()
			var wg sync.WaitGroup
			for range 7 {
				wg.Go(func() { create(t, c, spec(t, "")) })
			}
			wg.Wait()
			require.Equal(t, 3*time.Second, time.Since(start))
		})
	})
	t.Run("a call cancelled before the effect makes no machine, one cancelled after it makes one; both are ambiguous", func(t *testing.T) {
		bubble(t, &simcloud.Options{Latency: simcloud.Delay{Min: time.Second}}, func(t *testing.T, c *simcloud.Cloud) {
			for wait, machines := range map[time.Duration]int{400 * time.Millisecond: 0, 600 * time.Millisecond: 1} {
				s := spec(t, "")
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				_, err := c.Create(ctx, s)
				cancel()
				require.ErrorIs(t, err, nstance.Ambiguous)
				_, there := c.Spec(s.ID)
				require.Equal(t, machines == 1, there, "after %s", wait)
			}
		})
	})
	t.Run("a machine boots, and shuts down", func(t *testing.T) {
		bubble(t, &simcloud.Options{Boot: simcloud.Delay{Min: time.Minute}, Shutdown: simcloud.Delay{Min: time.Minute}}, func(t *testing.T, c *simcloud.Cloud) {
			m := create(t, c, spec(t, ""))
			require.Equal(t, nstance.StatusPending, m.Status)
			pass(59 * time.Second)
			require.Equal(t, nstance.StatusPending, status(t, c, m.ID))
			pass(2 * time.Second)
			require.Equal(t, nstance.StatusRunning, status(t, c, m.ID))
			require.NoError(t, c.Delete(t.Context(), m))
			require.Equal(t, nstance.StatusDeleting, status(t, c, m.ID))
			pass(59 * time.Second)
			require.NoError(t, c.Delete(t.Context(), m))
			pass(2 * time.Second)
			require.ErrorIs(t, c.Delete(t.Context(), m), nstance.NotFound)
		})
	})
	t.Run("args set the boot delay of one machine", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			s := spec(t, "")
			s.Args = json.RawMessage(`{"boot_delay": "1h"}`)
			m := create(t, c, s)
			pass(59 * time.Minute)
			require.Equal(t, nstance.StatusPending, status(t, c, m.ID))
			pass(time.Minute)
			require.Equal(t, nstance.StatusRunning, status(t, c, m.ID))
		})
	})
	t.Run("events run in order of time", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			var ids []nstance.InstanceID
			for _, delay := range []string{"1h", "1m", "1s", "1m"} {
				s := spec(t, "")
				s.Args = json.RawMessage(`{"boot_delay": "` + delay + `"}`)
				ids = append(ids, create(t, c, s).ID)
				synctest.Wait()
			}
			for _, step := range []struct {
				wait    time.Duration
				running int
			}{{time.Second, 1}, {time.Minute, 3}, {time.Hour, 4}} {
				pass(step.wait)
				running := 0
				for _, id := range ids {
					if status(t, c, id) == nstance.StatusRunning {
						running++
					}
				}
				require.Equal(t, step.running, running)
			}
		})
	})
	t.Run("a fresh machine is invisible for the lag, except to a repeated create", func(t *testing.T) {
		bubble(t, &simcloud.Options{Lag: simcloud.Delay{Min: 5 * time.Second}}, func(t *testing.T, c *simcloud.Cloud) {
			s := spec(t, "")
			m := create(t, c, s)
			require.EqualValues(t, "gone", status(t, c, m.ID))
			require.Equal(t, m.ProviderID, create(t, c, s).ProviderID)
			require.Zero(t, listed(t, c))
			pass(5 * time.Second)
			require.Equal(t, nstance.StatusRunning, status(t, c, m.ID))
			require.Equal(t, 1, listed(t, c))
		})
	})
	t.Run("an ID is not reused within a day of its machine's end", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			s := spec(t, "")
			m := create(t, c, s)
			require.NoError(t, c.Delete(t.Context(), m))
			_, err := c.Create(t.Context(), s)
			require.ErrorIs(t, err, nstance.Conflict)
			require.Empty(t, c.Machines())
		})
	})
}

func listed(t *testing.T, c *simcloud.Cloud) (n int) {
	t.Helper()
	for _, err := range c.List(t.Context(), owner) {
		require.NoError(t, err)
		n++
	}
	return n
}

func TestRefusals(t *testing.T) {
	t.Run("capacity is counted by type, zone and market, and returns with a delete", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			c.SetCapacity(simcloud.Pool{InstanceType: "m1", Market: nstance.Spot}, 1)
			m := create(t, c, spec(t, nstance.Spot))
			_, err := c.Create(t.Context(), spec(t, nstance.Spot))
			require.ErrorIs(t, err, nstance.Capacity)
			create(t, c, spec(t, nstance.OnDemand))
			other := spec(t, nstance.Spot)
			other.InstanceType = "m2"
			create(t, c, other)
			require.NoError(t, c.Delete(t.Context(), m))
			create(t, c, spec(t, nstance.Spot))
			c.SetCapacity(simcloud.Pool{InstanceType: "m1", Market: nstance.Spot}, -1)
			create(t, c, spec(t, nstance.Spot))
		})
	})
	t.Run("zones come from subnets, and unknown subnets are refused", func(t *testing.T) {
		o := &simcloud.Options{Zones: map[string]string{"s1": "z1", "s2": "z2"}}
		bubble(t, o, func(t *testing.T, c *simcloud.Cloud) {
			c.SetCapacity(simcloud.Pool{Zone: "z1"}, 0)
			s := spec(t, "")
			s.Subnet = "s1"
			_, err := c.Create(t.Context(), s)
			require.ErrorIs(t, err, nstance.Capacity)
			s.Subnet = "s2"
			require.Equal(t, "z2", create(t, c, s).Zone)
			s = spec(t, "")
			s.Subnet = "s3"
			_, err = c.Create(t.Context(), s)
			require.ErrorIs(t, err, nstance.Invalid)
		})
	})
	t.Run("a quota limits the account's machines", func(t *testing.T) {
		bubble(t, &simcloud.Options{Quota: 2}, func(t *testing.T, c *simcloud.Cloud) {
			first := spec(t, "")
			create(t, c, first)
			create(t, c, spec(t, ""))
			_, err := c.Create(t.Context(), spec(t, ""))
			require.ErrorIs(t, err, nstance.Quota)
			create(t, c, first) // a repeat needs no capacity
		})
	})
	t.Run("calls beyond the bucket are throttled until it refills", func(t *testing.T) {
		o := &simcloud.Options{Throttle: map[simcloud.Op]simcloud.Bucket{simcloud.OpCreate: {PerSecond: 1, Burst: 2}}}
		bubble(t, o, func(t *testing.T, c *simcloud.Cloud) {
			create(t, c, spec(t, ""))
			create(t, c, spec(t, ""))
			_, err := c.Create(t.Context(), spec(t, ""))
			require.ErrorIs(t, err, nstance.Throttled)
			require.Equal(t, 2, listed(t, c))
			pass(time.Second)
			create(t, c, spec(t, ""))
		})
	})
}

func TestFaults(t *testing.T) {
	t.Run("before: the nth call fails without effect", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			c.Inject(simcloud.Fault{Op: simcloud.OpCreate, Nth: 2, Code: nstance.Denied})
			create(t, c, spec(t, ""))
			_, err := c.Create(t.Context(), spec(t, ""))
			require.ErrorIs(t, err, nstance.Denied)
			require.Len(t, c.Machines(), 1)
			create(t, c, spec(t, ""))
		})
	})
	t.Run("after: the answer is lost and the machine exists", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			c.Inject(simcloud.Fault{Op: simcloud.OpCreate, Lost: true})
			s := spec(t, "")
			m, err := c.Create(t.Context(), s)
			require.ErrorIs(t, err, nstance.Ambiguous)
			require.Zero(t, m)
			require.Equal(t, s.ID, create(t, c, s).ID)
			require.Len(t, c.Machines(), 1)
		})
	})
	t.Run("late: the call has its effect after its caller has given up", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			c.Inject(simcloud.Fault{Op: simcloud.OpCreate, Delay: time.Minute})
			_, err := c.Create(t.Context(), spec(t, ""))
			require.ErrorIs(t, err, nstance.Ambiguous)
			pass(59 * time.Second)
			require.Empty(t, c.Machines())
			pass(time.Second)
			require.Len(t, c.Machines(), 1)
		})
	})
	t.Run("a fault can match one machine, repeat, and be cleared", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			a, b := create(t, c, spec(t, "")), create(t, c, spec(t, ""))
			c.Inject(simcloud.Fault{Op: simcloud.OpGet, ID: a.ID, Times: -1})
			for range 3 {
				_, err := c.Get(t.Context(), a.ID)
				require.ErrorIs(t, err, nstance.Unavailable)
				status(t, c, b.ID)
			}
			c.ClearFaults()
			status(t, c, a.ID)
		})
	})
	t.Run("a crash point runs in the middle of a call, which continues", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			var machines int
			c.Inject(simcloud.Fault{Op: simcloud.OpCreate, Lost: true, Keep: true, Do: func() { machines = len(c.Machines()) }})
			create(t, c, spec(t, ""))
			require.Equal(t, 1, machines)
		})
	})
}

func TestCalls(t *testing.T) {
	t.Run("are logged with time, duration and code, and the log is bounded", func(t *testing.T) {
		o := &simcloud.Options{Latency: simcloud.Delay{Min: time.Second}, Log: 2}
		bubble(t, o, func(t *testing.T, c *simcloud.Cloud) {
			start, s := time.Now(), spec(t, "")
			_, err := c.Get(t.Context(), s.ID)
			require.Error(t, err)
			create(t, c, s)
			status(t, c, s.ID)
			require.Equal(t, []simcloud.Call{
				{At: start.Add(time.Second), Took: time.Second, Op: simcloud.OpCreate, ID: s.ID},
				{At: start.Add(2 * time.Second), Took: time.Second, Op: simcloud.OpGet, ID: s.ID},
			}, c.Calls())
			require.Equal(t, 2, c.Count(simcloud.OpGet))
			require.Equal(t, 3, c.Count(simcloud.OpAny))
		})
	})
	t.Run("equal seeds give equal latencies", func(t *testing.T) {
		run := func(seed uint64) (took []time.Duration) {
			bubble(t, &simcloud.Options{Seed: seed, Latency: simcloud.Delay{Min: 0, Max: time.Hour}}, func(t *testing.T, c *simcloud.Cloud) {
				for range 5 {
					status(t, c, spec(t, "").ID)
				}
				for _, call := range c.Calls() {
					took = append(took, call.Took)
				}
			})
			return took
		}
		require.Equal(t, run(1), run(1))
		require.NotEqual(t, run(1), run(2))
	})
}

func Example() {
	agents := make(chan string, 2)
	c := simcloud.New(&simcloud.Options{
		OnStart: func(_ nstance.Machine, s nstance.MachineSpec) { agents <- "booting with " + string(s.UserData) },
		OnStop:  func(m nstance.Machine) { agents <- "stopped, status " + string(m.Status) },
	})
	defer c.Close()
	id, _ := nstance.NewInstanceID("web", time.Now())
	spec := nstance.MachineSpec{
		ID: id, Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "a", Tenant: "default"},
		Market: nstance.Spot, UserData: []byte("hello"), Token: string(id),
	}

	c.Inject(simcloud.Fault{Op: simcloud.OpCreate, Lost: true})
	_, err := c.Create(context.Background(), spec)
	fmt.Println(err, errors.Is(err, nstance.Ambiguous))
	m, err := c.Create(context.Background(), spec)
	fmt.Println(m.Status, m.Market, err)
	fmt.Println(<-agents)

	c.Reclaim(id, 0)
	fmt.Println(<-agents)
	// Output:
	// injected fault true
	// running spot <nil>
	// booting with hello
	// stopped, status deleting
}

func TestAddresses(t *testing.T) {
	bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
		const address = "10.0.0.100"
		a, b := c.At("a").(nstance.AddressMover), c.At("b").(nstance.AddressMover)
		holds := func(host nstance.Provider) bool {
			held, err := host.(nstance.AddressMover).HoldsAddress(t.Context(), address)
			require.NoError(t, err)
			return held
		}
		require.False(t, holds(c.At("a")))
		require.NoError(t, a.TakeAddress(t.Context(), address))
		c.Inject(simcloud.Fault{Op: simcloud.OpTakeAddress, ID: "b", Times: 2, Code: nstance.Denied})
		require.NoError(t, a.TakeAddress(t.Context(), address), "faults are for one host")
		require.ErrorIs(t, b.TakeAddress(t.Context(), address), nstance.Denied)
		require.NoError(t, c.At("c").(nstance.AddressMover).TakeAddress(t.Context(), address))
		require.False(t, holds(c.At("a")))
		require.ErrorIs(t, b.TakeAddress(t.Context(), address), nstance.Denied)
		c.Inject(simcloud.Fault{Op: simcloud.OpTakeAddress, ID: "b", Lost: true})
		require.ErrorIs(t, b.TakeAddress(t.Context(), address), nstance.Ambiguous)
		require.True(t, holds(c.At("b")), "moved, the answer was lost")
		c.Inject(simcloud.Fault{Op: simcloud.OpTakeAddress, ID: "a", Delay: time.Second})
		require.ErrorIs(t, a.TakeAddress(t.Context(), address), nstance.Ambiguous)
		<-time.After(2 * time.Second)
		require.True(t, holds(c.At("a")), "a delayed call has a late effect")
	})
}
