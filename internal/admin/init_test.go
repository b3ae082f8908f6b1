package admin_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
)

func (d *depot) cluster(args ...string) result {
	return run(d.t, strings.NewReader(""), d.env, append([]string{"cluster", args[0], "--storage", d.url()}, args[1:]...)...)
}

func (d *depot) store() storage.Store {
	store, err := storage.OpenDir(d.dir, nil)
	require.NoError(d.t, err)
	return store
}

func (d *depot) put(key, data string) {
	_, err := d.store().PutIfAbsent(d.t.Context(), key, []byte(data))
	require.NoError(d.t, err)
}

// files returns what is in the storage's directory, and when each was written.
func (d *depot) files() map[string]time.Time { return files(d.t, d.dir) }

func files(t testing.TB, dir string) map[string]time.Time {
	out := map[string]time.Time{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err == nil {
			out[path] = info.ModTime()
		}
		return err
	}))
	return out
}

func decoded[T any](t testing.TB, r result) (v T) {
	require.Zero(t, r.code, r.errors)
	require.NoError(t, json.Unmarshal([]byte(r.out), &v))
	return v
}

// message decodes a message that a command printed.
func message[M proto.Message](t testing.TB, out string, into M) M {
	require.NoError(t, protojson.Unmarshal([]byte(out), into), out)
	return into
}

// messages decodes a list of messages that a command printed.
func messages[T any, M interface {
	*T
	proto.Message
}](t testing.TB, r result) (list []M) {
	for _, one := range decoded[[]json.RawMessage](t, r) {
		list = append(list, message(t, string(one), M(new(T))))
	}
	return list
}

// statusOf decodes what cluster status printed.
func statusOf(t testing.TB, r result) admin.ClusterStatus {
	printed := decoded[struct {
		admin.ClusterStatus
		Keys []json.RawMessage `json:"keys"`
	}](t, r)
	printed.ClusterStatus.Keys = keysOf(t, printed.Keys)
	return printed.ClusterStatus
}

// initOf decodes what cluster init printed.
func initOf(t testing.TB, r result) admin.ClusterInit {
	printed := decoded[struct {
		admin.ClusterInit
		Keys []json.RawMessage `json:"keys"`
	}](t, r)
	printed.ClusterInit.Keys = keysOf(t, printed.Keys)
	return printed.ClusterInit
}

func keysOf(t testing.TB, list []json.RawMessage) (keys []*apiv1.Key) {
	for _, one := range list {
		require.NotContains(t, string(one), "holders", "storage does not tell")
		keys = append(keys, message(t, string(one), &apiv1.Key{}))
	}
	return keys
}

// everything is what a cluster needs in storage, as a server makes it.
var everything = []string{
	"secret/identity-ca.key", "ca/identity-ca.crt", "secret/workload-ca.key", "ca/workload-ca.crt", "secret/nonce.key", "lease/cluster.json", "secret/installation",
}

