package admin_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func (d *depot) secret(stdin string, args ...string) result {
	return run(d.t, strings.NewReader(stdin), d.env, append([]string{"secret"}, append(args, "--storage", d.url())...)...)
}

// holds returns a secret as a server finds it.
func (d *depot) holds(name string) string {
	store, err := storage.OpenDir(d.dir, nil)
	require.NoError(d.t, err)
	data, err := vault.New(store, d.box()).Get(d.t.Context(), name)
	require.NoError(d.t, err)
	return string(data)
}

// version returns what storage calls a secret's content.
func (d *depot) version(name string) storage.Version {
	store, err := storage.OpenDir(d.dir, nil)
	require.NoError(d.t, err)
	obj, err := store.Get(d.t.Context(), layout.SecretKey(name))
	require.NoError(d.t, err)
	return obj.Version
}

func TestSecret(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	d.server(d.box())
	r := d.secret("s3cret", "put", "db")
	require.Zero(t, r.code, r.errors)
	require.Equal(t, "secret db: stored\n", r.out)
	require.Equal(t, "s3cret", d.holds("db"))
	r = d.secret("newer", "put", "db", "--yes", "-o", "json")
	require.JSONEq(t, `{"name":"db","action":"replace","dry_run":false}`, r.out)
	require.Equal(t, "newer", d.holds("db"))
	r = d.secret("", "list", "-o", "json")
	require.JSONEq(t, `["db"]`, r.out, "the cluster's own keys are not among them")

	t.Run("replacing asks first", func(t *testing.T) {
		r := d.secret("other", "put", "db")
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, "this replaces the secret db for good: this needs a confirmation")
		require.Equal(t, "newer", d.holds("db"))
	})
	t.Run("the same again changes nothing and asks nothing", func(t *testing.T) {
		before := d.version("db")
		r := d.secret("newer", "put", "db", "-o", "json")
		require.Zero(t, r.code, r.errors)
		require.JSONEq(t, `{"name":"db","action":"none","dry_run":false}`, r.out)
		require.Equal(t, before, d.version("db"))
		require.Equal(t, "secret db is unchanged\n", d.secret("newer", "put", "db").out)
	})
	t.Run("dry runs change nothing and ask nothing", func(t *testing.T) {
		before := d.version("db")
		for want, r := range map[string]result{
			"secret new: store would be accepted\n":  d.secret("x", "put", "new", "--dry-run"),
			"secret db: replace would be accepted\n": d.secret("x", "put", "db", "--dry-run"),
			"secret db: delete would be accepted\n":  d.secret("", "delete", "db", "--dry-run"),
		} {
			require.Zero(t, r.code, r.errors)
			require.Equal(t, want, r.out)
		}
		require.Equal(t, before, d.version("db"))
		require.JSONEq(t, `["db"]`, d.secret("", "list", "-o", "json").out)
	})
	t.Run("a dry run finds what would be refused", func(t *testing.T) {
		require.Equal(t, 2, d.secret("x", "put", "db", "--key-provider", "none", "--dry-run").code)
		require.Equal(t, 3, d.secret("", "delete", "nope", "--dry-run").code)
	})
	t.Run("refusals", func(t *testing.T) {
		for want, r := range map[string]result{
			"a name of the cluster's own keys":              d.secret("x", "put", "nonce.key"),
			"is not the name of a secret":                   d.secret("x", "put", "../db"),
			"standard input: is empty":                      d.secret("", "put", "db"),
			"has more than":                                 d.secret(strings.Repeat("x", 1<<20+1), "put", "db"),
			"cluster's keys are sealed":                     d.secret("x", "put", "db", "--key-provider", "none"),
			"this deletes the secret db for good":           d.secret("", "delete", "db"),
			"no secret nope (see nstance-admin secret list": d.secret("", "delete", "nope", "--yes"),
			"is not given":                                  run(t, strings.NewReader("x"), d.env, "secret", "put", "db"),
		} {
			require.NotZero(t, r.code, want)
			require.Contains(t, r.errors, want)
		}
		other := newDepot(t)
		other.dir = d.dir
		r := other.secret("x", "put", "db", "--yes")
		require.NotZero(t, r.code, "servers could not open it")
		require.Equal(t, "newer", d.holds("db"))
	})
	r = d.secret("", "delete", "db", "--yes", "-o", "json")
	require.JSONEq(t, `{"name":"db","action":"delete","dry_run":false}`, r.out)
	require.Contains(t, d.secret("", "list").out, "no secrets")
	require.Equal(t, 3, d.secret("", "delete", "db", "--yes").code)
}

