package server_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
)

const password = `"password": {"kind": "secret", "secret": "db"}`

// TestSecretsFromOtherSources sends a secret from a directory to a machine, and its
// changes. A secret of the same name in storage is not read.
func TestSecretsFromOtherSources(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	dir := t.TempDir()
	put := func(value string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "new"), []byte(value), 0o600))
		require.NoError(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "db")))
	}
	put("first")
	src, err := secret.Dir(dir)
	require.NoError(t, err)
	store := storage.NewMemory()
	_, err = store.PutIfAbsent(t.Context(), layout.SecretKey("db"), []byte("of storage"))
	require.NoError(t, err)
	text := func(url string) string {
		return configWithFiles(1, often+`"file_refresh": "1s", "secrets": {"source": "`+url+`"},`, red, "", password, "")
	}
	w := newWorld(t, setup{store: store, config: text("file://" + dir), opts: server.Options{SecretSource: src}})
	m := w.startAgent(w.awaitMachine(nstance.DefaultTenant))
	m.awaitFile("password", "first")
	put("second")
	m.awaitFile("password", "second")

	w.conf.set(text("store:"), nil)
	_, err = w.server.Refresh(t.Context())
	require.ErrorContains(t, err, "shard.secrets.source: cannot change from file://"+dir+" to store: while the server runs (restart the server")
}

func TestMissingSecretSource(t *testing.T) {
	t.Parallel()
	var conf source
	conf.set(fmt.Sprintf(configuration, `"secrets": {"source": "env://APP_"},`, 0), nil)
	_, err := server.New(t.Context(), storage.NewMemory(), simcloud.New(nil), conf.read, nil)
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, "shard.secrets.source: this server was started without a source of secrets beside storage")
}

// TestTrackedSecretsReplaceMachines replaces a machine when a secret's content
// changes, not when the same content is stored again or sealed with another key, and
// not when it cannot be read.
func TestTrackedSecretsReplaceMachines(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	store := storage.NewMemory()
	put := func(value string) {
		key := layout.SecretKey("db")
		obj, err := store.Get(t.Context(), key)
		if errors.Is(err, nstance.NotFound) {
			_, err = store.PutIfAbsent(t.Context(), key, []byte(value))
		} else if err == nil {
			_, err = store.PutIfMatch(t.Context(), key, []byte(value), obj.Version)
		}
		require.NoError(t, err)
	}
	put("first")
	w := newWorld(t, setup{store: store, config: configWithFiles(1, often+`"file_refresh": "1s",`, red, "", password, `, "track": ["secrets"]`)})
	api := w.admin()
	first := w.awaitMachine(nstance.DefaultTenant)
	hash := w.getGroup(api, "web").GetInfraHash()
	put("first")
	_, err := w.server.Refresh(t.Context())
	require.NoError(t, err)
	obj, err := store.Get(t.Context(), layout.SecretKey("db"))
	require.NoError(t, err)
	require.NoError(t, store.DeleteIfMatch(t.Context(), layout.SecretKey("db"), obj.Version))
	require.Eventually(t, func() bool {
		status, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
		require.NoError(t, err)
		return strings.Contains(strings.Join(status.GetProblems(), "\n"), "secret db: there is no secret db")
	}, eventually, 5*time.Millisecond)
	require.Equal(t, hash, w.getGroup(api, "web").GetInfraHash())
	require.Equal(t, first, w.awaitMachine(nstance.DefaultTenant))

	put("second")
	require.Eventually(t, func() bool { return w.getGroup(api, "web").GetInfraHash() != hash }, eventually, 5*time.Millisecond)
	w.awaitNextMachine(nstance.DefaultTenant, first)
	resolved, err := store.Get(t.Context(), layout.ResolvedKey(zone))
	require.NoError(t, err)
	for _, value := range []string{"first", "second"} {
		sum := sha256.Sum256([]byte(value))
		require.NotContains(t, string(resolved.Data), hex.EncodeToString(sum[:8]))
	}
}
