package storage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// The names are an interface: renaming one loses all objects under it.
func TestKeys(t *testing.T) {
	rec := newInstance(1)
	for want, got := range map[string]string{
		"config/z1.jsonc":        storage.ConfigKey("z1"),
		"groups/z1.jsonc":        storage.GroupsKey("z1"),
		"state/z1.json":          storage.StateKey("z1"),
		"accepted/z1.json":       storage.AcceptedKey("z1"),
		"snapshot/z1.json.gz":    storage.SnapshotKey("z1"),
		"lease/z1.json":          storage.LeaseKey("z1"),
		"lease/cluster.json":     storage.ClusterLeaseKey,
		"definition/s/ab12":      storage.DefinitionKey("s", "ab12"),
		"fetched/s/ab12":         storage.FetchedKey("s", "ab12"),
		"ca/identity.crt":        storage.CACertKey("identity"),
		"secret/nonce":           storage.SecretKey("nonce"),
		"nonce/j1":               storage.NonceKey("j1"),
		"operator/acme.ops.json": storage.OperatorKey("acme", "ops"),
		"instance/z1/":           storage.InstancePrefix("z1"),
		"instance/z1/acme/db/" + string(rec.ID) + ".json": storage.InstanceKey("z1", "acme", "db", rec.ID),
	} {
		require.Equal(t, want, got)
		if want != "instance/z1/" {
			require.NoError(t, storage.ValidateKey(got))
		}
	}
}

func TestParseInstanceKey(t *testing.T) {
	rec := newInstance(1)
	ref := rec.Ref("z1")
	got, err := storage.ParseInstanceKey(ref.Key())
	require.NoError(t, err)
	require.Equal(t, ref, got)
	for _, key := range append(storagetest.BadKeys(),
		"instance", "instance/z1/a/b", "instance/z1/a/b/c.json", "instance/z1/a/b/"+string(rec.ID), "other/z1/a/b/"+string(rec.ID)+".json",
		"instance/z1/a/b/c/"+string(rec.ID)+".json", "instance/Z1/a/b/"+string(rec.ID)+".json", "instance/z1/a/b/"+string(rec.ID)+".json/",
	) {
		_, err := storage.ParseInstanceKey(key)
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
		ref, err := storage.ParseInstanceKey(key)
		if err != nil {
			return
		}
		require.Equal(t, key, ref.Key(), "one record, one key")
		require.NoError(t, storage.ValidateKey(key))
	})
}
