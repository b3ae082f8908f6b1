package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// TestFilesAreKnownBeforeTheNextReport: after a rollout of files the API shows the
// files at once, not only after the next report.
func TestFilesAreKnownBeforeTheNextReport(t *testing.T) {
	t.Parallel()
	const seldom = `"health_interval": "60s",`
	w := newWorld(t, setup{webSize: 1, shard: seldom})
	m := w.startAgent(w.awaitMachine(nstance.DefaultTenant))
	w.awaitEvent(nstance.EventReady, m.id)
	api := w.admin()
	before := m.awaitFilesCurrent(api)

	w.applyConfig(configWithFiles(1, seldom, red, "", `"motd": {"kind": "string", "content": "hello"}`, ""))
	m.awaitFile("motd", "hello")
	after := m.awaitFilesCurrent(api)
	require.NotEqual(t, before.GetRuntimeHash(), after.GetRuntimeHash())
	require.Equal(t, before.GetLastReportAt().AsTime(), after.GetLastReportAt().AsTime(), "it has not reported since")
	require.Len(t, after.GetLastReport().GetFiles(), 1)
	got, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(m.id)})
	require.NoError(t, err)
	require.Empty(t, got.GetInstance().GetDrift(), "its files are not shown as drifted")
}

// TestReportOlderThanItsFiles: a report that was collected before a set was applied
// may arrive after it. It neither shows the machine without the set nor sends the
// set again. The next report counts.
func TestReportOlderThanItsFiles(t *testing.T) {
	t.Parallel()
	shard := `"health_interval": "24h",`
	w := newWorld(t, setup{config: configWithFiles(1, shard, red, "", `"motd": {"kind": "string", "content": "hello"}`, "")})
	id := w.awaitMachine(nstance.DefaultTenant)
	api := w.admin()
	k := w.connectReady(id).newFileAgent()
	before := k.healthReport()
	k.receiveSet()
	k.awaitAck(k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: before}}))
	shown := func() []*apiv1.FileStatus { return w.instance(api, id).GetLastReport().GetFiles() }
	require.Len(t, shown(), 1)
	require.Equal(t, k.hash, w.instance(api, id).GetRuntimeHash())
	k.requireNoFileMessages()

	k.have, k.receivedData = nil, map[string][]byte{} // the file was removed on the machine
	k.reportFiles()
	require.Empty(t, shown())
	k.receiveSet()
	k.requireNoFileMessages()
}
