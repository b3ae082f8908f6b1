package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// slowBudget is a budget of one create every ten seconds.
func slowBudget() *provider.Options { return &provider.Options{Rate: 0.1, Burst: 1} }

// removedGroup is group web while it is being removed.
func removedGroup(size int) nstance.Group {
	g := webGroup(size)
	g.Removing = true
	return g
}

func TestRemoval(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		kept := w.readyOnDemand()
		require.NoError(t, w.r.Desire([]nstance.Group{removedGroup(3)}))
		w.advance(time.Second)
		require.True(t, w.group().Removing)
		require.Equal(t, 3, w.group().Leaving)
		require.Equal(t, 3, w.count(nstance.EventDrainStarted, ""))
		_, err := w.requestOnDemand(onDemand(w.newID()))
		require.ErrorIs(t, err, nstance.Conflict, "it takes no new ones")

		{ // continues under the next leader
			w.stopLeader()
			w.startLeader(removedGroup(3))
			w.advance(2 * time.Minute)
			require.Empty(t, w.r.Groups(), "the group is gone")
			require.Equal(t, 1, w.count(nstance.EventGroupRemoved, ""))
			require.ErrorIs(t, w.r.Remove(web), nstance.NotFound)
		}
		{ // an instance on demand stays until its age
			w.requireMembers(1)
			require.Equal(t, []nstance.InstanceID{kept}, w.ready())
			aged := removedGroup(3)
			aged.Expiry.OnDemandAge = time.Hour
			require.NoError(t, w.r.Desire([]nstance.Group{aged}))
			w.advance(2 * time.Hour)
			w.requireMembers(0)
			require.Equal(t, 1, w.count(nstance.EventDrainStarted, kept))
		}
		{ // a new group of the same name starts empty
			require.NoError(t, w.r.Desire([]nstance.Group{webGroup(1)}))
			w.advance(2 * time.Minute)
			w.requireMembers(1)
			require.False(t, w.group().Removing)
		}
	})
}

func TestRemovalDiscardsHistory(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		w.readyOnDemand() // keeps the group in memory
		require.NoError(t, w.r.Admin().Pause(w.ctx, web, ""))
		require.NoError(t, w.r.Desire([]nstance.Group{removedGroup(1)}))
		w.advance(3 * time.Minute)
		require.NoError(t, w.r.Desire([]nstance.Group{webGroup(1)}))
		require.False(t, w.group().Paused, "the state of the removed group is gone")
	})
}

func TestRemovalReverted(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		require.NoError(t, w.r.Admin().Pause(w.ctx, web, ""))
		require.NoError(t, w.r.Remove(web))
		w.advance(time.Second)
		require.NoError(t, w.r.Desire([]nstance.Group{webGroup(2)}))
		w.advance(3 * time.Minute)
		w.requireMembers(2)
		require.True(t, w.group().Paused, "the group was never gone")
		require.Zero(t, w.count(nstance.EventGroupRemoved, ""))
	})
}

func TestDesiredRefusesInvalid(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		bad := webGroup(5)
		bad.Definition.Args = []byte("[")
		other := webGroup(5)
		other.Key.Group = "other"
		require.ErrorIs(t, w.r.Desire([]nstance.Group{other, bad}), nstance.Invalid)
		w.advance(time.Minute)
		w.requireMembers(1)
		require.ErrorIs(t, w.r.Remove(nstance.GroupKey{Tenant: "default", Group: "unknown"}), nstance.NotFound)
	})
}

// change is one call of the group watcher.
type change struct {
	v    reconcile.GroupView
	gone bool
}

func TestWatchersGetChanges(t *testing.T) {
	var changes []change
	var w0 *world
	withGroup(t, 0, simcloud.Options{}, func(t *testing.T, w *world) {
		w0 = w
		w.stopLeader()
		w.wrap = func(o *leaderEnv) {
			o.options = func(opts *reconcile.Options) {
				opts.Changed = func(v reconcile.GroupView, gone bool) {
					w.ifAlive(o, func() { changes = append(changes, change{v, gone}) })
				}
			}
		}
		w.startLeader(webGroup(2))
		w.advance(2 * time.Minute)
		last := func() change { w0.mu.Lock(); defer w0.mu.Unlock(); return changes[len(changes)-1] }
		require.Equal(t, 2, last().v.Ready)
		require.False(t, last().gone)
		for i := 1; i < len(changes); i++ {
			require.NotEqual(t, changes[i-1], changes[i], "only changes")
		}
		n := len(changes)
		w.advance(30 * time.Minute)
		require.Len(t, changes, n, "no change, no call")

		id := w.readyOnDemand()
		require.Equal(t, 1, last().v.OnDemand)
		require.NoError(t, w.r.Desire([]nstance.Group{removedGroup(2)}))
		w.advance(2 * time.Minute)
		require.True(t, last().gone)
		require.Equal(t, 1, last().v.OnDemand, "the removed group has an instance left")
		require.NoError(t, w.r.Delete(w.ctx, id, "", true))
		w.advance(time.Minute)
		require.True(t, last().gone)
		require.Zero(t, last().v.OnDemand)
		require.Equal(t, web, last().v.Key)
	})
}

// TestUndefinedGroupWithUnreadableRecord: a record that cannot be read may be a member of its group,
// also when that is defined later.
func TestUndefinedGroupWithUnreadableRecord(t *testing.T) {
	for name, another := range map[string]bool{"alone": false, "beside a member that goes": true} {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
				_, err := w.store.PutIfAbsent(w.ctx, keyIn("zoo", w.newID()), []byte("{torn"))
				require.NoError(t, err)
				if another {
					id := w.newID()
					w.record(id, "zoo")
					require.NoError(t, w.r.Admin().Internals().Reread(w.ctx))
					require.NoError(t, w.r.Delete(w.ctx, id, requester, true))
					w.advance(2 * time.Minute)
					require.Equal(t, 1, w.count(nstance.EventDeleted, id))
				} else {
					require.NoError(t, w.r.Admin().Internals().Reread(w.ctx))
					w.setGroups(webGroup(1))
				}
				zoo := webGroup(1)
				zoo.Key.Group = "zoo"
				w.setGroups(webGroup(1), zoo)
				w.advance(time.Minute)
				require.Len(t, w.ids(), 1, "nothing is created for zoo")
			})
		})
	}
}
