package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// TestFilesAreKnownBeforeTheNextReport: who asks after a rollout of files is not
// told for a report interval that the machine lacks them.
func TestFilesAreKnownBeforeTheNextReport(t *testing.T) {
	const seldom = `"health_interval": "60s",`
	w := newWorld(t, setup{size: 1, shard: seldom})
	m := w.boot(w.machine(nstance.DefaultTenant))
	w.await(nstance.EventReady, m.id)
	api := w.admin()
	before := m.settled(api)

	w.reload(served(1, seldom, red, "", `"motd": {"kind": "string", "content": "hello"}`, ""))
	m.has("motd", "hello")
	after := m.settled(api)
	require.NotEqual(t, before.GetRuntimeHash(), after.GetRuntimeHash())
	require.Equal(t, before.GetLastReportAt().AsTime(), after.GetLastReportAt().AsTime(), "it has not reported since")
	require.Len(t, after.GetLastReport().GetFiles(), 1)
	got, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(m.id)})
	require.NoError(t, err)
	require.Empty(t, got.GetInstance().GetDrift(), "nor is told that it differs in what it has been given")
}
