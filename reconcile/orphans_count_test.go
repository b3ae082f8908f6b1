package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// withSlowDeletes is settled with machines that take an hour to shut down.
func withSlowDeletes(t *testing.T, size int, test func(t *testing.T, w *world)) {
	withGroup(t, size, simcloud.Options{Shutdown: simcloud.Delay{Min: time.Hour}}, func(t *testing.T, w *world) {
		w.advance(30 * time.Minute)
		test(t, w)
	})
}

// deleting reports whether the cloud is deleting a machine.
func (w *world) deleting(id nstance.InstanceID) bool {
	return w.machine(id).Status == nstance.StatusDeleting
}

// TestOrphansInDeletionCount: the limit of a fifth includes orphans that are still being
// deleted.
func TestOrphansInDeletionCount(t *testing.T) {
	withSlowDeletes(t, 10, func(t *testing.T, w *world) {
		a, b := w.createOrphan(10*time.Minute, nil), w.createOrphan(10*time.Minute, nil)
		w.advance(10 * time.Minute)
		require.True(t, w.deleting(a) && w.deleting(b))
		c := w.createOrphan(10*time.Minute, nil)
		w.advance(20 * time.Minute)
		require.False(t, w.deleting(c))
		require.Contains(t, w.keepReason(c), "3 machines without a record are more than 2")
	})
}

// TestOrphanDeletedElsewhere is left alone.
func TestOrphanDeletedElsewhere(t *testing.T) {
	withSlowDeletes(t, 3, func(t *testing.T, w *world) {
		id := w.createOrphan(10*time.Minute, nil)
		require.NoError(t, w.cloud.Delete(w.ctx, w.machine(id)))
		w.advance(20 * time.Minute)
		require.True(t, w.deleting(id))
		require.Empty(t, w.r.Admin().Orphans())
		require.Zero(t, w.count(nstance.EventOrphanSeen, id))
	})
}

// TestOrphansBesideRecordsInDeletion: records in deletion are no evidence that storage
// is intact.
func TestOrphansBesideRecordsInDeletion(t *testing.T) {
	withSlowDeletes(t, 2, func(t *testing.T, w *world) {
		w.setGroups(webGroup(0))
		w.advance(5 * time.Minute)
		require.Len(t, w.ids(), 2)
		id := w.createOrphan(6*time.Minute, nil)
		w.advance(20 * time.Minute)
		require.False(t, w.deleting(id))
		require.Contains(t, w.keepReason(id), "storage holds no live record")
	})
}

// TestTakeoverWithRecordsInDeletion: the same rule holds for the next leader.
func TestTakeoverWithRecordsInDeletion(t *testing.T) {
	withSlowDeletes(t, 2, func(t *testing.T, w *world) {
		id := w.createOrphan(time.Minute, nil)
		w.setGroups(webGroup(0))
		w.advance(time.Minute)
		require.Len(t, w.ids(), 3)
		w.stopLeader()
		w.startLeader(webGroup(1))
		w.advance(30 * time.Minute)
		require.False(t, w.deleting(id))
		require.Contains(t, w.keepReason(id), "storage held no live record when this leader began")
	})
}

// TestUnreadableRecordIsReportedOnce: not with each pass.
func TestUnreadableRecordIsReportedOnce(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.newID()
		_, err := w.store.PutIfAbsent(w.ctx, layout.InstanceKey("s1", web.Tenant, web.Group, id), []byte("{torn"))
		require.NoError(t, err)
		w.advance(time.Hour)
		require.Equal(t, 1, w.count(nstance.EventRecordUnreadable, id))
	})
}

// TestRecordBeforeTombstone: a machine whose record appears just before the tombstone is
// a member.
func TestRecordBeforeTombstone(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		beneath := w.store
		faulty := storagetest.NewFaulty(beneath)
		w.stopLeader()
		w.store = faulty
		w.startLeader(webGroup(3))
		w.advance(10 * time.Minute)
		id := w.createOrphan(0, nil)
		for w.count(nstance.EventOrphanSeen, id) == 0 {
			w.advance(10 * time.Second)
		}
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: layout.InstancePrefix("s1"), Pass: true, Do: func() {
			other := records.New(beneath, "s1", &records.Options{Epoch: w.epoch})
			_, err := other.Create(w.ctx, records.Instance{ID: id, Tenant: web.Tenant, Group: web.Group, CreatedAt: id.Time(), RegisteredAt: id.Time()})
			require.NoError(t, err)
		}})
		require.ErrorIs(t, w.r.Admin().DeleteOrphan(w.ctx, id, requester), nstance.Conflict)
		require.True(t, w.exists(id))
		rec, ok := w.r.Admin().Internals().Records().Get(id)
		require.True(t, ok)
		require.Nil(t, rec.Deleting)
		require.Empty(t, w.r.Admin().Orphans())
	})
}

// TestOrphansBesideMembersWithoutRecord: nor are members that are about to be made, and of which
// storage holds nothing.
func TestOrphansBesideMembersWithoutRecord(t *testing.T) {
	withSlowDeletes(t, 2, func(t *testing.T, w *world) {
		faulty := storagetest.NewFaulty(w.store)
		w.store = faulty
		w.changeLeader(webGroup(2))
		w.setGroups(webGroup(0))
		w.advance(10 * time.Minute)
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: layout.DefinitionPrefix("s1"), Times: -1})
		w.setGroups(groupWithUserData(2, "v2"))
		id := w.createOrphan(6*time.Minute, nil)
		w.advance(12 * time.Minute)
		require.Len(t, w.in(nstance.Pending), 2)
		require.False(t, w.deleting(id))
		require.Contains(t, w.keepReason(id), "storage holds no live record")
	})
}
