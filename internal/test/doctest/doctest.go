// Package doctest compares what documents say of code with the code. A test that
// imports it has the flag -update, which writes the document instead.
package doctest

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/provider"
)

var update = flag.Bool("update", false, "write the parts of documents that are made from code")

// Docs returns the path of a document, given below docs, for a test of any module of this
// repository: docs is in the nearest folder above that has one.
func Docs(name string) string {
	up := ""
	for range 8 {
		if _, err := os.Stat(up + "docs/providers"); err == nil {
			break
		}
		up += "../"
	}
	return up + "docs/" + name
}

// Section requires what stands between the markers <!-- begin name --> and
// <!-- end name --> of a file to be want.
func Section(t *testing.T, file, name, want string) {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
	before, rest, ok := strings.Cut(string(b), begin)
	require.True(t, ok, "%s has no %s", file, begin)
	old, after, ok := strings.Cut(rest, end)
	require.True(t, ok, "%s has no %s", file, end)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(before+begin+want+end+after), 0o600))
		return
	}
	require.Equal(t, want, old, "section %s of %s is stale: run the test with -update", name, file)
}

// Kind compares the document of a kind of provider with the kind: the sections
// options, args and, of a kind that has them, balancer, and the schema of args.
func Kind(t *testing.T, kind provider.Kind, schemaTitle string) {
	t.Helper()
	described := map[string]any{"options": kind.Options, "args": kind.Args}
	if kind.BalancerArgs != nil {
		described["balancer"] = kind.BalancerArgs
	}
	for name, fields := range described {
		table, err := ArgTable(fields)
		require.NoError(t, err)
		Section(t, Docs("providers/"+kind.Name+".md"), name, table)
	}
	schema, err := argSchemaOf(schemaTitle, kind.Args)
	require.NoError(t, err)
	file := Docs("providers/" + kind.Name + "-args.schema.json")
	if *update {
		require.NoError(t, os.WriteFile(file, schema, 0o600))
	}
	old, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(schema), string(old), "%s is stale: run the test with -update", file)
}

// Example returns the first configuration in the document of a kind of provider.
func Example(t *testing.T, kind provider.Kind) []byte {
	t.Helper()
	text, err := os.ReadFile(Docs("providers/" + kind.Name + ".md"))
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```jsonc\n(.*?)```").FindSubmatch(text)
	require.NotNil(t, block)
	return block[1]
}
