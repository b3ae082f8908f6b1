package groups

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// slowReads is a store whose reads take 20 ms.
type slowReads struct{ storage.Store }

func (s slowReads) Get(ctx context.Context, key string) (storage.Object, error) {
	<-time.After(20 * time.Millisecond)
	return s.Store.Get(ctx, key)
}

// TestDefinitionsAreReadTogether: a new leader reads the definitions of its groups many at a
// time, and one that is missing keeps none of the others.
func TestDefinitionsAreReadTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storage.NewMemory()
		former := records.New(store, "s1", nil)
		var file overlays
		for i := range 300 {
			digest, err := former.PutDefinition(t.Context(), nstance.Definition{Kind: "web", Vars: map[string]string{"n": fmt.Sprint(i)}})
			require.NoError(t, err)
			if i == 7 {
				digest = fmt.Sprintf("%064d", i)
			}
			file.Groups = append(file.Groups, &part{name: fmt.Sprint("default/g", i), overlay: overlay{Effective: &effective{Definition: digest}}})
		}
		d := &definitions{records: records.New(slowReads{store}, "s1", nil), log: slog.New(slog.DiscardHandler), known: map[string]nstance.Definition{}}
		began := time.Now()
		require.NoError(t, d.fetchAll(t.Context(), file))
		require.Len(t, d.known, 299)
		require.LessOrEqual(t, time.Since(began), 5*20*time.Millisecond, "64 at a time")
	})
}

// TestDamagedDefinition: it concerns its group only. One that cannot be read at present may be
// good: nothing is decided without it.
func TestDamagedDefinition(t *testing.T) {
	store := storagetest.NewFaulty(storage.NewMemory())
	good, err := records.New(store, "s1", nil).PutDefinition(t.Context(), nstance.Definition{Kind: "web"})
	require.NoError(t, err)
	damaged := strings.Repeat("d", 64)
	_, err = store.PutIfAbsent(t.Context(), layout.DefinitionKey("s1", damaged), []byte("{"))
	require.NoError(t, err)
	var file overlays
	for _, digest := range []string{damaged, good, ""} {
		file.Groups = append(file.Groups, &part{name: "default/g", overlay: overlay{Effective: &effective{Definition: digest}}})
	}
	d := &definitions{records: records.New(store, "s1", nil), log: slog.New(slog.DiscardHandler), known: map[string]nstance.Definition{}}
	store.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: layout.DefinitionKey("s1", good)})
	require.ErrorIs(t, d.fetchAll(t.Context(), file), nstance.Unavailable)
	require.NoError(t, d.fetchAll(t.Context(), file))
	require.Len(t, d.known, 1)
}
