package reconcile

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/internal/balance"
	"github.com/nstance-go/nstance/reconcile/internal/silence"
	"github.com/nstance-go/nstance/reconcile/internal/work"
	"github.com/nstance-go/nstance/storage"
)

var eventNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func eventGroups(groups, size int) []nstance.Group {
	out := make([]nstance.Group, groups)
	for i := range out {
		out[i] = nstance.Group{
			Key:  nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: nstance.GroupID(fmt.Sprintf("g%04d", i))},
			Size: size, DrainTimeout: time.Minute, Rollout: nstance.Rollout{MaxSurge: nstance.Count{N: 1}, HaltAfter: 2},
			Definition: nstance.Definition{
				Kind: "web", Arch: nstance.AMD64, InstanceTypes: []string{"small"}, LoadBalancers: []string{"front"},
				UserData: nstance.UserData{Content: "hello"}, Vars: map[string]string{"colour": "red"},
			},
		}
	}
	return out
}

// newIdleShard returns a reconciler without running loops, whose groups have ready
// members and nothing left to do.
func newIdleShard(t testing.TB, groups, size int) (*Reconciler, []nstance.Group) {
	cloud := simcloud.New(nil)
	t.Cleanup(cloud.Close)
	specs := eventGroups(groups, size)
	r, err := New(cloud, storage.NewMemory(), &Options{
		Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1"}, Groups: specs,
		Balancers: []nstance.LoadBalancer{{Name: "front", ID: "f"}, {Name: "back", ID: "b"}, {Name: "side", ID: "s"}},
		Now:       func() time.Time { return eventNow },
	})
	require.NoError(t, err)
	for _, spec := range specs {
		for range size {
			r.addMember(r.groups[spec.Key], eventMember(t, r, spec.Key))
		}
	}
	r.began = eventNow.Add(-2 * time.Hour)
	r.begin()
	processQueue(r)
	return r, specs
}

func eventMember(t testing.TB, r *Reconciler, key nstance.GroupKey) *member {
	born := eventNow.Add(-time.Hour)
	id, err := nstance.NewInstanceID("web", born)
	require.NoError(t, err)
	g := r.groups[key]
	return &member{
		id: id, durable: true, state: nstance.Booting,
		rec: records.Instance{
			ID: id, Tenant: key.Tenant, Group: key.Group, CreatedAt: born, RegisteredAt: born,
			InfraHash: g.hash, RuntimeHash: g.runtime, Definition: "d",
		},
		machineState: machineState{machine: nstance.Machine{ID: id, ProviderID: string(id)}, machineSince: born},
		agentState: agentState{
			healthTrack: r.health.Begin(eventNow, true), report: nstance.Report{InstanceID: id}, reportAt: eventNow,
			connected: true, healthySince: born, wasReady: true,
		},
	}
}

// processQueue plans all groups that are due and returns their keys.
func processQueue(r *Reconciler) (planned []nstance.GroupKey) {
	for {
		key, _, wait := r.queue.Next()
		if wait > 0 {
			break
		}
		r.process(key)
		planned = append(planned, key)
	}
	return planned
}

// A comparisonRecorder records the load balancers that are compared with members.
type comparisonRecorder struct {
	balancedMembers
	mu    sync.Mutex
	names []string
}

func (c *comparisonRecorder) Members(t balance.Target, all bool) []balance.Member {
	c.mu.Lock()
	c.names = append(c.names, t.Name)
	c.mu.Unlock()
	return c.balancedMembers.Members(t, all)
}

// runKeeper runs the keeper for a second and returns the sorted names that it compared.
func (c *comparisonRecorder) runKeeper(t *testing.T) []string {
	ctx, stop := context.WithCancel(t.Context())
	var keeper sync.WaitGroup
	keeper.Go(func() { c.r.balance.Run(ctx, silentBalancer{}) })
	<-time.After(time.Second) // in the bubble
	stop()
	keeper.Wait()
	names := slices.Compact(slices.Sorted(slices.Values(c.names)))
	c.names = nil
	return names
}

// silentBalancer accepts everything.
type silentBalancer struct{}

func (silentBalancer) BalancerMembers(context.Context, nstance.LoadBalancer) ([]string, error) {
	return nil, nil
}

func (silentBalancer) JoinBalancer(context.Context, nstance.LoadBalancer, []nstance.Machine) error {
	return nil
}

