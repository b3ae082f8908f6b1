package server_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/spot"
)

// endDrain answers the next drain command: drained.
func (k *agentSession) endDrain() {
	k.Helper()
	k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_DrainResult{DrainResult: &apiv1.DrainResult{
		Generation: k.nextDrain().GetGeneration(), Outcome: string(nstance.OutcomeDrained),
	}}})
}

// released returns the release that the session ends with, nil if it has none.
func (k *agentSession) released() (released *apiv1.Released) {
	k.Helper()
	require.Error(k, receive(k.T, k.ended))
	for {
		select {
		case m := <-k.messages:
			if m.GetReleased() != nil {
				released = m.GetReleased()
			}
		default:
			return released
		}
	}
}

// TestRelease: the agent of a drained machine whose deletion is durable is permitted to
// acknowledge the cloud's events, and an event of several machines only when all of them
// are.
func TestRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 3})
	ids := w.awaitMachines(3)
	var agents []*agentSession
	for _, id := range ids {
		agents = append(agents, w.connectReady(id))
	}
	notice := func(id string, in time.Duration, machines ...nstance.InstanceID) nstance.Notice {
		n := reclaimNotice(id, in)
		for _, m := range machines {
			n.Machines = append(n.Machines, string(m))
		}
		return n
	}
	pair, withOther := notice("pair", 30*time.Minute, ids[0], ids[1]), notice("with another owner's", 30*time.Minute, ids[1])
	withOther.Machines = append(withOther.Machines, "database-1")
	agents[0].sendNotice(pair)
	agents[1].sendNotices(wire.NoticeAt(pair, time.Now()), wire.NoticeAt(withOther, time.Now()))
	agents[2].sendNotice(notice("own", 2*time.Second, ids[2]))

	agents[0].endDrain()
	first := agents[0].released()
	require.NotNil(t, first)
	require.Empty(t, first.GetEventIds(), "the other machine of the event is not drained")
	agents[1].endDrain()
	second := agents[1].released()
	require.NotNil(t, second)
	require.Equal(t, []string{"pair"}, second.GetEventIds())
	require.Nil(t, agents[2].released(), "its deadline came before its drain was over")
}

// TestReleasedOnAzure: the metadata service has the acknowledgement once the machine is
// drained and being deleted, for the event that it was drained for and for that of its
// deletion.
func TestReleasedOnAzure(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	events := imds.New(&imds.Options{Protocol: imds.Azure, Spot: true, InstanceID: string(id)})
	service := httptest.NewServer(events)
	t.Cleanup(service.Close)
	detector, err := spot.NewAzure(&spot.Options{BaseURL: service.URL, PollInterval: 100 * time.Millisecond})
	require.NoError(t, err)
	started := func() (ids []string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/"+imds.AzureEvents+"?api-version="+imds.AzureEventsVersion, nil)
		r.Header.Set("Metadata", "true")
		answer := httptest.NewRecorder()
		events.ServeHTTP(answer, r)
		var doc struct {
			Events []struct{ EventType, EventStatus string }
		}
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &doc))
		for _, e := range doc.Events {
			if e.EventStatus == "Started" {
				ids = append(ids, e.EventType)
			}
		}
		return ids
	}

	m := w.applyUserData(id)
	m.setOptions()
	drained := make(chan struct{})
	m.options.Detector = detector
	m.options.Drain = func(context.Context, nstance.Drain) (nstance.Outcome, string) {
		<-drained
		return nstance.OutcomeDrained, ""
	}
	m.start()
	w.awaitEvent(nstance.EventReady, id)
	events.Reclaim("", time.Now().Add(30*time.Minute))
	w.awaitEvent(nstance.EventDrainStarted, id)
	require.Empty(t, started(), "it is not drained")
	close(drained)
	w.awaitEvent(nstance.EventDeleteRequested, id)
	require.Eventually(t, func() bool { return slices.Equal(started(), []string{"Preempt"}) }, eventually, 10*time.Millisecond)
	events.Maintenance(imds.Event{ID: "D", Code: "Terminate", NotBefore: time.Now().Add(5 * time.Minute)})
	require.Eventually(t, func() bool { return slices.Contains(started(), "Terminate") }, eventually, 10*time.Millisecond, "the event of its deletion")
}
