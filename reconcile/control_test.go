package reconcile_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// redefined is a group whose machines are told something else.
func redefined(size int, content string) nstance.Group {
	g := wanted(size)
	g.Definition.UserData.Content = content
	return g
}

func (w *world) want(groups ...nstance.Group) { w.r.Observe(nstance.Desired{Groups: groups}) }

// fails makes machines fail to register that are told this.
func (w *world) fails(content string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.badImage = func(spec nstance.MachineSpec) bool { return string(spec.UserData) == content }
}

// told counts the machines by what they were told.
func (w *world) told() map[string]int {
	out := map[string]int{}
	for _, m := range w.cloud.Machines() {
		spec, _ := w.cloud.Spec(m.ID)
		out[string(spec.UserData)]++
	}
	return out
}

// hold returns the group's hold of a kind.
func (w *world) hold(kind string) reconcile.HoldView {
	w.t.Helper()
	for _, h := range w.group().Holds {
		if h.Kind == kind {
			return h
		}
	}
	require.Failf(w.t, "no such hold", "%s in %v", kind, w.group().Holds)
	return reconcile.HoldView{}
}

// succeeds ends the term and begins another with the given groups.
func (w *world) succeeds(groups ...nstance.Group) {
	w.depose()
	w.lead(groups...)
	w.passes(2 * time.Minute) // everybody has been heard of
}

// serves lets time pass, and checks all the while that as many are ready as wanted.
func (w *world) serves(size int, d time.Duration) {
	w.t.Helper()
	for range d / (10 * time.Second) {
		w.passes(10 * time.Second)
		require.GreaterOrEqual(w.t, len(w.ready()), size)
	}
}

func TestPause(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.want(redefined(3, "v2"))
		w.passes(10 * time.Second) // a replacement is on its way
		at := time.Now().UTC()
		require.NoError(t, w.r.Pause(t.Context(), web, "the new image is odd"))
		require.NoError(t, w.r.Pause(t.Context(), web, "another reason"), "a repeat changes nothing")
		w.serves(3, 30*time.Minute)
		require.Equal(t, map[string]int{"v1": 3}, w.told(), "the surplus goes, nobody is replaced")
		require.Equal(t, 1, w.count(nstance.EventRolloutPaused, ""))

		w.succeeds(redefined(3, "v2"))
		require.True(t, w.group().Paused)
		h := w.hold(plan.HoldPaused)
		require.Contains(t, h.Reason, "the new image is odd")
		require.Equal(t, at, h.Since)
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 2*time.Minute))
		w.passes(10 * time.Minute)
		require.Equal(t, map[string]int{"v1": 3}, w.told(), "a loss is replaced from the last good definition")

		require.NoError(t, w.r.Resume(t.Context(), web, eve))
		w.succeeds(redefined(3, "v2"))
		require.False(t, w.group().Paused)
		w.serves(3, 30*time.Minute)
		require.Equal(t, map[string]int{"v2": 3}, w.told())
	})
}

func TestResumeEndsAHalt(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.fails("v2")
		w.want(redefined(3, "v2"))
		w.serves(3, time.Hour)
		require.NotEmpty(t, w.group().Halted)
		require.NotZero(t, w.group().Failures)
		halted := w.hold(plan.HoldHalted)
		w.succeeds(redefined(3, "v2"))
		require.Equal(t, halted, w.hold(plan.HoldHalted), "with its beginning and its reason")

		w.fails("") // whatever was wrong with the registry is repaired
		require.NoError(t, w.r.Resume(t.Context(), web, eve))
		require.Empty(t, w.group().Halted)
		w.succeeds(redefined(3, "v2"))
		w.serves(3, 30*time.Minute)
		require.Equal(t, map[string]int{"v2": 3}, w.told())
		require.Zero(t, w.group().Failures)
	})
}

// TestAnotherDefinitionEndsAHalt also when it is configured while nobody leads.
func TestAnotherDefinitionEndsAHalt(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.fails("v2")
		w.want(redefined(3, "v2"))
		w.serves(3, time.Hour)
		require.NotEmpty(t, w.group().Halted)
		w.succeeds(redefined(3, "v3"))
		require.Empty(t, w.group().Halted)
		require.Zero(t, w.group().Failures, "it is not charged with another definition's failures")
		w.serves(3, 30*time.Minute)
		require.Equal(t, map[string]int{"v3": 3}, w.told())
	})
}

