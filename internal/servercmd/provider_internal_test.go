package servercmd

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/server/config"
)

func TestSimOptions(t *testing.T) {
	p, end, err := newProvider(config.Provider{Kind: "sim", Options: json.RawMessage(`{
		"images": [{"id": "img-1", "owner": "self", "name": "base-1"}, {"id": "img-2", "owner": "self", "name": "base-2"}],
		"types": {"small": ["amd64"]}, "subnets": {"subnet-1": 250}, "load_balancers": ["lb-1"]
	}`)}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, end()) }()
	can := provider.AbilitiesOf(p)
	id, err := can.Images.ResolveImage(t.Context(), nstance.ImageQuery{Owner: "self", Name: "base-*"})
	require.NoError(t, err)
	require.Equal(t, "img-2", id)
	free, err := can.Subnets.FreeAddresses(t.Context(), []string{"subnet-1"})
	require.NoError(t, err)
	require.Equal(t, map[string]int{"subnet-1": 250}, free)
	archs, err := can.Types.TypeArchs(t.Context(), []string{"small", "huge"})
	require.NoError(t, err)
	require.Equal(t, map[string][]nstance.Arch{"small": {nstance.AMD64}}, archs)
	_, err = can.Balancers.BalancerMembers(t.Context(), nstance.LoadBalancer{ID: "lb-1"})
	require.NoError(t, err)

	_, _, err = newProvider(config.Provider{Kind: "sim", Options: json.RawMessage(`{"subnets": 1}`)}, nil)
	require.ErrorContains(t, err, "shard.provider.options.subnets")
}

// TestDocumentedOptions: docs/providers.md names every option, and no other.
func TestDocumentedOptions(t *testing.T) {
	text, err := os.ReadFile("../../docs/providers.md")
	require.NoError(t, err)
	parts := strings.Split(string(text), "\n## ")
	require.Len(t, parts, 3, "local and sim")
	for i, options := range []any{localOptions{}, simOptions{}} {
		_, table, found := strings.Cut(parts[i+1], "| `shard.provider.options` |")
		require.True(t, found)
		table, _, _ = strings.Cut(table, "\n\n")
		var named, known []string
		for _, row := range regexp.MustCompile("(?m)^\\| `(.*?)` ").FindAllStringSubmatch(table, -1) {
			named = append(named, row[1])
		}
		for f := range reflect.TypeOf(options).Fields() {
			known = append(known, f.Tag.Get("json"))
		}
		require.Equal(t, known, named)
	}
}
