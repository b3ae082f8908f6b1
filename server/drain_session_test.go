package server_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/storage"
)

// drain returns the next drain command, passing over other messages.
func (k *talk) drain() *apiv1.DrainCommand {
	k.Helper()
	for {
		if d := k.hear().GetDrain(); d != nil {
			return d
		}
	}
}

// drainCancel returns the next end of a drain, before which there is no command.
func (k *talk) drainCancel() *apiv1.DrainCancel {
	k.Helper()
	for {
		m := k.hear()
		require.Nil(k, m.GetDrain())
		if c := m.GetDrainCancel(); c != nil {
			return c
		}
	}
}

// TestDrainIsWithdrawnFromTheAgent: by the generation that the agent was told,
// also if it was away meanwhile.
func TestDrainIsWithdrawnFromTheAgent(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)
	n := reclaim("e1", 30*time.Minute)
	k.notice(n)
	first := k.drain().GetGeneration()
	n.Cancelled = true
	k.notice(n)
	require.Equal(t, first, k.drainCancel().GetGeneration())
	w.await(nstance.EventDrainCancelled, id)

	again := k.holder.connect()
	require.GreaterOrEqual(t, again.drainCancel().GetGeneration(), first, "it may not have heard of it")
	again.notice(reclaim("e2", 30*time.Minute))
	require.Greater(t, again.drain().GetGeneration(), first)
	last := k.holder.connect()
	require.Greater(t, last.drain().GetGeneration(), first, "it is told again, and of no end")
}

// TestInterruptEndsWhenWithdrawn: a rehearsal whose notice is withdrawn before
// it is on record has nothing more to wait for.
func TestInterruptEndsWhenWithdrawn(t *testing.T) {
	store := newDam()
	w := newWorld(t, setup{size: 1, store: store})
	t.Cleanup(store.release)
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)
	api := w.admin()
	store.hold(storage.InstancePrefix(zone))
	ended := make(chan error, 1)
	go func() {
		_, err := api.Interrupt(context.WithoutCancel(t.Context()), &apiv1.InterruptRequest{Id: string(id)})
		ended <- err
	}()
	n := *w.await(nstance.EventNoticeReceived, id).Notice
	select {
	case err := <-ended:
		require.FailNow(t, "nothing is on record", "%v", err)
	default:
	}
	n.Cancelled = true
	k.notice(n)
	require.NoError(t, receive(t, ended))
}

// TestDrainOfADrainingInstance: the answer means that the request is on record.
func TestDrainOfADrainingInstance(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)
	k.notice(reclaim("e1", 30*time.Minute))
	w.await(nstance.EventDrainStarted, id)
	resp, err := w.admin().DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(id), Reason: "a bad disk"})
	require.NoError(t, err)
	var kinds []string
	for _, c := range resp.GetDrain().GetCauses() {
		kinds = append(kinds, c.GetKind())
	}
	require.ElementsMatch(t, []string{string(nstance.CauseNotice), string(nstance.CauseRequest)}, kinds)
	rec, err := w.admin().GetRecord(t.Context(), &apiv1.GetRecordRequest{Key: storage.InstanceKey(zone, nstance.DefaultTenant, "web", id)})
	require.NoError(t, err)
	require.Contains(t, string(rec.GetData()), "a bad disk")
}

// TestNoticeAboutAPreservedInstance: it is on record, and acknowledged.
func TestNoticeAboutAPreservedInstance(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)
	_, err := w.admin().PreserveInstance(t.Context(), &apiv1.PreserveInstanceRequest{Id: string(id), Duration: durationpb.New(time.Hour)})
	require.NoError(t, err)
	k.acked(k.notice(reclaim("e1", 2*time.Hour)))
	require.Contains(t, w.await(nstance.EventNoticeReceived, id).Reason, "preserved")
	rec, err := w.admin().GetRecord(t.Context(), &apiv1.GetRecordRequest{Key: storage.InstanceKey(zone, nstance.DefaultTenant, "web", id)})
	require.NoError(t, err)
	require.Contains(t, string(rec.GetData()), "e1")
	require.Zero(t, w.count(nstance.EventDrainStarted))
}
