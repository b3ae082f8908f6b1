package reconcile_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// startGarbageCollection has the leader collect garbage every 20 minutes, until the returned function
// is called.
func (w *world) startGarbageCollection() (stop func()) {
	ctx, cancel := context.WithCancel(w.ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for pause(ctx, 20*time.Minute) {
			r, _ := w.leader()
			if _, err := r.Admin().Internals().Records().CollectGarbage(ctx); err != nil && ctx.Err() == nil {
				w.t.Error(err)
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// definitions returns the user data of the stored definitions.
func (w *world) definitions() (out []string) {
	w.t.Helper()
	recs := records.New(w.store, "s1", nil)
	for entry, err := range w.store.List(w.ctx, layout.DefinitionPrefix("s1"), "") {
		require.NoError(w.t, err)
		d, err := recs.Definition(w.ctx, entry.Key[len(layout.DefinitionPrefix("s1")):])
		require.NoError(w.t, err)
		out = append(out, d.UserData.Content)
	}
	return out
}

func TestDefinitionGarbageCollection(t *testing.T) {
	t.Run("keeps definitions of members and the last good one of a paused group", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			defer w.startGarbageCollection()()
			r, _ := w.leader()
			w.advance(3 * time.Hour)
			require.Equal(t, []string{"v1"}, w.definitions())
			w.setGroups(groupWithUserData(3, "v2"))
			w.advance(10 * time.Second) // a replacement is in flight
			require.NoError(t, r.Admin().Pause(t.Context(), web, "the new image is odd"))
			w.advance(5 * time.Hour)
			require.Equal(t, []string{"v1"}, w.definitions(), "the machine of v2 was surplus")
			for _, id := range w.ready() {
				require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
			}
			w.advance(10 * time.Minute)
			require.Equal(t, map[string]int{"v1": 3}, w.userDataVersions())
			require.NoError(t, r.Admin().Resume(t.Context(), web, requester))
			w.advance(3 * time.Hour)
			require.Equal(t, map[string]int{"v2": 3}, w.userDataVersions(), "v2 is written again")
			require.Equal(t, []string{"v2"}, w.definitions())
		})
	})
	t.Run("keeps a definition used again between collections", func(t *testing.T) {
		withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			defer w.startGarbageCollection()()
			versions := []string{"v2", "v1"}
			for i := range 24 { // each is unreferenced for a growing time
				w.setGroups(groupWithUserData(1, versions[i%2]))
				w.advance(10*time.Minute + time.Duration(i)*7*time.Minute)
				require.Equal(t, map[string]int{versions[i%2]: 1}, w.userDataVersions())
				require.Contains(t, w.definitions(), versions[i%2])
			}
		})
	})
	t.Run("keeps a last good definition that is not durable yet", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			f := storagetest.NewFaulty(w.store)
			f.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: layout.StateKey("s1"), Times: -1})
			w.store = f
			w.startLeader(webGroup(1))
			w.advance(5 * time.Minute)
			w.requireMembers(1)
			r, _ := w.leader()
			require.ErrorIs(t, r.Admin().FreezeShard(t.Context(), "hold further members"), nstance.Unavailable)
			for range 30 {
				_, err := r.Admin().Internals().Records().CollectGarbage(t.Context())
				require.NoError(t, err)
				for _, rec := range w.records() {
					require.NoError(t, f.DeleteIfMatch(t.Context(), rec.Key, rec.Version))
				}
				require.NotEmpty(t, w.definitions())
				w.advance(10 * time.Minute)
			}
			f.ClearFaults()
			w.advance(2 * time.Second)
			_, err := f.Get(t.Context(), layout.StateKey("s1"))
			require.NoError(t, err)
		})
	})
}

// records lists the stored instance records.
func (w *world) records() (out []storage.Entry) {
	w.t.Helper()
	for entry, err := range w.store.List(w.ctx, "instance/", "") {
		require.NoError(w.t, err)
		out = append(out, entry)
	}
	return out
}