func TestRollback(t *testing.T) {
	for name, good := range map[string]bool{"of a definition that halted": false, "of one that is under way": true} {
		t.Run(name, func(t *testing.T) {
			within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				if !good {
					w.fails("v2")
				}
				w.want(redefined(3, "v2"))
				w.serves(3, 40*time.Second)
				require.NotZero(t, w.told()["v2"], "some are there")
				require.NoError(t, w.r.Rollback(t.Context(), web, eve, true))
				require.False(t, w.group().RolledBack, "a dry run does nothing")
				require.NoError(t, w.r.Rollback(t.Context(), web, eve, false))
				require.NoError(t, w.r.Rollback(t.Context(), web, eve, false), "again")
				require.True(t, w.group().RolledBack)
				w.serves(3, 5*time.Second)
				w.depose()
				w.lead(redefined(3, "v2"))
				w.passes(30 * time.Minute)
				require.True(t, w.group().RolledBack, "the new leader knows")
				require.Equal(t, map[string]int{"v1": 3}, w.told())
				require.Equal(t, 1, w.count(nstance.EventRolledBack, ""))
				w.hold(plan.HoldRolledBack)
				w.agrees(3)

				larger := redefined(4, "v2")
				w.want(larger)
				w.serves(3, 10*time.Minute)
				require.Equal(t, map[string]int{"v1": 4}, w.told(), "the size has nothing to do with it")

				w.want(redefined(4, "v3"))
				w.serves(4, 30*time.Minute)
				require.False(t, w.group().RolledBack, "another definition ends it")
				require.Equal(t, map[string]int{"v3": 4}, w.told())
				w.succeeds(redefined(4, "v3"))
				require.False(t, w.group().RolledBack)
			})
		})
	}
	t.Run("undone", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.want(redefined(3, "v2"))
			w.serves(3, 40*time.Second)
			require.NoError(t, w.r.Rollback(t.Context(), web, eve, false))
			w.serves(3, 20*time.Minute)
			require.NoError(t, w.r.UndoRollback(t.Context(), web, eve))
			require.NoError(t, w.r.UndoRollback(t.Context(), web, eve))
			w.succeeds(redefined(3, "v2"))
			w.serves(3, 30*time.Minute)
			require.Equal(t, map[string]int{"v2": 3}, w.told())
		})
	})
	t.Run("ended by a change while nobody leads", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.want(redefined(3, "v2"))
			w.serves(3, 40*time.Second)
			require.NoError(t, w.r.Rollback(t.Context(), web, eve, false))
			w.succeeds(redefined(3, "v3"))
			w.serves(3, 30*time.Minute)
			require.False(t, w.group().RolledBack)
			require.Equal(t, map[string]int{"v3": 3}, w.told())
		})
	})
	t.Run("nothing to go back to", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			err := w.r.Rollback(t.Context(), web, eve, false)
			require.ErrorIs(t, err, nstance.Conflict)
			require.ErrorContains(t, err, "the last good one")
			other := wanted(1)
			other.Key.Group = "fresh"
			w.fails("v1")
			w.want(other)
			w.passes(time.Second)
			err = w.r.Rollback(t.Context(), other.Key, eve, true)
			require.ErrorIs(t, err, nstance.Conflict)
			require.ErrorContains(t, err, "configure the definition")
			other.Key.Group = "nobody"
			require.ErrorIs(t, w.r.Rollback(t.Context(), other.Key, eve, false), nstance.NotFound)
			require.ErrorIs(t, w.r.Pause(t.Context(), other.Key, ""), nstance.NotFound)
		})
	})
	t.Run("a definition that cannot be read is not guessed", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			w.want(redefined(3, "v2"))
			w.serves(3, 40*time.Second)
			require.NoError(t, w.r.Rollback(t.Context(), web, eve, false))
			w.depose()
			begun := func() int { return w.count(nstance.EventCreateRequested, "") + w.count(nstance.EventDrainStarted, "") }
			before := begun()
			for e, err := range w.store.List(t.Context(), "definition/", "") {
				require.NoError(t, err)
				require.NoError(t, w.store.DeleteIfMatch(t.Context(), e.Key, e.Version))
			}
			w.lead(redefined(3, "v2"))
			w.passes(30 * time.Minute)
			require.Equal(t, before, begun(), "nothing is planned")
			require.Contains(t, w.r.Problems()[0], "rolled back to definition")
			w.hold(plan.HoldDefinition)
			require.NoError(t, w.r.UndoRollback(t.Context(), web, eve))
			w.serves(3, 30*time.Minute)
			require.Equal(t, map[string]int{"v2": 3}, w.told())
		})
	})
}