// TestSecretMeanwhile: what another process does between the look at a secret and its change
// is not undone, and what cannot be read is not taken for absent.
func TestSecretMeanwhile(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	key := layout.SecretKey("db")
	for name, c := range map[string]struct {
		there  string // before; empty: nothing
		args   []string
		fault  storagetest.Fault
		change string // of another process, at the fault; empty: it deletes the secret
		code   int
		want   string // after; empty: nothing
	}{
		"stored":             {"", []string{"put", "db"}, storagetest.Fault{Op: storagetest.PutIfAbsent, Pass: true}, "theirs", 6, "theirs"},
		"replaced":           {"old", []string{"put", "db", "--yes"}, storagetest.Fault{Op: storagetest.PutIfMatch, Pass: true}, "theirs", 6, "theirs"},
		"replaced, a delete": {"old", []string{"delete", "db", "--yes"}, storagetest.Fault{Op: storagetest.Delete, Pass: true}, "theirs", 6, "theirs"},
		"deleted, a delete":  {"old", []string{"delete", "db", "--yes"}, storagetest.Fault{Op: storagetest.Delete, Pass: true}, "", 0, ""},
		"keys unreadable":    {"old", []string{"put", "db", "--yes"}, storagetest.Fault{Op: storagetest.Get, Prefix: layout.SecretKey("nonce.key")}, "old", 5, "old"},
		"secret unreadable":  {"old", []string{"put", "db", "--yes"}, storagetest.Fault{Op: storagetest.Get, Prefix: key}, "old", 5, "old"},
	} {
		t.Run(name, func(t *testing.T) {
			beneath := storage.NewMemory()
			set := func(text string) {
				obj, err := beneath.Get(t.Context(), key)
				data, serr := d.box().Seal("db", []byte(text))
				require.NoError(t, serr)
				switch {
				case err == nil && text == "":
					err = beneath.DeleteIfMatch(t.Context(), key, obj.Version)
				case err == nil:
					_, err = beneath.PutIfMatch(t.Context(), key, data, obj.Version)
				default:
					_, err = beneath.PutIfAbsent(t.Context(), key, data)
				}
				if err != nil {
					t.Error(err)
				}
			}
			if c.there != "" {
				set(c.there)
			}
			if c.fault.Prefix == "" {
				c.fault.Prefix = key
			}
			if c.fault.Pass {
				c.fault.Do = func() { set(c.change) }
			}
			faulty := storagetest.NewFaulty(beneath)
			faulty.Inject(c.fault)
			r := runOn(t, faulty, "mine", d.env, append([]string{"secret"}, c.args...)...)
			require.Equal(t, c.code, r.code, r.errors)
			obj, err := beneath.Get(t.Context(), key)
			if c.want == "" {
				require.ErrorIs(t, err, nstance.NotFound)
				return
			}
			require.NoError(t, err)
			data, err := d.box().Open("db", obj.Data)
			require.NoError(t, err)
			require.Equal(t, c.want, string(data))
		})
	}
}

// A key that seals no more is replaced by storing the same again.
func TestSecretIsSealedWithTheFirstKey(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	require.Zero(t, d.secret("s3cret", "put", "db").code)
	fresh := secret.NewKey()
	d.env["NSTANCE_SECRET_KEY"] = fresh.Encode() + " " + d.key.Encode()
	r := d.secret("s3cret", "put", "db", "--yes")
	require.Equal(t, "secret db: replaced\n", r.out, r.errors)
	d.key = fresh
	require.Equal(t, "s3cret", d.holds("db"))
}

// Listing makes nothing, least of all a store.
func TestEmptySecretList(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	d.dir += "/nowhere"
	r := d.secret("", "list")
	require.Equal(t, 3, r.code, r.errors)
	require.NoDirExists(t, d.dir)
}
