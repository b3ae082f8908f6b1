package provider_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// scripted is a provider made of functions. A nil one succeeds.
type scripted struct {
	create func(context.Context, nstance.MachineSpec) (nstance.Machine, error)
	get    func(context.Context, nstance.InstanceID) (nstance.Machine, error)
	list   iter.Seq2[nstance.Machine, error]
	delete func(context.Context, nstance.Machine) error
}

func (p scripted) Create(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
	if p.create == nil {
		return nstance.Machine{ID: s.ID, Owner: s.Owner}, nil
	}
	return p.create(ctx, s)
}

func (p scripted) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	if p.get == nil {
		return nstance.Machine{ID: id}, nil
	}
	return p.get(ctx, id)
}

func (p scripted) List(context.Context, nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return p.list
}

func (p scripted) Delete(ctx context.Context, m nstance.Machine) error { return p.delete(ctx, m) }

var owner = nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "a", Tenant: "default"}

func spec(t testing.TB) nstance.MachineSpec {
	t.Helper()
	now := time.Now().UTC()
	id, err := nstance.NewInstanceID("cli", now)
	require.NoError(t, err)
	return nstance.MachineSpec{ID: id, Owner: owner, CreatedAt: now, Token: string(id)}
}

func client(t testing.TB, p nstance.Provider, o *provider.Options) *provider.Client {
	t.Helper()
	c, err := provider.New(p, o)
	require.NoError(t, err)
	return c
}

// TestConformance: a client in front of a conforming provider conforms.
func TestConformance(t *testing.T) {
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		cloud := simcloud.New(&simcloud.Options{
			PageSize: 2, Lag: simcloud.Delay{Min: 5 * time.Millisecond}, Balancers: []string{"lb-1"},
			Subnets: map[string]int{"subnet-1": 5}, Images: []simcloud.Image{{ID: "img-1", Name: "base-1"}},
			Types:  map[string][]nstance.Arch{"": {nstance.AMD64}, "small": {nstance.AMD64}},
			Prices: map[simcloud.Pool]float64{{InstanceType: "small", Zone: "sim-a", Market: nstance.Spot}: 0.03},
		})
		t.Cleanup(cloud.Close)
		return providertest.Subject{
			Break: func() (restore func()) {
				cloud.Inject(simcloud.Fault{Times: -1})
				return cloud.ClearFaults
			},
			Provider: client(t, cloud, nil), Spot: true, Image: nstance.ImageQuery{Name: "base-*"},
			Subnets: []string{"subnet-1"}, Types: []string{"small"}, Priced: "small", Park: cloud.ParkModes(), Balancer: nstance.LoadBalancer{ID: "lb-1"},
		}
	})
}

func TestNew(t *testing.T) {
	t.Run("needs a provider", func(t *testing.T) {
		_, err := provider.New(nil, nil)
		require.ErrorIs(t, err, nstance.Invalid)
	})
	for name, o := range map[string]provider.Options{
		"timeout": {Timeout: -1}, "width": {Width: -1}, "max_user_data": {MaxUserData: -1},
		"create_rate.per_second": {Rate: -1}, "create_rate.burst": {Burst: -1},
	} {
		t.Run("refuses a negative "+name, func(t *testing.T) {
			_, err := provider.New(scripted{}, &o)
			e, ok := errors.AsType[*nstance.Error](err)
			require.True(t, ok)
			require.Equal(t, name, e.Field)
		})
	}
	t.Run("returns the provider behind it", func(t *testing.T) {
		cloud := simcloud.New(nil)
		defer cloud.Close()
		require.Same(t, cloud, client(t, cloud, nil).Provider())
	})
}

