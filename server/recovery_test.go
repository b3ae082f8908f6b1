package server_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// A clock can be set back.
type clock struct{ back atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(-time.Duration(c.back.Load())) }

// longAgo makes a world whose authority is as old as certificates that have
// expired by now must be.
func longAgo(t *testing.T) (*world, *clock) {
	t.Helper()
	store, c := storage.NewMemory(), &clock{}
	_, err := registration.Bootstrap(t.Context(), vault.New(store, nil), time.Now().Add(-48*time.Hour))
	require.NoError(t, err)
	return newWorld(t, setup{size: 1, store: store, opts: server.Options{Now: c.now}}), c
}

// yesterday registers an instance as if a day and an hour ago.
func (w *world) yesterday(c *clock, tenant nstance.TenantID, group nstance.GroupID, id nstance.InstanceID) *holder {
	w.Helper()
	then := time.Now().Add(-25 * time.Hour)
	nonce, err := w.keys.Nonces.Mint("", registration.Claims{
		Kind: nstance.RoleAgent, Subject: string(id), Cluster: cluster, Shard: zone, Tenant: tenant, Group: group,
		NotBefore: then.Add(-time.Minute), Expiry: then.Add(time.Hour),
	})
	require.NoError(w, err)
	h := w.holder()
	c.back.Store(int64(25 * time.Hour))
	defer c.back.Store(0)
	_, err = h.register(nonce)
	require.NoError(w, err)
	return h
}

// A prover signs for whatever connection a call travels on, or says again what
// it said before.
type prover struct {
	h    *holder
	csr  []byte
	mu   sync.Mutex
	said string
}

func (p *prover) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.said == "" {
		call, _ := credentials.RequestInfoFromContext(ctx)
		binding, err := pki.ChannelBinding(call.AuthInfo.(credentials.TLSInfo).State)
		if err != nil {
			return nil, err
		}
		p.said = string(pki.ProveRecovery(p.h.key, binding, p.csr))
	}
	return map[string]string{wire.RecoveryProof: p.said}, nil
}

func (*prover) RequireTransportSecurity() bool { return true }

// recover asks for a certificate for key, by proof of h's, over a connection of
// its own.
func (h *holder) recover(key ed25519.PrivateKey, with grpc.CallOption) (*holder, error) {
	conn := (&holder{w: h.w}).dial(h.w.server.Addresses().Registration)
	defer conn.Close()
	resp, err := apiv1.NewRegistrationServiceClient(conn).RegisterAgent(h.w.Context(), &apiv1.RegisterAgentRequest{
		Certificate: h.cert.Certificate[0], Csr: h.csr(key), Hostname: "web-2",
	}, with)
	if err != nil {
		return nil, wire.ErrorOf(err)
	}
	next := &holder{w: h.w}
	next.use(key, wire.CredentialOf(resp.GetCredential()))
	return next, nil
}

func (h *holder) prove(key ed25519.PrivateKey) *prover { return &prover{h: h, csr: h.csr(key)} }

func TestRecovery(t *testing.T) {
	w, c := longAgo(t)
	id := w.machine(nstance.DefaultTenant)
	h := w.yesterday(c, nstance.DefaultTenant, "web", id)
	key := pki.NewKey()
	proof := h.prove(key)

	t.Run("no session takes an expired certificate, and says so", func(t *testing.T) {
		said := func() string {
			conn := h.dial(w.server.Addresses().Agent)
			defer conn.Close()
			_, err := apiv1.NewAgentServiceClient(conn).RenewCertificate(t.Context(), &apiv1.RenewCertificateRequest{Csr: h.csr(key)})
			require.Error(t, err)
			return err.Error()
		}
		require.Eventually(t, func() bool { // the alert may lose its race with the end of the connection
			return strings.Contains(said(), tls.AlertError(45).Error())
		}, eventually, time.Millisecond)
	})
	var next *holder
	t.Run("but its key gets a successor", func(t *testing.T) {
		var err error
		next, err = h.recover(key, grpc.PerRPCCredentials(proof))
		require.NoError(t, err)
		rec := w.record(nstance.DefaultTenant, "web", id)
		require.Equal(t, h.cert.Certificate[0], rec.Current.Certificate)
		require.Equal(t, next.cert.Certificate[0], rec.Pending.Certificate)
		require.Equal(t, "web-2", rec.Hostname)
	})
	t.Run("the same one again, on another connection", func(t *testing.T) {
		again, err := h.recover(key, grpc.PerRPCCredentials(h.prove(key)))
		require.NoError(t, err)
		require.Equal(t, next.cert.Certificate, again.cert.Certificate)
		require.Zero(t, w.count(nstance.EventAlarm))
	})
	t.Run("a proof heard on one connection is worth nothing on another", func(t *testing.T) {
		require.NotEmpty(t, proof.said)
		_, err := h.recover(key, grpc.PerRPCCredentials(proof))
		require.ErrorIs(t, err, nstance.Denied)
		w.await(nstance.EventAlarm, id)
	})
	t.Run("without proof", func(t *testing.T) {
		_, err := h.recover(key, grpc.Header(&metadata.MD{}))
		require.ErrorIs(t, err, nstance.Denied)
	})
	t.Run("the successor holds sessions", func(t *testing.T) {
		k := next.connect()
		k.acked(k.report())
	})
	t.Run("and then the expired one is superseded", func(t *testing.T) {
		other := pki.NewKey()
		_, err := h.recover(other, grpc.PerRPCCredentials(h.prove(other)))
		require.ErrorIs(t, err, nstance.Denied)
		require.ErrorContains(t, err, "superseded")
	})
	t.Run("never an operator's", func(t *testing.T) {
		op := w.client(nstance.RoleOperator, "blue")
		_, err := op.recover(key, grpc.PerRPCCredentials(op.prove(key)))
		require.ErrorIs(t, err, nstance.Denied)
		require.ErrorContains(t, err, "new nonce")
	})
	t.Run("never a deleted instance's", func(t *testing.T) {
		other := w.machine("blue")
		h := w.yesterday(c, "blue", "db", other)
		_, err := w.admin().DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(other), NoDrain: true})
		require.NoError(t, err)
		_, err = h.recover(key, grpc.PerRPCCredentials(h.prove(key)))
		require.ErrorIs(t, err, nstance.NotFound)
	})
}
