package admin_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// A depot is a cluster's storage in a directory, as a server would find it.
type depot struct {
	t   testing.TB
	dir string
	key secret.Key
	env map[string]string
}

func newDepot(t testing.TB) *depot {
	key := secret.NewKey()
	return &depot{t, t.TempDir(), key, map[string]string{"NSTANCE_SECRET_KEY": key.Encode()}}
}

func (d *depot) url() string { return "file://" + d.dir }

func (d *depot) mint(args ...string) result {
	return run(d.t, strings.NewReader(""), d.env, append([]string{"cluster", "nonce", "--storage", d.url(), "--cluster", "prod"}, args...)...)
}

// server returns the keys that a server of this storage has.
func (d *depot) server(box *secret.Box) *keyring.Keys {
	store, err := storage.OpenDir(d.dir, nil)
	require.NoError(d.t, err)
	keys, err := keyring.Bootstrap(d.t.Context(), vault.New(store, box), time.Now())
	require.NoError(d.t, err)
	return keys
}

func (d *depot) box() *secret.Box {
	box, err := secret.NewBox(d.key)
	require.NoError(d.t, err)
	return box
}

func TestNonce(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	r := d.mint()
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.errors, "there were no keys in this storage")
	keys := d.server(d.box())

	verify := func(token string, now time.Time, kind nstance.Role) (keyring.Claims, error) {
		return keys.Nonces.Verify(strings.TrimSuffix(token, "\n"), now, keyring.Expect{Cluster: "prod", Shard: "eu1a", Kind: kind})
	}
	t.Run("verifies at the server, for three hours", func(t *testing.T) {
		c, err := verify(r.out, time.Now(), nstance.RoleOperator)
		require.NoError(t, err)
		require.Equal(t, nstance.DefaultTenant, c.Tenant)
		require.Empty(t, c.Shard)
		require.Equal(t, "prod", c.Subject)
		_, err = verify(r.out, time.Now().Add(179*time.Minute), nstance.RoleOperator)
		require.NoError(t, err)
		_, err = verify(r.out, time.Now().Add(181*time.Minute), nstance.RoleOperator)
		require.ErrorIs(t, err, nstance.Denied)
	})
	t.Run("says what it was told to", func(t *testing.T) {
		r := d.mint("--kind", "admin", "--tenant", "blue", "--shard", "eu1a", "--expiry", "1h")
		require.Zero(t, r.code, r.errors)
		require.Contains(t, r.errors, "kind admin for tenant blue in cluster prod")
		require.NotContains(t, r.errors, "new authorities", "they exist by now")
		c, err := verify(r.out, time.Now(), nstance.RoleAdmin)
		require.NoError(t, err)
		require.Equal(t, nstance.TenantID("blue"), c.Tenant)
		require.Equal(t, nstance.ShardID("eu1a"), c.Shard)
		require.Equal(t, time.Hour, c.Expiry.Sub(c.NotBefore))
	})
	t.Run("is another one each time", func(t *testing.T) {
		a, err := verify(d.mint().out, time.Now(), "")
		require.NoError(t, err)
		b, err := verify(d.mint().out, time.Now(), "")
		require.NoError(t, err)
		require.NotEqual(t, a.JTI, b.JTI)
	})
	t.Run("goes into files that only their owner can read", func(t *testing.T) {
		nonce, ca := filepath.Join(t.TempDir(), "nonce.jwt"), filepath.Join(t.TempDir(), "ca.crt")
		r := d.mint("--output", nonce, "--ca-output", ca)
		require.Zero(t, r.code, r.errors)
		require.Empty(t, r.out)
		info, err := os.Stat(nonce)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		token, err := os.ReadFile(nonce)
		require.NoError(t, err)
		_, err = verify(string(token), time.Now(), nstance.RoleOperator)
		require.NoError(t, err)
		certs, err := pki.LoadCertificates(ca)
		require.NoError(t, err)
		require.Equal(t, keys.Identity.Certificate(), certs[0].Raw)
	})
	t.Run("takes the cluster from the storage, and refuses another one", func(t *testing.T) {
		d := newDepot(t)
		nonce := func(args ...string) result {
			return run(t, strings.NewReader(""), d.env, append([]string{"cluster", "nonce", "--storage-bucket", d.url(), "--key-provider", "env"}, args...)...)
		}
		r := nonce()
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, "--cluster: is not given, and no configuration in this storage names it")
		_, err := d.store().PutIfAbsent(t.Context(), layout.ConfigKey(shard), []byte(`{"cluster": {"id": "prod"}, "shard": {"id": "eu1a", "provider": {"kind": "sim"}}}`))
		require.NoError(t, err)
		r = nonce("--expiry", "1h")
		require.Zero(t, r.code, r.errors)
		claims, err := d.server(d.box()).Nonces.Verify(strings.TrimSpace(r.out), time.Now(), keyring.Expect{Cluster: "prod", Shard: shard, Kind: nstance.RoleOperator})
		require.NoError(t, err)
		require.EqualValues(t, "prod", claims.Cluster)
		r = nonce("--cluster", "test")
		require.Equal(t, 6, r.code)
		require.Contains(t, r.errors, "this storage is of cluster prod, as the configuration of shard eu1a says")
		d.put(layout.ConfigKey("eu1b"), `{"cluster": {"id": "test"}, "shard": {"id": "eu1b", "provider": {"kind": "sim"}}}`)
		require.Equal(t, 6, nonce().code, "two clusters in one storage")
	})
	t.Run("takes the name of a bucket for that in S3", func(t *testing.T) {
		var opened string
		open := func(_ context.Context, rawURL string) (storage.Store, error) {
			opened = rawURL
			return nil, nstance.Errorf(nstance.Unavailable, "no network")
		}
		var out, errs bytes.Buffer
		code := admin.Main(t.Context(), open, []string{"cluster", "nonce", "--storage-bucket", "my-bucket", "--key-provider", "env"},
			strings.NewReader(""), &out, &errs, func(k string) string { return map[string]string{"NSTANCE_SECRET_KEY": d.key.Encode()}[k] })
		require.NotEqual(t, 2, code, &errs)
		require.Contains(t, errs.String(), "no network")
		require.Equal(t, "s3://my-bucket", opened)
	})
	t.Run("has --storage-bucket for --storage", func(t *testing.T) {
		r := run(t, strings.NewReader(""), d.env, "cluster", "nonce", "--storage-bucket", d.url(), "--cluster", "prod")
		require.Zero(t, r.code, r.errors)
	})
}