func TestCreate(t *testing.T) {
	ctxErr := func(ctx context.Context, _ nstance.MachineSpec) (nstance.Machine, error) {
		<-ctx.Done()
		return nstance.Machine{}, ctx.Err()
	}
	t.Run("is tried once, whatever the answer", func(t *testing.T) {
		for _, code := range []nstance.Code{nstance.Throttled, nstance.Unavailable, nstance.Ambiguous, nstance.Capacity, nstance.Conflict} {
			calls := 0
			c := client(t, scripted{create: func(context.Context, nstance.MachineSpec) (nstance.Machine, error) {
				calls++
				return nstance.Machine{}, nstance.Errorf(code, "no")
			}}, nil)
			_, err := c.Create(t.Context(), spec(t))
			require.Equal(t, code, nstance.CodeOf(err))
			require.Equal(t, 1, calls)
		}
	})
	t.Run("without an answer in time is ambiguous", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			_, err := client(t, scripted{create: ctxErr}, &provider.Options{Timeout: 7 * time.Second}).Create(t.Context(), spec(t))
			require.ErrorIs(t, err, nstance.Ambiguous)
			require.Equal(t, nstance.Ambiguous, nstance.CodeOf(err))
			require.Equal(t, 7*time.Second, time.Since(start))
		})
	})
	t.Run("cancelled by the caller is ambiguous, whatever the provider's code, unless that is definite", func(t *testing.T) {
		for _, late := range []error{
			nstance.Errorf(nstance.Unavailable, "connection closed"), nstance.Errorf(nstance.Internal, "unexpected end"),
			nstance.Internal, errors.New("connection closed"),
		} {
			ctx, cancel := context.WithCancel(t.Context())
			c := client(t, scripted{create: func(context.Context, nstance.MachineSpec) (nstance.Machine, error) {
				cancel()
				return nstance.Machine{}, late
			}}, nil)
			_, err := c.Create(ctx, spec(t))
			require.Equal(t, nstance.Ambiguous, nstance.CodeOf(err), "%v", late)
		}
	})
	t.Run("that ran out of the provider's own time is ambiguous", func(t *testing.T) {
		for _, ended := range []error{context.DeadlineExceeded, context.Canceled} {
			_, err := client(t, scripted{create: func(context.Context, nstance.MachineSpec) (nstance.Machine, error) {
				return nstance.Machine{}, fmt.Errorf("waiting for the answer: %w", ended)
			}}, nil).Create(t.Context(), spec(t))
			require.Equal(t, nstance.Ambiguous, nstance.CodeOf(err))
		}
	})
	t.Run("with a late definite answer stays definite", func(t *testing.T) {
		for _, code := range []nstance.Code{nstance.Invalid, nstance.Conflict, nstance.Capacity, nstance.Quota, nstance.Throttled, nstance.Denied} {
			ctx, cancel := context.WithCancel(t.Context())
			c := client(t, scripted{create: func(context.Context, nstance.MachineSpec) (nstance.Machine, error) {
				cancel()
				return nstance.Machine{}, nstance.Errorf(code, "no")
			}}, nil)
			_, err := c.Create(ctx, spec(t))
			require.Equal(t, code, nstance.CodeOf(err))
		}
	})
	t.Run("that was never sent is unavailable, not ambiguous", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		c := client(t, scripted{create: func(context.Context, nstance.MachineSpec) (nstance.Machine, error) {
			t.Error("called")
			return nstance.Machine{}, nil
		}}, nil)
		_, err := c.Create(ctx, spec(t))
		require.Equal(t, nstance.Unavailable, nstance.CodeOf(err))
	})
	t.Run("answered with another machine, or another's, is an error", func(t *testing.T) {
		wanted := spec(t)
		for _, m := range []nstance.Machine{{ID: spec(t).ID, Owner: owner}, {ID: wanted.ID}} {
			c := client(t, scripted{create: func(context.Context, nstance.MachineSpec) (nstance.Machine, error) { return m, nil }}, nil)
			got, err := c.Create(t.Context(), wanted)
			require.ErrorIs(t, err, nstance.Internal)
			require.Zero(t, got)
		}
	})
	t.Run("answered with not found is no proof of absence", func(t *testing.T) {
		c := client(t, scripted{create: func(context.Context, nstance.MachineSpec) (nstance.Machine, error) {
			return nstance.Machine{}, nstance.Errorf(nstance.NotFound, "no such image")
		}}, nil)
		_, err := c.Create(t.Context(), spec(t))
		require.Equal(t, nstance.Internal, nstance.CodeOf(err))
	})
}

