package secret_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage/secret"
)

func TestEnv(t *testing.T) {
	t.Setenv("APP_SECRET_DB_PASS_1", "hunter2")
	t.Setenv("APP_SECRET_EMPTY", "")
	t.Setenv("APP_SECRET_LONG", strings.Repeat("x", secret.MaxSize+1))
	src, err := secret.Env("APP_SECRET_")
	require.NoError(t, err)
	for _, name := range []string{"db-pass.1", "db_pass_1", "DB-PASS-1"} {
		data, err := src.Get(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, "hunter2", string(data))
	}
	for name, code := range map[string]nstance.Code{
		"absent": nstance.NotFound, "empty": nstance.Invalid, "long": nstance.Invalid, "nonce.key": nstance.Invalid, "../x": nstance.Invalid,
	} {
		_, err := src.Get(t.Context(), name)
		require.ErrorIs(t, err, code, name)
	}
}

func TestDir(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "mounted")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "..data"), 0o700))
	write := func(name, data string) {
		require.NoError(t, os.WriteFile(filepath.Join(base, name), []byte(data), 0o600))
	}
	write("mounted/..data/db", "hunter2\n")
	write("outside", "not for machines")
	write("mounted/empty", "")
	write("mounted/long", strings.Repeat("x", secret.MaxSize+1))
	require.NoError(t, os.Symlink("..data/db", filepath.Join(dir, "db"))) // as Kubernetes mounts secrets
	require.NoError(t, os.Symlink("../outside", filepath.Join(dir, "leak")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))

	src, err := secret.Dir(dir)
	require.NoError(t, err)
	data, err := src.Get(t.Context(), "db")
	require.NoError(t, err)
	require.Equal(t, "hunter2\n", string(data))
	for name, code := range map[string]nstance.Code{
		"absent": nstance.NotFound, "empty": nstance.Invalid, "long": nstance.Invalid, "folder": nstance.Invalid,
		"leak": nstance.Unavailable, "..data": nstance.Invalid, "identity-ca.key": nstance.Invalid,
	} {
		data, err := src.Get(t.Context(), name)
		require.ErrorIs(t, err, code, name)
		require.Empty(t, data)
	}

	require.NoError(t, os.Rename(dir, dir+".gone")) // a missing mount is not an empty one
	_, err = src.Get(t.Context(), "db")
	require.ErrorIs(t, err, nstance.Unavailable)
	require.NoError(t, os.Rename(dir+".gone", dir))
	_, err = src.Get(t.Context(), "db")
	require.NoError(t, err)
}
