package admin_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage"
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

func TestSecret(t *testing.T) {
	d := newDepot(t)
	d.server(d.box())
	r := d.secret("s3cret", "put", "db")
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.errors, "secret db stored")
	require.Equal(t, "s3cret", d.holds("db"))
	r = d.secret("newer", "put", "db")
	require.Contains(t, r.errors, "secret db replaced")
	require.Equal(t, "newer", d.holds("db"))
	r = d.secret("", "list", "-o", "json")
	require.JSONEq(t, `["db"]`, r.out, "the cluster's own keys are not among them")

	t.Run("refusals", func(t *testing.T) {
		for want, r := range map[string]result{
			"a name of the cluster's own keys": d.secret("x", "put", "nonce.key"),
			"is not the name of a secret":      d.secret("x", "put", "../db"),
			"standard input: is empty":         d.secret("", "put", "db"),
			"has more than":                    d.secret(strings.Repeat("x", 1<<20+1), "put", "db"),
			"cluster's keys are sealed":        d.secret("x", "put", "db", "--key-provider", "none"),
			"needs a confirmation":             d.secret("", "delete", "db"),
			"is not given":                     run(t, strings.NewReader("x"), d.env, "secret", "put", "db"),
		} {
			require.NotZero(t, r.code, want)
			require.Contains(t, r.errors, want)
		}
		other := newDepot(t)
		other.dir = d.dir
		r := other.secret("x", "put", "db")
		require.NotZero(t, r.code, "servers could not open it")
		require.Equal(t, "newer", d.holds("db"))
	})
	require.Zero(t, d.secret("", "delete", "db", "--yes").code)
	require.Contains(t, d.secret("", "list").out, "no secrets")
	require.NotZero(t, d.secret("", "delete", "db", "--yes").code)
}
