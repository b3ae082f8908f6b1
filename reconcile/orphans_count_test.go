package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// slowToGo is settled, with machines that take an hour to shut down.
func slowToGo(t *testing.T, size int, test func(t *testing.T, w *world)) {
	within(t, size, simcloud.Options{Shutdown: simcloud.Constant(time.Hour)}, func(t *testing.T, w *world) {
		w.passes(30 * time.Minute)
		test(t, w)
	})
}

// deleting reports whether the cloud is shutting a machine down.
func (w *world) deleting(id nstance.InstanceID) bool {
	return w.machine(id).Status == nstance.StatusDeleting
}

// TestOrphansOnTheirWayOutCount: a second fifth is not collected while the first
// one goes.
func TestOrphansOnTheirWayOutCount(t *testing.T) {
	slowToGo(t, 10, func(t *testing.T, w *world) {
		a, b := w.stray(10*time.Minute, nil), w.stray(10*time.Minute, nil)
		w.passes(10 * time.Minute)
		require.True(t, w.deleting(a) && w.deleting(b))
		c := w.stray(10*time.Minute, nil)
		w.passes(20 * time.Minute)
		require.False(t, w.deleting(c))
		require.Contains(t, w.spared(c), "3 machines without a record are more than 2")
	})
}

// TestOrphanThatIsBeingDeleted is no business of ours.
func TestOrphanThatIsBeingDeleted(t *testing.T) {
	slowToGo(t, 3, func(t *testing.T, w *world) {
		id := w.stray(10*time.Minute, nil)
		require.NoError(t, w.cloud.Delete(w.ctx, w.machine(id)))
		w.passes(20 * time.Minute)
		require.True(t, w.deleting(id))
		require.Empty(t, w.r.Orphans())
		require.Zero(t, w.count(nstance.EventOrphanSeen, id))
	})
}

// TestOrphansBesideRecordsThatGo: records on their way out are no evidence that
// storage is whole.
func TestOrphansBesideRecordsThatGo(t *testing.T) {
	slowToGo(t, 2, func(t *testing.T, w *world) {
		w.want(wanted(0))
		w.passes(5 * time.Minute)
		require.Len(t, w.ids(), 2)
		id := w.stray(6*time.Minute, nil)
		w.passes(20 * time.Minute)
		require.False(t, w.deleting(id))
		require.Contains(t, w.spared(id), "storage holds no live record")
	})
}

// TestLeaderThatFindsOnlyRecordsThatGo: the next leader is as careful.
func TestLeaderThatFindsOnlyRecordsThatGo(t *testing.T) {
	slowToGo(t, 2, func(t *testing.T, w *world) {
		id := w.stray(time.Minute, nil)
		w.want(wanted(0))
		w.passes(time.Minute)
		require.Len(t, w.ids(), 3)
		w.depose()
		w.lead(wanted(1))
		w.passes(30 * time.Minute)
		require.False(t, w.deleting(id))
		require.Contains(t, w.spared(id), "storage held no live record when this leader began")
	})
}

// TestUnreadableRecordIsToldOnce: each look finds it, and only the first is news.
func TestUnreadableRecordIsToldOnce(t *testing.T) {
	within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.newID()
		_, err := w.store.PutIfAbsent(w.ctx, storage.InstanceKey("s1", web.Tenant, web.Group, id), []byte("{torn"))
		require.NoError(t, err)
		w.passes(time.Hour)
		require.Equal(t, 1, w.count(nstance.EventRecordUnreadable, id))
	})
}

// TestRecordThatLandsBeforeTheTombstone: a machine with a record is a member, also
// if the record came at the last moment.
func TestRecordThatLandsBeforeTheTombstone(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		beneath := w.store
		faulty := storagetest.NewFaulty(beneath)
		w.depose()
		w.store = faulty
		w.lead(wanted(3))
		w.passes(10 * time.Minute)
		id := w.stray(0, nil)
		for w.count(nstance.EventOrphanSeen, id) == 0 {
			w.passes(10 * time.Second)
		}
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: storage.InstancePrefix("s1"), Pass: true, Do: func() {
			other := storage.NewRecords(beneath, "s1", &storage.RecordsOptions{Epoch: w.epoch})
			_, err := other.Create(w.ctx, storage.Instance{ID: id, Tenant: web.Tenant, Group: web.Group, CreatedAt: id.Time(), RegisteredAt: id.Time()})
			require.NoError(t, err)
		}})
		require.ErrorIs(t, w.r.DeleteOrphan(w.ctx, id, eve), nstance.Conflict)
		require.True(t, w.exists(id))
		v, err := w.r.Instance(id)
		require.NoError(t, err)
		require.Nil(t, v.Record.Deleting)
		require.Empty(t, w.r.Orphans())
	})
}
