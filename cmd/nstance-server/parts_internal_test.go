package main

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/provider"
)

var update = flag.Bool("update", false, "write the tables of docs/providers")

func TestKinds(t *testing.T) {
	kinds := parts().Kinds
	require.NoError(t, kinds.Validate())
	index, err := os.ReadFile("../../docs/providers.md")
	require.NoError(t, err)
	for _, k := range kinds {
		t.Run(k.Name, func(t *testing.T) {
			require.NotNil(t, k.Open)
			require.NotNil(t, k.Check)
			require.NotNil(t, k.CheckSpec)
			require.Contains(t, string(index), "| `"+k.Name+"` |", "docs/providers.md is the index")
			for _, described := range []any{k.Options, k.Args} {
				_, err := provider.ArgTable(described)
				require.NoError(t, err)
			}
		})
	}
}

// TestTables: the documents of the kinds that have no cloud say what the structs
// say. The clouds' own packages check theirs.
func TestTables(t *testing.T) {
	for _, name := range []string{"local", "sim"} {
		kind, err := parts().Kinds.Find(name)
		require.NoError(t, err)
		path := "../../docs/providers/" + name + ".md"
		old, err := os.ReadFile(path)
		require.NoError(t, err)
		text := section(t, section(t, string(old), "options", kind.Options), "args", kind.Args)
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		}
		require.Equal(t, text, string(old), "stale: go test ./cmd/nstance-server -run TestTables -update")
	}
}

// section puts a table between the markers of that name.
func section(t *testing.T, text, name string, described any) string {
	t.Helper()
	table, err := provider.ArgTable(described)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(text, "<!-- begin "+name+" -->\n")
	require.True(t, ok)
	_, after, ok := strings.Cut(rest, "<!-- end "+name+" -->\n")
	require.True(t, ok)
	return before + "<!-- begin " + name + " -->\n" + table + "<!-- end " + name + " -->\n" + after
}
