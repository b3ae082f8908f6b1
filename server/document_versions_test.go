package server_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/version"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
)

// TestDocumentVersions: every document has the version, and says from which one can upgrade.
func TestDocumentVersions(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"../README.md", "../docs/scope.md"} {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Contains(t, string(text), "Version "+version.Software+".", path)
	}
	scope, err := os.ReadFile("../docs/scope.md")
	require.NoError(t, err)
	require.Contains(t, string(scope), "0.2.0 is the first that can be upgraded", "say which upgrades were tried")
}

// TestNewerFormatIsRefused: the error names the object, which is not overwritten.
func TestNewerFormatIsRefused(t *testing.T) {
	t.Parallel()
	for _, key := range []string{layout.LeaseKey(zone), layout.AcceptedKey(zone), layout.GroupsKey(zone), layout.StateKey(zone)} {
		t.Run(key, func(t *testing.T) {
			w := newWorld(t, setup{webSize: 1})
			w.connectReady(w.awaitMachine("default"))
			w.awaitMachine("blue")
			_, err := w.admin().PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "db", Tenant: "blue", Reason: "busy"})
			require.NoError(t, err)
			require.NoError(t, w.stopServer())
			obj, err := w.store.Get(t.Context(), key)
			require.NoError(t, err)
			var doc map[string]any
			require.NoError(t, json.Unmarshal(obj.Data, &doc))
			doc["format"] = "2.0"
			data, err := json.Marshal(doc)
			require.NoError(t, err)
			_, err = w.store.PutIfMatch(t.Context(), key, data, obj.Version)
			require.NoError(t, err)

			creates := w.cloud.Count(simcloud.OpCreate)
			next := newWorld(t, setup{webSize: 1, store: w.store, provider: w.cloud, noWait: true})
			require.Eventually(t, func() bool {
				return strings.Contains(strings.Join(server.Problems(next.server), "\n"), key)
			}, eventually, 5*time.Millisecond, "it is named")
			require.Contains(t, strings.Join(server.Problems(next.server), "\n"), "upgrade this program")
			require.Equal(t, creates, w.cloud.Count(simcloud.OpCreate))
			require.Zero(t, w.cloud.Count(simcloud.OpDelete))
			obj, err = w.store.Get(t.Context(), key)
			require.NoError(t, err)
			require.Contains(t, string(obj.Data), `"format":"2.0"`)
		})
	}
}
