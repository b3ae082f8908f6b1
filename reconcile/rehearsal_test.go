package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// TestRehearsalOutlivesItsLeader: a reclaim that a machine was told to announce is a rehearsal
// for the next leader too, and only the first one is.
func TestRehearsalOutlivesItsLeader(t *testing.T) {
	const source = notice.RehearsalSource + "eve"
	rehearsed := func(w *world, id nstance.InstanceID) bool {
		e := w.first(nstance.EventNoticeReceived, func(e nstance.Event) bool { return e.Instance == id })
		return notice.Rehearsed(*e.Notice)
	}
	t.Run("leader change before the notice", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			id, other := w.ready()[0], w.ready()[1]
			require.NoError(t, w.r.Admin().Internals().ExpectRehearsal(w.ctx, []nstance.InstanceID{id}, source, 10*time.Minute))
			w.changeLeader(webGroup(3))
			require.NoError(t, w.cloud.Reclaim(id, time.Minute))
			require.NoError(t, w.cloud.Reclaim(other, time.Minute))
			w.advance(10 * time.Second)
			require.True(t, rehearsed(w, id))
			require.False(t, rehearsed(w, other))
		})
	})
	t.Run("leader change after it", func(t *testing.T) {
		withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.withholdDrainAcks()
			id := w.ready()[0]
			require.NoError(t, w.r.Admin().Internals().ExpectRehearsal(w.ctx, []nstance.InstanceID{id}, source, 50*time.Minute))
			w.advise(id, nstance.Notice{Kind: nstance.Reclaim, Source: "aws/spot", EventID: "first", Deadline: time.Now().Add(40 * time.Minute)})
			w.changeLeader(webGroup(2))
			w.advise(id, nstance.Notice{Kind: nstance.Reclaim, Source: "aws/spot", EventID: "second", Deadline: time.Now().Add(30 * time.Minute)})
			e := w.first(nstance.EventNoticeReceived, func(e nstance.Event) bool { return e.Notice.EventID == "second" })
			require.False(t, notice.Rehearsed(*e.Notice))
		})
	})
	t.Run("too late", func(t *testing.T) {
		withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			id := w.ready()[0]
			require.NoError(t, w.r.Admin().Internals().ExpectRehearsal(w.ctx, []nstance.InstanceID{id}, source, time.Minute))
			w.advance(2 * time.Minute)
			require.NoError(t, w.cloud.Reclaim(id, time.Minute))
			w.advance(10 * time.Second)
			require.False(t, rehearsed(w, id))
		})
	})
	t.Run("storage refuses it", func(t *testing.T) {
		withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			err := w.r.Admin().Internals().ExpectRehearsal(w.ctx, []nstance.InstanceID{"tst00000000000000000000000000"}, source, time.Minute)
			require.Error(t, err)
		})
	})
}

// TestLateWriteIsInForce: what a former leader writes into the record of a member that rests
// is in force at the next look, not when the leader after this one reads it.
func TestLateWriteIsInForce(t *testing.T) {
	cause := nstance.Cause{Kind: nstance.CauseRequest, Message: "by the former leader"}
	for name, change := range map[string]func(*records.Instance){
		"deletion": func(rec *records.Instance) { rec.Deleting = &records.Deletion{At: time.Now().UTC(), Why: cause} },
		"drain": func(rec *records.Instance) {
			rec.Generation++
			rec.Drain = &nstance.Drain{
				Instance: rec.ID, Group: web, Generation: rec.Generation, StartedAt: time.Now().UTC(), Deadline: time.Now().Add(15 * time.Minute).UTC(),
				Causes: []nstance.Cause{cause}, Executor: nstance.ExecutorAgent,
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				id := w.ready()[0]
				w.writeLate(id, change)
				w.advance(10 * time.Minute)
				require.False(t, w.exists(id))
				w.requireMembers(3)
			})
		})
	}
	keep := func(rec *records.Instance) { rec.Preserve = &records.Preserve{Until: time.Now().Add(time.Hour).UTC()} }
	for name, lands := range map[string]time.Duration{"preservation": time.Second, "preservation that lands later": 30 * time.Second} {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				id := w.ready()[0]
				w.stopLeader()
				w.startLeader(webGroup(3))
				w.advance(lands) // it has read the records
				w.writeLate(id, keep)
				require.Eventually(t, func() bool { w.advance(time.Second); return w.instance(id).Preserved }, 45*time.Second, time.Millisecond, "soon after the change of leader")
			})
		})
	}
	for name, noDrain := range map[string]bool{"preservation meets a drain": false, "preservation meets a deletion": true} {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				w.advance(2 * time.Minute)
				ids := w.ready()
				for _, id := range ids {
					w.writeLate(id, keep)
				}
				g := webGroup(0)
				if noDrain {
					g.DrainTimeout = 0
				}
				w.setGroups(g)
				w.advance(15 * time.Minute)
				for _, id := range ids {
					require.True(t, w.instance(id).Preserved)
					require.Zero(t, w.count(nstance.EventDrainStarted, id))
				}
			})
		})
	}
}
