package groups

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

const editedConfig = `{
	"cluster": {"id": "c1"},
	"shard": {"id": "s1", "provider": {"kind": "sim"}},
	"templates": {"vm": {"kind": "web", "arch": "amd64", "instance_type": "small", "userdata": {"content": "{{.Nonce}} {{.Vars.name}}"}, "vars": {"name": "x"}}},
	"groups": {"default": {"web": {"template": "vm", "size": 1}, "api": {"template": "vm", "size": 2}}},
	"tenants": {"default": {"templates": ["vm"], "instance_types": ["small", "t0", "t1", "t2", "t3"], "max_instances": 100000, "max_groups": 5000}}
}`

// An editedShard is the groups of one term, with a reconciler that does not run.
type editedShard struct {
	*Groups
	conf *config.Config
	stop func()

	mu     sync.Mutex
	events []nstance.Event
}

func (s *editedShard) journal(e nstance.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

func (s *editedShard) journalled(typ nstance.EventType) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.Type == typ {
			n++
		}
	}
	return n
}

func newEditedShard(t testing.TB, store storage.Store) *editedShard {
	t.Helper()
	conf, err := config.Parse("shard.jsonc", []byte(editedConfig), simcloud.Kind())
	require.NoError(t, err)
	cloud := simcloud.New(nil)
	r, err := reconcile.New(cloud, store, &reconcile.Options{Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1"}, Epoch: 1})
	require.NoError(t, err)
	s := &editedShard{conf: conf}
	type fleet struct {
		*reconcile.Admin
		loop.Internals
	}
	s.Groups = New(store, fleet{r.Admin(), r.Admin().Internals()}, Options{
		Shard: "s1", Config: func() *config.Config { return conf }, Proposed: func() bool { return false }, Epoch: 1, Check: func() error { return nil }, Now: time.Now, Retry: time.Second,
		Log: slog.New(slog.DiscardHandler), Journal: s.journal, Published: func() {},
		Bound: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 30*time.Second)
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx, func() {}) }()
	s.stop = func() { cancel(); <-done; cloud.Close() }
	<-s.complete
	return s
}

// settle waits until everything was looked up that is at first.
func (s *editedShard) settle(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool {
		known := s.resolver.types.of([]string{"small"})["small"] != nil
		return known && !s.again.Load() && s.Apply(t.Context()) == nil
	}, time.Minute, 10*time.Millisecond)
}

var eve = config.Changer{Subject: "eve"}

func keyOf(i int) nstance.GroupKey {
	return nstance.GroupKey{Tenant: "default", Group: nstance.GroupID(fmt.Sprintf("job%d", i))}
}

func (s *editedShard) sizeInForce(t *testing.T, key nstance.GroupKey) int {
	t.Helper()
	v, err := s.shard.Group(key)
	require.NoError(t, err)
	return v.Size
}

// TestUnansweredEdit: what may have landed is found out, and put in force. Nothing lands
// after that.
func TestUnansweredEdit(t *testing.T) {
	for _, landed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := storagetest.NewFaulty(storage.NewMemory())
			s := newEditedShard(t, store)
			defer s.stop()
			_, err := s.Create(t.Context(), eve, keyOf(1), config.Override{Template: "vm", Size: new(3)}, false)
			require.NoError(t, err)
			<-time.After(time.Minute) // until everything was looked up
			groups := layout.GroupsKey("s1")
			store.Inject(
				storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: groups, Mode: storagetest.Late, Err: nstance.Ambiguous},
				storagetest.Fault{Op: storagetest.Get, Prefix: groups, Err: nstance.Unavailable, Do: func() {
					if landed {
						store.ApplyLate()
					}
				}})
			_, _, err = s.Update(t.Context(), eve, keyOf(1), config.Override{Size: new(0)}, false)
			require.Error(t, err)
			<-time.After(5 * time.Second)
			store.ApplyLate()
			<-time.After(5 * time.Second)
			want := map[bool]int{true: 0, false: 3}[landed]
			require.Equal(t, want, s.sizeInForce(t, keyOf(1)))
			file, err := s.doc.Load(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, *file.of(keyOf(1)).Size, "and durable")
			require.Equal(t, map[bool]int{true: 1, false: 0}[landed], s.journalled(eventtype.GroupChanged))
		})
	}
}

