package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// snapshot returns the stored snapshot, if there is one.
func (w *world) snapshot() (storage.Object, bool) {
	obj, err := w.store.Get(w.ctx, layout.SnapshotKey("s1"))
	return obj, err == nil
}

func TestTakeoverFromSnapshot(t *testing.T) {
	withGroup(t, 5, simcloud.Options{}, func(t *testing.T, w *world) {
		_, ok := w.snapshot()
		require.True(t, ok, "soon after the term began")
		w.advance(10 * time.Minute)
		before, _ := w.snapshot()
		w.advance(20 * time.Minute)
		after, _ := w.snapshot()
		require.Equal(t, before.Version, after.Version, "not written without a change")

		faulty := storagetest.NewFaulty(w.store)
		w.stopLeader()
		w.store = faulty
		faulty.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: "instance/", Times: -1}) // no record is readable
		w.startLeader(webGroup(5))
		w.advance(time.Minute)
		faulty.ClearFaults()
		w.requireMembers(5)
		require.Empty(t, attention.Problems(w.r.Admin().Attention()))
	})
}

func TestSnapshotsFollowChanges(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.advance(10 * time.Minute)
		before, _ := w.snapshot()
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 2*time.Minute))
		w.advance(10 * time.Second)
		soon, _ := w.snapshot()
		require.Equal(t, before.Version, soon.Version, "not with every change")
		w.advance(10 * time.Minute)
		after, _ := w.snapshot()
		require.NotEqual(t, before.Version, after.Version)
	})
}

func TestUselessSnapshotIsReportedAndReplaced(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		obj, ok := w.snapshot()
		require.True(t, ok)
		_, err := w.store.PutIfMatch(w.ctx, obj.Key, []byte("torn"), obj.Version)
		require.NoError(t, err)
		w.stopLeader()
		w.startLeader(webGroup(2))
		w.advance(10 * time.Second)
		require.Len(t, attention.Problems(w.r.Admin().Attention()), 1)
		require.Contains(t, attention.Problems(w.r.Admin().Attention())[0], obj.Key)
		w.advance(2 * time.Minute)
		w.requireMembers(2)
		require.Empty(t, attention.Problems(w.r.Admin().Attention()), "a good one was written")
	})
}
