package qemu_test

import (
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/qemu"
	"github.com/nstance-go/nstance/server/config"
)

var update = flag.Bool("update", false, "write what docs/providers says of the structs")

const docs = "../../docs/providers/qemu"

func TestDocument(t *testing.T) {
	kind := qemu.Kind()
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
	schema, err := provider.ArgSchema("args of provider qemu", kind.Args)
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(docs+".md", []byte(text), 0o600))
		require.NoError(t, os.WriteFile(docs+"-args.schema.json", schema, 0o600))
		return
	}
	require.Equal(t, text, string(old), "stale: go test ./provider/qemu -run TestDocument -update")
	written, err := os.ReadFile(docs + "-args.schema.json")
	require.NoError(t, err)
	require.Equal(t, string(schema), string(written), "stale: go test ./provider/qemu -run TestDocument -update")
	require.True(t, json.Valid(written))
}

// TestWalkthrough: the configuration in the document is accepted.
func TestWalkthrough(t *testing.T) {
	text, err := os.ReadFile(docs + ".md")
	require.NoError(t, err)
	found := regexp.MustCompile("(?s)```jsonc\n(.*?)```").FindSubmatch(text)
	require.NotNil(t, found)
	_, err = config.ParseContext(t.Context(), "lab.jsonc", found[1], qemu.Kind())
	require.NoError(t, err)
}
