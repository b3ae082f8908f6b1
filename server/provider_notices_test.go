package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// What a provider knows of a machine has the same effect as if the machine's own
// agent had said it.
func TestProviderNotices(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	n := nstance.Notice{
		Kind: nstance.Reclaim, Action: "terminate", Source: "sim/host", EventID: "host-1", Deadline: time.Now().Add(time.Minute).UTC(),
	}
	stranger, err := nstance.NewInstanceID("web", time.Now())
	require.NoError(t, err)
	w.cloud.Tell(nstance.MachineNotice{ID: stranger, Notice: n})
	for range 2 {
		w.cloud.Tell(nstance.MachineNotice{ID: id, Notice: n})
	}
	w.await(nstance.EventNoticeReceived, id)
	w.await(nstance.EventDeleteRequested, id)
	require.Equal(t, 1, w.count(nstance.EventNoticeDetected), "a repeat says nothing, and neither does a machine without a record")
}

func TestConsoleOutput(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	get := func(api apiv1.OperatorServiceClient) ([]byte, error) {
		resp, err := api.GetConsoleOutput(t.Context(), &apiv1.GetConsoleOutputRequest{Id: string(id)})
		return resp.GetOutput(), err
	}
	out, err := get(w.admin())
	require.NoError(t, err)
	require.Empty(t, out, "nothing yet")
	long := append(make([]byte, nstance.MaxConsoleBytes), "login: "...)
	require.NoError(t, w.cloud.SetConsole(id, long))
	out, err = get(w.admin())
	require.NoError(t, err)
	require.Equal(t, long[len("login: "):], out, "the end of it")

	cloud := simcloud.New(nil)
	t.Cleanup(cloud.Close)
	bare := newWorld(t, setup{size: 1, over: withoutAbilities{cloud}})
	id = bare.await(nstance.EventCreated, "").Instance
	_, err = get(bare.admin())
	require.ErrorContains(t, err, "keeps no console output")
}

// withoutAbilities is a provider and nothing else.
type withoutAbilities struct{ nstance.Provider }