func TestValidation(t *testing.T) {
	for field, corrupt := range map[string]func(*nstance.MachineSpec){
		"instance_id":        func(s *nstance.MachineSpec) { s.ID = "web-1" },
		"owner.installation": func(s *nstance.MachineSpec) { s.Owner.Installation = "" },
		"owner.cluster_id":   func(s *nstance.MachineSpec) { s.Owner.Cluster = "" },
		"owner.shard":        func(s *nstance.MachineSpec) { s.Owner.Shard = "A" },
		"owner.tenant":       func(s *nstance.MachineSpec) { s.Owner.Tenant = "" },
		"group":              func(s *nstance.MachineSpec) { s.Group = "a--b" },
		"token":              func(s *nstance.MachineSpec) { s.Token = "" },
		"market.type":        func(s *nstance.MachineSpec) { s.Market = "lottery" },
		"market.max_price":   func(s *nstance.MachineSpec) { s.MaxPrice = "1e3" },
		"userdata":           func(s *nstance.MachineSpec) { s.UserData = make([]byte, 16<<10+1) },
		"args":               func(s *nstance.MachineSpec) { s.Args = json.RawMessage(`[1]`) },
	} {
		t.Run("a bad "+field+" is refused without a call", func(t *testing.T) {
			s := spec(t)
			corrupt(&s)
			_, err := client(t, panicking{}, nil).Create(t.Context(), s)
			e, ok := errors.AsType[*nstance.Error](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, nstance.Invalid, e.Code)
			require.Equal(t, field, e.Field)
			require.NotEmpty(t, e.Remedy)
		})
	}
	t.Run("tokens end at 64 printable characters", func(t *testing.T) {
		for token, ok := range map[string]bool{strings.Repeat("x", 64): true, strings.Repeat("x", 65): false, "a b": false, "ä": false} {
			s := spec(t)
			s.Token = token
			require.Equal(t, ok, provider.ValidateSpec(s, 0) == nil, "%q", token)
		}
	})
	t.Run("a limit of hosts is refused by providers, not by clients", func(t *testing.T) {
		s := spec(t)
		s.HostLimit = 1
		e, ok := errors.AsType[*nstance.Error](provider.ValidateSpec(s, 0))
		require.True(t, ok)
		require.Equal(t, nstance.Invalid, e.Code)
		require.Equal(t, "spread.by", e.Field)
		require.NotEmpty(t, e.Remedy)
		require.Panics(t, func() { _, _ = client(t, panicking{}, nil).Create(t.Context(), s) })
	})
	t.Run("prices are decimals", func(t *testing.T) {
		for price, ok := range map[string]bool{"": true, "1": true, "0.035": true, ".5": false, "1.": false, "-1": false, "1.2.3": false, "NaN": false} {
			s := spec(t)
			s.MaxPrice = price
			require.Equal(t, ok, provider.ValidateSpec(s, 0) == nil, "%q", price)
		}
	})
	t.Run("reads and deletes by something that is no ID are refused without a call", func(t *testing.T) {
		c := client(t, panicking{}, nil)
		_, err := c.Get(t.Context(), "x")
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorIs(t, c.Delete(t.Context(), nstance.Machine{ID: "x", Owner: owner}), nstance.Invalid)
		require.ErrorIs(t, c.Delete(t.Context(), nstance.Machine{ID: spec(t).ID}), nstance.Invalid)
		for _, err := range c.List(t.Context(), nstance.Owner{Cluster: "c1", Shard: "a"}) {
			require.ErrorIs(t, err, nstance.Invalid)
		}
	})
}

// panicking must not be called.
type panicking struct{ nstance.Provider }

func TestErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want nstance.Code
	}{
		"a code stays":                      {nstance.Errorf(nstance.Denied, "no"), nstance.Denied},
		"a bare code stays":                 {nstance.Quota, nstance.Quota},
		"a wrapped code stays":              {fmt.Errorf("x: %w", nstance.Errorf(nstance.NotFound, "no")), nstance.NotFound},
		"no code becomes internal":          {errors.New("boom"), nstance.Internal},
		"a code of its own is internal":     {nstance.Errorf("strange", "boom"), nstance.Internal},
		"an ended context is no answer":     {context.DeadlineExceeded, nstance.Unavailable},
		"a cancelled context is no answer":  {fmt.Errorf("x: %w", context.Canceled), nstance.Unavailable},
		"an error with an empty code is it": {&nstance.Error{Msg: "boom"}, nstance.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			c := client(t, scripted{
				get:    func(context.Context, nstance.InstanceID) (nstance.Machine, error) { return nstance.Machine{}, tc.err },
				delete: func(context.Context, nstance.Machine) error { return tc.err },
			}, &provider.Options{Retries: -1})
			s := spec(t)
			_, err := c.Get(t.Context(), s.ID)
			require.Equal(t, tc.want, nstance.CodeOf(err))
			require.ErrorContains(t, err, tc.err.Error())
			require.ErrorContains(t, err, "get "+string(s.ID))
			err = c.Delete(t.Context(), nstance.Machine{ID: s.ID, Owner: owner})
			require.Equal(t, tc.want, nstance.CodeOf(err))
		})
	}
	t.Run("a get answered with another machine is an error", func(t *testing.T) {
		c := client(t, scripted{get: func(context.Context, nstance.InstanceID) (nstance.Machine, error) {
			return nstance.Machine{ID: "other"}, nil
		}}, nil)
		_, err := c.Get(t.Context(), spec(t).ID)
		require.ErrorIs(t, err, nstance.Internal)
	})
}

func TestRetries(t *testing.T) {
	failing := func(calls *int, code nstance.Code, times int) scripted {
		fail := func() error {
			if *calls++; *calls <= times {
				return nstance.Errorf(code, "try %d", *calls)
			}
			return nil
		}
		return scripted{
			get: func(_ context.Context, id nstance.InstanceID) (nstance.Machine, error) {
				return nstance.Machine{ID: id}, fail()
			},
			list: func(yield func(nstance.Machine, error) bool) {
				if err := fail(); err != nil {
					yield(nstance.Machine{}, err)
					return
				}
				yield(nstance.Machine{Owner: owner}, nil)
			},
			delete: func(context.Context, nstance.Machine) error { return fail() },
		}
	}
	for _, code := range []nstance.Code{nstance.Throttled, nstance.Unavailable} {
		t.Run("a read that was "+string(code)+" is repeated", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				_, err := client(t, failing(&calls, code, 3), nil).Get(t.Context(), spec(t).ID)
				require.NoError(t, err)
				require.Equal(t, 4, calls)
				calls = 0
				machines, err := collect(client(t, failing(&calls, code, 3), nil).List(t.Context(), owner))
				require.NoError(t, err)
				require.Len(t, machines, 1)
			})
		})
	}
	t.Run("repeats are bounded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			_, err := client(t, failing(&calls, nstance.Throttled, 99), &provider.Options{Retries: 2}).Get(t.Context(), spec(t).ID)
			require.ErrorIs(t, err, nstance.Throttled)
			require.Equal(t, 3, calls)
		})
	})
	t.Run("definite answers are not repeated", func(t *testing.T) {
		for _, code := range []nstance.Code{nstance.NotFound, nstance.Denied, nstance.Internal, nstance.Conflict} {
			calls := 0
			_, err := client(t, failing(&calls, code, 1), nil).Get(t.Context(), spec(t).ID)
			require.ErrorIs(t, err, code)
			require.Equal(t, 1, calls)
		}
	})
	t.Run("a delete is not repeated", func(t *testing.T) {
		calls := 0
		err := client(t, failing(&calls, nstance.Throttled, 1), nil).Delete(t.Context(), nstance.Machine{ID: spec(t).ID, Owner: owner})
		require.ErrorIs(t, err, nstance.Throttled)
		require.Equal(t, 1, calls)
	})
	t.Run("the timeout holds over all repeats", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			c := client(t, scripted{get: func(ctx context.Context, _ nstance.InstanceID) (nstance.Machine, error) {
				<-ctx.Done()
				return nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "no answer")
			}}, &provider.Options{Timeout: time.Minute})
			_, err := c.Get(t.Context(), spec(t).ID)
			require.ErrorIs(t, err, nstance.Unavailable)
			require.Equal(t, time.Minute, time.Since(start))
		})
	})
}