// TestAbandonedEdit: a caller that leaves while it waits changes nothing; one that leaves
// later changes all or nothing.
func TestAbandonedEdit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEditedShard(t, storage.NewMemory())
		defer s.stop()
		key := nstance.GroupKey{Tenant: "default", Group: "web"}
		done, err := s.turns.Acquire(t.Context(), "other")
		require.NoError(t, err)
		ctx, leave := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() { _, _, err := s.Update(ctx, eve, key, config.Override{Size: new(5)}, false); failed <- err }()
		synctest.Wait()
		leave()
		require.ErrorIs(t, <-failed, nstance.Unavailable)
		done()
		for range 50 {
			_, _, err := s.Update(ctx, eve, key, config.Override{Size: new(5)}, false)
			require.ErrorIs(t, err, nstance.Unavailable, "it had left before")
		}
		synctest.Wait()
		require.Equal(t, 1, s.sizeInForce(t, key))
	})
}

// TestEditedViewIsTheWholeView: after any edits, what was brought up to date group by group
// is what resolving all groups gives, and what another server reads.
func TestEditedViewIsTheWholeView(t *testing.T) {
	store := storage.NewMemory()
	s := newEditedShard(t, store)
	defer s.stop()
	s.settle(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	who := config.Changer{Subject: "eve", Allowance: s.conf.Allowance("default"), Budget: new(s.conf.Budget("default"))}
	retyped := 0
	for i := range 300 {
		key := keyOf(rnd.IntN(8))
		if rnd.IntN(5) == 0 {
			key.Group = []nstance.GroupID{"web", "api"}[rnd.IntN(2)]
		}
		o := config.Override{Size: new(rnd.IntN(5)), Vars: map[string]string{"name": fmt.Sprintf("<%d>", rnd.IntN(3))}}
		switch rnd.IntN(4) {
		case 0:
			_, _ = s.Remove(t.Context(), who, key, false)
			if !s.conf.Static(key) && i%2 == 0 {
				s.ForgetSoon(key)
			}
		case 1:
			_, _, _ = s.Update(t.Context(), who, key, o, false)
		case 2:
			if _, _, err := s.Update(t.Context(), who, key, config.Override{InstanceTypes: []string{"small", fmt.Sprint("t", i%4)}}, rnd.IntN(2) == 0); err == nil {
				retyped++
			}
		default:
			o.Template = "vm"
			_, _ = s.Create(t.Context(), who, key, o, false)
		}
		done, err := s.turns.Acquire(t.Context(), "other")
		require.NoError(t, err)
		file, _ := s.doc.Held()
		want := newView(s.conf, file, s.resolve(s.conf, file))
		require.Equal(t, want.tenants, s.view.tenants)
		require.Equal(t, s.summed(file), s.view.tenants["default"])
		require.Equal(t, want.pending, s.view.pending)
		require.ElementsMatch(t, slices.Collect(maps.Keys(want.types)), slices.Collect(maps.Keys(s.resolver.types.wanted)))
		for name := range s.resolver.types.archs {
			require.True(t, s.resolver.types.wanted[name] || slices.Contains(s.resolver.types.recent, name), name)
		}
		for _, name := range s.resolver.types.recent {
			_, known := s.resolver.types.archs[name]
			require.True(t, known, "types of requests are remembered")
		}
		require.Equal(t, want.types, s.view.types)
		require.Equal(t, want.digests, s.view.digests)
		require.Equal(t, want.writeID, s.view.writeID)
		require.Len(t, s.defs.known, len(want.digests), "nothing is kept of groups that are gone")
		for _, r := range s.resolve(s.conf, file) {
			require.Equal(t, r.Size, s.sizeInForce(t, r.Key), r.Key)
		}
		done()
	}
	require.Greater(t, retyped, 5)
	read, err := newEditedShard(t, store).doc.Load(t.Context())
	require.NoError(t, err)
	held, _ := s.doc.Held()
	require.True(t, read.Same(held))
}

// summed is what the groups of the tenant amount to, counted one by one.
func (s *editedShard) summed(file overlays) (u usage) {
	for _, r := range s.resolve(s.conf, file) {
		if !r.Removing {
			u.size += r.Size
		}
	}
	for _, p := range file.Groups {
		if !s.conf.Static(p.key()) && p.isGroup() {
			u.dynamic++
		}
		u.bytes += p.Bytes()
	}
	return u
}

// TestLimitsOfEdits: each limit is that of the tenant's groups together, before and after
// edits of others.
func TestLimitsOfEdits(t *testing.T) {
	s := newEditedShard(t, storage.NewMemory())
	defer s.stop()
	s.settle(t)
	budget := s.conf.Budget("default")
	budget.MaxGroups, budget.MaxGroupBytes = 2, 300
	who := config.Changer{Subject: "eve", Budget: &budget}
	create := func(i int, name string) error {
		_, err := s.Create(t.Context(), who, keyOf(i), config.Override{Template: "vm", Size: new(1), Vars: map[string]string{"name": name}, Protect: new(true)}, false)
		return err
	}
	require.NoError(t, create(1, "x"))
	require.ErrorIs(t, create(2, strings.Repeat("x", 300)), nstance.Quota)
	require.NoError(t, create(2, "x"))
	require.ErrorIs(t, create(3, "x"), nstance.Quota)
	_, _, err := s.Update(t.Context(), who, keyOf(2), config.Override{Vars: map[string]string{"name": strings.Repeat("x", 300)}}, false)
	require.ErrorIs(t, err, nstance.Quota)
	_, err = s.Remove(t.Context(), who, keyOf(2), false)
	require.ErrorIs(t, err, nstance.Conflict, "it is protected")
	_, _, err = s.Update(t.Context(), who, keyOf(2), config.Override{Protect: new(false)}, false)
	require.NoError(t, err)
	_, err = s.Remove(t.Context(), who, keyOf(2), false)
	require.NoError(t, err)
	require.ErrorIs(t, create(3, "x"), nstance.Quota, "a group that is being removed still counts")
	file, v, err := s.viewNow(t.Context())
	require.NoError(t, err)
	require.Equal(t, s.summed(file), v.tenants["default"])
	require.Equal(t, 1+1+2, v.tenants["default"].size, "but not its instances")
	s.ForgetSoon(keyOf(2))
	require.Eventually(t, func() bool { return create(3, "x") == nil }, time.Minute, time.Millisecond)
}

// A peopledShard has members in every group.
type peopledShard struct{ shard }

func (peopledShard) Group(nstance.GroupKey) (reconcile.GroupView, error) {
	return reconcile.GroupView{}, nil
}

// TestForgottenTooLate: the overlay of a group that is gone is to be deleted, and before that is
// done the group is made and removed again: its members leave under every leader.
func TestForgottenTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEditedShard(t, storage.NewMemory())
		defer s.stop()
		_, err := s.Create(t.Context(), eve, keyOf(1), config.Override{Template: "vm", Size: new(3)}, false)
		require.NoError(t, err)
		_, err = s.Remove(t.Context(), eve, keyOf(1), false)
		require.NoError(t, err)
		<-time.After(time.Minute) // until everything was looked up
		synctest.Wait()
		s.shard = peopledShard{s.shard}
		s.ForgetSoon(keyOf(1))
		<-time.After(time.Minute)
		file, err := s.doc.Load(t.Context())
		require.NoError(t, err)
		require.NotNil(t, file.of(keyOf(1)).Removing)
	})
}

