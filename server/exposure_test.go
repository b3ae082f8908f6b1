package server_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/wire"
)

// from opens connections of h from an address of this machine.
func (h *holder) from(address string) apiv1.AgentServiceClient {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	conn, err := grpc.NewClient("passthrough:///"+h.w.server.Addresses().Agent,
		grpc.WithTransportCredentials(credentials.NewTLS(pki.ClientTLS(h.w.keys.Identity.Pool(), h.cert, zone, cluster))),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) }))
	require.NoError(h.w, err)
	h.w.Cleanup(func() { conn.Close() })
	return apiv1.NewAgentServiceClient(conn)
}

// begin opens a session and returns the first answer.
func begin(t *testing.T, c apiv1.AgentServiceClient) (*apiv1.ConnectResponse, error) {
	stream, err := c.Connect(t.Context())
	require.NoError(t, err)
	m, err := stream.Recv()
	return m, wire.ErrorOf(err)
}

// replaced checks that an instance is drained and replaced, for that reason.
func (w *world) replaced(id nstance.InstanceID, why string) {
	w.Helper()
	started := w.await(nstance.EventDrainStarted, id)
	require.False(w, started.Drain.Voluntary)
	require.Contains(w, started.Drain.Causes[0].Message, why)
	require.Equal(w, id, w.await(nstance.EventReplacementRequested, "").Replaces)
	require.Contains(w, w.record(nstance.DefaultTenant, "web", id).Drain.Causes[0].Message, why, "durably")
}

func TestSupersededCertificate(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)
	stolen := k.holder
	key := pki.NewKey()
	resp, err := apiv1.NewAgentServiceClient(stolen.dial(w.server.Addresses().Agent)).RenewCertificate(t.Context(), &apiv1.RenewCertificateRequest{Csr: stolen.csr(key)})
	require.NoError(t, err)
	next := &holder{w: w}
	next.use(key, wire.CredentialOf(resp.GetCredential()))
	_, err = begin(t, next.from("127.0.0.1"))
	require.NoError(t, err, "now the old one is superseded")
	require.Zero(t, w.count(nstance.EventAlarm))

	thief := stolen.from("127.0.0.1")
	for range 300 {
		_, err := begin(t, thief)
		require.ErrorIs(t, err, nstance.Denied)
	}
	w.replaced(id, "superseded certificate")
	require.Equal(t, 1, w.count(nstance.EventAlarm), "however often it is shown")
	require.Equal(t, 1, w.count(nstance.EventRemovalRequested))
}

func TestTwoSourcesOfSessions(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	h := w.ready(id).holder
	const one, two = "127.0.0.1", "127.0.0.2"
	turn := func(address string) {
		t.Helper()
		m, err := begin(t, h.from(address)) // the server hangs up on the session before
		require.NoError(t, err)
		require.NotNil(t, m.GetWelcome())
	}
	for range 10 {
		turn(one) // an agent comes back as often as it likes
	}
	turn(two) // also from another address
	turn(one)
	require.Zero(t, w.count(nstance.EventAlarm))
	turn(two)
	alarm := w.await(nstance.EventAlarm, id)
	require.True(t, strings.Contains(alarm.Reason, "127.0.0.1") && strings.Contains(alarm.Reason, "127.0.0.2"), alarm.Reason)
	require.Equal(t, nstance.GroupID("web"), alarm.Group)
	w.replaced(id, "two parties hold its key")
	turn(one)
	turn(two)
	require.Equal(t, 1, w.count(nstance.EventAlarm))
}

func TestReusedNonce(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	w.ready(id)
	for range 50 {
		_, err := w.holder().register(w.nonce(id))
		require.ErrorIs(t, err, nstance.Denied)
	}
	require.Equal(t, 1, w.count(nstance.EventAlarm))
	require.Zero(t, w.count(nstance.EventDrainStarted), "anything on the machine can read its user data: that proves no stolen key")
}