func collect(seq iter.Seq2[nstance.Machine, error]) (out []nstance.Machine, err error) {
	for m, err := range seq {
		if err != nil {
			return out, err
		}
		out = append(out, m)
	}
	return out, nil
}

// machines yields n machines of the owner and then calls tail, which may yield more.
func machines(n int, tail func(yield func(nstance.Machine, error) bool)) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		for range n {
			if !yield(nstance.Machine{Owner: owner}, nil) {
				return
			}
		}
		tail(yield)
	}
}

func TestList(t *testing.T) {
	t.Run("an error in the middle is passed on, not repeated", func(t *testing.T) {
		runs := 0
		c := client(t, scripted{list: machines(2, func(yield func(nstance.Machine, error) bool) {
			runs++
			yield(nstance.Machine{}, nstance.Errorf(nstance.Throttled, "page 2"))
		})}, nil)
		got, err := collect(c.List(t.Context(), owner))
		require.ErrorIs(t, err, nstance.Throttled)
		require.Len(t, got, 2)
		require.Equal(t, 1, runs)
	})
	t.Run("a foreign machine ends it with an error", func(t *testing.T) {
		c := client(t, scripted{list: machines(1, func(yield func(nstance.Machine, error) bool) {
			foreign := owner
			foreign.Installation = "i2"
			yield(nstance.Machine{Owner: foreign}, nil)
		})}, nil)
		_, err := collect(c.List(t.Context(), owner))
		require.ErrorIs(t, err, nstance.Internal)
	})
	t.Run("not found is not an empty list", func(t *testing.T) {
		c := client(t, scripted{list: machines(0, func(yield func(nstance.Machine, error) bool) {
			yield(nstance.Machine{}, nstance.Errorf(nstance.NotFound, "no such region"))
		})}, nil)
		_, err := collect(c.List(t.Context(), owner))
		require.Equal(t, nstance.Internal, nstance.CodeOf(err))
	})
	t.Run("a sequence that just stops when its context ends is an error", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := client(t, scripted{list: machines(1, func(func(nstance.Machine, error) bool) { cancel() })}, nil)
		_, err := collect(c.List(ctx, owner))
		require.ErrorIs(t, err, nstance.Unavailable)
	})
	t.Run("a hanging provider is cut off, a slow caller is not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := hanging{after: 3}
			c := client(t, &p, &provider.Options{Timeout: time.Minute, Retries: -1})
			start, n := time.Now(), 0
			var last error
			for _, err := range c.List(t.Context(), owner) {
				if last = err; err == nil {
					n++
					<-time.After(time.Hour)
				}
			}
			require.Equal(t, 3, n)
			require.ErrorIs(t, last, nstance.Unavailable)
			require.ErrorContains(t, last, "no further machine within 1m0s", "and not only that its context was cancelled")
			require.Equal(t, 3*time.Hour+time.Minute, time.Since(start))
		})
	})
	t.Run("the caller may use the client while it lists, even with one slot", func(t *testing.T) {
		var ops []string
		c := client(t, scripted{list: machines(3, func(func(nstance.Machine, error) bool) {})}, &provider.Options{
			Width: 1, Observe: func(op string, _ nstance.Code, _ time.Duration) { ops = append(ops, op) },
		})
		for _, err := range c.List(t.Context(), owner) {
			require.NoError(t, err)
			_, err := c.Get(t.Context(), spec(t).ID)
			require.NoError(t, err)
		}
		require.Equal(t, []string{"get", "get", "get", "list"}, ops)
	})
	t.Run("two machines with one ID are both yielded", func(t *testing.T) {
		m := nstance.Machine{ID: spec(t).ID, Owner: owner, ProviderID: "a"}
		c := client(t, scripted{list: func(yield func(nstance.Machine, error) bool) {
			for _, m.ProviderID = range []string{"a", "b", "a"} {
				yield(m, nil)
			}
		}}, nil)
		got, err := collect(c.List(t.Context(), owner))
		require.NoError(t, err)
		require.Len(t, got, 2)
	})
	t.Run("in circles that do not end with its context, it is cut off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := nstance.Machine{ID: spec(t).ID, Owner: owner}
			c := client(t, scripted{list: func(yield func(nstance.Machine, error) bool) {
				for range 1000 {
					<-time.After(time.Second)
					if !yield(m, nil) {
						return
					}
				}
			}}, &provider.Options{Timeout: time.Minute})
			start := time.Now()
			got, err := collect(c.List(t.Context(), owner))
			require.ErrorIs(t, err, nstance.Unavailable)
			require.Len(t, got, 1)
			require.Less(t, time.Since(start), 2*time.Minute)
		})
	})
	t.Run("left early, it releases its slot", func(t *testing.T) {
		c := client(t, scripted{list: machines(3, func(func(nstance.Machine, error) bool) {})}, &provider.Options{Width: 1})
		for range c.List(t.Context(), owner) {
			break
		}
		_, err := c.Get(t.Context(), spec(t).ID)
		require.NoError(t, err)
	})
}

