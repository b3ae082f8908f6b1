package admin_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfirmNamesTheHeldConfiguration(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	for name, digest := range map[string]string{
		"another one":          "fedcba9876543210",
		"the one in force":     "sha256:abc",
		"too short to be sure": "0123456",
		"longer than any":      "0123456789abcdef0",
	} {
		t.Run(name, func(t *testing.T) {
			r := w.run("config", "confirm", digest, "--yes")
			require.Equal(t, 6, r.code)
			require.Contains(t, r.errors, "config status")
		})
	}
	t.Run("no terminal to confirm", func(t *testing.T) {
		r := w.run("config", "confirm", "01234567")
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, "it would remove 30")
	})
	require.NotContains(t, w.done(), "confirm", "nothing was asked for")
}

func TestRefreshDryRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	r := w.run("config", "refresh", "--dry-run")
	require.Zero(t, r.code, r.errors)
	require.Equal(t, "configuration sha256:def would be in force\n", r.out)
	require.Equal(t, []string{"refresh dry=true"}, w.done())
	w.set(func() { w.unchanged = true })
	for _, args := range [][]string{{"config", "refresh"}, {"config", "refresh", "--dry-run"}} {
		require.Equal(t, "configuration sha256:def is in force already\n", w.run(args...).out)
	}
}

func TestValidateNamesTheError(t *testing.T) {
	t.Parallel()
	r := newWorld(t).run("config", "validate", "testdata")
	require.NotZero(t, r.code)
	r = newWorld(t).run("config", "validate", "config_test.go")
	require.Equal(t, 2, r.code)
	require.Contains(t, r.errors, "config_test.go:1:1")
}
