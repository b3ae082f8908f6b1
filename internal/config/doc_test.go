package config_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nstance-go/nstance/internal/config"
	"github.com/stretchr/testify/require"
	"github.com/tailscale/hujson"
)

var update = flag.Bool("update", false, "write the tables of docs/configuration.md")

func TestDocumentation(t *testing.T) {
	const begin, end = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"
	path := filepath.Join("..", "..", "docs", "configuration.md")
	old, err := os.ReadFile(path)
	require.NoError(t, err)
	head, rest, ok := strings.Cut(string(old), begin)
	require.True(t, ok)
	_, tail, ok := strings.Cut(rest, end)
	require.True(t, ok)
	want := head + begin + tables() + end + tail
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	require.Equal(t, want, string(old), "stale: go test ./internal/config -run TestDocumentation -update")
}

func tables() string {
	var now, later strings.Builder
	now.WriteString("| setting | type | default | meaning |\n|---|---|---|---|\n")
	later.WriteString("| setting | meaning |\n|---|---|\n")
	for _, f := range config.Fields() {
		if f.Later {
			fmt.Fprintf(&later, "| `%s` | %s |\n", f.Path, f.Meaning)
		} else {
			fmt.Fprintf(&now, "| `%s` | %s | %s | %s |\n", f.Path, f.Type, f.Default, f.Meaning)
		}
	}
	return now.String() + "\nKnown, but refused by this version, so that nothing is silently ignored:\n\n" + later.String()
}

// The prose has an example, which must be right too.
func TestDocumentedExample(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "configuration.md"))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), "```jsonc\n")
	example, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	c, err := config.Parse("docs/configuration.md", []byte(example))
	require.NoError(t, err)
	require.Len(t, c.Groups(), 1)
}

func TestEverySettingIsDocumented(t *testing.T) {
	for _, f := range config.Fields() {
		t.Run(f.Path, func(t *testing.T) {
			require.NotEmpty(t, f.Meaning)
			require.NotEmpty(t, f.Type)
		})
	}
}

// testdata/full.jsonc is the proof that what is documented is accepted.
func TestEverySettingIsAccepted(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "full.jsonc"))
	require.NoError(t, err)
	root, err := hujson.Parse(append(text, '\n'))
	require.NoError(t, err)
	for _, f := range config.Fields() {
		if f.Later {
			continue
		}
		t.Run(f.Path, func(t *testing.T) {
			require.True(t, has(&root, strings.Split(f.Path, ".")), "testdata/full.jsonc lacks it")
		})
	}
}

// has reports whether there is something at path; <x> stands for any key.
func has(v *hujson.Value, path []string) bool {
	if len(path) == 0 {
		return true
	}
	object, ok := v.Value.(*hujson.Object)
	if !ok {
		return false
	}
	for i := range object.Members {
		name := object.Members[i].Name.Value.(hujson.Literal).String()
		if (name == path[0] || strings.HasPrefix(path[0], "<")) && has(&object.Members[i].Value, path[1:]) {
			return true
		}
	}
	return false
}

func TestLaterSettingsAreRefused(t *testing.T) {
	for _, f := range config.Fields() {
		if !f.Later {
			continue
		}
		t.Run(f.Path, func(t *testing.T) {
			path := strings.NewReplacer("<", "", ">", "").Replace(f.Path)
			text := `{"` + strings.ReplaceAll(path, ".", `": {"`) + `": 0` + strings.Repeat("}", strings.Count(path, ".")+1)
			_, err := config.Parse("c", []byte(text))
			require.ErrorContains(t, err, path+": c:1:")
			require.ErrorContains(t, err, "is not supported by this version")
		})
	}
}
