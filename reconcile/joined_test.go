package reconcile_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// TestJoinedAfterTakeover: a leader ends before its program has called Joined. The
// program of the next one calls it once for each machine, when it learns of it: that is
// enough, though the shard is not read by then.
func TestJoinedAfterTakeover(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cloud, store := simcloud.New(nil), storage.NewMemory()
		defer cloud.Close()
		group := webGroup(5)
		joined := map[nstance.InstanceID]error{}
		term := func(epoch uint64, join bool) (v reconcile.GroupView) {
			r, err := reconcile.New(cloud, store, &reconcile.Options{Epoch: epoch, Groups: []nstance.Group{group},
				Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1"}})
			require.NoError(t, err)
			ctx, stop := context.WithCancel(t.Context())
			defer synctest.Wait()
			defer stop()
			events := r.Events(ctx)
			go func() {
				for e := range events {
					if e.Type == nstance.EventCreated && join {
						joined[e.Instance] = r.Joined(ctx, e.Instance)
						r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: e.Instance}})
					}
				}
			}()
			go func() { _ = r.Run(ctx) }()
			pause(ctx, time.Minute)
			synctest.Wait()
			v, err = r.Group(web)
			require.NoError(t, err)
			return v
		}
		require.Equal(t, 5, term(1, false).Booting)
		require.Equal(t, 5, term(2, true).Ready)
		require.Len(t, joined, 5)
		for id, err := range joined {
			require.NoError(t, err, id)
		}
	})
}

// TestJoinedWaits: for the shard to be read, until its caller gives up or the term is
// over.
func TestJoinedWaits(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.ready()[0]
		unread := func() *reconcile.Reconciler {
			r, err := reconcile.New(w.cloud, unreadable{w.store}, &reconcile.Options{Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1"}})
			require.NoError(t, err)
			return r
		}
		ctx, giveUp := context.WithTimeout(t.Context(), time.Second)
		defer giveUp()
		require.ErrorIs(t, unread().Joined(ctx, id), nstance.Unavailable)

		r := unread()
		term, stop := context.WithCancel(t.Context())
		go func() { _ = r.Run(term) }()
		answer := make(chan error, 1)
		go func() { answer <- r.Joined(context.Background(), id) }()
		synctest.Wait()
		require.Empty(t, answer)
		stop()
		require.ErrorIs(t, <-answer, nstance.Unavailable)
	})
}

// unreadable is a store of which nothing can be read.
type unreadable struct{ storage.Store }

func (unreadable) Get(context.Context, string) (storage.Object, error) {
	return storage.Object{}, nstance.Errorf(nstance.Unavailable, "nothing can be read")
}
