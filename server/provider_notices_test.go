package server_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server/internal/agents"
)

// A notice from the provider has the same effect as one from the machine's agent.
func TestProviderNotices(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	n := nstance.Notice{
		Kind: nstance.Reclaim, Action: "terminate", Source: "sim/host", EventID: "host-1", Deadline: time.Now().Add(time.Minute).UTC(),
	}
	stranger, err := nstance.NewInstanceID("web", time.Now())
	require.NoError(t, err)
	w.cloud.PublishNotice(nstance.MachineNotice{ID: stranger, Notice: n})
	for range 2 {
		w.cloud.PublishNotice(nstance.MachineNotice{ID: id, Notice: n})
	}
	w.awaitEvent(nstance.EventNoticeReceived, id)
	w.awaitEvent(nstance.EventDeleteRequested, id)
	require.Equal(t, 1, w.countEvents(eventtype.NoticeDetected), "repeats and machines without a record are not reported")
}

// TestSecondMaintenanceNotice: a notice without date and ID is a new one after the
// first was withdrawn. While it stands, the next leader takes it for the same one.
func TestSecondMaintenanceNotice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	w.connectReady(id)
	_, err := w.admin().Freeze(t.Context(), &apiv1.FreezeRequest{}) // so that it is not replaced
	require.NoError(t, err)
	n := nstance.Notice{Kind: nstance.Stop, Action: "node maintenance", Source: "sim/node", EventID: "node-1"}
	end := n
	end.Cancelled = true
	events := func(n int) []string {
		t.Helper()
		require.Eventually(t, func() bool { return w.countEvents(nstance.EventNoticeReceived) >= n }, eventually, time.Millisecond)
		w.mu.Lock()
		defer w.mu.Unlock()
		var out []string
		for _, e := range w.events {
			if e.Type == nstance.EventNoticeReceived {
				out = append(out, e.Notice.EventID)
			}
		}
		require.Len(t, out, n)
		return out
	}
	records := func(want ...string) {
		t.Helper()
		require.Eventually(t, func() bool {
			rec, err := records.NewDoc[records.Instance](w.store, layout.InstanceKey(zone, nstance.DefaultTenant, "web", id), nil).Load(t.Context())
			require.NoError(t, err)
			var have []string
			for _, n := range rec.Notices {
				have = append(have, n.EventID)
			}
			return slices.Equal(want, have)
		}, eventually, time.Millisecond)
	}
	w.cloud.PublishNotice(nstance.MachineNotice{ID: id, Notice: n})
	first := events(1)[0]
	records(first)
	w.cloud.PublishNotice(nstance.MachineNotice{ID: id, Notice: end})
	records()
	w.cloud.PublishNotice(nstance.MachineNotice{ID: id, Notice: n})
	second := events(2)[1]
	require.NotEqual(t, first, second)
	records(second)

	onRecord := []nstance.Notice{{Source: n.Source, EventID: second}}
	require.Equal(t, second, agents.EventID(onRecord, n), "what the next leader is told is what stands on record")
	require.Equal(t, second, agents.EventID(onRecord, end))
}

func TestConsoleOutput(t *testing.T) {
	t.Parallel()
	var printed atomic.Pointer[[]byte]
	printed.Store(new([]byte))
	w := newWorld(t, setup{webSize: 1, cloud: simcloud.Options{Console: func(nstance.Machine) []byte { return *printed.Load() }}})
	id := w.awaitMachine(nstance.DefaultTenant)
	get := func(api apiv1.OperatorServiceClient) ([]byte, error) {
		resp, err := api.GetConsoleOutput(t.Context(), &apiv1.GetConsoleOutputRequest{Id: string(id)})
		return resp.GetOutput(), err
	}
	out, err := get(w.admin())
	require.NoError(t, err)
	require.Empty(t, out, "nothing yet")
	long := append(make([]byte, clip.MaxConsole), "login: "...)
	printed.Store(&long)
	out, err = get(w.admin())
	require.NoError(t, err)
	require.Equal(t, long[len("login: "):], out, "the end of it")

	cloud := simcloud.New(nil)
	t.Cleanup(cloud.Close)
	bare := newWorld(t, setup{webSize: 1, provider: withoutAbilities{cloud}})
	id = bare.awaitEvent(nstance.EventCreated, "").Instance
	_, err = get(bare.admin())
	require.ErrorContains(t, err, "keeps no console output")
}

// withoutAbilities hides a provider's optional interfaces.
type withoutAbilities struct{ nstance.Provider }