// hanging lists some machines and then waits for the end of its context.
type hanging struct {
	nstance.Provider
	after int
}

func (h *hanging) List(ctx context.Context, _ nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return machines(h.after, func(yield func(nstance.Machine, error) bool) {
		<-ctx.Done()
		yield(nstance.Machine{}, ctx.Err())
	})
}

func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type seen struct {
			op   string
			code nstance.Code
			d    time.Duration
		}
		var got []seen
		cloud := simcloud.New(&simcloud.Options{Latency: simcloud.Delay{Min: time.Second}})
		defer cloud.Close()
		c := client(t, cloud, &provider.Options{Observe: func(op string, code nstance.Code, d time.Duration) {
			got = append(got, seen{op, code, d})
		}})
		s := spec(t)
		m, err := c.Create(t.Context(), s)
		require.NoError(t, err)
		cloud.Inject(simcloud.Fault{Op: simcloud.OpGet, Code: nstance.Throttled})
		_, err = c.Get(t.Context(), s.ID)
		require.NoError(t, err)
		_, err = collect(c.List(t.Context(), owner))
		require.NoError(t, err)
		require.NoError(t, c.Delete(t.Context(), m))
		require.ErrorIs(t, c.Delete(t.Context(), m), nstance.NotFound)
		require.Equal(t, []seen{
			{"create", "", time.Second},
			{"get", nstance.Throttled, time.Second / 2}, {"get", "", time.Second}, // each repeat is a call
			{"list", "", time.Second},
			{"delete", "", time.Second}, {"delete", nstance.NotFound, time.Second},
		}, got)
	})
}

// TestReplaceMany is the arithmetic of a mass reclaim: the last of 1,000
// creates is called within 1.5 times calls × latency ÷ width, and none is lost.
func TestReplaceMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls, width, latency = 1000, 100, 50 * time.Millisecond
		cloud := simcloud.New(&simcloud.Options{Latency: simcloud.Delay{Min: latency}})
		defer cloud.Close()
		c := client(t, cloud, nil)
		start := time.Now()
		var wg sync.WaitGroup
		for range calls {
			ok, _ := c.Reserve(time.Now())
			require.True(t, ok, "the budget must let a burst of %d through", calls)
			s := spec(t)
			wg.Go(func() {
				_, err := c.Create(t.Context(), s)
				require.NoError(t, err)
			})
		}
		wg.Wait()
		last := slices.MaxFunc(cloud.Calls(), func(a, b simcloud.Call) int { return a.At.Compare(b.At) })
		require.LessOrEqual(t, last.At.Sub(start), calls*latency/width*3/2)
		require.Len(t, cloud.Machines(), calls)
	})
}

