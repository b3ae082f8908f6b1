package server_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// conditionsOf returns an instance's conditions, which must be the same in every
// call that returns them.
func (w *world) conditionsOf(api apiv1.OperatorServiceClient, id nstance.InstanceID) []string {
	w.Helper()
	list, err := api.ListInstances(w.Context(), &apiv1.ListInstancesRequest{})
	require.NoError(w, err)
	i := slices.IndexFunc(list.GetInstances(), func(i *apiv1.Instance) bool { return i.GetId() == string(id) })
	require.GreaterOrEqual(w, i, 0)
	listed, got := list.GetInstances()[i].GetConditions(), w.instance(api, id).GetConditions()
	if !slices.Equal(listed, got) { // they changed in between
		return nil
	}
	return got
}

// TestSilentMemberIsShown: first as silent, then as unhealthy.
func TestSilentMemberIsShown(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	w := newWorld(t, setup{webSize: 1, shard: `"health_interval": "500ms",`})
	api := w.admin()
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	k.ignoreGoAway.Store(true)
	require.Eventually(t, func() bool { // a busy machine may have been silent since its first report
		k.awaitAck(k.sendReport())
		return len(w.conditionsOf(api, id)) == 0
	}, eventually, 5*time.Millisecond)
	shown := func(want ...string) {
		t.Helper()
		require.Eventually(t, func() bool { return slices.Equal(w.conditionsOf(api, id), want) }, eventually, 5*time.Millisecond)
	}
	shown("silent") // its stream is open, and nothing is received
	shown("unhealthy")
	w.awaitEvent(nstance.EventDrainStarted, id)
	require.Equal(t, "draining", w.instance(api, id).GetState(), "it leaves for that")
}
