package reconcile_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// groupWithUserData is a group with other user data.
func groupWithUserData(size int, content string) nstance.Group {
	g := webGroup(size)
	g.Definition.UserData.Content = content
	return g
}

func (w *world) setGroups(groups ...nstance.Group) { w.r.Observe(nstance.Desired{Groups: groups}) }

// failUserData makes machines with this user data fail to register.
func (w *world) failUserData(content string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.badImage = func(spec nstance.MachineSpec) bool { return string(spec.UserData) == content }
}

// userDataVersions counts the machines by user data.
func (w *world) userDataVersions() map[string]int {
	out := map[string]int{}
	for _, m := range w.cloud.Machines() {
		spec, _ := w.cloud.Spec(m.ID)
		out[string(spec.UserData)]++
	}
	return out
}

// hold returns the group's hold of a kind.
func (w *world) hold(kind plan.HoldKind) reconcile.HoldView {
	w.t.Helper()
	for _, h := range w.group().Holds {
		if h.Kind == kind {
			return h
		}
	}
	require.Failf(w.t, "no such hold", "%s in %v", kind, w.group().Holds)
	return reconcile.HoldView{}
}

// changeLeader ends the term and begins another with the given groups.
func (w *world) changeLeader(groups ...nstance.Group) {
	w.stopLeader()
	w.startLeader(groups...)
	w.advance(2 * time.Minute) // every member has reported
}

// requireReadyFor advances the clock and requires size ready members all the while.
func (w *world) requireReadyFor(size int, d time.Duration) {
	w.t.Helper()
	for range d / (10 * time.Second) {
		w.advance(10 * time.Second)
		require.GreaterOrEqual(w.t, len(w.ready()), size)
	}
}

func TestPause(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.setGroups(groupWithUserData(3, "v2"))
		w.advance(10 * time.Second) // a replacement is in flight
		at := time.Now().UTC()
		require.NoError(t, w.r.Admin().Pause(t.Context(), web, "the new image is odd"))
		require.NoError(t, w.r.Admin().Pause(t.Context(), web, "another reason"), "a repeat changes nothing")
		w.requireReadyFor(3, 30*time.Minute)
		require.Equal(t, map[string]int{"v1": 3}, w.userDataVersions(), "the surplus is removed, no member is replaced")
		require.Equal(t, 1, w.count(eventtype.RolloutPaused, ""))

		w.changeLeader(groupWithUserData(3, "v2"))
		require.True(t, w.group().Paused)
		h := w.hold(plan.HoldPaused)
		require.Contains(t, h.Reason, "the new image is odd")
		require.Equal(t, at, h.Since)
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 2*time.Minute))
		w.advance(10 * time.Minute)
		require.Equal(t, map[string]int{"v1": 3}, w.userDataVersions(), "a loss is replaced from the last good definition")

		require.NoError(t, w.r.Admin().Resume(t.Context(), web, requester))
		w.changeLeader(groupWithUserData(3, "v2"))
		require.False(t, w.group().Paused)
		w.requireReadyFor(3, 30*time.Minute)
		require.Equal(t, map[string]int{"v2": 3}, w.userDataVersions())
	})
}

func TestResumeEndsAHalt(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.failUserData("v2")
		w.setGroups(groupWithUserData(3, "v2"))
		w.requireReadyFor(3, time.Hour)
		require.NotEmpty(t, w.group().Halted)
		require.NotZero(t, w.group().Failures)
		halted := w.hold(plan.HoldHalted)
		w.changeLeader(groupWithUserData(3, "v2"))
		require.Equal(t, halted, w.hold(plan.HoldHalted), "with the original start and reason")

		w.failUserData("") // the cause outside is repaired
		require.NoError(t, w.r.Admin().Resume(t.Context(), web, requester))
		require.Empty(t, w.group().Halted)
		w.changeLeader(groupWithUserData(3, "v2"))
		w.requireReadyFor(3, 30*time.Minute)
		require.Equal(t, map[string]int{"v2": 3}, w.userDataVersions())
		require.Zero(t, w.group().Failures)
	})
}

