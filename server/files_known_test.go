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

// TestReportOlderThanItsFiles: a report that was written before a set was in
// place may arrive after. It neither shows the machine without the set nor sends
// it again; the next report counts.
func TestReportOlderThanItsFiles(t *testing.T) {
	shard := `"health_interval": "24h",`
	w := newWorld(t, setup{text: served(1, shard, red, "", `"motd": {"kind": "string", "content": "hello"}`, "")})
	id := w.machine(nstance.DefaultTenant)
	api := w.admin()
	k := w.ready(id).taker()
	before := k.report()
	k.takes()
	k.acked(k.say(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_Report{Report: before}}))
	shown := func() []*apiv1.FileStatus { return w.instance(api, id).GetLastReport().GetFiles() }
	require.Len(t, shown(), 1)
	require.Equal(t, k.hash, w.instance(api, id).GetRuntimeHash())
	k.quiet()

	k.have, k.data = nil, map[string][]byte{} // it was removed on the machine
	k.tell()
	require.Empty(t, shown())
	k.takes()
	k.quiet()
}
