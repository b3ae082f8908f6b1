package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// withholdDrainAcks makes agents withhold drain acknowledgements.
func (w *world) withholdDrainAcks() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slowDrain = true
}

// TestDrainMeetsLateWrite: drains that a former leader writes after this one has read
// the record are respected.
func TestDrainMeetsLateWrite(t *testing.T) {
	drained := func(w *world, id nstance.InstanceID) nstance.Drain {
		require.NoError(w.t, w.cloud.Reclaim(id, time.Hour))
		w.advance(10 * time.Second)
		rec, err := w.r.Admin().Internals().Records().Refresh(w.ctx, id)
		require.NoError(w.t, err)
		require.NotNil(w.t, rec.Drain)
		require.Equal(w.t, rec.Drain.Generation, rec.Generation)
		_, drains := w.leader()
		require.Equal(w.t, *rec.Drain, drains.Active()[0], "the announced drain is the recorded one")
		return *rec.Drain
	}
	t.Run("cancelled drain: its generation is not reused", func(t *testing.T) {
		withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.withholdDrainAcks()
			id := w.ready()[0]
			w.writeLate(id, func(rec *records.Instance) { rec.Generation = 7 })
			require.EqualValues(t, 8, drained(w, id).Generation)
		})
	})
	t.Run("another drain: its executor has its full timeout", func(t *testing.T) {
		withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.withholdDrainAcks()
			id := w.ready()[0]
			first := drained(w, id)
			later := first.Deadline.Add(10 * time.Minute)
			w.writeLate(id, func(rec *records.Instance) {
				rec.Generation, rec.Drain.Generation, rec.Drain.Deadline = 9, 9, later
			})
			w.advance(time.Until(first.Deadline) + time.Minute)
			rec, err := w.r.Admin().Internals().Records().Refresh(w.ctx, id)
			require.NoError(t, err)
			require.Nil(t, rec.Deleting, "the ended drain is not the recorded one")
			w.advance(15 * time.Minute)
			require.NotContains(t, w.in(nstance.Draining), id)
			require.Len(t, w.ready(), 2)
		})
	})
	t.Run("same drain: it continues with its deadline", func(t *testing.T) {
		withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.withholdDrainAcks()
			id := w.ready()[0]
			began, deadline := time.Now().UTC(), time.Now().Add(time.Minute).UTC()
			w.writeLate(id, func(rec *records.Instance) {
				rec.Generation = 3
				rec.Drain = &nstance.Drain{
					Instance: id, Group: web, Generation: 3, StartedAt: began, Deadline: deadline, Executor: nstance.ExecutorAgent,
					Causes: []nstance.Cause{{Kind: nstance.CauseRequest}},
				}
			})
			d := drained(w, id)
			require.EqualValues(t, 3, d.Generation)
			require.True(t, deadline.Equal(d.Deadline), d.Deadline)
			require.True(t, began.Equal(d.StartedAt))
			w.advance(2 * time.Minute)
			require.NotContains(t, w.in(nstance.Draining), id, "ended at that deadline")
		})
	})
}

// TestTightenedReclaimCountsOnce: only the second reclaim of an instance is final; an
// earlier deadline is not a second one.
func TestTightenedReclaimCountsOnce(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.withholdDrainAcks()
		id := w.ready()[0]
		require.NoError(t, w.cloud.Reclaim(id, 2*time.Hour))
		w.advance(10 * time.Second)
		require.NoError(t, w.cloud.Reclaim(id, 4*time.Minute))
		w.advance(10 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventDrainTightened, id))
		require.NoError(t, w.cloud.Withdraw(id))
		w.advance(10 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventDrainCancelled, id))
	})
}

// TestSilentMemberUnderNotice: a new leader without a report from the agent takes
// notices from the record.
func TestSilentMemberUnderNotice(t *testing.T) {
	t.Run("notice in force", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.withholdDrainAcks()
			id := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(id, time.Hour))
			w.advance(10 * time.Second)
			require.Contains(t, w.in(nstance.Draining), id)
			w.setAgentSilent(id, true)
			w.stopLeader()
			w.startLeader(webGroup(3))
			w.advance(4 * time.Minute) // past the report limit, before the drain's deadline
			require.Contains(t, w.in(nstance.Draining), id)
			require.Zero(t, w.count(nstance.EventDrainCancelled, id))
		})
	})
	t.Run("notice withdrawn", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.withholdDrainAcks()
			id := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(id, time.Hour))
			w.advance(10 * time.Second)
			require.NoError(t, w.cloud.Withdraw(id))
			w.advance(10 * time.Second)
			require.Equal(t, 1, w.count(nstance.EventDrainCancelled, id))
			rec, _ := w.r.Admin().Internals().Records().Get(id)
			require.Empty(t, rec.Notices)
			w.setAgentSilent(id, true)
			w.stopLeader()
			w.startLeader(webGroup(3))
			w.advance(2 * time.Minute)
			require.Equal(t, 1, w.count(nstance.EventDrainStarted, id))
		})
	})
}

// TestCutShortDrainIsRecordedBeforeDelete: the record shows that the drain was cut
// short, and no executor continues it.
func TestCutShortDrainIsRecordedBeforeDelete(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.withholdDrainAcks()
		id := w.ready()[0]
		seen := false
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, ID: id, Keep: true, Do: func() {
			obj, err := w.store.Get(w.ctx, keyIn(web.Group, id))
			require.NoError(t, err)
			rec, err := records.DecodeInstance(obj.Key, obj.Data)
			require.NoError(t, err)
			_, drains := w.leader()
			seen = rec.Deleting != nil && rec.CutShort && len(drains.Active()) == 0
		}})
		require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
		w.advance(5 * time.Minute)
		w.requireMembers(2)
		require.True(t, seen)
	})
}

// TestCutShortByTheFormerLeader: a drain that a former leader has cut short stays so on record,
// although this one has seen its end before it read that.
func TestCutShortByTheFormerLeader(t *testing.T) {
	withSlowDeletes(t, 2, func(t *testing.T, w *world) {
		w.withholdDrainAcks()
		id := w.ready()[0]
		_, err := w.r.Drain(t.Context(), id, requester)
		require.NoError(t, err)
		faulty := storagetest.NewFaulty(w.store)
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: keyIn(web.Group, id), Pass: true, Do: func() {
			w.writeLate(id, func(rec *records.Instance) {
				rec.Deleting, rec.CutShort = &records.Deletion{At: time.Now().UTC(), Why: rec.Drain.Causes[0]}, true
			})
		}})
		w.wrap = func(e *leaderEnv) { e.store = faulty }
		w.changeLeader(webGroup(2))
		w.slow(false)
		w.advance(2 * time.Minute)
		require.Equal(t, 1, w.count(nstance.EventDrainAcknowledged, id))
		rec, known := w.r.Admin().Internals().Records().Get(id)
		require.True(t, known)
		require.NotNil(t, rec.Deleting)
		require.True(t, rec.CutShort)
	})
}
