package groups

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
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
