package vault_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage/secret"
)

func TestKeySource(t *testing.T) {
	first, second := secret.NewKey(), secret.NewKey()
	file := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(file, []byte(first.Encode()+"\n"+second.Encode()+"\n"), 0o600))
	bad := filepath.Join(t.TempDir(), "bad")
	require.NoError(t, os.WriteFile(bad, []byte("hunter2"), 0o600))
	long := filepath.Join(t.TempDir(), "long")
	require.NoError(t, os.WriteFile(long, []byte(first.Encode()+strings.Repeat("\n", 4<<10)), 0o600))
	env := map[string]string{vault.KeyVariable: first.Encode(), "OTHER": second.Encode() + "," + first.Encode(), "BAD": "hunter2"}
	getenv := func(name string) string { return env[name] }

	for name, tc := range map[string]struct {
		from  vault.KeySource
		seals secret.Key
	}{
		"the usual variable": {vault.KeySource{Provider: vault.KeysInEnv}, first},
		"another variable":   {vault.KeySource{Provider: vault.KeysInEnv, Source: "OTHER"}, second},
		"a file":             {vault.KeySource{Provider: vault.KeysInFile, Source: file}, first},
	} {
		t.Run(name, func(t *testing.T) {
			box, err := tc.from.Box(getenv)
			require.NoError(t, err)
			sealed, err := box.Seal("x", []byte("plain"))
			require.NoError(t, err)
			_, err = newBox(t, tc.seals).Open("x", sealed)
			require.NoError(t, err, "the first key seals")
		})
	}
	t.Run("none, when that is said", func(t *testing.T) {
		box, err := vault.KeySource{Provider: vault.NoKeys}.Box(getenv)
		require.NoError(t, err)
		require.Nil(t, box)
	})
	for name, tc := range map[string]struct {
		from vault.KeySource
		says string
	}{
		"an unknown provider":       {vault.KeySource{Provider: "kms"}, "--key-provider: \"kms\" is not known (use env, file or none)"},
		"no provider":               {vault.KeySource{}, "--key-provider"},
		"a variable that is unset":  {vault.KeySource{Provider: vault.KeysInEnv, Source: "NOPE"}, "--key-source: variable NOPE is not set"},
		"a variable without a key":  {vault.KeySource{Provider: vault.KeysInEnv, Source: "BAD"}, "BAD: key is not base64"},
		"a file without a name":     {vault.KeySource{Provider: vault.KeysInFile}, "--key-source: is not given"},
		"a folder":                  {vault.KeySource{Provider: vault.KeysInFile, Source: t.TempDir()}, "--key-source: secret key: read "},
		"a file that is not there":  {vault.KeySource{Provider: vault.KeysInFile, Source: "/nowhere"}, "--key-source: secret key: open /nowhere"},
		"a file that is too long":   {vault.KeySource{Provider: vault.KeysInFile, Source: long}, long + ": is more than 4096 bytes long"},
		"a file that holds no keys": {vault.KeySource{Provider: vault.KeysInFile, Source: bad}, bad + ": key is not base64"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tc.from.Box(getenv)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, tc.says)
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}