func (silentBalancer) LeaveBalancer(context.Context, nstance.LoadBalancer, []nstance.Machine) error {
	return nil
}

// TestReloadPlansWhatChanged reloads a thousand groups of ten.
func TestReloadPlansWhatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newIdleShard(t, 1000, 10)
		lbs := []nstance.LoadBalancer{{Name: "front", ID: "f"}, {Name: "back", ID: "b"}, {Name: "side", ID: "s"}}
		compared := &comparisonRecorder{balancedMembers: balancedMembers{r}}
		r.balance = balance.New(compared, balance.Options{Check: r.opts.Check, Now: r.opts.Now, Log: r.log})
		r.balance.Configure(lbs)
		require.Len(t, compared.runKeeper(t), 3, "each once at the start")
		changed := nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "g0500"}
		for _, test := range []struct {
			name      string
			change    func(*nstance.Group)
			planned   []nstance.GroupKey
			balancers []string
		}{
			{"nothing", func(*nstance.Group) {}, nil, nil},
			{"its drain timeout", func(g *nstance.Group) { g.DrainTimeout = time.Hour }, []nstance.GroupKey{changed}, nil},
			{"back again", func(*nstance.Group) {}, []nstance.GroupKey{changed}, nil},
			{"its variables", func(g *nstance.Group) { g.Definition.Vars["colour"] = "blue" }, []nstance.GroupKey{changed}, nil},
			{"its load balancers", func(g *nstance.Group) { g.Definition.LoadBalancers = []string{"front", "back"} }, []nstance.GroupKey{changed}, []string{"back"}},
		} {
			specs := eventGroups(1000, 10) // shares no memory with the groups in force
			test.change(&specs[500])
			r.Observe(nstance.Balancing{LoadBalancers: lbs})
			r.Observe(nstance.Desired{Groups: specs})
			require.Equal(t, test.balancers, compared.runKeeper(t), test.name)
			require.Equal(t, test.planned, processQueue(r), test.name)
			compared.runKeeper(t)
		}
	})
}

// TestImpactPlansNothing: Impact plans no group.
func TestImpactPlansNothing(t *testing.T) {
	r, specs := newIdleShard(t, 1000, 10)
	specs[1].Size, specs[2].Definition.UserData.Content = 7, "other"
	i, err := r.Admin().Impact(specs)
	require.NoError(t, err)
	require.Equal(t, Impact{Members: 10000, Removed: 3, Rotated: 10}, i)
	require.Empty(t, processQueue(r))
}

func TestRemovalIsReverted(t *testing.T) {
	r, specs := newIdleShard(t, 1000, 10)
	changed := specs[500].Key
	require.NoError(t, r.Remove(changed))
	require.Equal(t, []nstance.GroupKey{changed}, processQueue(r))
	r.Observe(nstance.Desired{Groups: eventGroups(1000, 10)})
	require.Equal(t, []nstance.GroupKey{changed}, processQueue(r))
	require.False(t, r.groups[changed].spec.Removing)
}

// anyMember returns a member of the first group.
func anyMember(r *Reconciler, specs []nstance.Group) *member {
	return r.groups[specs[0].Key].members[0]
}

// observeReport observes a healthy report.
func observeReport(r *Reconciler, m *member) {
	r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: m.id, Timestamp: eventNow}})
}

// observeMachine observes the member's machine, which plans its group.
func observeMachine(r *Reconciler, m *member) {
	r.Observe(nstance.MachineSeen{Machine: m.machine})
	processNext(r)
}

func processNext(r *Reconciler) {
	if key, _, wait := r.queue.Next(); wait == 0 {
		r.process(key)
	}
}

// TestEventCostIsPerGroup compares the allocations of an event in a shard with ten
// machines and in one with a thousand times as many.
func TestEventCostIsPerGroup(t *testing.T) {
	type cost struct{ report, event, silence float64 }
	of := func(groups int) (c cost) {
		r, specs := newIdleShard(t, groups, 10)
		m := anyMember(r, specs)
		m.machine.Status = nstance.StatusRunning
		m.machine.Owner = r.opts.ownerOf(m)
		observeMachine(r, m)
		c.report = testing.AllocsPerRun(100, func() { observeReport(r, m) })
		require.Empty(t, processQueue(r), "a healthy report plans nothing")
		c.event = testing.AllocsPerRun(100, func() { observeMachine(r, m) })
		c.silence = testing.AllocsPerRun(10, func() { r.silence = silence.Cache{}; r.shardSilence(eventNow) })
		return c
	}
	few, many := of(1), of(1000)
	require.Equal(t, few.report, many.report)
	require.LessOrEqual(t, many.report, 1.0, "the fact itself")
	require.LessOrEqual(t, many.event, few.event+1, "the queue's memory grows sometimes")
	require.LessOrEqual(t, many.event, 10.0)
	require.Equal(t, few.silence, many.silence, "no silent members, so no list")
}

