package reconcile_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// collects has the leader collect garbage every 20 minutes, until the returned
// function is called.
func (w *world) collects() (stop func()) {
	ctx, cancel := context.WithCancel(w.ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for pause(ctx, 20*time.Minute) {
			r, _ := w.leader()
			if _, err := r.Records().CollectGarbage(ctx); err != nil && ctx.Err() == nil {
				w.t.Error(err)
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// definitions returns the user data of the definitions that stand.
func (w *world) definitions() (out []string) {
	w.t.Helper()
	recs := storage.NewRecords(w.store, "s1", nil)
	for entry, err := range w.store.List(w.ctx, storage.DefinitionPrefix("s1"), "") {
		require.NoError(w.t, err)
		d, err := recs.Definition(w.ctx, entry.Key[len(storage.DefinitionPrefix("s1")):])
		require.NoError(w.t, err)
		out = append(out, d.UserData.Content)
	}
	return out
}

func TestDefinitionsAreCollectedUnderAGroup(t *testing.T) {
	t.Run("but not what its members are made from, nor the last good one of a paused group", func(t *testing.T) {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			defer w.collects()()
			r, _ := w.leader()
			w.passes(3 * time.Hour)
			require.Equal(t, []string{"v1"}, w.definitions())
			w.want(redefined(3, "v2"))
			w.passes(10 * time.Second) // a replacement is on its way
			require.NoError(t, r.Pause(t.Context(), web, "the new image is odd"))
			w.passes(5 * time.Hour)
			require.Equal(t, []string{"v1"}, w.definitions(), "v2's machine was surplus")
			for _, id := range w.ready() {
				require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
			}
			w.passes(10 * time.Minute)
			require.Equal(t, map[string]int{"v1": 3}, w.told())
			require.NoError(t, r.Resume(t.Context(), web, eve))
			w.passes(3 * time.Hour)
			require.Equal(t, map[string]int{"v2": 3}, w.told(), "it is put again")
			require.Equal(t, []string{"v2"}, w.definitions())
		})
	})
	t.Run("nor one that its leader goes back to, whenever that is", func(t *testing.T) {
		within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			defer w.collects()()
			versions := []string{"v2", "v1"}
			for i := range 24 { // each is named by nothing for a time that grows
				w.want(redefined(1, versions[i%2]))
				w.passes(10*time.Minute + time.Duration(i)*7*time.Minute)
				require.Equal(t, map[string]int{versions[i%2]: 1}, w.told())
				require.Contains(t, w.definitions(), versions[i%2])
			}
		})
	})
	t.Run("nor the last good one, while that is not durable yet", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			f := storagetest.NewFaulty(w.store)
			f.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: storage.StateKey("s1"), Times: -1})
			w.store = f
			w.lead(wanted(1))
			w.passes(5 * time.Minute)
			w.agrees(1)
			r, _ := w.leader()
			require.ErrorIs(t, r.FreezeShard(t.Context(), "it makes no other member"), nstance.Unavailable)
			for range 30 {
				_, err := r.Records().CollectGarbage(t.Context())
				require.NoError(t, err)
				for _, rec := range w.records() {
					require.NoError(t, f.DeleteIfMatch(t.Context(), rec.Key, rec.Version))
				}
				w.passes(10 * time.Minute)
			}
			require.NotEmpty(t, w.definitions())
			f.Heal()
			w.passes(2 * time.Second)
			_, err := f.Get(t.Context(), storage.StateKey("s1"))
			require.NoError(t, err)
		})
	})
}

// records lists the records that stand.
func (w *world) records() (out []storage.Entry) {
	w.t.Helper()
	for entry, err := range w.store.List(w.ctx, "instance/", "") {
		require.NoError(w.t, err)
		out = append(out, entry)
	}
	return out
}
