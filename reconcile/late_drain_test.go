package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage"
)

// slowly has agents acknowledge no drain.
func (w *world) slowly() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slowDrain = true
}

// TestDrainMeetsALateWrite: what a former leader has written about drains since
// this one has read the record holds.
func TestDrainMeetsALateWrite(t *testing.T) {
	drained := func(w *world, id nstance.InstanceID) nstance.Drain {
		require.NoError(w.t, w.cloud.Reclaim(id, time.Hour))
		w.passes(10 * time.Second)
		rec, err := w.r.Records().Refresh(w.ctx, id)
		require.NoError(w.t, err)
		require.NotNil(w.t, rec.Drain)
		require.Equal(w.t, rec.Drain.Generation, rec.Generation)
		_, drains := w.leader()
		require.Equal(w.t, *rec.Drain, drains.Active()[0], "what is announced is what is durable")
		return *rec.Drain
	}
	t.Run("a drain that was cancelled: its generation does not come again", func(t *testing.T) {
		within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.slowly()
			id := w.ready()[0]
			w.land(id, func(rec *storage.Instance) { rec.Generation = 7 })
			require.EqualValues(t, 8, drained(w, id).Generation)
		})
	})
	t.Run("another drain: its executor has its own time", func(t *testing.T) {
		within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.slowly()
			id := w.ready()[0]
			first := drained(w, id)
			later := first.Deadline.Add(10 * time.Minute)
			w.land(id, func(rec *storage.Instance) {
				rec.Generation, rec.Drain.Generation, rec.Drain.Deadline = 9, 9, later
			})
			w.passes(time.Until(first.Deadline) + time.Minute)
			rec, err := w.r.Records().Refresh(w.ctx, id)
			require.NoError(t, err)
			require.Nil(t, rec.Deleting, "the drain that ended is not the one on record")
			w.passes(15 * time.Minute)
			require.NotContains(t, w.in(nstance.Draining), id)
			require.Len(t, w.ready(), 2)
		})
	})
	t.Run("a drain: it goes on, and its deadline is put off by nothing", func(t *testing.T) {
		within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.slowly()
			id := w.ready()[0]
			began, deadline := time.Now().UTC(), time.Now().Add(time.Minute).UTC()
			w.land(id, func(rec *storage.Instance) {
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
			w.passes(2 * time.Minute)
			require.NotContains(t, w.in(nstance.Draining), id, "it ended at that deadline")
		})
	})
}

// TestTightenedReclaimIsOneReclaim: only the second reclaim of an instance cannot
// be withdrawn, and an earlier deadline is none.
func TestTightenedReclaimIsOneReclaim(t *testing.T) {
	within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.slowly()
		id := w.ready()[0]
		require.NoError(t, w.cloud.Reclaim(id, 2*time.Hour))
		w.passes(10 * time.Second)
		require.NoError(t, w.cloud.Reclaim(id, 4*time.Minute))
		w.passes(10 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventDrainTightened, id))
		require.NoError(t, w.cloud.Withdraw(id))
		w.passes(10 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventDrainCancelled, id))
	})
}

// TestSilentMemberUnderNotice: a new leader that hears nothing from an agent
// knows from the record what stands against it, and what does not any more.
func TestSilentMemberUnderNotice(t *testing.T) {
	t.Run("a notice stands", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.slowly()
			id := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(id, time.Hour))
			w.passes(10 * time.Second)
			require.Contains(t, w.in(nstance.Draining), id)
			w.mute(id, true)
			w.depose()
			w.lead(wanted(3))
			w.passes(4 * time.Minute) // past its grace, before the drain's deadline
			require.Contains(t, w.in(nstance.Draining), id)
			require.Zero(t, w.count(nstance.EventDrainCancelled, id))
		})
	})
	t.Run("it was withdrawn", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.slowly()
			id := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(id, time.Hour))
			w.passes(10 * time.Second)
			require.NoError(t, w.cloud.Withdraw(id))
			w.passes(10 * time.Second)
			require.Equal(t, 1, w.count(nstance.EventDrainCancelled, id))
			rec, _ := w.r.Records().Get(id)
			require.Empty(t, rec.Notices)
			w.mute(id, true)
			w.depose()
			w.lead(wanted(3))
			w.passes(2 * time.Minute)
			require.Equal(t, 1, w.count(nstance.EventDrainStarted, id))
		})
	})
}

// TestDrainCutShortIsRecorded: at the moment of the deletion the record says that
// the drain was not over, and no executor is told to go on.
func TestDrainCutShortIsRecorded(t *testing.T) {
	within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.slowly()
		id := w.ready()[0]
		seen := false
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, ID: id, Keep: true, Do: func() {
			obj, err := w.store.Get(w.ctx, keyIn(web.Group, id))
			require.NoError(t, err)
			rec, err := storage.DecodeInstance(obj.Key, obj.Data)
			require.NoError(t, err)
			_, drains := w.leader()
			seen = rec.Deleting != nil && rec.CutShort && len(drains.Active()) == 0
		}})
		require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
		w.passes(5 * time.Minute)
		w.agrees(2)
		require.True(t, seen)
	})
}
