package reconcile_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// TestTermIsOver: who keeps the reconciler of a former term is told so, and waits for
// nothing.
func TestTermIsOver(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.ready()[0]
		former, _ := w.leader()
		w.changeLeader(webGroup(1))
		require.ErrorIs(t, former.Delete(context.Background(), id, "", false), nstance.Unavailable)
		require.ErrorIs(t, former.Admin().Pause(context.Background(), web, ""), nstance.Unavailable)
		err := former.Run(t.Context())
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, "make another Reconciler for each term")
		require.Contains(t, w.ready(), id)
	})
}

// TestNothingIsAbsentBeforeItIsRead: what is not read yet may exist.
func TestNothingIsAbsentBeforeItIsRead(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.ready()[0]
		next, err := reconcile.New(w.cloud, w.store, &reconcile.Options{Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1"}, Groups: []nstance.Group{webGroup(1)}, Drains: drain.New(nil)})
		require.NoError(t, err)
		_, err = next.Instance(id)
		require.ErrorIs(t, err, nstance.Unavailable)
		require.ErrorIs(t, next.Delete(t.Context(), id, "", false), nstance.Unavailable)
		_, err = next.Drain(t.Context(), id, "")
		require.ErrorIs(t, err, nstance.Unavailable)
	})
}
