package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/server"
)

// TestRehearsalThroughMetadataIsOne: a reclaim that an operator has published on a machine's
// own metadata service is a rehearsal in every answer, although its agent found it like any
// other.
func TestRehearsalThroughMetadataIsOne(t *testing.T) {
	t.Parallel()
	announced := make(chan nstance.InstanceID, 1)
	w := newWorld(t, setup{webSize: 1, opts: server.Options{Announce: func(id nstance.InstanceID, _ string, _ time.Duration) error {
		announced <- id
		return nil
	}}})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	_, err := w.admin().Interrupt(t.Context(), &apiv1.InterruptRequest{Id: string(id), Notice: durationpb.New(time.Minute), ThroughMetadata: true})
	require.NoError(t, err)
	require.Equal(t, id, <-announced)
	k.awaitAck(k.sendNotice(nstance.Notice{
		Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot", EventID: "aws/spot/terminate", Deadline: time.Now().Add(time.Minute).UTC(), DetectedAt: time.Now().UTC(),
	}))
	e := w.awaitEvent(nstance.EventNoticeReceived, id)
	require.True(t, notice.Rehearsed(*e.Notice))
	list, err := w.admin().ListInterruptions(t.Context(), &apiv1.ListInterruptionsRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetInterruptions(), 1)
	require.True(t, list.GetInterruptions()[0].GetRehearsal())
	require.Contains(t, list.GetInterruptions()[0].GetNotice().GetSource(), notice.RehearsalSource)
	rates, err := w.admin().GetInterruptionRates(t.Context(), &apiv1.GetInterruptionRatesRequest{})
	require.NoError(t, err)
	for _, r := range rates.GetRates() {
		require.Zero(t, r.GetReclaims())
	}
}
