package server_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent/files"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// TestFilesDuringAFreeze: a freeze keeps files as they are, and lets commands
// rest, until it ends.
func TestFilesDuringAFreeze(t *testing.T) {
	scopes := map[string]string{"shard": "", "group": "web"}
	for name, group := range scopes {
		t.Run(name, func(t *testing.T) {
			var ahead atomic.Int64
			shard := `"health_interval": "24h",`
			w := newWorld(t, setup{size: 1, shard: shard, opts: server.Options{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }}})
			text := func(colour string) string {
				return served(1, shard, `"colour": "`+colour+`"`, `"web": {"validity": "3h"}`,
					`"a.crt": {"kind": "certificate", "certificate": "web", "part": "cert"}, "b": {"kind": "string", "content": "{{.Vars.colour}}"}`,
					`, "post_apply": ["`+colour+`"]`)
			}
			k := w.ready(w.machine(nstance.DefaultTenant)).taker()
			w.reload(text("red"))
			begin, _ := k.takes()
			first := k.leaf(begin)
			k.cert = first.Raw
			k.quiet()
			api := w.admin()
			_, err := api.Freeze(t.Context(), &apiv1.FreezeRequest{Group: group})
			require.NoError(t, err)

			w.reload(text("green"))
			k.quiet()
			k.have[1].Digest = files.Digest([]byte("spoilt")) // changed on the machine
			k.quiet()
			k.have[1].Digest = files.Digest([]byte("red"))

			ahead.Store(int64(121 * time.Minute))
			k.tell()
			begin, lacked := k.takes()
			require.Len(t, lacked, 1, "a certificate is renewed")
			require.NotEqual(t, first.SerialNumber, k.leaf(begin).SerialNumber)
			require.Equal(t, `["red"]`, begin.GetPostApply(), "and its service is notified as before")
			k.cert = k.leaf(begin).Raw
			k.quiet()

			next := k.holder.connect().taker() // after a break
			next.key, next.cert, next.hash, next.have = k.key, k.cert, k.hash, k.have
			next.tell()
			next.awaits(isKeys)
			next.quiet()
			k = next

			_, err = api.Thaw(t.Context(), &apiv1.ThawRequest{Group: group})
			require.NoError(t, err)
			begin, lacked = k.takes()
			require.Equal(t, []string{files.Digest([]byte("green"))}, lacked)
			require.Equal(t, `["green"]`, begin.GetPostApply())
			k.quiet()
		})
	}
}

// passesFiles waits until the server has looked at machines' files so many times
// more.
func (w *world) passesFiles(n int64) {
	w.Helper()
	before := w.filePasses.Load()
	require.Eventually(w, func() bool { return w.filePasses.Load() >= before+n }, eventually, time.Millisecond)
}

// TestSecretThatChangesDuringAFreeze: it reaches no machine before the thaw, and
// stands in the way of no certificate.
func TestSecretThatChangesDuringAFreeze(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	var ahead atomic.Int64
	shard := `"health_interval": "24h", "file_refresh": "1s",`
	w := newWorld(t, setup{size: 1, shard: shard, opts: server.Options{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }}})
	require.NoError(t, vault.New(w.store, nil).PutIfAbsent(t.Context(), "db", []byte("old")))
	k := w.ready(w.machine(nstance.DefaultTenant)).taker()
	w.reload(served(1, shard, red, `"web": {"validity": "3h"}`,
		`"a.crt": {"kind": "certificate", "certificate": "web", "part": "cert"}, "b": {"kind": "secret", "secret": "db"}`, ""))
	begin, _ := k.takes()
	k.cert = k.leaf(begin).Raw
	api := w.admin()
	_, err := api.Freeze(t.Context(), &apiv1.FreezeRequest{})
	require.NoError(t, err)
	obj, err := w.store.Get(t.Context(), storage.SecretKey("db"))
	require.NoError(t, err)
	_, err = w.store.PutIfMatch(t.Context(), storage.SecretKey("db"), []byte("new"), obj.Version)
	require.NoError(t, err)
	changed := time.Now()
	for time.Since(changed) < 1100*time.Millisecond { // what is read again every 1 s is looked at after that
		w.passesFiles(1)
	}
	w.passesFiles(5)
	k.quiet()

	ahead.Store(int64(121 * time.Minute))
	k.tell()
	begin, lacked := k.takes()
	require.Len(t, lacked, 1)
	k.cert = k.leaf(begin).Raw
	_, err = api.Thaw(t.Context(), &apiv1.ThawRequest{})
	require.NoError(t, err)
	_, lacked = k.takes()
	require.Equal(t, []string{files.Digest([]byte("new"))}, lacked)
}

// TestNextLeaderDuringAFreeze keeps files as they are, too, whichever server led when
// they were changed, and sends them after the thaw.
func TestNextLeaderDuringAFreeze(t *testing.T) {
	for name, group := range map[string]string{"shard": "", "group": "web"} {
		t.Run(name, func(t *testing.T) {
			shard := `"health_interval": "24h",`
			text := func(colour string) string {
				return served(1, shard, `"colour": "`+colour+`"`, "", `"b": {"kind": "string", "content": "{{.Vars.colour}}"}`, `, "post_apply": ["`+colour+`"]`)
			}
			w := newWorld(t, setup{text: text("red")})
			id := w.machine(nstance.DefaultTenant)
			k := w.ready(id).taker()
			k.takes()
			k.quiet()
			_, err := w.admin().Freeze(t.Context(), &apiv1.FreezeRequest{Group: group})
			require.NoError(t, err)
			w.reload(text("green"))
			k.quiet()

			w.successor(server.Options{})
			again := func() {
				next := k.holder.connect().taker()
				next.hash, next.have = k.hash, k.have
				k = next
				k.tell()
			}
			again()
			k.quiet()
			w.reload(text("blue"))
			k.quiet()
			again()
			k.quiet()
			api := w.admin()
			require.Contains(t, w.instance(api, id).GetConditions(), "runtime_drifted", "it waits")
			w.passesFiles(5)
			k.quiet()

			_, err = api.Thaw(t.Context(), &apiv1.ThawRequest{Group: group})
			require.NoError(t, err)
			begin, lacked := k.takes()
			require.Equal(t, []string{files.Digest([]byte("blue"))}, lacked)
			require.Equal(t, `["blue"]`, begin.GetPostApply())
			k.quiet()
		})
	}
}
