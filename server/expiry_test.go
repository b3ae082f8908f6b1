package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server"
)

// newExpiryWorld returns a world whose clock can be advanced past the expiry of
// certificates. It checks open streams every few milliseconds.
func newExpiryWorld(t *testing.T, behind time.Duration) (*world, *slowClock) {
	t.Helper()
	p := newSlowClock(behind)
	return newWorld(t, setup{webSize: 1, opts: server.Options{Now: p.now, KeyInterval: 5 * time.Millisecond}}), p
}

// The connection was made while the certificate was valid.
func TestExpiredCertificateOnAnOpenConnection(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	t.Run("calls of operators and agents are refused", func(t *testing.T) {
		w, p := newExpiryWorld(t, 0)
		api := w.admin()
		agent := w.registerAgent(w.awaitMachine(nstance.DefaultTenant))
		agents := apiv1.NewAgentServiceClient(agent.dial(w.server.Addresses().Agent))
		renew := func() error {
			_, err := agents.RenewCertificate(t.Context(), &apiv1.RenewCertificateRequest{Csr: agent.csr(pki.NewKey())})
			return wire.ErrorOf(err)
		}
		list := func() error {
			_, err := api.ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
			return wire.ErrorOf(err)
		}
		require.NoError(t, list())
		require.NoError(t, renew())
		p.advance(25 * time.Hour)
		for _, err := range []error{list(), renew()} {
			require.ErrorIs(t, err, nstance.Denied)
			require.ErrorContains(t, err, "expired")
		}
	})
	t.Run("new streams are refused", func(t *testing.T) {
		w, p := newExpiryWorld(t, 0)
		api := w.admin()
		_, err := api.ListGroups(t.Context(), &apiv1.ListGroupsRequest{}) // opens the connection
		require.NoError(t, err)
		p.advance(25 * time.Hour)
		stream, err := api.WatchGroups(t.Context(), &apiv1.WatchGroupsRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
	})
	t.Run("streams of operators end", func(t *testing.T) {
		w, p := newExpiryWorld(t, 0)
		api := w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
		events, err := api.WatchInstanceEvents(t.Context(), &apiv1.WatchInstanceEventsRequest{})
		require.NoError(t, err)
		groups, err := api.WatchGroups(t.Context(), &apiv1.WatchGroupsRequest{})
		require.NoError(t, err)
		ended := make(chan error, 2)
		go func() { ended <- untilError(events.Recv) }()
		go func() { ended <- untilError(groups.Recv) }()
		p.advance(25 * time.Hour)
		for range 2 {
			err := receive(t, ended)
			require.ErrorIs(t, err, nstance.Denied)
			require.ErrorContains(t, err, "expired")
		}
	})
	t.Run("the session of an agent ends", func(t *testing.T) {
		w, p := newExpiryWorld(t, 0)
		k := w.connectReady(w.awaitMachine(nstance.DefaultTenant))
		p.advance(25 * time.Hour)
		select {
		case <-k.ended:
		case <-time.After(eventually):
			require.FailNow(t, "the session goes on")
		}
	})
	t.Run("streams of a renewed certificate stay", func(t *testing.T) {
		w, p := newExpiryWorld(t, 20*time.Hour)
		h := w.registerClient(nstance.RoleAdmin, nstance.DefaultTenant)
		p.advance(20 * time.Hour)
		h.renewCertificate()
		stream, err := h.operatorAPI().WatchGroups(t.Context(), &apiv1.WatchGroupsRequest{})
		require.NoError(t, err)
		p.advance(10 * time.Hour) // the first certificate has expired
		_, err = h.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.NoError(t, err)
	})
}

// untilError returns the error that ends a stream.
func untilError[M any](next func() (M, error)) error {
	for {
		if _, err := next(); err != nil {
			return wire.ErrorOf(err)
		}
	}
}

func TestExpiredPeerLosesItsStream(t *testing.T) {
	t.Parallel()
	p := newSlowClock(0)
	w := newWorld(t, setup{opts: server.Options{
		Shared: true, Bind: server.Addresses{Peer: "127.0.0.1:0"}, Now: p.now, KeyInterval: 5 * time.Millisecond,
	}})
	other := w.newClient()
	cert, err := w.keys.Identity.Server(zone, cluster, time.Hour, time.Now())
	require.NoError(t, err)
	other.cert = cert
	watch := func(conn *grpc.ClientConn) <-chan error {
		stream, err := apiv1.NewPeerServiceClient(conn).Watch(t.Context(), &apiv1.WatchRequest{Server: "other"})
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() { ended <- untilError(stream.Recv) }()
		return ended
	}
	conn := other.dial(w.server.Addresses().Peer)
	first := watch(conn)
	require.Eventually(t, func() bool { return server.Standbys(w.server) == 1 }, eventually, time.Millisecond)
	p.advance(2 * time.Hour)
	for _, ended := range []<-chan error{first, watch(conn)} {
		err := receive(t, ended)
		require.ErrorIs(t, err, nstance.Denied)
		require.ErrorContains(t, err, "expired")
	}
}

// Otherwise a client whose clock is behind could not register.
func TestServerCertificateIsBackdated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	h, id := w.newClient(), w.awaitMachine(nstance.DefaultTenant)
	cfg := pki.ClientTLS(w.keys.Identity.Pool(), nil, zone, cluster)
	cfg.Time = func() time.Time { return time.Now().Add(-55 * time.Minute) }
	conn := h.dialWith(w.server.Addresses().Registration, cfg)
	_, err := apiv1.NewRegistrationServiceClient(conn).RegisterAgent(t.Context(), &apiv1.RegisterAgentRequest{Nonce: w.userDataNonce(id), Csr: h.csr(h.key)})
	require.NoError(t, err)
}
