package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/doctest"
)

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
				_, err := doctest.ArgTable(described)
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
		for section, described := range map[string]any{"options": kind.Options, "args": kind.Args} {
			table, err := doctest.ArgTable(described)
			require.NoError(t, err)
			doctest.Section(t, doctest.Docs("providers/"+name+".md"), section, table)
		}
	}
}