// TestNewDefinitionEndsHalt: also when it is configured between two leaders.
func TestNewDefinitionEndsHalt(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.failUserData("v2")
		w.setGroups(groupWithUserData(3, "v2"))
		w.requireReadyFor(3, time.Hour)
		require.NotEmpty(t, w.group().Halted)
		w.changeLeader(groupWithUserData(3, "v3"))
		require.Empty(t, w.group().Halted)
		require.Zero(t, w.group().Failures, "failures of the old definition do not count for the new one")
		w.requireReadyFor(3, 30*time.Minute)
		require.Equal(t, map[string]int{"v3": 3}, w.userDataVersions())
	})
}

func TestRollback(t *testing.T) {
	for name, good := range map[string]bool{"halted definition": false, "of one that is under way": true} {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				if !good {
					w.failUserData("v2")
				}
				w.setGroups(groupWithUserData(3, "v2"))
				w.requireReadyFor(3, 40*time.Second)
				require.NotZero(t, w.userDataVersions()["v2"], "some new members exist")
				require.NoError(t, w.r.Admin().Rollback(t.Context(), web, requester, true))
				require.False(t, w.group().RolledBack, "a dry run changes nothing")
				require.NoError(t, w.r.Admin().Rollback(t.Context(), web, requester, false))
				require.NoError(t, w.r.Admin().Rollback(t.Context(), web, requester, false), "again")
				require.True(t, w.group().RolledBack)
				w.requireReadyFor(3, 5*time.Second)
				w.stopLeader()
				w.startLeader(groupWithUserData(3, "v2"))
				w.advance(30 * time.Minute)
				require.True(t, w.group().RolledBack, "the rollback survives the handover")
				require.Equal(t, map[string]int{"v1": 3}, w.userDataVersions())
				require.Equal(t, 1, w.count(eventtype.RolledBack, ""))
				w.hold(plan.HoldRolledBack)
				w.requireMembers(3)

				larger := groupWithUserData(4, "v2")
				w.setGroups(larger)
				w.requireReadyFor(3, 10*time.Minute)
				require.Equal(t, map[string]int{"v1": 4}, w.userDataVersions(), "a size change keeps the rollback")

				w.setGroups(groupWithUserData(4, "v3"))
				w.requireReadyFor(4, 30*time.Minute)
				require.False(t, w.group().RolledBack, "another definition ends it")
				require.Equal(t, map[string]int{"v3": 4}, w.userDataVersions())
				w.changeLeader(groupWithUserData(4, "v3"))
				require.False(t, w.group().RolledBack)
			})
		})
	}
	t.Run("undone", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.setGroups(groupWithUserData(3, "v2"))
			w.requireReadyFor(3, 40*time.Second)
			require.NoError(t, w.r.Admin().Rollback(t.Context(), web, requester, false))
			w.requireReadyFor(3, 20*time.Minute)
			require.NoError(t, w.r.Admin().UndoRollback(t.Context(), web, requester))
			require.NoError(t, w.r.Admin().UndoRollback(t.Context(), web, requester))
			w.changeLeader(groupWithUserData(3, "v2"))
			w.requireReadyFor(3, 30*time.Minute)
			require.Equal(t, map[string]int{"v2": 3}, w.userDataVersions())
		})
	})
	t.Run("definition changed between two leaders", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.setGroups(groupWithUserData(3, "v2"))
			w.requireReadyFor(3, 40*time.Second)
			require.NoError(t, w.r.Admin().Rollback(t.Context(), web, requester, false))
			w.changeLeader(groupWithUserData(3, "v3"))
			w.requireReadyFor(3, 30*time.Minute)
			require.False(t, w.group().RolledBack)
			require.Equal(t, map[string]int{"v3": 3}, w.userDataVersions())
		})
	})
	t.Run("another definition became the last good one meanwhile", func(t *testing.T) {
		withGroup(t, 1, simcloud.Options{Boot: simcloud.Delay{Min: time.Second}}, func(t *testing.T, w *world) {
			faulty := storagetest.NewFaulty(w.store)
			w.store = faulty
			w.changeLeader(webGroup(1))
			read := make(chan struct{})
			faulty.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: layout.DefinitionPrefix("s1"), Pass: true, Do: func() { <-read }})
			w.setGroups(groupWithUserData(1, "v2"))
			answer := make(chan error, 1)
			w.agents.Go(func() { answer <- w.r.Admin().Rollback(t.Context(), web, requester, false) })
			w.advance(40 * time.Second)
			close(read)
			require.ErrorIs(t, <-answer, nstance.Conflict)
			w.advance(5 * time.Minute)
			require.Equal(t, map[string]int{"v2": 1}, w.userDataVersions())
		})
	})
	t.Run("no last good definition", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			err := w.r.Admin().Rollback(t.Context(), web, requester, false)
			require.ErrorIs(t, err, nstance.Conflict)
			require.ErrorContains(t, err, "the last good one")
			other := webGroup(1)
			other.Key.Group = "fresh"
			w.failUserData("v1")
			w.setGroups(other)
			w.advance(time.Second)
			err = w.r.Admin().Rollback(t.Context(), other.Key, requester, true)
			require.ErrorIs(t, err, nstance.Conflict)
			require.ErrorContains(t, err, "configure the definition")
			other.Key.Group = "unknown"
			require.ErrorIs(t, w.r.Admin().Rollback(t.Context(), other.Key, requester, false), nstance.NotFound)
			require.ErrorIs(t, w.r.Admin().Pause(t.Context(), other.Key, ""), nstance.NotFound)
		})
	})
	t.Run("unreadable definition holds the group", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.setGroups(groupWithUserData(3, "v2"))
			w.requireReadyFor(3, 40*time.Second)
			require.NoError(t, w.r.Admin().Rollback(t.Context(), web, requester, false))
			w.stopLeader()
			begun := func() int { return w.count(nstance.EventCreateRequested, "") + w.count(nstance.EventDrainStarted, "") }
			before := begun()
			for e, err := range w.store.List(t.Context(), "definition/", "") {
				require.NoError(t, err)
				require.NoError(t, w.store.DeleteIfMatch(t.Context(), e.Key, e.Version))
			}
			w.startLeader(groupWithUserData(3, "v2"))
			w.advance(30 * time.Minute)
			require.Equal(t, before, begun(), "no plan")
			require.Contains(t, attention.Problems(w.r.Admin().Attention())[0], "rolled back to definition")
			w.hold(plan.HoldDefinition)
			require.NoError(t, w.r.Admin().UndoRollback(t.Context(), web, requester))
			w.requireReadyFor(3, 30*time.Minute)
			require.Equal(t, map[string]int{"v2": 3}, w.userDataVersions())
		})
	})
}