// TestRoutineFactsShareAPlan: registrations and first reports of a large group wait a moment
// for one plan, and those of a small group do not. A notice never waits.
func TestRoutineFactsShareAPlan(t *testing.T) {
	routine := map[string]func(*Reconciler, *member){
		"registered": func(r *Reconciler, m *member) {
			m.rec.RegisteredAt, m.rec.Definition = eventNow, ""
			if _, err := r.records.Create(t.Context(), m.rec); err != nil {
				require.ErrorIs(t, err, nstance.Conflict, "registered before")
			}
			m.rec.RegisteredAt = time.Time{}
			r.Observe(nstance.Registered{ID: m.id})
		},
		"first report": func(r *Reconciler, m *member) {
			m.reportAt, m.healthySince = time.Time{}, time.Time{}
			observeReport(r, m)
		},
		"recovered": func(r *Reconciler, m *member) {
			m.healthySince = time.Time{}
			observeReport(r, m)
		},
		"not recovered": func(r *Reconciler, m *member) {
			m.reportAt, m.healthySince = time.Time{}, time.Time{}
			r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: m.id, Probes: []nstance.ProbeResult{{Name: "disk"}}}})
		},
	}
	for name, fact := range routine {
		t.Run(name, func(t *testing.T) {
			now := eventNow
			r, specs := newIdleShard(t, 1, 1000)
			r.opts.Now = func() time.Time { return now }
			r.queue = work.NewQueue(r.opts.Now)
			for _, m := range r.groups[specs[0].Key].members[:3] {
				fact(r, m)
			}
			require.Empty(t, processQueue(r))
			now = now.Add(10 * time.Millisecond)
			require.Len(t, processQueue(r), 1, "all share one plan")

			fact(r, anyMember(r, specs))
			r.Observe(nstance.Noticed{ID: anyMember(r, specs).id, Notice: nstance.Notice{
				Kind: nstance.Reclaim, Action: "terminate", Deadline: now.Add(2 * time.Minute), Source: "aws/spot", EventID: "e1", DetectedAt: now,
			}})
			require.NotEmpty(t, processQueue(r), "a notice is planned at once")

			small, specs := newIdleShard(t, 1, 10)
			fact(small, anyMember(small, specs))
			require.Len(t, processQueue(small), 1)
		})
	}
}

func BenchmarkEvent(b *testing.B) {
	for _, shape := range []struct{ groups, size int }{{1, 10}, {1000, 10}, {1, 10_000}} {
		r, specs := newIdleShard(b, shape.groups, shape.size)
		m := anyMember(r, specs)
		m.machine.Status, m.machine.Owner = nstance.StatusRunning, r.opts.ownerOf(m)
		for name, do := range map[string]func(*Reconciler, *member){"report": observeReport, "plan": observeMachine} {
			b.Run(fmt.Sprintf("%s/%dx%d", name, shape.groups, shape.size), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					do(r, m)
				}
			})
		}
		b.Run(fmt.Sprintf("silence/%dx%d", shape.groups, shape.size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r.silence = silence.Cache{}
				r.shardSilence(eventNow)
			}
		})
	}
}

// BenchmarkReload reloads one changed group, and none.
func BenchmarkReload(b *testing.B) {
	r, specs := newIdleShard(b, 1000, 10)
	again := eventGroups(1000, 10)
	b.Run("nothing", func(b *testing.B) {
		for b.Loop() {
			r.Observe(nstance.Desired{Groups: again})
		}
	})
	b.Run("one", func(b *testing.B) {
		for b.Loop() {
			again[500].Size = 21 - again[500].Size
			r.Observe(nstance.Desired{Groups: again})
		}
	})
	require.Len(b, specs, 1000)
}
