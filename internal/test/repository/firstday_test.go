package repository_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFirstDays: each cloud's first day has a secret key, keys in storage and an administrator
// before it asks the server anything, all for one cluster and shard: those of the tutorial.
// integration/tutorial runs them.
func TestFirstDays(t *testing.T) {
	require.Contains(t, read(t, "docs/tutorial.md"), "nstance-admin cluster init --cluster prod --shard eu1a ")
	for _, cloud := range []string{"aws", "azure", "gcp", "proxmox"} {
		_, text, found := strings.Cut(read(t, "docs/providers/"+cloud+".md"), "\n## First day\n")
		require.True(t, found, cloud)
		text, _, _ = strings.Cut(text, "\n## ")
		require.Equal(t, "prod", only(t, text, `"cluster": \{"id": "([^"]+)"\}`), cloud)
		require.Equal(t, "eu1a", only(t, text, `"shard": \{\s+"id": "([^"]+)"`), cloud)
		storage := only(t, text, `cluster init [^\n]*--storage (\S+)\n`)
		rest := text
		for _, step := range []string{
			"export NSTANCE_SECRET_KEY=", "nstance-admin cluster init --cluster prod --shard eu1a --storage " + storage + "\n",
			"nstance-server run --config ", "nstance-admin cluster nonce --cluster prod --shard eu1a --storage " + storage + " --kind admin",
			"nstance-admin login ", "nstance-admin group rollout ",
		} {
			before, after, found := strings.Cut(rest, step)
			require.True(t, found, "%s: %q comes after %q", cloud, step, before)
			rest = after
		}
		require.Contains(t, text, "--storage "+storage+" --data ", "%s: the server has the storage that was prepared", cloud)
	}
}

// only returns what a pattern's group matches, which is the same wherever the pattern is found.
func only(t *testing.T, text, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, found, pattern)
	for _, m := range found {
		require.Equal(t, found[0][1], m[1], pattern)
	}
	return found[0][1]
}
