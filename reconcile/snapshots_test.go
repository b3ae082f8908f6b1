package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// snapshot returns what stands there, if anything does.
func (w *world) snapshot() (storage.Object, bool) {
	obj, err := w.store.Get(w.ctx, storage.SnapshotKey("s1"))
	return obj, err == nil
}

func TestTakeoverFromASnapshot(t *testing.T) {
	within(t, 5, simcloud.Options{}, func(t *testing.T, w *world) {
		_, ok := w.snapshot()
		require.True(t, ok, "soon after the term began")
		w.passes(10 * time.Minute)
		before, _ := w.snapshot()
		w.passes(20 * time.Minute)
		after, _ := w.snapshot()
		require.Equal(t, before.Version, after.Version, "nothing changed, nothing is written")

		faulty := storagetest.NewFaulty(w.store)
		w.depose()
		w.store = faulty
		faulty.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: "instance/", Times: -1}) // no record can be read
		w.lead(wanted(5))
		w.passes(time.Minute)
		faulty.Heal()
		w.agrees(5)
		require.Empty(t, w.r.Problems())
	})
}

func TestSnapshotsFollowChanges(t *testing.T) {
	within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.passes(10 * time.Minute)
		before, _ := w.snapshot()
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 2*time.Minute))
		w.passes(10 * time.Second)
		soon, _ := w.snapshot()
		require.Equal(t, before.Version, soon.Version, "not with every change")
		w.passes(10 * time.Minute)
		after, _ := w.snapshot()
		require.NotEqual(t, before.Version, after.Version)
	})
}

func TestUselessSnapshotIsReportedAndReplaced(t *testing.T) {
	within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		obj, ok := w.snapshot()
		require.True(t, ok)
		_, err := w.store.PutIfMatch(w.ctx, obj.Key, []byte("torn"), obj.Version)
		require.NoError(t, err)
		w.depose()
		w.lead(wanted(2))
		w.passes(10 * time.Second)
		require.Len(t, w.r.Problems(), 1)
		require.Contains(t, w.r.Problems()[0], obj.Key)
		w.passes(2 * time.Minute)
		w.agrees(2)
		require.Empty(t, w.r.Problems(), "there is a good one again")
	})
}