// TestNonceOfOtherCluster: the keys of a cluster sign no nonce for another one, also where no
// configuration names it.
func TestNonceOfOtherCluster(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	store, err := storage.OpenDir(d.dir, nil)
	require.NoError(t, err)
	ring, err := keyring.OpenKeyring(t.Context(), vault.New(store, d.box()), time.Now)
	require.NoError(t, err)
	require.NoError(t, ring.Claim(t.Context(), "prod", storage.LocationOf(store)))
	r := d.mint("--cluster", "test")
	require.Equal(t, 2, r.code, r.errors)
	require.Contains(t, r.errors, "this storage is of cluster prod, not of test")
	require.Empty(t, r.out)
	require.Equal(t, 2, d.mint("--cluster", "test", "--dry-run").code)
	require.Zero(t, d.mint().code)
}

// TestNonceWithoutRecordOfUse: a nonce is given although storage does not record how long it is
// used, with a warning.
func TestNonceWithoutRecordOfUse(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	beneath := storage.NewMemory()
	keys, err := keyring.Bootstrap(t.Context(), vault.New(beneath, d.box()), time.Now())
	require.NoError(t, err)
	faulty := storagetest.NewFaulty(beneath)
	faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Times: -1})
	r := runOn(t, faulty, "", d.env, "cluster", "nonce", "--cluster", "prod")
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.errors, "warning: not noted in storage")
	_, err = keys.Nonces.Verify(strings.TrimSpace(r.out), time.Now(), keyring.Expect{Cluster: "prod", Shard: shard, Kind: nstance.RoleOperator})
	require.NoError(t, err)
}

