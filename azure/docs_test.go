package azure_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/test/doctest"
)

const docs = "../docs/providers/azure"

func TestDocument(t *testing.T) { doctest.Kind(t, azure.Kind(), "args of provider azure") }

// TestWalkthrough: the configuration in the document is accepted.
func TestWalkthrough(t *testing.T) {
	_, err := config.ParseContext(t.Context(), "shard.jsonc", doctest.Example(t, azure.Kind()), azure.Kind())
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
