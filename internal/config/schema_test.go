package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"github.com/tailscale/hujson"

	"github.com/nstance-go/nstance/internal/config"
)

// schema compiles the published one.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	path := filepath.Join("..", "..", "docs", "configuration.schema.json")
	if *update {
		require.NoError(t, os.WriteFile(path, config.Schema(), 0o644))
	}
	published, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(config.Schema()), string(published), "stale: go test ./internal/config -update")
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(published))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("configuration.schema.json", doc))
	s, err := c.Compile("configuration.schema.json")
	require.NoError(t, err)
	return s
}

// plain takes the comments out of a file.
func plain(t *testing.T, text []byte) any {
	t.Helper()
	data, err := hujson.Standardize(append(text[:len(text):len(text)], '\n'))
	require.NoError(t, err)
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	require.NoError(t, err)
	return v
}

func TestSchemaPermitsEverySetting(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "full.jsonc"))
	require.NoError(t, err)
	require.NoError(t, schema(t).Validate(plain(t, text)))
}

// TestSchemaRefuses: what the schema refuses, the parser refuses too, in the
// same place.
func TestSchemaRefuses(t *testing.T) {
	s := schema(t)
	const good = `{"cluster": {"id": "c"}, "shard": {"id": "s", "provider": {"kind": "sim"}, "request_timeout": "1d12h"},
		"templates": {"t": {"kind": "web", "arch": "amd64", "size": 1, "vars": {"empty": ""}}},
		"groups": {"default": {"web": {"template": "t", "rollout": {"max_surge": "20%"}, "drain_timeout": "0"}}}}`
	require.NoError(t, s.Validate(plain(t, []byte(good))))
	_, err := config.Parse("c", []byte(good), kinds...)
	require.NoError(t, err)
	for name, c := range map[string]struct{ old, with, at string }{
		"an unknown setting":      {`"size": 1`, `"siez": 1`, "/templates/t"},
		"a missing one":           {`"cluster": {"id": "c"}`, `"cluster": {}`, "/cluster"},
		"a wrong type":            {`"size": 1`, `"size": "1"`, "/templates/t/size"},
		"a number out of range":   {`"size": 1`, `"size": -1`, "/templates/t/size"},
		"an unknown word":         {`"amd64"`, `"x86"`, "/templates/t/arch"},
		"a duration without unit": {`"1d12h"`, `"90"`, "/shard/request_timeout"},
		"a negative duration":     {`"1d12h"`, `"-1s"`, "/shard/request_timeout"},
		"a broken percentage":     {`"20%"`, `"20"`, "/groups/default/web/rollout/max_surge"},
		"an empty string":         {`"template": "t"`, `"template": ""`, "/groups/default/web/template"},
		"a later setting":         {`"size": 1`, `"size": 1, "warm_pool": {}`, "/templates/t"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := []byte(strings.Replace(good, c.old, c.with, 1))
			require.NotEqual(t, good, string(bad))
			require.ErrorContains(t, s.Validate(plain(t, bad)), "at '"+c.at+"'")
			_, err := config.Parse("c", bad)
			require.Error(t, err)
		})
	}
}
