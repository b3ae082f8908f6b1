package azure_test

import (
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/azure"
	"github.com/nstance-go/nstance/server/config"
)

const docs = "../../docs/providers/azure"

// TestDocument compares what is generated in the document; -update writes it.
func TestDocument(t *testing.T) {
	update := flag.Lookup("update").Value.String() == "true"
	kind := azure.Kind()
	old, err := os.ReadFile(docs + ".md")
	require.NoError(t, err)
	text := string(old)
	for name, described := range map[string]any{"options": kind.Options, "args": kind.Args} {
		table, err := provider.ArgTable(described)
		require.NoError(t, err)
		between := regexp.MustCompile(`(?s)(<!-- begin ` + name + ` -->\n).*(<!-- end ` + name + ` -->)`)
		require.Regexp(t, between, text)
		text = between.ReplaceAllString(text, "${1}"+table+"${2}")
	}
	schema, err := provider.ArgSchema("args of provider azure", kind.Args)
	require.NoError(t, err)
	if update {
		require.NoError(t, os.WriteFile(docs+".md", []byte(text), 0o600))
		require.NoError(t, os.WriteFile(docs+"-args.schema.json", schema, 0o600))
		return
	}
	require.Equal(t, text, string(old), "stale: go test ./provider/azure -update")
	written, err := os.ReadFile(docs + "-args.schema.json")
	require.NoError(t, err)
	require.Equal(t, string(schema), string(written), "stale: go test ./provider/azure -update")
}

// TestWalkthrough: the configuration in the document is accepted.
func TestWalkthrough(t *testing.T) {
	text, err := os.ReadFile(docs + ".md")
	require.NoError(t, err)
	found := regexp.MustCompile("(?s)```jsonc\n(.*?)```").FindSubmatch(text)
	require.NotNil(t, found)
	_, err = config.ParseContext(t.Context(), "shard.jsonc", found[1], azure.Kind())
	require.NoError(t, err)
}

// role returns the actions of the role in the document's folder.
func role(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(docs + "-role.json")
	require.NoError(t, err)
	var out struct{ Actions []string }
	require.NoError(t, json.Unmarshal(b, &out))
	require.NotEmpty(t, out.Actions)
	return out.Actions
}
