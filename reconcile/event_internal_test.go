package reconcile

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
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

// shardOf returns a reconciler none of whose loops run, with groups of members
// that are ready, after all that there was to do is done.
func shardOf(t testing.TB, groups, size int) (*Reconciler, []nstance.Group) {
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
			r.admit(r.groups[spec.Key], eventMember(t, r, spec.Key))
		}
	}
	r.began = eventNow.Add(-2 * time.Hour)
	r.begin()
	settled(r)
	return r, specs
}

func eventMember(t testing.TB, r *Reconciler, key nstance.GroupKey) *member {
	born := eventNow.Add(-time.Hour)
	id, err := nstance.NewInstanceID("web", born)
	require.NoError(t, err)
	g := r.groups[key]
	return &member{
		id: id, durable: true, state: nstance.Booting, hasMach: true, everReady: true, connected: true,
		rec: storage.Instance{
			ID: id, Tenant: key.Tenant, Group: key.Group, CreatedAt: born, RegisteredAt: born,
			InfraHash: g.hash, RuntimeHash: g.runtime, Definition: "d",
		},
		machine: nstance.Machine{ID: id, ProviderID: string(id)}, track: r.health.Begin(eventNow, true),
		report: nstance.Report{InstanceID: id}, reportAt: eventNow, goodSince: born,
	}
}

// settled plans what is due and returns what that was.
func settled(r *Reconciler) (planned []nstance.GroupKey) {
	for {
		key, ok, _ := r.queue.next()
		if !ok {
			break
		}
		r.process(key)
		r.queue.done(key)
		planned = append(planned, key)
	}
	for _, b := range r.balancers.by {
		b.dirty, b.whole = false, false
	}
	return planned
}

// touched returns the load balancers that are to be looked at.
func touched(r *Reconciler) (names []string) {
	for name, b := range r.balancers.by {
		if b.dirty || b.whole || b.relist {
			names = append(names, name)
		}
	}
	return names
}

// TestReloadPlansWhatChanged reloads a thousand groups of ten.
func TestReloadPlansWhatChanged(t *testing.T) {
	r, _ := shardOf(t, 1000, 10)
	for _, b := range r.balancers.by {
		b.relist = false
	}
	reload := func(change func(*nstance.Group)) ([]nstance.GroupKey, []string) {
		specs := eventGroups(1000, 10) // nothing of it is shared with what is in force
		change(&specs[500])
		lbs := []nstance.LoadBalancer{{Name: "front", ID: "f"}, {Name: "back", ID: "b"}, {Name: "side", ID: "s"}}
		r.Observe(nstance.Balancing{LoadBalancers: lbs})
		r.Observe(nstance.Desired{Groups: specs})
		names := touched(r)
		return settled(r), names
	}
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
		t.Run(test.name, func(t *testing.T) {
			planned, balancers := reload(test.change)
			require.Equal(t, test.planned, planned)
			require.Equal(t, test.balancers, balancers)
		})
	}
	t.Run("what it would cost is asked", func(t *testing.T) {
		specs := eventGroups(1000, 10)
		specs[1].Size, specs[2].Definition.UserData.Content = 7, "other"
		i, err := r.Impact(specs)
		require.NoError(t, err)
		require.Equal(t, Impact{Members: 10000, Removed: 3, Rotated: 10}, i)
		require.Empty(t, settled(r))
	})
	t.Run("one is to be removed, and then is not", func(t *testing.T) {
		r.Observe(nstance.Removed{Key: changed})
		require.Equal(t, []nstance.GroupKey{changed}, settled(r))
		planned, _ := reload(func(g *nstance.Group) { g.Definition.LoadBalancers = []string{"front", "back"} })
		require.Equal(t, []nstance.GroupKey{changed}, planned)
		require.False(t, r.groups[changed].removing)
	})
}

// anyMember returns a member of the first group.
func anyMember(r *Reconciler, specs []nstance.Group) *member {
	return r.groups[specs[0].Key].members[0]
}

// report is a good one, as it comes off the wire.
func report(r *Reconciler, m *member) {
	r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: m.id, Timestamp: eventNow}})
}

// event is one that has the member's group planned.
func event(r *Reconciler, m *member) {
	r.Observe(nstance.Seen{Machine: m.machine})
	settledOne(r)
}

func settledOne(r *Reconciler) {
	if key, ok, _ := r.queue.next(); ok {
		r.process(key)
		r.queue.done(key)
	}
}

// TestEventsCostTheirGroup holds the allocations of an event against the size of
// the shard: ten machines, and a thousand times as many.
func TestEventsCostTheirGroup(t *testing.T) {
	type cost struct{ report, event, silence float64 }
	of := func(groups int) (c cost) {
		r, specs := shardOf(t, groups, 10)
		m := anyMember(r, specs)
		m.machine.Status = nstance.StatusRunning
		m.machine.Owner = r.opts.ownerOf(m)
		event(r, m)
		c.report = testing.AllocsPerRun(100, func() { report(r, m) })
		require.Empty(t, settled(r), "a report in order has nothing planned")
		c.event = testing.AllocsPerRun(100, func() { event(r, m) })
		c.silence = testing.AllocsPerRun(10, func() { r.counted = silenceCount{}; r.shardSilence(eventNow) })
		return c
	}
	few, many := of(1), of(1000)
	require.Equal(t, few.report, many.report)
	require.LessOrEqual(t, many.report, 1.0, "the fact itself")
	require.LessOrEqual(t, many.event, few.event+1, "the queue's memory grows now and then")
	require.LessOrEqual(t, many.event, 10.0)
	require.Equal(t, few.silence, many.silence, "nobody is silent, so nobody is listed")
}

func BenchmarkEvent(b *testing.B) {
	for _, shape := range []struct{ groups, size int }{{1, 10}, {1000, 10}, {1, 10_000}} {
		r, specs := shardOf(b, shape.groups, shape.size)
		m := anyMember(r, specs)
		m.machine.Status, m.machine.Owner = nstance.StatusRunning, r.opts.ownerOf(m)
		for name, do := range map[string]func(*Reconciler, *member){"report": report, "plan": event} {
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
				r.counted = silenceCount{}
				r.shardSilence(eventNow)
			}
		})
	}
}

// BenchmarkReload is one group that changes, and none.
func BenchmarkReload(b *testing.B) {
	r, specs := shardOf(b, 1000, 10)
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
