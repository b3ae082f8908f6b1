package validate_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
)

func TestName(t *testing.T) {
	for _, good := range []string{"a", "0", "web", "eu-west-1a", strings.Repeat("x", 32)} {
		require.NoError(t, validate.Name("group", good), good)
	}
	for _, bad := range []nstance.GroupID{"", "-a", "a-", "a--b", "A", "a_b", "a.b", "\u00fc", "a b", nstance.GroupID(strings.Repeat("x", 33))} {
		err := validate.Name("groups.default", bad)
		require.ErrorIs(t, err, nstance.Invalid, bad)
		require.ErrorContains(t, err, "groups.default: ", "the field is named")
	}
}

func TestNoShardIsCalledCluster(t *testing.T) {
	require.ErrorIs(t, validate.Shard("shard.id", "cluster"), nstance.Invalid)
	require.NoError(t, validate.Shard("shard.id", "cluster-a"))
	require.NoError(t, validate.Name("cluster.id", "cluster"))
}

func TestInstanceKind(t *testing.T) {
	require.NoError(t, validate.InstanceKind("kind", "knc"))
	for _, bad := range []nstance.InstanceKind{"", "kn", "kncx", "KNC", "k1c", "k\u00fcc"} {
		require.ErrorIs(t, validate.InstanceKind("kind", bad), nstance.Invalid, bad)
	}
}

// FuzzName holds the rule against its definition as an expression.
func FuzzName(f *testing.F) {
	rule := regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	for _, s := range []string{"web", "a--b", "-", "a-b-c", "Ab"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want := rule.MatchString(s) && len(s) <= 32 && !strings.Contains(s, "--")
		require.Equal(t, want, validate.Name("name", s) == nil, "%q", s)
	})
}

func TestFilePath(t *testing.T) {
	for _, path := range []string{"a", ".env", "app/conf.d/10-x.conf", "a@b:c+d", "...", "a/.nstance", strings.Repeat("a", 255)} {
		require.NoError(t, validate.FilePath("f", path), path)
	}
	for _, path := range []string{
		"", ".", "..", "/etc/passwd", "a/", "a//b", "../a", "a/../b", "a/./b", `a\b`, "a b", "a\x00", "\u00e4", ".nstance", ".nstance/x", strings.Repeat("a", 256),
	} {
		err := validate.FilePath("f", path)
		require.ErrorIs(t, err, nstance.Invalid, path)
		require.ErrorContains(t, err, "f: ")
	}
}

func TestFileMode(t *testing.T) {
	for _, mode := range []uint32{0o400, 0o600, 0o640, 0o660, 0o440} {
		require.NoError(t, validate.FileMode("f", mode))
	}
	for _, mode := range []uint32{0, 0o200, 0o644, 0o700, 0o4600, 0o604, 0o060, 1 << 31} {
		require.ErrorIs(t, validate.FileMode("f", mode), nstance.Invalid, "%o", mode)
	}
}

func TestSecretName(t *testing.T) {
	for _, name := range []string{"db", "db-password", "API_token.v2", strings.Repeat("a", 64)} {
		require.NoError(t, validate.SecretName("f", name), name)
	}
	for _, name := range []string{
		"", "a/b", "..", ".a", "-a", "a b", strings.Repeat("a", 65),
		"identity-ca.key", "workload-ca.key", "nonce.key", "identity-ca.crt", "installation", "nonce-2", "other.key",
	} {
		require.ErrorIs(t, validate.SecretName("f", name), nstance.Invalid, name)
	}
}

func Example() {
	fmt.Println(validate.Name("group", "Web"))
	// Output: group: name "Web" contains 'W' (use at most 32 of a-z, 0-9 and single hyphens, a letter or digit at both ends)
}
