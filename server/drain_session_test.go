package server_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
)

// nextDrain returns the next drain command and drops other messages.
func (k *agentSession) nextDrain() *apiv1.DrainCommand {
	k.Helper()
	for {
		if d := k.nextMessage().GetDrain(); d != nil {
			return d
		}
	}
}

// nextDrainCancel returns the next drain cancellation. No drain command may come
// before it.
func (k *agentSession) nextDrainCancel() *apiv1.DrainCancel {
	k.Helper()
	for {
		m := k.nextMessage()
		require.Nil(k, m.GetDrain())
		if c := m.GetDrainCancel(); c != nil {
			return c
		}
	}
}

// TestDrainIsCancelledAtAgent: with the generation that was sent to the agent or a later one,
// also if it was disconnected meanwhile.
func TestDrainIsCancelledAtAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	n := reclaimNotice("e1", 30*time.Minute)
	k.sendNotice(n)
	first := k.nextDrain().GetGeneration()
	n.Cancelled = true
	k.sendNotice(n)
	require.GreaterOrEqual(t, k.nextDrainCancel().GetGeneration(), first)
	w.awaitEvent(nstance.EventDrainCancelled, id)

	again := k.client.connect()
	require.GreaterOrEqual(t, again.nextDrainCancel().GetGeneration(), first, "the agent may not have received it")
	again.sendNotice(reclaimNotice("e2", 30*time.Minute))
	require.Greater(t, again.nextDrain().GetGeneration(), first)
	last := k.client.connect()
	require.Greater(t, last.nextDrain().GetGeneration(), first, "the drain is sent again without a cancellation")
}

// TestWithdrawnInterruptReturns: Interrupt returns if its notice is withdrawn
// before the drain is durable.
func TestWithdrawnInterruptReturns(t *testing.T) {
	t.Parallel()
	store := newWriteGate()
	w := newWorld(t, setup{webSize: 1, store: store})
	t.Cleanup(store.release)
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	api := w.admin()
	store.hold(layout.InstancePrefix(zone))
	ended := make(chan error, 1)
	go func() {
		_, err := api.Interrupt(context.WithoutCancel(t.Context()), &apiv1.InterruptRequest{Id: string(id)})
		ended <- err
	}()
	n := *w.awaitEvent(nstance.EventNoticeReceived, id).Notice
	select {
	case err := <-ended:
		require.FailNow(t, "nothing is on record", "%v", err)
	default:
	}
	n.Cancelled = true
	k.sendNotice(n)
	require.NoError(t, receive(t, ended))
}

// TestDrainOfADrainingInstance: the request is durable when the call returns.
func TestDrainOfADrainingInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	k.sendNotice(reclaimNotice("e1", 30*time.Minute))
	w.awaitEvent(nstance.EventDrainStarted, id)
	resp, err := w.admin().DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(id), Reason: "a bad disk"})
	require.NoError(t, err)
	var kinds []string
	for _, c := range resp.GetDrain().GetCauses() {
		kinds = append(kinds, c.GetKind())
	}
	require.ElementsMatch(t, []string{string(nstance.CauseNotice), string(nstance.CauseRequest)}, kinds)
	rec, err := w.admin().GetRecord(t.Context(), &apiv1.GetRecordRequest{Key: layout.InstanceKey(zone, nstance.DefaultTenant, "web", id)})
	require.NoError(t, err)
	require.Contains(t, string(rec.GetData()), "a bad disk")
}

// TestNoticeAboutAPreservedInstance: it is recorded and acknowledged.
func TestNoticeAboutAPreservedInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	_, err := w.admin().PreserveInstance(t.Context(), &apiv1.PreserveInstanceRequest{Id: string(id), Duration: durationpb.New(time.Hour)})
	require.NoError(t, err)
	k.awaitAck(k.sendNotice(reclaimNotice("e1", 2*time.Hour)))
	require.Contains(t, w.awaitEvent(nstance.EventNoticeReceived, id).Reason, "preserved")
	rec, err := w.admin().GetRecord(t.Context(), &apiv1.GetRecordRequest{Key: layout.InstanceKey(zone, nstance.DefaultTenant, "web", id)})
	require.NoError(t, err)
	require.Contains(t, string(rec.GetData()), "e1")
	require.Zero(t, w.countEvents(nstance.EventDrainStarted))
}