func TestNonceFindsItsKey(t *testing.T) {
	t.Parallel()
	t.Run("in another variable", func(t *testing.T) {
		d := newDepot(t)
		d.server(d.box())
		d.env = map[string]string{"OTHER": d.key.Encode()}
		require.Zero(t, d.mint("--key-provider", "env", "--key-source", "OTHER").code)
	})
	t.Run("in a file", func(t *testing.T) {
		d := newDepot(t)
		d.server(d.box())
		path := filepath.Join(t.TempDir(), "key")
		require.NoError(t, os.WriteFile(path, []byte(d.key.Encode()+"\n"), 0o600))
		require.Zero(t, d.mint("--key-provider", "file", "--key-source", path).code)
	})
	t.Run("needs none where keys are not sealed", func(t *testing.T) {
		d := newDepot(t)
		keys := d.server(nil)
		r := d.mint("--key-provider", "none")
		require.Zero(t, r.code, r.errors)
		_, err := keys.Nonces.Verify(strings.TrimSpace(r.out), time.Now(), keyring.Expect{Cluster: "prod", Shard: "eu1a"})
		require.NoError(t, err)
	})
}

func TestNonceRefuses(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	d.server(d.box())
	for name, tc := range map[string]struct {
		env  map[string]string
		args []string
		code int
		says string
	}{
		"an unset variable":      {nil, nil, 2, "variable NSTANCE_SECRET_KEY is not set"},
		"a key that is none":     {map[string]string{"NSTANCE_SECRET_KEY": "hunter2"}, nil, 2, "NSTANCE_SECRET_KEY: key is not base64"},
		"another key":            {map[string]string{"NSTANCE_SECRET_KEY": secret.NewKey().Encode()}, nil, 4, "is encrypted with key " + d.key.ID()},
		"no key for sealed keys": {nil, []string{"--key-provider", "none"}, 4, d.key.ID()},
		"a missing key file":     {nil, []string{"--key-provider", "file", "--key-source", "/nowhere"}, 2, "/nowhere"},
		"an unnamed key file":    {nil, []string{"--key-provider", "file"}, 2, "--key-source"},
		"an unknown provider":    {nil, []string{"--key-provider", "kms"}, 2, "use env, file, none"},
		"an unknown kind":        {d.env, []string{"--kind", "agent"}, 2, "use operator, admin"},
		"a bad cluster":          {d.env, []string{"--cluster", "Prod"}, 2, "--cluster"},
		"a bad shard":            {d.env, []string{"--shard", "eu--1"}, 2, "--shard"},
		"a bad tenant":           {d.env, []string{"--tenant", ""}, 2, "--tenant"},
		"next to no life":        {d.env, []string{"--expiry", "999ms"}, 2, "--expiry"},
		"no life":                {d.env, []string{"--expiry", "0s"}, 2, "--expiry"},
		"a bare bucket":          {d.env, []string{"--storage-bucket", "my-bucket"}, 2, "storage.url"},
		"memory":                 {d.env, []string{"--storage", "mem://"}, 2, "in memory only"},
		"a folder that is not":   {d.env, []string{"--output", "/nowhere/nonce"}, 2, "--output"},
		"a folder for the CA":    {d.env, []string{"--ca-output", "/nowhere/ca"}, 2, "--ca-output"},
	} {
		t.Run(name, func(t *testing.T) {
			d := *d
			d.env = tc.env
			r := d.mint(tc.args...)
			require.Equal(t, tc.code, r.code, r.errors)
			require.Contains(t, r.errors, tc.says)
			require.Empty(t, r.out)
			require.NotContains(t, r.errors, "hunter2")
		})
	}
}

// The whole way: storage, nonce, login, command.
func TestFromStorageToAnswer(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	files := t.TempDir()
	nonce, ca, dir := filepath.Join(files, "nonce"), filepath.Join(files, "ca"), filepath.Join(files, "identity")
	require.Zero(t, d.mint("--kind", "admin", "--output", nonce, "--ca-output", ca).code)
	w := newWorldWith(t, d.server(d.box())).populate()
	r := w.run("login", "--nonce", nonce, "--ca", ca, "--registration", w.registration, "--operator-addr", w.operator, "--shard", "eu1a", "--identity", dir)
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.out, "logged in to shard eu1a of cluster prod")
	r = w.run("group", "list", "--identity", dir)
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.out, "web")
}