func TestClusterInit(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	d.dir += "/new"
	t.Run("a dry run says what would be made, and makes nothing", func(t *testing.T) {
		f := initOf(t, d.cluster("init", "--cluster", "prod", "--dry-run", "-o", "json"))
		require.Equal(t, everything, f.Made)
		require.True(t, f.DryRun)
		require.Empty(t, f.Keys)
		require.NoDirExists(t, d.dir)
		require.Contains(t, d.cluster("init", "--cluster", "prod", "--dry-run").out, "secret/nonce.key would be made")
	})
	f := initOf(t, d.cluster("init", "--cluster", "prod", "-o", "json"))
	require.Equal(t, everything, f.Made)
	require.Len(t, f.Keys, 3)

	t.Run("a server finds them", func(t *testing.T) {
		keys := d.server(d.box())
		require.Equal(t, keys.Identity.Issuer(), f.Keys[0].GetId())
		require.Equal(t, keys.Nonces.KeyID(), f.Keys[2].GetId())
		r := d.mint()
		require.Zero(t, r.code)
		require.NotContains(t, r.errors, "no keys")
	})
	before := d.files()
	t.Run("again it changes nothing", func(t *testing.T) {
		again := initOf(t, d.cluster("init", "--cluster", "prod", "-o", "json"))
		require.Empty(t, again.Made)
		require.Equal(t, f.Keys[0].GetCreatedAt().AsTime(), again.Since)
		for i, k := range again.Keys {
			require.Equal(t, f.Keys[i].GetId(), k.GetId())
		}
		r := d.cluster("init", "--cluster", "prod")
		require.Contains(t, r.out, "exist since "+f.Keys[0].GetCreatedAt().AsTime().Format("2006-01-02T15:04"))
		require.Contains(t, d.cluster("init", "--cluster", "prod", "--dry-run").out, "nothing was changed")
		require.Equal(t, before, d.files())
	})
	t.Run("the oldest key says since when", func(t *testing.T) {
		d := newDepot(t)
		d.server(d.box())
		d.rotate(keyring.Identity, keyring.StepBegin, time.Now().Add(time.Hour))
		again := initOf(t, d.cluster("init", "--cluster", "prod", "-o", "json"))
		require.Len(t, again.Keys, 4)
		require.Equal(t, again.Keys[0].GetCreatedAt().AsTime(), again.Since)
	})
	t.Run("what is missing is made, and only that", func(t *testing.T) {
		require.NoError(t, os.Remove(filepath.Join(d.dir, "secret", "installation")))
		f := initOf(t, d.cluster("init", "--cluster", "prod", "--dry-run", "-o", "json"))
		require.Equal(t, []string{"secret/installation"}, f.Made)
		f = initOf(t, d.cluster("init", "--cluster", "prod", "-o", "json"))
		require.Equal(t, []string{"secret/installation"}, f.Made)
		require.Len(t, f.Keys, 3)
	})
	t.Run("a key that is lost is not made anew", func(t *testing.T) {
		d := newDepot(t)
		d.server(d.box())
		require.NoError(t, os.Remove(filepath.Join(d.dir, "secret", "identity-ca.key")))
		for _, dry := range []string{"--dry-run", "--dry-run=false"} {
			r := d.cluster("init", "--cluster", "prod", dry)
			require.Equal(t, 2, r.code)
			require.Contains(t, r.errors, "restore it from a backup")
		}
	})
	t.Run("unsealed, by choice", func(t *testing.T) {
		d := newDepot(t)
		require.Zero(t, d.cluster("init", "--cluster", "prod", "--key-provider", "none").code)
		d.server(nil)
	})
}

func TestClusterInitRefuses(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	d.server(d.box())
	conf, err := os.ReadFile("testdata/shard.jsonc")
	require.NoError(t, err)
	d.put("config/eu1a.jsonc", string(conf))
	for name, tc := range map[string]struct {
		env  map[string]string
		args []string
		code int
		says string
	}{
		"no cluster":            {d.env, nil, 2, "--cluster: is empty"},
		"a bad cluster":         {d.env, []string{"--cluster", "Prod"}, 2, "--cluster"},
		"another cluster":       {d.env, []string{"--cluster", "test"}, 6, "this storage is of cluster prod, as the configuration of shard eu1a says"},
		"no storage":            {d.env, []string{"--cluster", "prod", "--storage", ""}, 2, "--storage: is not given"},
		"memory":                {d.env, []string{"--cluster", "prod", "--storage", "mem://"}, 2, "in memory only"},
		"no key":                {nil, []string{"--cluster", "prod"}, 2, "NSTANCE_SECRET_KEY is not set"},
		"another key":           {map[string]string{"NSTANCE_SECRET_KEY": secret.NewKey().Encode()}, []string{"--cluster", "prod"}, 4, d.key.ID()},
		"another key, dry":      {map[string]string{"NSTANCE_SECRET_KEY": secret.NewKey().Encode()}, []string{"--cluster", "prod", "--dry-run"}, 4, d.key.ID()},
		"none for a sealed one": {nil, []string{"--cluster", "prod", "--key-provider", "none"}, 4, d.key.ID()},
	} {
		t.Run(name, func(t *testing.T) {
			d := *d
			d.env = tc.env
			before := d.files()
			r := d.cluster(append([]string{"init"}, tc.args...)...)
			require.Equal(t, tc.code, r.code, r.errors)
			require.Contains(t, r.errors, tc.says)
			require.Equal(t, before, d.files())
		})
	}
}

