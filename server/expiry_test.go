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
	"github.com/nstance-go/nstance/server/config"
)

// lapsing returns a world whose clock can be moved past the end of
// certificates. It looks at open streams every few milliseconds.
func lapsing(t *testing.T, behind time.Duration) (*world, *past) {
	t.Helper()
	p := newPast(behind)
	return newWorld(t, setup{size: 1, opts: server.Options{Now: p.now, KeyInterval: 5 * time.Millisecond}}), p
}

// The connection was made while the certificate was good.
func TestExpiredCertificateOnAnOpenConnection(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	t.Run("is refused at each call, of operators and of agents", func(t *testing.T) {
		w, p := lapsing(t, 0)
		api := w.admin()
		agent := w.agent(w.machine(nstance.DefaultTenant))
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
		p.pass(25 * time.Hour)
		for _, err := range []error{list(), renew()} {
			require.ErrorIs(t, err, nstance.Denied)
			require.ErrorContains(t, err, "expired")
		}
	})
	t.Run("begins no stream", func(t *testing.T) {
		w, p := lapsing(t, 0)
		api := w.admin()
		_, err := api.ListGroups(t.Context(), &apiv1.ListGroupsRequest{}) // the connection is made
		require.NoError(t, err)
		p.pass(25 * time.Hour)
		stream, err := api.WatchGroups(t.Context(), &apiv1.WatchGroupsRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
	})
	t.Run("ends the streams of operators", func(t *testing.T) {
		w, p := lapsing(t, 0)
		api := w.client(nstance.RoleOperator, "blue").api()
		events, err := api.WatchInstanceEvents(t.Context(), &apiv1.WatchInstanceEventsRequest{})
		require.NoError(t, err)
		groups, err := api.WatchGroups(t.Context(), &apiv1.WatchGroupsRequest{})
		require.NoError(t, err)
		ended := make(chan error, 2)
		go func() { ended <- untilError(events.Recv) }()
		go func() { ended <- untilError(groups.Recv) }()
		p.pass(25 * time.Hour)
		for range 2 {
			err := receive(t, ended)
			require.ErrorIs(t, err, nstance.Denied)
			require.ErrorContains(t, err, "expired")
		}
	})
	t.Run("ends the session of an agent", func(t *testing.T) {
		w, p := lapsing(t, 0)
		k := w.ready(w.machine(nstance.DefaultTenant))
		p.pass(25 * time.Hour)
		select {
		case <-k.over:
		case <-time.After(eventually):
			require.FailNow(t, "the session goes on")
		}
	})
	t.Run("of one that has been renewed nothing ends", func(t *testing.T) {
		w, p := lapsing(t, 20*time.Hour)
		h := w.client(nstance.RoleAdmin, nstance.DefaultTenant)
		p.pass(20 * time.Hour)
		h.renewed()
		stream, err := h.api().WatchGroups(t.Context(), &apiv1.WatchGroupsRequest{})
		require.NoError(t, err)
		p.pass(10 * time.Hour) // the first certificate has expired
		_, err = h.api().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.NoError(t, err)
	})
}

// untilError returns what ends a stream.
func untilError[M any](next func() (M, error)) error {
	for {
		if _, err := next(); err != nil {
			return wire.ErrorOf(err)
		}
	}
}

func TestExpiredServerLosesItsStream(t *testing.T) {
	p := newPast(0)
	w := newWorld(t, setup{opts: server.Options{
		Shared: true, Bind: config.Bind{Peer: "127.0.0.1:0"}, Now: p.now, KeyInterval: 5 * time.Millisecond,
	}})
	other := w.holder()
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
	p.pass(2 * time.Hour)
	for _, ended := range []<-chan error{first, watch(conn)} {
		err := receive(t, ended)
		require.ErrorIs(t, err, nstance.Denied)
		require.ErrorContains(t, err, "expired")
	}
}

// A client whose clock is behind cannot register otherwise.
func TestServerCertificateIsBackdated(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	h, id := w.holder(), w.machine(nstance.DefaultTenant)
	cfg := pki.ClientTLS(w.keys.Identity.Pool(), nil, zone, cluster)
	cfg.Time = func() time.Time { return time.Now().Add(-55 * time.Minute) }
	conn := h.dialWith(w.server.Addresses().Registration, cfg)
	_, err := apiv1.NewRegistrationServiceClient(conn).RegisterAgent(t.Context(), &apiv1.RegisterAgentRequest{Nonce: w.nonce(id), Csr: h.csr(h.key)})
	require.NoError(t, err)
}
