package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// withLives runs a test with a group whose leaders keep the ledger.
func withLives(t *testing.T, size int, test func(t *testing.T, w *world)) {
	withGroup(t, size, simcloud.Options{}, func(t *testing.T, w *world) {
		w.stopLeader()
		w.keepLives = true
		w.startLeader(webGroup(size))
		w.advance(2 * time.Minute)
		w.requireMembers(size)
		test(t, w)
	})
}

func TestLives(t *testing.T) {
	t.Run("of a reclaimed member", func(t *testing.T) {
		withLives(t, 2, func(t *testing.T, w *world) {
			lost := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(lost, 2*time.Minute))
			w.advance(3 * time.Minute)
			w.requireMembers(2)
			replacement := w.first(nstance.EventReplacementRequested, func(e nstance.Event) bool { return e.Replaces == lost }).Instance
			require.Len(t, w.lives()[lost], 1)
			life := w.lives()[lost][0]
			require.Equal(t, ledger.Drained, life.Outcome)
			require.Equal(t, replacement, life.ReplacedBy)
			require.Len(t, life.Notices, 1)
			require.Equal(t, nstance.CauseNotice, life.Drain.Causes[0].Kind)
			require.Equal(t, life.Notices[0].EventID, life.Drain.Causes[0].EventID)
			require.Equal(t, nstance.OutcomeDrained, life.Drained.Outcome)
			require.Equal(t, ledger.Pool{InstanceType: "small", Zone: life.Pool.Zone, Market: nstance.Spot}, life.Pool)
			moments := []time.Time{life.CreatedAt, life.RegisteredAt, life.Notices[0].ReceivedAt, life.Drain.StartedAt, life.Drained.At, life.DeleteAt, life.DeletedAt}
			for i := range moments[1:] {
				require.False(t, moments[i+1].Before(moments[i]), "moment %d of %v", i+1, moments)
			}
			require.False(t, life.LaunchedAt.IsZero())
			require.Zero(t, life.ReadyAt, "a former leader saw that")

			rec, ok := w.r.Admin().Internals().Records().Get(replacement)
			require.True(t, ok)
			require.Equal(t, lost, rec.Replaces, "the next leader knows")
		})
	})
	t.Run("of a member with another definition", func(t *testing.T) {
		withLives(t, 1, func(t *testing.T, w *world) {
			old := w.ready()[0]
			next := webGroup(1)
			next.Definition.UserData.Content = "v2"
			w.setGroups(next)
			w.advance(5 * time.Minute)
			life := w.lives()[old][0]
			require.Equal(t, []string{"userdata.content"}, life.Drifted)
			require.Equal(t, nstance.CauseRollout, life.Why.Kind)
			next.Size = 0
			w.setGroups(next)
			w.advance(2 * time.Minute)
			delete(w.lives(), old)
			for id, l := range w.lives() {
				if id != old {
					require.False(t, l[0].ReadyAt.Before(l[0].RegisteredAt), "ready is known of a member of this term")
				}
			}
			require.Len(t, w.lives(), 2)
		})
	})
	t.Run("of a member whose notice was withdrawn", func(t *testing.T) {
		withLives(t, 1, func(t *testing.T, w *world) {
			w.slow(true)
			spared := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(spared, 10*time.Minute))
			w.advance(10 * time.Second)
			require.NoError(t, w.cloud.Withdraw(spared))
			w.advance(10 * time.Second)
			w.stopLeader()
			w.startLeader(webGroup(1))
			w.advance(2 * time.Minute)
			rec, ok := w.r.Admin().Internals().Records().Get(spared)
			require.True(t, ok)
			require.Len(t, rec.Cancelled, 1)
			w.slow(false)
			w.setGroups(webGroup(0))
			w.advance(3 * time.Minute)
			life := w.lives()[spared][0]
			require.Len(t, life.Cancelled, 1)
			require.Equal(t, nstance.Reclaim, life.Cancelled[0].Notices[0].Kind)
			require.True(t, life.Cancelled[0].EndedAt.After(life.Cancelled[0].Drain.StartedAt))
			require.Empty(t, life.Notices)
		})
	})
	t.Run("of a machine that vanishes", func(t *testing.T) {
		withLives(t, 2, func(t *testing.T, w *world) {
			lost := w.ready()[0]
			require.NoError(t, w.cloud.Kill(lost))
			w.r.Observe(nstance.Disconnected{ID: lost})
			w.advance(3 * time.Minute)
			life := w.lives()[lost][0]
			require.Equal(t, ledger.Gone, life.Outcome)
			require.False(t, life.GoneAt.IsZero())
			require.False(t, life.DeletedAt.Before(life.GoneAt))
		})
	})
}

// TestLifeBeforeRecord stops the leader after each life was written and before its record
// is deleted: the next one writes it again, and it is recognised.
func TestLifeBeforeRecord(t *testing.T) {
	withLives(t, 2, func(t *testing.T, w *world) {
		gone := w.ready()[0]
		w.stopLeader()
		deletes := func(o *leaderEnv) {
			f := storagetest.NewFaulty(o.store)
			f.Inject(storagetest.Fault{Op: storagetest.Delete, Prefix: layout.InstancePrefix("s1"), Times: -1})
			o.store = f
		}
		w.wrap = deletes
		w.startLeader(webGroup(1))
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(1)}})
		w.advance(4 * time.Minute)
		require.Len(t, w.cloud.Machines(), 1)
		var left nstance.InstanceID
		for id := range w.lives() {
			left = id
		}
		require.NotEmpty(t, left, "of %s or the other one", gone)
		before := w.lives()[left]
		require.Len(t, before, 1, "a failed deletion does not write it again")
		_, ok := w.r.Admin().Internals().Records().Get(left)
		require.True(t, ok)
		w.stopLeader()
		w.wrap = nil
		w.startLeader(webGroup(1))
		w.advance(2 * time.Minute)
		w.requireMembers(1)
		require.Equal(t, before, w.lives()[left], "the next leader writes it too, from the same record: it counts once, as the first leader wrote it")
	})
}

// TestLedgerUnwritable: records stay until storage takes their lives, and the machines go
// nevertheless.
func TestLedgerUnwritable(t *testing.T) {
	withLives(t, 3, func(t *testing.T, w *world) {
		w.stopLeader()
		var faulty *storagetest.Faulty
		w.wrap = func(o *leaderEnv) {
			faulty = storagetest.NewFaulty(o.store)
			faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: "ledger/", Times: -1})
			o.store = faulty
		}
		w.startLeader(webGroup(1))
		w.advance(5 * time.Minute)
		require.Len(t, w.cloud.Machines(), 1)
		require.Empty(t, w.lives())
		require.Zero(t, w.count(nstance.EventDeleted, ""))
		require.Len(t, recordsOf(w), 3)
		faulty.ClearFaults()
		w.advance(30 * time.Second)
		w.requireMembers(1)
		require.Len(t, w.lives(), 2)
	})
}

func recordsOf(w *world) []records.Instance { return w.r.Admin().Internals().Records().All() }
