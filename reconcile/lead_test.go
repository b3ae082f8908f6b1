package reconcile_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// A process is one of several that call Lead.
type process struct {
	stop func() error // waits for Lead to return

	mu    sync.Mutex
	terms []*reconcile.Reconciler
}

func (p *process) term() *reconcile.Reconciler {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.terms) == 0 {
		return nil
	}
	return p.terms[len(p.terms)-1]
}

func (p *process) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.terms)
}

func lead(t *testing.T, cloud *simcloud.Cloud, store storage.Store, size int) *process {
	p, began := &process{}, time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- reconcile.Lead(ctx, cloud, store, &reconcile.Options{
			Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1"}, Groups: []nstance.Group{webGroup(size)},
			Lease: &lease.Options{Clock: lease.GoClock()}, Elapsed: func() time.Duration { return time.Since(began) },
		}, func(ctx context.Context, r *reconcile.Reconciler) {
			p.mu.Lock()
			p.terms = append(p.terms, r)
			p.mu.Unlock()
			<-ctx.Done()
		})
	}()
	p.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { require.NoError(t, p.stop()) })
	return p
}

func TestLead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cloud := simcloud.New(nil)
		t.Cleanup(cloud.Close)
		store := storage.NewMemory()
		first := lead(t, cloud, store, 3)
		<-time.After(10 * time.Second)
		require.Equal(t, 1, first.count())
		require.Len(t, cloud.Machines(), 3)
		require.NotNil(t, first.term().Coordinator())
		second := lead(t, cloud, store, 3)
		<-time.After(time.Minute)
		require.Zero(t, second.count(), "one works at a time")

		require.NoError(t, first.stop())
		<-time.After(2 * time.Second)
		require.Equal(t, 1, second.count(), "the lease was given back")
		<-time.After(time.Minute)
		require.Len(t, cloud.Machines(), 3)
		require.Equal(t, 3, cloud.Count(simcloud.OpCreate))
	})
}

// TestLeadWithoutStorage: a process that storage does not answer loses its term, and
// another one leads; it campaigns again.
func TestLeadWithoutStorage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cloud := simcloud.New(nil)
		t.Cleanup(cloud.Close)
		store := storage.NewMemory()
		faulty := storagetest.NewFaulty(store)
		first := lead(t, cloud, faulty, 2)
		<-time.After(time.Minute)
		second := lead(t, cloud, store, 2)
		<-time.After(time.Second)
		for _, op := range []storagetest.Op{storagetest.Get, storagetest.PutIfMatch, storagetest.PutIfAbsent} {
			faulty.Inject(storagetest.Fault{Op: op, Times: -1})
		}
		<-time.After(20 * time.Second)
		require.Equal(t, 1, second.count())
		faulty.ClearFaults()
		<-time.After(time.Minute)
		require.NoError(t, second.stop())
		<-time.After(5 * time.Second)
		require.Equal(t, 2, first.count())
		require.Equal(t, 2, cloud.Count(simcloud.OpCreate))
	})
}

func TestLeadRefuses(t *testing.T) {
	cloud := simcloud.New(nil)
	defer cloud.Close()
	options := func() *reconcile.Options {
		return &reconcile.Options{Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1"}}
	}
	o := options()
	o.Drains = drain.New(nil)
	require.ErrorContains(t, reconcile.Lead(t.Context(), cloud, storage.NewMemory(), o, nil), "drains: ")
	o = options()
	o.Groups = []nstance.Group{{Key: web, Size: -1}}
	require.ErrorIs(t, reconcile.Lead(t.Context(), cloud, storage.NewMemory(), o, nil), nstance.Invalid)
	require.ErrorIs(t, reconcile.Lead(t.Context(), cloud, storage.NewMemory(), nil, nil), nstance.Invalid)
}
