package reconcile_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// A lockProbe is a provider and a clock. Whenever the reconciler calls it, it waits for
// another goroutine that takes the reconciler's lock.
type lockProbe struct {
	nstance.Provider
	r       *reconcile.Reconciler
	probing atomic.Bool
	calls   int
	held    bool // the lock was, during a call
}

func (p *lockProbe) probe() {
	if !p.probing.Load() {
		return
	}
	p.calls++
	free := make(chan struct{})
	go func() {
		defer close(free)
		p.r.Admin().Internals().OnDemand(nstance.DefaultTenant)
	}()
	select {
	case <-free:
	case <-time.After(5 * time.Second):
		p.held = true
	}
}

func (p *lockProbe) Now() time.Time {
	p.probe()
	return time.Now()
}

func (p *lockProbe) NodeProviderID(m nstance.Machine) string {
	p.probe()
	return m.ProviderID
}

// run runs a reconciler with a group until its machine is made.
func (p *lockProbe) run(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	cloud := simcloud.New(nil)
	t.Cleanup(cloud.Close)
	p.Provider = cloud
	var err error
	p.r, err = reconcile.New(p, storage.NewMemory(), &reconcile.Options{
		Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1"}, Groups: []nstance.Group{webGroup(1)}, Now: p.Now,
		Journal: func(e nstance.Event) {
			if e.Type == nstance.EventCreated {
				stop()
			}
		},
	})
	require.NoError(t, err)
	require.NoError(t, p.r.Run(ctx))
}

// TestReadsComputeWithoutTheLock: the clock and the provider, when a read calls them, may take the
// lock. TestReadsKnowNoShard says that no computation has it.
func TestReadsComputeWithoutTheLock(t *testing.T) {
	p := &lockProbe{}
	p.run(t)
	id, admin := p.r.Instances()[0].ID, p.r.Admin()
	for name, c := range map[string]struct {
		read  func()
		calls int // at least
	}{
		"groups":    {func() { p.r.Groups() }, 1},
		"group":     {func() { _, _ = p.r.Group(web) }, 1},
		"instances": {func() { p.r.Instances() }, 2},
		"instance":  {func() { _, _ = p.r.Instance(id) }, 2},
		"attention": {func() { admin.Attention() }, 1},
		"holds":     {func() { admin.Holds() }, 1},
		"orphans":   {func() { admin.Orphans() }, 1},
		"what-if":   {func() { _, _ = admin.WhatIf([]nstance.Group{groupWithUserData(2, "v2")}, true) }, 1},
		"impact":    {func() { _, _ = admin.Impact([]nstance.Group{groupWithUserData(2, "v2")}) }, 1},
		"rehearsal": {func() {
			admin.Internals().Rehearse(web, []nstance.InstanceID{id}, nstance.Notice{Kind: nstance.Reclaim})
		}, 1},
	} {
		p.calls, p.held = 0, false
		p.probing.Store(true)
		c.read()
		p.probing.Store(false)
		require.GreaterOrEqual(t, p.calls, c.calls, name)
		require.False(t, p.held, "%s calls with the lock", name)
	}
}

// TestReadsBesideTheLoop: under the race detector, reads share nothing with the loop that it
// changes.
func TestReadsBesideTheLoop(t *testing.T) {
	const rounds = 50
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		ctx, stop := context.WithCancel(t.Context())
		r, _ := w.leader()
		admin, id := r.Admin(), w.ready()[0]
		var reads sync.WaitGroup
		defer reads.Wait()
		defer stop()
		for _, read := range []func(){
			func() { r.Groups(); r.Instances(); admin.Attention(); admin.Holds() },
			func() {
				_, _ = admin.WhatIf([]nstance.Group{groupWithUserData(4, "v3")}, true)
				_, _ = admin.Impact([]nstance.Group{groupWithUserData(4, "v3")})
				admin.Internals().Rehearse(web, []nstance.InstanceID{id}, nstance.Notice{Kind: nstance.Reclaim})
			},
		} {
			reads.Go(func() {
				for ctx.Err() == nil {
					read()
				}
			})
		}
		last := time.Now().Add(time.Hour)
		for i := range rounds {
			w.r.Observe(nstance.Noticed{ID: id, Notice: nstance.Notice{EventID: "n", Kind: nstance.Reclaim, Action: "stop", Deadline: last.Add(-time.Duration(i) * time.Second)}})
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{groupWithUserData(3+i%2, "v"+strconv.Itoa(i%2))}})
			w.r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: id, Timestamp: time.Now()}})
		}
	})
}