// TestRequestsAreDurable: a request answered with success survives any crash. One that
// was not may be lost.
func TestRequestsAreDurable(t *testing.T) {
	orders := map[string]struct {
		give  func(ctx context.Context, w *world) error
		stand func(w *world) bool
	}{
		"pause":    {func(ctx context.Context, w *world) error { return w.r.Admin().Pause(ctx, web, "") }, func(w *world) bool { return w.group().Paused }},
		"rollback": {func(ctx context.Context, w *world) error { return w.r.Admin().Rollback(ctx, web, requester, false) }, func(w *world) bool { return w.group().RolledBack }},
		"freeze":   {func(ctx context.Context, w *world) error { return w.r.Admin().Freeze(ctx, web, "") }, func(w *world) bool { return w.group().Frozen }},
		"freeze of the shard": {func(ctx context.Context, w *world) error { return w.r.Admin().FreezeShard(ctx, "") },
			func(w *world) bool { return w.group().Frozen }},
	}
	for name, order := range orders {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				faulty := storagetest.NewFaulty(w.store)
				w.wrap = func(o *leaderEnv) { o.store = faulty }
				w.failUserData("v2")
				w.changeLeader(groupWithUserData(3, "v2"))
				w.wrap = nil

				faulty.Inject(storagetest.Fault{Prefix: "state/", Times: -1})
				err := order.give(t.Context(), w)
				require.ErrorIs(t, err, nstance.Unavailable, "no success before it is durable")
				require.ErrorContains(t, err, "not durable yet")
				w.changeLeader(groupWithUserData(3, "v2"))
				require.False(t, order.stand(w), "lost with that leader")

				require.NoError(t, order.give(t.Context(), w))
				w.changeLeader(groupWithUserData(3, "v2"))
				require.True(t, order.stand(w))
			})
		})
	}
	t.Run("lost answer is repeated", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			faulty := storagetest.NewFaulty(w.store)
			w.wrap = func(o *leaderEnv) { o.store = faulty }
			w.changeLeader(webGroup(3))
			w.wrap = nil
			faulty.Inject(storagetest.Fault{Prefix: "state/", Op: storagetest.PutIfMatch, Mode: storagetest.LoseAnswer})
			require.NoError(t, w.r.Admin().Pause(t.Context(), web, ""))
			faulty.Inject(storagetest.Fault{Prefix: "state/", Times: 30})
			require.Error(t, w.r.Admin().Resume(t.Context(), web, requester))
			w.advance(10 * time.Minute) // repeated until it succeeds
			w.changeLeader(webGroup(3))
			require.False(t, w.group().Paused)
		})
	})
	t.Run("caller's context bounds the wait", func(t *testing.T) {
		withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, w.r.Admin().Pause(ctx, web, ""), nstance.Unavailable)
		})
	})
}

