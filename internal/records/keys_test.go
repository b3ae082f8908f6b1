package records_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestParseInstanceKey(t *testing.T) {
	rec := newInstance(1)
	ref := rec.Ref("z1")
	got, err := records.ParseInstanceKey(ref.Key())
	require.NoError(t, err)
	require.Equal(t, ref, got)
	for _, key := range append(storagetest.BadKeys(),
		"instance", "instance/z1/a/b", "instance/z1/a/b/c.json", "instance/z1/a/b/"+string(rec.ID), "other/z1/a/b/"+string(rec.ID)+".json",
		"instance/z1/a/b/c/"+string(rec.ID)+".json", "instance/Z1/a/b/"+string(rec.ID)+".json", "instance/z1/a/b/"+string(rec.ID)+".json/",
		"z1/a/b/"+string(rec.ID)+".json",
	) {
		_, err := records.ParseInstanceKey(key)
		require.ErrorIs(t, err, nstance.Invalid, key)
	}
}

func FuzzKeys(f *testing.F) {
	rec := newInstance(1)
	f.Add(keyOf(rec))
	for _, key := range storagetest.BadKeys() {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		ref, err := records.ParseInstanceKey(key)
		if err != nil {
			return
		}
		require.Equal(t, key, ref.Key(), "one record, one key")
		require.NoError(t, storage.ValidateKey(key))
	})
}