func Example() {
	cloud := simcloud.New(nil)
	defer cloud.Close()
	c, err := provider.New(cloud, &provider.Options{
		Observe: func(op string, code nstance.Code, _ time.Duration) { fmt.Printf("%s %q\n", op, code) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	id, _ := nstance.NewInstanceID("web", time.Now())
	spec := nstance.MachineSpec{
		ID: id, Token: string(id), Market: "spto",
		Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "a", Tenant: "default"},
	}
	if ok, retryAt := c.Reserve(time.Now()); !ok {
		fmt.Println("not before", retryAt)
	}
	_, err = c.Create(ctx, spec)
	fmt.Println(err)
	spec.Market = nstance.Spot
	m, _ := c.Create(ctx, spec)
	for !errors.Is(c.Delete(ctx, m), nstance.NotFound) {
	}
	// Output:
	// market.type: market "spto" is not known (use spot or on-demand)
	// create ""
	// delete ""
	// delete "not_found"
}

// instant succeeds without an effect.
type instant struct{ nstance.Provider }

func (instant) Get(_ context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	return nstance.Machine{ID: id}, nil
}

func (instant) Create(_ context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
	return nstance.Machine{ID: s.ID, Owner: s.Owner}, nil
}

// BenchmarkCall measures the overhead of a client.
func BenchmarkCall(b *testing.B) {
	s := spec(b)
	for name, p := range map[string]nstance.Provider{"bare": instant{}, "client": client(b, instant{}, nil)} {
		b.Run(name+"/get", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Get(b.Context(), s.ID); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/create", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Create(b.Context(), s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestBlock: a client that is blocked sends nothing but the question for the account, and says
// why.
func TestBlock(t *testing.T) {
	asked := 0
	c, err := provider.New(scripted{
		create: func(_ context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
			asked++
			return nstance.Machine{ID: s.ID, Owner: s.Owner}, nil
		},
		delete: func(context.Context, nstance.Machine) error { asked++; return nil },
		list:   func(func(nstance.Machine, error) bool) { asked++ },
	}, nil)
	require.NoError(t, err)
	s := spec(t)
	machine := nstance.Machine{ID: s.ID, Owner: owner}
	calls := func() (errs []error) {
		_, err := c.Create(t.Context(), s)
		errs = append(errs, err, c.Delete(t.Context(), machine))
		for _, err := range c.List(t.Context(), owner) {
			errs = append(errs, err)
		}
		return errs
	}
	c.Block(errors.New("not known yet"))
	for _, err := range append(calls(), c.Blocked()) {
		require.ErrorIs(t, err, nstance.Unavailable)
		require.ErrorContains(t, err, "not known yet")
	}
	require.Zero(t, asked)
	c.Block(nil)
	require.NoError(t, c.Blocked())
	for _, err := range calls() {
		require.NoError(t, err)
	}
	require.Equal(t, 3, asked)
}

// named is a provider that names its account.
type named struct{ scripted }

func (named) Account(context.Context) (string, error) { return "123", nil }

// TestBlockedAccount: whether calls may be sent again is decided by the account.
func TestBlockedAccount(t *testing.T) {
	c := client(t, named{}, nil)
	c.Block(errors.New("not known yet"))
	account, err := c.Abilities().Account.Account(t.Context())
	require.NoError(t, err)
	require.Equal(t, "123", account)
	_, err = c.Get(t.Context(), spec(t).ID)
	require.ErrorIs(t, err, nstance.Unavailable)
}

// inWords is a provider that names the status of machines in the cloud's own words.
type inWords struct {
	nstance.Provider
	status nstance.MachineStatus
}

func (p inWords) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	m, err := p.Provider.Get(ctx, id)
	m.Status = p.status
	return m, err
}

// TestStatusInWords: a status outside of the closed set is unknown, and said once.
func TestStatusInWords(t *testing.T) {
	cloud := simcloud.New(nil)
	defer cloud.Close()
	var alarms []string
	c, err := provider.New(inWords{cloud, "TERMINATED"}, &provider.Options{Alarm: func(text string) { alarms = append(alarms, text) }})
	require.NoError(t, err)
	id, err := nstance.NewInstanceID("web", time.Now())
	require.NoError(t, err)
	_, err = c.Create(t.Context(), nstance.MachineSpec{
		ID: id, Owner: nstance.Owner{Installation: "i", Cluster: "c", Shard: "s", Tenant: "t"}, Group: "web", CreatedAt: time.Now(), Arch: nstance.AMD64, Image: "x", Token: string(id),
	})
	require.NoError(t, err)
	for range 3 {
		m, err := c.Get(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, nstance.StatusUnknown, m.Status)
	}
	require.Len(t, alarms, 1)
	require.Contains(t, alarms[0], "TERMINATED")
}
