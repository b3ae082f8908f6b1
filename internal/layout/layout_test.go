package layout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/storage"
)

// The names are an interface: renaming one loses all objects under it.
func TestKeys(t *testing.T) {
	const id = "web06bgm7733st2576nx5jht4ecjw"
	for want, got := range map[string]string{
		"config/z1.jsonc":                     layout.ConfigKey("z1"),
		"groups/z1.jsonc":                     layout.GroupsKey("z1"),
		"state/z1.json":                       layout.StateKey("z1"),
		"accepted/z1.json":                    layout.AcceptedKey("z1"),
		"attention/z1.json":                   layout.AttentionKey("z1"),
		"snapshot/z1.json.gz":                 layout.SnapshotKey("z1"),
		"lease/z1.json":                       layout.LeaseKey("z1"),
		"lease/cluster.json":                  layout.ClusterLeaseKey,
		"definition/s/ab12":                   layout.DefinitionKey("s", "ab12"),
		"fetched/s/ab12":                      layout.FetchedKey("s", "ab12"),
		"ca/identity.crt":                     layout.CACertKey("identity"),
		"secret/nonce":                        layout.SecretKey("nonce"),
		"nonce/j1":                            layout.NonceKey("j1"),
		"operator/acme.ops.json":              layout.OperatorKey("acme", "ops"),
		"ledger/z1/2026-11-23/090000-A.jsonl": layout.LedgerKey("z1", time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC), "090000-A"),
		"instance/z1/":                        layout.InstancePrefix("z1"),
		"instance/z1/acme/db/" + id + ".json": layout.InstanceKey("z1", "acme", "db", id),
	} {
		require.Equal(t, want, got)
		if want != "instance/z1/" {
			require.NoError(t, storage.ValidateKey(got))
		}
	}
}