// Two concurrent inits make one cluster, and each reports only what it made.
func TestClusterInitAtTheSameTime(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	const n = 4
	done := make(chan result, n)
	for range n {
		go func() { done <- d.cluster("init", "--cluster", "prod", "-o", "json") }()
	}
	var results []result
	for range n {
		results = append(results, <-done)
	}
	var all []string
	for _, r := range results {
		all = append(all, initOf(t, r).Made...)
	}
	require.ElementsMatch(t, everything, all)
}

// A nonce's dry run mints nothing, and reports whether it would make keys.
func TestNonceDryRun(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	before := d.files()
	r := d.mint("--dry-run", "--output", filepath.Join(t.TempDir(), "n"))
	require.Zero(t, r.code, r.errors)
	require.Empty(t, r.out)
	require.Contains(t, r.errors, "a new nonce key would be made")
	require.Contains(t, r.errors, "would be minted")
	require.Equal(t, before, d.files())
	d.server(d.box())
	before = d.files()
	r = d.mint("--dry-run")
	require.Zero(t, r.code, r.errors)
	require.Empty(t, r.out)
	require.NotContains(t, r.errors, "nonce key would be made")
	require.Equal(t, before, d.files(), "not even how long the key is used is noted")
	require.Zero(t, d.mint("--expiry", "200h").code)
	c, err := vault.New(d.store(), d.box()).Catalogue(t.Context())
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(200*time.Hour), c.Sets[keyring.Nonces].Keys[0].UsedUntil, time.Minute, "a real one is")
}

// TestInitPreparesShards: a new shard gets a released lease, once.
func TestInitPreparesShards(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	d.put(layout.StateKey("led"), "{}")
	args := []string{"init", "--cluster", "prod", "--shard", "eu1a", "--shard", "led", "-o", "json"}
	require.Contains(t, initOf(t, d.cluster(append(args, "--dry-run")...)).Made, "lease/eu1a.json")
	require.Zero(t, d.cluster("init", "--cluster", "prod").code)
	require.Equal(t, []string{"lease/eu1a.json"}, initOf(t, d.cluster(args...)).Made, "not of the shard that was led")
	require.Empty(t, initOf(t, d.cluster(args...)).Made)
	require.Equal(t, "new", shardOf(t, statusOf(t, d.cluster("status", "-o", "json")), "eu1a").State)
	require.Equal(t, 2, d.cluster("init", "--cluster", "prod", "--shard", "EU/1").code)
}

// careless is a store that writes whatever the condition.
type careless struct{ *storage.Memory }

func (c careless) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	if obj, err := c.Get(ctx, key); err == nil {
		return c.PutIfMatch(ctx, key, data, obj.Version)
	}
	return c.Memory.PutIfAbsent(ctx, key, data)
}

// TestNoKeysInAStoreWithoutConditions: no key is made where another could take its place.
func TestNoKeysInAStoreWithoutConditions(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"init", "nonce"} {
		m := storage.NewMemory()
		r := runOn(t, careless{m}, "", newDepot(t).env, "cluster", command, "--cluster", "prod")
		require.Equal(t, 2, r.code, r.errors)
		require.Contains(t, r.errors, "this storage cannot be used")
		for e, err := range m.List(t.Context(), "", "") {
			require.NoError(t, err)
			require.Contains(t, e.Key, "probe/")
		}
	}
}

// TestInitOfTwoClusters: the first one has the storage, also before any configuration says so.
func TestInitOfTwoClusters(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	d.put(layout.ConfigKey("eu1a"), "{") // names no cluster
	require.Zero(t, d.cluster("init", "--cluster", "prod").code)
	before := d.files()
	r := d.cluster("init", "--cluster", "test")
	require.Equal(t, 2, r.code)
	require.Contains(t, r.errors, "this storage is of cluster prod, not of test")
	require.Equal(t, before, d.files())
}
