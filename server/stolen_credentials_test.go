package server_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/wire"
)

// dialFrom connects h from a local address.
func (h *client) dialFrom(address string) apiv1.AgentServiceClient {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	conn, err := grpc.NewClient("passthrough:///"+h.w.server.Addresses().Agent,
		grpc.WithTransportCredentials(credentials.NewTLS(pki.ClientTLS(h.w.keys.Identity.Pool(), h.cert, zone, cluster))),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) }))
	require.NoError(h.w, err)
	h.w.Cleanup(func() { conn.Close() })
	return apiv1.NewAgentServiceClient(conn)
}

// openSession opens a session and returns its first message.
func openSession(t *testing.T, c apiv1.AgentServiceClient) (*apiv1.ConnectResponse, error) {
	stream, err := c.Connect(t.Context())
	require.NoError(t, err)
	m, err := stream.Recv()
	return m, wire.ErrorOf(err)
}

// awaitReplacement waits until an instance is drained and replaced for the reason.
func (w *world) awaitReplacement(id nstance.InstanceID, why string) {
	w.Helper()
	started := w.awaitEvent(nstance.EventDrainStarted, id)
	require.False(w, started.Drain.Voluntary)
	require.Contains(w, started.Drain.Causes[0].Message, why)
	require.Equal(w, id, w.awaitEvent(nstance.EventReplacementRequested, "").Replaces)
	require.Contains(w, w.instanceRecord(nstance.DefaultTenant, "web", id).Drain.Causes[0].Message, why, "durably")
}

func TestSupersededCertificate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	stolen := k.client
	key := pki.NewKey()
	resp, err := apiv1.NewAgentServiceClient(stolen.dial(w.server.Addresses().Agent)).RenewCertificate(t.Context(), &apiv1.RenewCertificateRequest{Csr: stolen.csr(key)})
	require.NoError(t, err)
	next := &client{w: w}
	next.useCredential(key, wire.CredentialOf(resp.GetCredential()))
	_, err = openSession(t, next.dialFrom("127.0.0.1"))
	require.NoError(t, err, "now the old one is superseded")
	require.Zero(t, w.countEvents(nstance.EventAlarm))

	thief := stolen.dialFrom("127.0.0.1")
	for range 100 {
		if _, err := openSession(t, thief); !errors.Is(err, nstance.Unavailable) { // its connections end with the instance
			require.ErrorIs(t, err, nstance.Denied)
		}
	}
	w.awaitReplacement(id, "superseded certificate")
	require.Equal(t, 1, w.countEvents(nstance.EventAlarm), "one alarm for repeated attempts")
	require.Equal(t, 1, w.countEvents(eventtype.RemovalRequested))
}

func TestSessionsFromTwoAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	h := w.connectReady(id).client
	const one, two = "127.0.0.1", "127.0.0.2"
	turn := func(address string) {
		t.Helper()
		m, err := openSession(t, h.dialFrom(address)) // the server ends the earlier session
		require.NoError(t, err)
		require.NotNil(t, m.GetWelcome())
	}
	for range 10 {
		turn(one) // an agent may reconnect often
	}
	turn(two) // also from a new address
	turn(one)
	require.Zero(t, w.countEvents(nstance.EventAlarm))
	turn(two)
	alarm := w.awaitEvent(nstance.EventAlarm, id)
	require.True(t, strings.Contains(alarm.Reason, "127.0.0.1") && strings.Contains(alarm.Reason, "127.0.0.2"), alarm.Reason)
	require.Equal(t, nstance.GroupID("web"), alarm.Group)
	w.awaitReplacement(id, "two parties hold its key")
	turn(one)
	turn(two)
	require.Equal(t, 1, w.countEvents(nstance.EventAlarm))
}

func TestReusedNonce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	w.connectReady(id)
	for range 50 {
		_, err := w.newClient().register(w.userDataNonce(id))
		require.ErrorIs(t, err, nstance.Denied)
	}
	require.Equal(t, 1, w.countEvents(nstance.EventAlarm))
	require.Zero(t, w.countEvents(nstance.EventDrainStarted), "anything on the machine can read its user data: that proves no stolen key")
}