// TestOrdersAreDurable: what is answered with success survives any crash, and
// what is not answered so may not.
func TestOrdersAreDurable(t *testing.T) {
	orders := map[string]struct {
		give  func(ctx context.Context, w *world) error
		stand func(w *world) bool
	}{
		"pause":    {func(ctx context.Context, w *world) error { return w.r.Pause(ctx, web, "") }, func(w *world) bool { return w.group().Paused }},
		"rollback": {func(ctx context.Context, w *world) error { return w.r.Rollback(ctx, web, eve, false) }, func(w *world) bool { return w.group().RolledBack }},
		"freeze":   {func(ctx context.Context, w *world) error { return w.r.Freeze(ctx, web, "") }, func(w *world) bool { return w.group().Frozen }},
		"freeze of the shard": {func(ctx context.Context, w *world) error { return w.r.FreezeShard(ctx, "") },
			func(w *world) bool { return w.group().Frozen }},
	}
	for name, order := range orders {
		t.Run(name, func(t *testing.T) {
			within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				faulty := storagetest.NewFaulty(w.store)
				w.wrap = func(o *office) { o.store = faulty }
				w.fails("v2")
				w.succeeds(redefined(3, "v2"))
				w.wrap = nil

				faulty.Inject(storagetest.Fault{Prefix: "state/", Times: -1})
				err := order.give(t.Context(), w)
				require.ErrorIs(t, err, nstance.Unavailable, "it is not claimed")
				require.ErrorContains(t, err, "not durable yet")
				w.succeeds(redefined(3, "v2"))
				require.False(t, order.stand(w), "and died with that leader")

				require.NoError(t, order.give(t.Context(), w))
				w.succeeds(redefined(3, "v2"))
				require.True(t, order.stand(w))
			})
		})
	}
	t.Run("a lost answer heals itself", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			faulty := storagetest.NewFaulty(w.store)
			w.wrap = func(o *office) { o.store = faulty }
			w.succeeds(wanted(3))
			w.wrap = nil
			faulty.Inject(storagetest.Fault{Prefix: "state/", Op: storagetest.PutIfMatch, Mode: storagetest.Lose})
			require.NoError(t, w.r.Pause(t.Context(), web, ""))
			faulty.Inject(storagetest.Fault{Prefix: "state/", Times: 30})
			require.Error(t, w.r.Resume(t.Context(), web, eve))
			w.passes(10 * time.Minute) // it is tried again until it succeeds
			w.succeeds(wanted(3))
			require.False(t, w.group().Paused)
		})
	})
	t.Run("who asks does not wait for ever", func(t *testing.T) {
		within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, w.r.Pause(ctx, web, ""), nstance.Unavailable)
		})
	})
}

func TestStateOutlivesWhatIsNotKnown(t *testing.T) {
	within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		idle := wanted(0)
		idle.Key.Group = "idle"
		w.want(idle)
		require.NoError(t, w.r.Pause(t.Context(), idle.Key, "for later"))
		w.depose()

		// A newer version has added a field, and knows a group without any state of ours.
		key := storage.StateKey("s1")
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

		w.lead(wanted(1)) // nobody mentions the idle group yet
		w.passes(time.Minute)
		require.NoError(t, w.r.Pause(t.Context(), web, ""))
		w.want(idle)
		w.passes(time.Second)
		require.NoError(t, w.r.Resume(t.Context(), web, eve))
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

// TestBadImageThroughLeaders: failures are counted across leaders, and nobody is
// sacrificed for a definition that no leader has seen ready.
func TestBadImageThroughLeaders(t *testing.T) {
	for name, term := range map[string]time.Duration{"in the midst of a boot": 3 * time.Minute, "after each failure": 7 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				w.fails("bad")
				w.want(redefined(3, "bad"))
				for range 10 {
					w.passes(term)
					require.Equal(t, 3, w.told()["v1"], "the group serves")
					w.succeeds(redefined(3, "bad"))
				}
				w.passes(30 * time.Minute)
				require.NotEmpty(t, w.group().Halted)
				require.Equal(t, 1, w.count(nstance.EventRolloutHalted, ""), "once for all leaders")
				require.Equal(t, 2, w.count(nstance.EventCreateFailed, ""), "halt_after is 2, whoever leads")
				require.Equal(t, map[string]int{"v1": 3}, w.told())
				require.NoError(t, w.r.Rollback(t.Context(), web, eve, false))
				w.succeeds(redefined(3, "bad"))
				w.agrees(3)
			})
		})
	}
}