// TestUnknownFieldsOfGroups: a newer version's settings of a group stay while others change.
func TestUnknownFieldsOfGroups(t *testing.T) {
	store := storage.NewMemory()
	_, err := store.PutIfAbsent(t.Context(), layout.GroupsKey("s1"), []byte(`{
		// by hand
		"groups": {"default/job1": {"template": "vm", "size": 1, "later": {"x": 1}}, "no name": {}},
	}`))
	require.NoError(t, err)
	s := newEditedShard(t, store)
	defer s.stop()
	_, err = s.Create(t.Context(), eve, keyOf(2), config.Override{Template: "vm", Size: new(1)}, false)
	require.NoError(t, err)
	obj, err := store.Get(t.Context(), layout.GroupsKey("s1"))
	require.NoError(t, err)
	require.Contains(t, string(obj.Data), `"no name":{}`)
	require.Equal(t, 1, s.sizeInForce(t, keyOf(1)))
}

// TestCostOfAnEdit: it is one write, and what is allocated does not grow with the other groups.
func TestCostOfAnEdit(t *testing.T) {
	cost := func(n int) float64 {
		store := &uncopied{Store: filledStore(t, n)}
		s := newEditedShard(t, store)
		defer s.stop()
		s.settle(t)
		before, size := store.writes.Load(), 1
		allocations := math.MaxFloat64 // of the cheapest edit: the shard's own work is counted too
		for range 10 {
			allocations = min(allocations, testing.AllocsPerRun(1, func() {
				size++
				_, _, err := s.Update(t.Context(), eve, keyOf(1), config.Override{Size: &size}, false)
				require.NoError(t, err)
			}))
		}
		require.EqualValues(t, size-1, store.writes.Load()-before)
		return allocations
	}
	few, many := cost(10), cost(2000)
	require.Less(t, many, 2*few)
}

