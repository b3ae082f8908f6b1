package server_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// TestSessionNamesItsInstance: an agent on another machine than its certificate is for gets no
// session, and takes none over.
func TestSessionNamesItsInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	agent := apiv1.NewAgentServiceClient(k.client.dial(w.server.Addresses().Agent))
	open := func(named string) error {
		stream, err := agent.Connect(metadata.AppendToOutgoingContext(t.Context(), wire.SessionInstance, named))
		require.NoError(t, err)
		_, err = stream.Recv()
		return wire.ErrorOf(err)
	}
	other, err := nstance.NewInstanceID(id.Kind(), time.Now())
	require.NoError(t, err)
	for _, named := range []string{string(other), "", "not an ID"} {
		err := open(named)
		require.ErrorIs(t, err, nstance.Denied, "%q", named)
		require.ErrorContains(t, err, string(id))
	}
	alarm := w.awaitEvent(nstance.EventAlarm, id)
	require.Contains(t, alarm.Reason, string(other))
	require.Contains(t, alarm.Reason, "image")
	require.Empty(t, k.ended, "the machine's own session goes on")
	require.NoError(t, open(string(id)))
}

// TestSessionNamesItsMachine: an agent on another machine of the cloud than the instance has
// gets no session: its machine has the disk and the user data of the instance's.
func TestSessionNamesItsMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	m, err := w.cloud.Get(t.Context(), id)
	require.NoError(t, err)
	open := func(machine string) error {
		agent := apiv1.NewAgentServiceClient(k.client.dial(w.server.Addresses().Agent)) // of its own: a later session ends it
		stream, err := agent.Connect(metadata.AppendToOutgoingContext(t.Context(), wire.SessionInstance, string(id), wire.SessionMachine, machine))
		require.NoError(t, err)
		_, err = stream.Recv()
		return wire.ErrorOf(err)
	}
	err = open("sim/another-machine")
	require.ErrorIs(t, err, nstance.Denied)
	require.ErrorContains(t, err, "another-machine")
	alarm := w.awaitEvent(nstance.EventAlarm, id)
	require.Contains(t, alarm.Reason, "another-machine")
	require.Contains(t, alarm.Reason, m.ProviderID)
	require.Empty(t, k.ended, "the machine's own session goes on")
	for _, own := range []string{"sim/" + m.ProviderID, "sim/" + strings.ToUpper(m.ProviderID), "aws/i-0123456789abcdef0"} {
		require.NoError(t, open(own), "its own machine, or the metadata service of another cloud that it runs on")
	}
}
