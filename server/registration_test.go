package server_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestRegistration(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	h := w.registerAgent(id)

	t.Run("the record has the registration", func(t *testing.T) {
		rec := w.instanceRecord(nstance.DefaultTenant, "web", id)
		require.Equal(t, "web-1", rec.Hostname)
		require.Len(t, rec.Addresses, 1)
		require.NotEmpty(t, rec.ProviderID)
		require.Equal(t, h.cert.Certificate[0], rec.Current.Certificate)
		require.Equal(t, nstance.GroupID("web"), w.awaitEvent(nstance.EventRegistered, id).Group)
	})
	t.Run("the same key gets the same certificate", func(t *testing.T) {
		again, err := (&client{w: w, key: h.key}).register(w.userDataNonce(id))
		require.NoError(t, err)
		require.Equal(t, h.cert.Certificate, again.Chain)
	})
	t.Run("another key is refused, with an alarm", func(t *testing.T) {
		_, err := w.newClient().register(w.userDataNonce(id))
		require.ErrorIs(t, err, nstance.Denied)
		alarm := w.awaitEvent(nstance.EventAlarm, id)
		require.Equal(t, "default/web", nstance.GroupKey{Tenant: alarm.Tenant, Group: alarm.Group}.String())
	})

	other := w.awaitMachine("blue")
	claims := keyring.Claims{
		Kind: nstance.RoleAgent, Subject: string(other), Cluster: cluster, Shard: zone, Tenant: "blue", Group: "db",
		NotBefore: time.Now().Add(-time.Hour), Expiry: time.Now().Add(time.Hour),
	}
	for name, change := range map[string]func(c *keyring.Claims){
		"an expired nonce":              func(c *keyring.Claims) { c.Expiry = time.Now().Add(-time.Second) },
		"a nonce of another cluster":    func(c *keyring.Claims) { c.Cluster = "c2" },
		"a nonce of another shard":      func(c *keyring.Claims) { c.Shard = "s2" },
		"a nonce for another group":     func(c *keyring.Claims) { c.Group = "web" },
		"a nonce for another tenant":    func(c *keyring.Claims) { c.Tenant = "default" },
		"a nonce that is not valid yet": func(c *keyring.Claims) { c.NotBefore = time.Now().Add(30 * time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			c := claims
			change(&c)
			nonce, err := w.keys.Nonces.Mint("", c)
			require.NoError(t, err)
			_, err = w.newClient().register(nonce)
			require.ErrorIs(t, err, nstance.Denied)
		})
	}
	t.Run("a forged nonce", func(t *testing.T) {
		forged, err := keyring.NewNonceKey().Mint(claims)
		require.NoError(t, err)
		_, err = w.newClient().register(forged)
		require.ErrorIs(t, err, nstance.Denied)
	})
	t.Run("no nonce at all", func(t *testing.T) {
		_, err := w.newClient().register("")
		require.ErrorIs(t, err, nstance.Invalid)
	})
	t.Run("an instance that was never created", func(t *testing.T) {
		c := claims
		unknown, err := nstance.NewInstanceID("web", time.Now())
		require.NoError(t, err)
		c.Subject = string(unknown)
		nonce, err := w.keys.Nonces.Mint("", c)
		require.NoError(t, err)
		_, err = w.newClient().register(nonce)
		require.ErrorIs(t, err, nstance.NotFound)
	})
	t.Run("a deleted instance with its own nonce and key", func(t *testing.T) {
		nonce := w.userDataNonce(id)
		_, err := w.admin().DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(id), NoDrain: true})
		require.NoError(t, err)
		_, err = h.register(nonce) // refused at once: the record is marked as deleting
		require.ErrorIs(t, err, nstance.NotFound)
		w.awaitEvent(nstance.EventDeleted, id)
		_, err = h.register(nonce)
		require.ErrorIs(t, err, nstance.NotFound)
	})
}

// An agent whose clock is hours ahead may try to renew all the time.
func TestRenewalsPerClientAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 2})
	machine := w.awaitMachine(nstance.DefaultTenant)
	h, other := w.registerAgent(machine), w.registerAgent(w.awaitNextMachine(nstance.DefaultTenant, machine))
	agents := apiv1.NewAgentServiceClient(h.dial(w.server.Addresses().Agent))
	renewed := 0
	for range 100 {
		_, err := agents.RenewCertificate(t.Context(), &apiv1.RenewCertificateRequest{Csr: h.csr(pki.NewKey())})
		if err == nil {
			renewed++
			continue
		}
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Throttled)
	}
	require.LessOrEqual(t, renewed, 6)
	other.renewCertificate()
}