// BenchmarkEdit shows what one edit costs, by the number of groups: that group, and one
// write of an object that holds all of them. What is left to grow is the copying of its
// bytes; the store here does not copy them again.
func BenchmarkEdit(b *testing.B) {
	for _, n := range []int{10, 100, 1000, 5000} {
		b.Run(fmt.Sprint(n, " groups"), func(b *testing.B) {
			s := newEditedShard(b, &uncopied{Store: filledStore(b, n)})
			defer s.stop()
			s.settle(b)
			for i := 0; b.Loop(); i++ {
				_, _, err := s.Update(b.Context(), eve, keyOf(1), config.Override{Size: new(2 + i%2)}, false)
				require.NoError(b, err)
			}
		})
	}
}

// uncopied accepts the groups without keeping them.
type uncopied struct {
	storage.Store
	writes atomic.Int64
}

func (s *uncopied) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	if key != layout.GroupsKey("s1") {
		return s.Store.PutIfMatch(ctx, key, data, v)
	}
	return storage.Version(fmt.Sprint(s.writes.Add(1))), nil
}

// filledStore returns a store with n dynamic groups.
func filledStore(t testing.TB, n int) storage.Store {
	var groups []string
	for i := range n {
		groups = append(groups, fmt.Sprintf(`"default/job%d": {"template": "vm", "size": 1, "dynamic": true, "vars": {"name": "%d"}}`, i, i))
	}
	store := storage.NewMemory()
	_, err := store.PutIfAbsent(t.Context(), layout.GroupsKey("s1"), []byte(`{"format": "1.0", "groups": {`+strings.Join(groups, ",")+`}}`))
	require.NoError(t, err)
	return store
}

// TestRemovedGroupsAreForgotten: their overlays go, whichever writes fail.
func TestRemovedGroupsAreForgotten(t *testing.T) {
	for name, fault := range map[string]storagetest.Fault{
		"none":                 {Op: storagetest.Delete},
		"a refused write":      {Op: storagetest.PutIfMatch, Err: nstance.Throttled},
		"a lost answer":        {Op: storagetest.PutIfMatch, Mode: storagetest.LoseAnswer, Err: nstance.Unavailable},
		"a write that is late": {Op: storagetest.PutIfMatch, Mode: storagetest.Late, Err: nstance.Ambiguous},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := storagetest.NewFaulty(storage.NewMemory())
				s := newEditedShard(t, store)
				defer s.stop()
				for i := range 3 {
					_, err := s.Create(t.Context(), eve, keyOf(i), config.Override{Template: "vm", Size: new(1)}, false)
					require.NoError(t, err)
				}
				<-time.After(time.Minute)
				for i := range 2 {
					_, err := s.Remove(t.Context(), eve, keyOf(i), false)
					require.NoError(t, err)
				}
				fault.Prefix = layout.GroupsKey("s1")
				store.Inject(fault)
				s.ForgetSoon(keyOf(0))
				s.ForgetSoon(keyOf(1))
				s.ForgetSoon(keyOf(2)) // which was created again meanwhile, and is not being removed
				<-time.After(5 * time.Minute)
				file, err := s.doc.Load(t.Context())
				require.NoError(t, err)
				require.False(t, file.of(keyOf(0)).isGroup())
				require.False(t, file.of(keyOf(1)).isGroup())
				require.True(t, file.of(keyOf(2)).isGroup())
			})
		})
	}
}

