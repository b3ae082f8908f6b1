package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
)

const password = `"password": {"kind": "secret", "secret": "db"}`

// TestSecretsFromElsewhere sends a secret of a directory to a machine, and what
// has become of it. What storage holds under that name is not looked at.
func TestSecretsFromElsewhere(t *testing.T) {
	dir := t.TempDir()
	put := func(value string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "new"), []byte(value), 0o600))
		require.NoError(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "db")))
	}
	put("first")
	src, err := secret.OpenLocal("file://" + dir)
	require.NoError(t, err)
	store := storage.NewMemory()
	_, err = store.PutIfAbsent(t.Context(), storage.SecretKey("db"), []byte("of storage"))
	require.NoError(t, err)
	text := func(url string) string {
		return served(1, often+`"file_refresh": "1s", "secrets": {"source": "`+url+`"},`, red, "", password, "")
	}
	w := newWorld(t, setup{store: store, text: text("file://" + dir), opts: server.Options{SecretSource: src}})
	m := w.boot(w.machine(nstance.DefaultTenant))
	m.has("password", "first")
	put("second")
	m.has("password", "second")

	w.conf.set(text("store:"), nil)
	_, err = w.server.Refresh(t.Context())
	require.ErrorContains(t, err, "shard.secrets.source: cannot change from file://"+dir+" to store: while the server runs (restart the server")
}

func TestSecretsFromNowhere(t *testing.T) {
	var conf source
	conf.set(fmt.Sprintf(configuration, `"secrets": {"source": "env://APP_"},`, 0), nil)
	_, err := server.New(t.Context(), storage.NewMemory(), simcloud.New(nil), conf.read, nil)
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, "shard.secrets.source: this server was started without a source of secrets beside storage")
}