// instanceRecord reads an instance's record from storage.
func (w *world) instanceRecord(tenant nstance.TenantID, group nstance.GroupID, id nstance.InstanceID) records.Instance {
	w.Helper()
	recs := records.New(w.store, zone, nil)
	_, problems, err := recs.Load(w.Context())
	require.NoError(w, err)
	require.Empty(w, problems)
	rec, ok := recs.Get(id)
	require.True(w, ok)
	require.Equal(w, nstance.GroupKey{Tenant: tenant, Group: group}, nstance.GroupKey{Tenant: rec.Tenant, Group: rec.Group})
	return rec
}

// TestNonceOfAnotherKind forges a record that no leader writes: the instance's ID has
// another prefix than its definition.
func TestNonceOfAnotherKind(t *testing.T) {
	t.Parallel()
	store := storage.NewMemory()
	recs := records.New(store, zone, &records.Options{Epoch: 1})
	digest, err := recs.PutDefinition(t.Context(), nstance.Definition{
		Kind: "web", Arch: nstance.AMD64, LaunchTimeout: time.Hour, RegistrationTimeout: time.Hour,
	})
	require.NoError(t, err)
	now := time.Now().UTC().Truncate(time.Millisecond)
	id, err := nstance.NewInstanceID("foo", now)
	require.NoError(t, err)
	_, err = recs.Create(t.Context(), records.Instance{
		ID: id, Tenant: nstance.DefaultTenant, Group: "web", CreatedAt: now, CreatedEpoch: 1, Definition: digest,
		LaunchTimeout: time.Hour, RegistrationTimeout: time.Hour, Token: "t",
	})
	require.NoError(t, err)

	w := newWorld(t, setup{webSize: 1, store: store})
	nonce, err := w.keys.Nonces.Mint("", keyring.Claims{
		Kind: nstance.RoleAgent, Subject: string(id), Cluster: cluster, Shard: zone, Tenant: nstance.DefaultTenant, Group: "web",
		NotBefore: now, Expiry: now.Add(time.Hour),
	})
	require.NoError(t, err)
	_, err = w.newClient().register(nonce)
	require.ErrorIs(t, err, nstance.Denied)
	require.ErrorContains(t, err, "kind foo")
}

func TestRenewal(t *testing.T) {
	t.Parallel()
	store := storagetest.NewFaulty(storage.NewMemory())
	w := newWorld(t, setup{webSize: 1, store: store})
	id := w.awaitMachine(nstance.DefaultTenant)
	old := w.registerAgent(id)

	renew := func(h *client) *client {
		t.Helper()
		key := pki.NewKey()
		resp, err := apiv1.NewAgentServiceClient(h.dial(w.server.Addresses().Agent)).RenewCertificate(t.Context(), &apiv1.RenewCertificateRequest{Csr: h.csr(key)})
		require.NoError(t, err)
		next := &client{w: w}
		next.useCredential(key, wire.CredentialOf(resp.GetCredential()))
		return next
	}
	var puts atomic.Int32
	store.Inject(storagetest.Fault{
		Op: storagetest.PutIfMatch, Prefix: layout.InstancePrefix(zone) + "default/web/", Times: -1, Pass: true,
		Do: func() { puts.Add(1) },
	})
	next := renew(old)
	old.connect()
	t.Run("both certificates are valid until the new one is used", func(t *testing.T) {
		old.connect()
		next.connect()
	})
	t.Run("then the old certificate is refused, with an alarm", func(t *testing.T) {
		require.ErrorIs(t, old.open(t.Context()).awaitEnd(), nstance.Denied)
		require.Contains(t, w.awaitEvent(nstance.EventAlarm, id).Reason, "superseded")
		w.awaitEvent(nstance.EventDrainStarted, id)
	})
	t.Run("the next renewal makes the change durable", func(t *testing.T) {
		last := renew(next)
		rec := w.instanceRecord(nstance.DefaultTenant, "web", id)
		require.Equal(t, next.cert.Certificate[0], rec.Current.Certificate)
		require.Equal(t, last.cert.Certificate[0], rec.Pending.Certificate)
		last.connect()
	})
	t.Run("each renewal costs one write", func(t *testing.T) {
		require.EqualValues(t, 3, puts.Load(), "and the drain of the superseded one's machine another")
	})
}

func TestRenewalOfAnOperator(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	old := w.registerClient(nstance.RoleOperator, "blue")
	key := pki.NewKey()
	resp, err := old.operatorAPI().RenewCertificate(t.Context(), &apiv1.OperatorServiceRenewCertificateRequest{Csr: old.csr(key)})
	require.NoError(t, err)
	next := &client{w: w}
	next.useCredential(key, wire.CredentialOf(resp.GetCredential()))

	_, err = old.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
	require.NoError(t, err, "the new one has not been used yet")
	_, err = next.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
	require.NoError(t, err)
	_, err = old.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
}
