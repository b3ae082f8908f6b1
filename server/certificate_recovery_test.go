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
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// A backdatedClock is a clock that can be set back.
type backdatedClock struct{ behind atomic.Int64 }

func (c *backdatedClock) now() time.Time { return time.Now().Add(-time.Duration(c.behind.Load())) }

// newBackdatedWorld returns a world whose certificate authority is older than the
// lifetime of a certificate.
func newBackdatedWorld(t *testing.T) (*world, *backdatedClock) {
	t.Helper()
	store, c := storage.NewMemory(), &backdatedClock{}
	_, err := keyring.Bootstrap(t.Context(), vault.New(store, nil), time.Now().Add(-48*time.Hour))
	require.NoError(t, err)
	return newWorld(t, setup{webSize: 1, store: store, opts: server.Options{Now: c.now}}), c
}

// registerExpired registers an instance 25 hours ago, so that its certificate has
// expired.
func (w *world) registerExpired(c *backdatedClock, tenant nstance.TenantID, group nstance.GroupID, id nstance.InstanceID) *client {
	w.Helper()
	then := time.Now().Add(-25 * time.Hour)
	nonce, err := w.keys.Nonces.Mint("", keyring.Claims{
		Kind: nstance.RoleAgent, Subject: string(id), Cluster: cluster, Shard: zone, Tenant: tenant, Group: group,
		NotBefore: then.Add(-time.Minute), Expiry: then.Add(time.Hour),
	})
	require.NoError(w, err)
	h := w.newClient()
	c.behind.Store(int64(25 * time.Hour))
	defer c.behind.Store(0)
	_, err = h.register(nonce)
	require.NoError(w, err)
	return h
}

// proofCredentials sign a proof for the connection of each call, or repeat an
// earlier proof.
type proofCredentials struct {
	h    *client
	csr  []byte
	mu   sync.Mutex
	said string
}

func (p *proofCredentials) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
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

func (*proofCredentials) RequireTransportSecurity() bool { return true }

// recoverCertificate requests a certificate for key over a new connection, with a
// proof by h's key.
func (h *client) recoverCertificate(key ed25519.PrivateKey, with grpc.CallOption) (*client, error) {
	conn := (&client{w: h.w}).dial(h.w.server.Addresses().Registration)
	defer conn.Close()
	resp, err := apiv1.NewRegistrationServiceClient(conn).RegisterAgent(h.w.Context(), &apiv1.RegisterAgentRequest{
		Certificate: h.cert.Certificate[0], Csr: h.csr(key), Hostname: "web-2",
	}, with)
	if err != nil {
		return nil, wire.ErrorOf(err)
	}
	next := &client{w: h.w}
	next.useCredential(key, wire.CredentialOf(resp.GetCredential()))
	return next, nil
}

func (h *client) newProof(key ed25519.PrivateKey) *proofCredentials {
	return &proofCredentials{h: h, csr: h.csr(key)}
}

func TestCertificateRecovery(t *testing.T) {
	t.Parallel()
	w, c := newBackdatedWorld(t)
	id := w.awaitMachine(nstance.DefaultTenant)
	h := w.registerExpired(c, nstance.DefaultTenant, "web", id)
	key := pki.NewKey()
	proof := h.newProof(key)

	t.Run("a session with an expired certificate is refused", func(t *testing.T) {
		said := func() string {
			conn := h.dial(w.server.Addresses().Agent)
			defer conn.Close()
			_, err := apiv1.NewAgentServiceClient(conn).RenewCertificate(t.Context(), &apiv1.RenewCertificateRequest{Csr: h.csr(key)})
			require.Error(t, err)
			return err.Error()
		}
		require.Eventually(t, func() bool { // the TLS alert may arrive after the end of the connection
			return strings.Contains(said(), tls.AlertError(45).Error())
		}, eventually, time.Millisecond)
	})
	var next *client
	t.Run("its key gets a new certificate", func(t *testing.T) {
		var err error
		next, err = h.recoverCertificate(key, grpc.PerRPCCredentials(proof))
		require.NoError(t, err)
		rec := w.instanceRecord(nstance.DefaultTenant, "web", id)
		require.Equal(t, h.cert.Certificate[0], rec.Current.Certificate)
		require.Equal(t, next.cert.Certificate[0], rec.Pending.Certificate)
		require.Equal(t, "web-2", rec.Hostname)
	})
	t.Run("the same certificate again, on another connection", func(t *testing.T) {
		again, err := h.recoverCertificate(key, grpc.PerRPCCredentials(h.newProof(key)))
		require.NoError(t, err)
		require.Equal(t, next.cert.Certificate, again.cert.Certificate)
		require.Zero(t, w.countEvents(nstance.EventAlarm))
	})
	t.Run("a proof of one connection is refused on another", func(t *testing.T) {
		require.NotEmpty(t, proof.said)
		_, err := h.recoverCertificate(key, grpc.PerRPCCredentials(proof))
		require.ErrorIs(t, err, nstance.Denied)
		w.awaitEvent(nstance.EventAlarm, id)
	})
	t.Run("without proof", func(t *testing.T) {
		_, err := h.recoverCertificate(key, grpc.Header(&metadata.MD{}))
		require.ErrorIs(t, err, nstance.Denied)
	})
	t.Run("the new certificate opens sessions", func(t *testing.T) {
		k := next.connect()
		k.awaitAck(k.sendReport())
	})
	t.Run("then the expired certificate is superseded", func(t *testing.T) {
		other := pki.NewKey()
		_, err := h.recoverCertificate(other, grpc.PerRPCCredentials(h.newProof(other)))
		require.ErrorIs(t, err, nstance.Denied)
		require.ErrorContains(t, err, "superseded")
	})
	t.Run("refused for operators", func(t *testing.T) {
		op := w.registerClient(nstance.RoleOperator, "blue")
		_, err := op.recoverCertificate(key, grpc.PerRPCCredentials(op.newProof(key)))
		require.ErrorIs(t, err, nstance.Denied)
		require.ErrorContains(t, err, "new nonce")
	})
	t.Run("refused for deleted instances", func(t *testing.T) {
		other := w.awaitMachine("blue")
		h := w.registerExpired(c, "blue", "db", other)
		_, err := w.admin().DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(other), NoDrain: true})
		require.NoError(t, err)
		_, err = h.recoverCertificate(key, grpc.PerRPCCredentials(h.newProof(key)))
		require.ErrorIs(t, err, nstance.NotFound)
	})
}
