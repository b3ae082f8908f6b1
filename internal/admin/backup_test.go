package admin_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/generation"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// at runs a command on the storage.
func (d *depot) at(args ...string) result {
	return run(d.t, strings.NewReader(""), nil, append(args, "--storage", d.url())...)
}

// open reads the keys as a server does, which is refused on a copy.
func (d *depot) open() error {
	ring, err := keyring.OpenKeyring(d.t.Context(), vault.New(d.store(), d.box()), time.Now)
	require.NoError(d.t, err)
	return ring.Claim(d.t.Context(), "prod", storage.LocationOf(d.store()))
}

// TestBackupAndRestore: a cluster's storage is copied without its secret key, and written into
// an empty one, on which a server starts.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	from, to := newDepot(t), newDepot(t)
	require.NoError(t, from.open())
	from.led("a", false)
	from.operator("operator-1", time.Now().Add(time.Hour), false)
	file := filepath.Join(t.TempDir(), "prod.backup")
	r := from.at("backup", file, "-o", "json")
	require.Zero(t, r.code, r.errors)
	var made admin.Backup
	require.NoError(t, json.Unmarshal([]byte(r.out), &made))
	require.EqualValues(t, "prod", made.Cluster)
	require.Positive(t, made.Objects)
	require.Equal(t, storage.LocationOf(from.store()), made.Location)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode())
	require.Equal(t, 6, from.at("backup", file).code, "it exists")
	require.Equal(t, 3, newDepot(t).at("backup", file+"2").code, "there is no cluster")
	faulty := storagetest.NewFaulty(from.store())
	faulty.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: layout.OperatorPrefix})
	require.Equal(t, 5, runOn(t, faulty, "", nil, "backup", file+"3").code)
	left, err := os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	require.Len(t, left, 1, "a backup that failed leaves nothing")

	require.Equal(t, 2, to.at("restore", "--yes").code)
	require.Equal(t, 2, to.at("restore", file, "--in-place", "--yes").code)
	require.Equal(t, 2, to.at("restore", file).code, "it asks")
	to.dir += "/new"
	require.Contains(t, to.at("restore", file, "--dry-run").out, "nothing was changed; it would be restored: ")
	require.NoDirExists(t, to.dir)
	r = to.at("restore", file, "--yes", "-o", "json")
	require.Zero(t, r.code, r.errors)
	var done admin.Restored
	require.NoError(t, json.Unmarshal([]byte(r.out), &done))
	require.Positive(t, generation.Of(done.Shards["a"]))
	require.Equal(t, 1, done.Operators)
	to.key = from.key
	require.NoError(t, to.open())
	require.Equal(t, 6, to.at("restore", file, "--yes").code, "it is not empty")
}

// TestRestoreInPlace: a folder that was copied is no storage of its own before.
func TestRestoreInPlace(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	require.NoError(t, d.open())
	d.leave("a", &lease.Options{TTL: time.Second}, false)
	d.operator("operator-1", time.Now().Add(time.Hour), false)
	copied := &depot{t, filepath.Join(t.TempDir(), "copy"), d.key, nil}
	require.NoError(t, os.CopyFS(copied.dir, os.DirFS(d.dir)))
	require.ErrorContains(t, copied.open(), "is a copy")
	r := copied.at("restore", "--in-place", "--keep-operators", "--yes")
	require.Zero(t, r.code, r.errors)
	require.Regexp(t, "shard a: its next leader begins term [0-9]+000001\n", r.out)
	require.NoError(t, copied.open())
	_, err := copied.store().Get(t.Context(), layout.OperatorKey("default", "operator-1"))
	require.NoError(t, err)
	r = copied.at("restore", "--in-place", "--yes")
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.out, "1 operator or administrator must register again")
	require.NoError(t, copied.open())
}
