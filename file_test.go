package nstance_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

func TestValidateFilePath(t *testing.T) {
	for _, path := range []string{"a", ".env", "app/conf.d/10-x.conf", "a@b:c+d", "...", "a/.nstance", strings.Repeat("a", 255)} {
		require.NoError(t, nstance.ValidateFilePath("f", path), path)
	}
	for _, path := range []string{
		"", ".", "..", "/etc/passwd", "a/", "a//b", "../a", "a/../b", "a/./b", `a\b`, "a b", "a\x00", "ä", ".nstance", ".nstance/x", strings.Repeat("a", 256),
	} {
		err := nstance.ValidateFilePath("f", path)
		require.ErrorIs(t, err, nstance.Invalid, path)
		require.ErrorContains(t, err, "f: ")
	}
}

func TestValidateFileMode(t *testing.T) {
	for _, mode := range []uint32{0o400, 0o600, 0o640, 0o660, 0o440} {
		require.NoError(t, nstance.ValidateFileMode("f", mode))
	}
	for _, mode := range []uint32{0, 0o200, 0o644, 0o700, 0o4600, 0o604, 0o060, 1 << 31} {
		require.ErrorIs(t, nstance.ValidateFileMode("f", mode), nstance.Invalid, "%o", mode)
	}
}

func TestValidateSecretName(t *testing.T) {
	for _, name := range []string{"db", "db-password", "API_token.v2", strings.Repeat("a", 64)} {
		require.NoError(t, nstance.ValidateSecretName("f", name), name)
	}
	for _, name := range []string{
		"", "a/b", "..", ".a", "-a", "a b", strings.Repeat("a", 65),
		"identity-ca.key", "workload-ca.key", "nonce.key", "identity-ca.crt", "installation", "nonce-2", "other.key",
	} {
		require.ErrorIs(t, nstance.ValidateSecretName("f", name), nstance.Invalid, name)
	}
}
