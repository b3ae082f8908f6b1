package records_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestShards(t *testing.T) {
	m := storage.NewMemory()
	shards, err := records.Shards(t.Context(), m)
	require.NoError(t, err)
	require.Empty(t, shards)
	for _, id := range []nstance.ShardID{"b", "a"} {
		for n := range byte(3) {
			_, err := records.New(m, id, nil).Create(t.Context(), newInstance(n+1))
			require.NoError(t, err)
		}
	}
	shards, err = records.Shards(t.Context(), m)
	require.NoError(t, err)
	require.Equal(t, []nstance.ShardID{"a", "b"}, shards)
	f := storagetest.NewFaulty(m)
	f.Inject(storagetest.Fault{Op: storagetest.List, Skip: 1})
	shards, err = records.Shards(t.Context(), f)
	require.ErrorIs(t, err, nstance.Unavailable)
	require.Empty(t, shards, "a part is not all")
}