// TestEffectiveGroupIsWhole: what is durable of a group that is in effect is all that it
// is, but for what the configuration and the overlay say beside it.
func TestEffectiveGroupIsWhole(t *testing.T) {
	def := nstance.Definition{Kind: "web", InstanceTypes: []string{"small"}}
	want := nstance.Group{
		Key: keyOf(1), Template: "vm", Size: 3, Definition: def, DrainTimeout: time.Minute,
		Rollout: nstance.Rollout{MaxSurge: nstance.Count{N: 20, Percent: true}, MinReady: time.Second, HaltAfter: 4},
		Spread:  nstance.Spread{By: nstance.SpreadType, MaxShare: nstance.Count{N: 50, Percent: true}}, Order: nstance.OrderCheapest,
		OnReclaim: nstance.ReclaimCordon, OnRebalance: nstance.NoticeReplace, OnMaintenance: nstance.NoticeIgnore, OnDrainTimeout: nstance.DrainTimeoutWait,
		WarmPool: nstance.WarmPool{Size: 2, Mode: nstance.ParkHibernated, MaxAge: time.Hour, NoReturn: true}, Protect: true,
	}
	elsewhere := []string{"Expiry", "Static", "Removing", "BootstrapData", "Owner", "Pending"}
	for i, v := 0, reflect.ValueOf(want); i < v.NumField(); i++ {
		if name := v.Type().Field(i).Name; !slices.Contains(elsewhere, name) {
			require.False(t, v.Field(i).IsZero(), "%s: the test must set every field", name)
		}
	}
	for i, v := 0, reflect.ValueOf(want.WarmPool); i < v.NumField(); i++ {
		require.False(t, v.Field(i).IsZero(), "%s: the test must set every field", v.Type().Field(i).Name)
	}
	e := effectiveOf(want, "d")
	data, err := json.Marshal(e)
	require.NoError(t, err)
	var read effective
	require.NoError(t, json.Unmarshal(data, &read))
	require.Equal(t, want, read.group(want.Key, def))
}

// TestOverlaysChangedElsewhere: what another writer has changed is in force with the next
// edit, which is made on top of it.
func TestOverlaysChangedElsewhere(t *testing.T) {
	store := storage.NewMemory()
	s := newEditedShard(t, store)
	defer s.stop()
	for i := range 2 {
		_, err := s.Create(t.Context(), eve, keyOf(i), config.Override{Template: "vm", Size: new(1)}, false)
		require.NoError(t, err)
	}
	s.settle(t)
	_, err := records.NewDoc[overlays](store, layout.GroupsKey("s1"), nil).Update(t.Context(), func(f *overlays) error {
		e := f.of(keyOf(0))
		e.Size = new(7)
		return f.put(keyOf(0), e)
	})
	require.NoError(t, err)
	_, _, err = s.Update(t.Context(), eve, keyOf(1), config.Override{Size: new(5)}, false)
	require.NoError(t, err)
	require.Equal(t, 7, s.sizeInForce(t, keyOf(0)))
	require.Equal(t, 5, s.sizeInForce(t, keyOf(1)))
	_, v, err := s.viewNow(t.Context())
	require.NoError(t, err)
	require.Equal(t, 7+5+1+2, v.tenants["default"].size)
}

// TestEditsTakeTurns: a tenant with many waiting edits does not keep those of another
// waiting.
func TestEditsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEditedShard(t, storage.NewMemory())
		defer s.stop()
		hold, err := s.turns.Acquire(t.Context(), "other")
		require.NoError(t, err)
		before := len(s.events)
		edit := func(key nstance.GroupKey) {
			go func() { _, _ = s.Create(t.Context(), eve, key, config.Override{Template: "vm", Size: new(0)}, false) }()
			synctest.Wait()
		}
		for i := range 30 {
			edit(keyOf(i))
		}
		edit(nstance.GroupKey{Tenant: "blue", Group: "job"})
		hold()
		synctest.Wait()
		require.Len(t, s.events, before+31)
		require.Equal(t, nstance.TenantID("blue"), s.events[before+1].Tenant)
	})
}
