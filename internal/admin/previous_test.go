package admin_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/pki"
)

// The directory holds an identity, as version 0.1 has saved it,
// with a renewal under way. It is never written again. Its keys guard nothing.
const previous = "testdata/v0.1/identity"

var makePrevious = flag.Bool("make-previous", false, "write "+previous+", which only its own version may")

func TestMakePrevious(t *testing.T) {
	if !*makePrevious {
		return // it stands, and must not change
	}
	w := newWorld(t)
	id := w.identity(time.Now())
	id.Servers = []string{"a.example:8993", "b.example:8993"}
	require.NoError(t, admin.SaveIdentity(previous, id))
	require.NoError(t, pki.SaveKey(filepath.Join(previous, "key.next.pem"), pki.NewKey()))
}

func TestPrevious(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "identity")
	require.NoError(t, os.CopyFS(dir, os.DirFS(previous)))
	id, err := admin.LoadIdentity(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"a.example:8993", "b.example:8993"}, id.Servers)
	require.EqualValues(t, "prod", id.Cluster)
	require.EqualValues(t, "eu1a", id.Shard)
	key, err := pki.LoadKey(filepath.Join(previous, "key.pem"))
	require.NoError(t, err)
	require.Equal(t, key, id.Key)
	require.Len(t, id.Chain, 1)
	require.Len(t, id.Roots, 1)
	t.Run("and saved again it is the same", func(t *testing.T) {
		again := filepath.Join(t.TempDir(), "again")
		require.NoError(t, admin.SaveIdentity(again, id))
		for _, name := range []string{"admin.json", "key.pem", "cert.pem", "ca.pem"} {
			want, err := os.ReadFile(filepath.Join(previous, name))
			require.NoError(t, err)
			got, err := os.ReadFile(filepath.Join(again, name))
			require.NoError(t, err)
			require.Equal(t, string(want), string(got), name)
		}
	})
	t.Run("a key whose certificate had just come is the one", func(t *testing.T) {
		require.NoError(t, os.Rename(filepath.Join(dir, "key.pem"), filepath.Join(dir, "key.next.pem")))
		got, err := admin.LoadIdentity(dir)
		require.NoError(t, err)
		require.Equal(t, key, got.Key)
	})
}