func TestStateOfUnknownGroupsIsKept(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		idle := webGroup(0)
		idle.Key.Group = "idle"
		w.setGroups(idle)
		require.NoError(t, w.r.Admin().Pause(t.Context(), idle.Key, "for later"))
		w.stopLeader()

		// A newer version has added a field, and a group without state of this version.
		key := layout.StateKey("s1")
		obj, err := w.store.Get(t.Context(), key)
		require.NoError(t, err)
		var doc map[string]any
		require.NoError(t, json.Unmarshal(obj.Data, &doc))
		doc["format"], doc["mood"] = "1.7", "good"
		groups := doc["groups"].(map[string]any)
		groups["default/later"] = map[string]any{}
		data, err := json.Marshal(doc)
		require.NoError(t, err)
		_, err = w.store.PutIfMatch(t.Context(), key, data, obj.Version)
		require.NoError(t, err)

		w.startLeader(webGroup(1)) // the idle group is not configured yet
		w.advance(time.Minute)
		require.NoError(t, w.r.Admin().Pause(t.Context(), web, ""))
		w.setGroups(idle)
		w.advance(time.Second)
		require.NoError(t, w.r.Admin().Resume(t.Context(), web, requester))
		for _, g := range w.r.Groups() {
			require.Equal(t, g.Key == idle.Key, g.Paused, g.Key.String())
		}
		obj, err = w.store.Get(t.Context(), key)
		require.NoError(t, err)
		doc = nil
		require.NoError(t, json.Unmarshal(obj.Data, &doc))
		groups = doc["groups"].(map[string]any)
		require.Equal(t, "1.7", doc["format"])
		require.Equal(t, "good", doc["mood"])
		require.Contains(t, groups, "default/later")
		require.Equal(t, "for later", groups["default/idle"].(map[string]any)["pause_reason"])
	})
}

// TestBadImageAcrossLeaders: failures are counted across leaders, and no healthy member
// is replaced for a definition that no leader has seen ready.
func TestBadImageAcrossLeaders(t *testing.T) {
	for name, term := range map[string]time.Duration{"handover during a boot": 3 * time.Minute, "after each failure": 7 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				w.failUserData("bad")
				w.setGroups(groupWithUserData(3, "bad"))
				for range 10 {
					w.advance(term)
					require.Equal(t, 3, w.userDataVersions()["v1"], "the old members stay")
					w.changeLeader(groupWithUserData(3, "bad"))
				}
				w.advance(30 * time.Minute)
				require.NotEmpty(t, w.group().Halted)
				require.Equal(t, 1, w.count(nstance.EventRolloutHalted, ""), "one event for all leaders")
				require.Equal(t, 2, w.count(nstance.EventCreateFailed, ""), "halt_after is 2 across leaders")
				require.Equal(t, map[string]int{"v1": 3}, w.userDataVersions())
				require.NoError(t, w.r.Admin().Rollback(t.Context(), web, requester, false))
				w.changeLeader(groupWithUserData(3, "bad"))
				w.requireMembers(3)
			})
		})
	}
}
