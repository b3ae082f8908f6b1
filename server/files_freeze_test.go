package server_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/machinefiles"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/server"
)

// TestFilesDuringFreeze: until the freeze ends, files stay as they are and commands
// do not run.
func TestFilesDuringFreeze(t *testing.T) {
	t.Parallel()
	scopes := map[string]string{"shard": "", "group": "web"}
	for name, group := range scopes {
		t.Run(name, func(t *testing.T) {
			var ahead atomic.Int64
			shard := `"health_interval": "24h",`
			w := newWorld(t, setup{webSize: 1, shard: shard, opts: server.Options{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }}})
			text := func(colour string) string {
				return configWithFiles(1, shard, `"colour": "`+colour+`"`, `"web": {"validity": "3h"}`,
					`"a.crt": {"kind": "certificate", "certificate": "web", "part": "cert"}, "b": {"kind": "string", "content": "{{.Vars.colour}}"}`,
					`, "post_apply": ["`+colour+`"]`)
			}
			k := w.connectReady(w.awaitMachine(nstance.DefaultTenant)).newFileAgent()
			w.applyConfig(text("red"))
			begin, _ := k.receiveSet()
			first := k.leafCertificate(begin)
			k.keyCertificate = first.Raw
			k.requireNoFileMessages()
			api := w.admin()
			_, err := api.Freeze(t.Context(), &apiv1.FreezeRequest{Group: group})
			require.NoError(t, err)

			w.applyConfig(text("green"))
			k.requireNoFileMessages()
			k.have[1].Digest = machinefiles.Digest([]byte("changed on the machine"))
			k.requireNoFileMessages()
			k.have[1].Digest = machinefiles.Digest([]byte("red"))

			ahead.Store(int64(121 * time.Minute))
			k.reportFiles()
			begin, lacked := k.receiveSet()
			require.Len(t, lacked, 1, "a certificate is renewed")
			require.NotEqual(t, first.SerialNumber, k.leafCertificate(begin).SerialNumber)
			require.Equal(t, `["red"]`, begin.GetPostApply(), "and its service is notified as before")
			k.keyCertificate = k.leafCertificate(begin).Raw
			k.requireNoFileMessages()

			next := k.client.connect().newFileAgent() // after a reconnect
			next.key, next.keyCertificate, next.hash, next.have = k.key, k.keyCertificate, k.hash, k.have
			next.reportFiles()
			next.nextFileMessage(isKeys)
			next.requireNoFileMessages()
			k = next

			_, err = api.Thaw(t.Context(), &apiv1.ThawRequest{Group: group})
			require.NoError(t, err)
			begin, lacked = k.receiveSet()
			require.Equal(t, []string{machinefiles.Digest([]byte("green"))}, lacked)
			require.Equal(t, `["green"]`, begin.GetPostApply())
			k.requireNoFileMessages()
		})
	}
}

// awaitFilePasses waits for n further passes over machines' files.
func (w *world) awaitFilePasses(n int64) {
	w.Helper()
	before := w.filePasses.Load()
	require.Eventually(w, func() bool { return w.filePasses.Load() >= before+n }, eventually, time.Millisecond)
}

// TestSecretChangeDuringFreeze: no machine receives the change before the thaw, and
// certificates are still renewed.
func TestSecretChangeDuringFreeze(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	var ahead atomic.Int64
	shard := `"health_interval": "24h", "file_refresh": "1s",`
	w := newWorld(t, setup{webSize: 1, shard: shard, opts: server.Options{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }}})
	require.NoError(t, vault.New(w.store, nil).PutIfAbsent(t.Context(), "db", []byte("old")))
	k := w.connectReady(w.awaitMachine(nstance.DefaultTenant)).newFileAgent()
	w.applyConfig(configWithFiles(1, shard, red, `"web": {"validity": "3h"}`,
		`"a.crt": {"kind": "certificate", "certificate": "web", "part": "cert"}, "b": {"kind": "secret", "secret": "db"}`, ""))
	begin, _ := k.receiveSet()
	k.keyCertificate = k.leafCertificate(begin).Raw
	api := w.admin()
	_, err := api.Freeze(t.Context(), &apiv1.FreezeRequest{})
	require.NoError(t, err)
	obj, err := w.store.Get(t.Context(), layout.SecretKey("db"))
	require.NoError(t, err)
	_, err = w.store.PutIfMatch(t.Context(), layout.SecretKey("db"), []byte("new"), obj.Version)
	require.NoError(t, err)
	changed := time.Now()
	for time.Since(changed) < 1100*time.Millisecond { // secrets are read again every 1 s
		w.awaitFilePasses(1)
	}
	w.awaitFilePasses(5)
	k.requireNoFileMessages()

	ahead.Store(int64(121 * time.Minute))
	k.reportFiles()
	begin, lacked := k.receiveSet()
	require.Len(t, lacked, 1)
	k.keyCertificate = k.leafCertificate(begin).Raw
	_, err = api.Thaw(t.Context(), &apiv1.ThawRequest{})
	require.NoError(t, err)
	_, lacked = k.receiveSet()
	require.Equal(t, []string{machinefiles.Digest([]byte("new"))}, lacked)
}

// TestFilesOfNextLeaderDuringFreeze: the next leader sends changed files after the
// thaw too, whichever server led when they changed.
func TestFilesOfNextLeaderDuringFreeze(t *testing.T) {
	t.Parallel()
	for name, group := range map[string]string{"shard": "", "group": "web"} {
		t.Run(name, func(t *testing.T) {
			shard := `"health_interval": "24h",`
			text := func(colour string) string {
				return configWithFiles(1, shard, `"colour": "`+colour+`"`, "", `"b": {"kind": "string", "content": "{{.Vars.colour}}"}`, `, "post_apply": ["`+colour+`"]`)
			}
			w := newWorld(t, setup{config: text("red")})
			id := w.awaitMachine(nstance.DefaultTenant)
			k := w.connectReady(id).newFileAgent()
			k.receiveSet()
			k.requireNoFileMessages()
			_, err := w.admin().Freeze(t.Context(), &apiv1.FreezeRequest{Group: group})
			require.NoError(t, err)
			w.applyConfig(text("green"))
			k.requireNoFileMessages()

			w.startSuccessor(server.Options{})
			again := func() {
				next := k.client.connect().newFileAgent()
				next.hash, next.have = k.hash, k.have
				k = next
				k.reportFiles()
			}
			again()
			k.requireNoFileMessages()
			w.applyConfig(text("blue"))
			k.requireNoFileMessages()
			again()
			k.requireNoFileMessages()
			api := w.admin()
			require.Contains(t, w.instance(api, id).GetConditions(), "runtime_drifted", "it waits")
			w.awaitFilePasses(5)
			k.requireNoFileMessages()

			_, err = api.Thaw(t.Context(), &apiv1.ThawRequest{Group: group})
			require.NoError(t, err)
			begin, lacked := k.receiveSet()
			require.Equal(t, []string{machinefiles.Digest([]byte("blue"))}, lacked)
			require.Equal(t, `["blue"]`, begin.GetPostApply())
			k.requireNoFileMessages()
		})
	}
}
