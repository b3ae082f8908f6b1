package server_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func (w *world) revoke(h *client) {
	w.Helper()
	_, err := w.admin().RevokeOperator(w.Context(), &apiv1.RevokeOperatorRequest{
		Id: h.identity().Subject, Tenant: string(h.identity().Tenant), Reason: "left us",
	})
	require.NoError(w, err)
}

// removeRecord deletes the record of an operator or administrator from storage.
func removeRecord(store storage.Store, key string) error {
	obj, err := store.Get(context.Background(), key)
	if err != nil {
		return err
	}
	return store.DeleteIfMatch(context.Background(), key, obj.Version)
}

func TestRevokeOperator(t *testing.T) {
	t.Parallel()
	t.Run("calls and streams end at once", func(t *testing.T) {
		w := newWorld(t, setup{webSize: 1})
		eve, bob := w.registerClient(nstance.RoleOperator, "default"), w.registerClient(nstance.RoleOperator, "default")
		api := eve.operatorAPI()
		watch, stays := w.watch(api, &apiv1.WatchInstanceEventsRequest{}), w.watch(bob.operatorAPI(), &apiv1.WatchInstanceEventsRequest{})
		watch.snapshot()
		stays.snapshot()
		w.revoke(eve)
		require.ErrorIs(t, watch.awaitEnd(), nstance.Denied)
		_, err := api.ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
		_, err = api.RenewCertificate(t.Context(), &apiv1.OperatorServiceRenewCertificateRequest{Csr: eve.csr(pki.NewKey())})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)

		w.revoke(eve) // again
		_, err = w.admin().DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(w.awaitMachine("default"))})
		require.NoError(t, err)
		require.NotNil(t, stays.nextEvent(), "others are not touched")
		require.Equal(t, 1, w.countEvents(eventtype.OperatorRevoked))
		require.Contains(t, w.awaitEvent(eventtype.OperatorRevoked, "").Reason, "left us")

		next := newWorld(t, setup{webSize: 1, store: w.store, opts: server.Options{Elector: immediateElector(t, w.store)}}) // a server that did not serve the revocation
		eve.w = next
		_, err = eve.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
	})
	t.Run("the old nonce is refused, a new one works", func(t *testing.T) {
		w := newWorld(t, setup{webSize: 1})
		nonce := w.mintOperatorNonce("default")
		eve := w.newClient()
		require.NoError(t, eve.registerOperator(nonce))
		w.revoke(eve)
		require.ErrorIs(t, eve.registerOperator(nonce), nstance.Denied)
		require.NoError(t, w.newClient().registerOperator(w.mintOperatorNonce("default")))
	})
	t.Run("revoked in another shard or in storage: refused within an interval", func(t *testing.T) {
		w := newWorld(t, setup{webSize: 1, opts: server.Options{KeyInterval: 10 * time.Millisecond}})
		eve := w.registerClient(nstance.RoleAdmin, "default")
		watch := w.watch(eve.operatorAPI(), &apiv1.WatchInstanceEventsRequest{})
		watch.snapshot()
		key := layout.OperatorKey("default", eve.identity().Subject)
		_, err := records.NewDoc[operatorRecord](w.store, key, nil).Update(t.Context(), func(r *operatorRecord) error {
			r.Operator["revoked"] = true
			return nil
		})
		require.NoError(t, err)
		require.ErrorIs(t, watch.awaitEnd(), nstance.Denied)
	})
	t.Run("a deleted record: refused within an interval", func(t *testing.T) {
		w := newWorld(t, setup{webSize: 1, opts: server.Options{KeyInterval: 10 * time.Millisecond}})
		eve, bob := w.registerClient(nstance.RoleAdmin, "default"), w.registerClient(nstance.RoleAdmin, "default")
		watch, stays := w.watch(eve.operatorAPI(), &apiv1.WatchInstanceEventsRequest{}), w.watch(bob.operatorAPI(), &apiv1.WatchInstanceEventsRequest{})
		watch.snapshot()
		stays.snapshot()
		require.NoError(t, removeRecord(w.store, layout.OperatorKey("default", eve.identity().Subject)))
		require.ErrorIs(t, watch.awaitEnd(), nstance.NotFound)
		_, err := bob.operatorAPI().DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(w.awaitMachine("default"))})
		require.NoError(t, err)
		require.NotNil(t, stays.nextEvent())
	})
	t.Run("revoked between the check of a call and the start of its stream", func(t *testing.T) {
		memory := storage.NewMemory()
		store := storagetest.NewFaulty(memory)
		w := newWorld(t, setup{webSize: 1, store: store})
		eve := w.registerClient(nstance.RoleAdmin, "default")
		api, key := eve.operatorAPI(), layout.OperatorKey("default", eve.identity().Subject)
		store.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: key, Skip: 1, Pass: true, Do: func() { _ = removeRecord(memory, key) }})
		watch := w.watch(api, &apiv1.WatchInstanceEventsRequest{})
		require.ErrorIs(t, watch.awaitEnd(), nstance.NotFound)
	})
	t.Run("a record of a shard with a lower epoch", func(t *testing.T) {
		w := newWorld(t, setup{webSize: 1})
		bob := w.registerClient(nstance.RoleOperator, "default")
		key := layout.OperatorKey("default", bob.identity().Subject)
		obj, err := w.store.Get(t.Context(), key)
		require.NoError(t, err)
		var rec map[string]any
		require.NoError(t, json.Unmarshal(obj.Data, &rec))
		rec["epoch"] = 1000
		data, err := json.Marshal(rec)
		require.NoError(t, err)
		_, err = w.store.PutIfMatch(t.Context(), key, data, obj.Version)
		require.NoError(t, err)
		bob.renewCertificate()
		w.revoke(bob)
		_, err = bob.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
	})
	t.Run("a dry run changes nothing", func(t *testing.T) {
		w := newWorld(t, setup{webSize: 1})
		bob := w.registerClient(nstance.RoleOperator, "default")
		_, err := w.admin().RevokeOperator(t.Context(), &apiv1.RevokeOperatorRequest{Id: bob.identity().Subject, DryRun: true})
		require.NoError(t, err)
		_, err = bob.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
	})
	t.Run("invalid requests are refused", func(t *testing.T) {
		w := newWorld(t, setup{webSize: 1})
		for name, tc := range map[string]struct {
			req  *apiv1.RevokeOperatorRequest
			code nstance.Code
		}{
			"no id":               {&apiv1.RevokeOperatorRequest{}, nstance.Invalid},
			"an unknown operator": {&apiv1.RevokeOperatorRequest{Id: "operator-0123456789abcdef"}, nstance.NotFound},
			"a path":              {&apiv1.RevokeOperatorRequest{Id: "../nonce"}, nstance.Invalid},
			"an invalid tenant":   {&apiv1.RevokeOperatorRequest{Id: "operator-0123456789abcdef", Tenant: "a/b"}, nstance.Invalid},
		} {
			_, err := w.admin().RevokeOperator(t.Context(), tc.req)
			require.ErrorIs(t, wire.ErrorOf(err), tc.code, name)
		}
	})
}

func TestListOperators(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	bob, eve := w.registerClient(nstance.RoleOperator, "blue"), w.registerClient(nstance.RoleOperator, "default")
	w.revoke(eve)
	_, err := w.admin().RevokeOperator(t.Context(), &apiv1.RevokeOperatorRequest{Id: eve.identity().Subject, Tenant: "default", Reason: "again"})
	require.NoError(t, err)
	_, err = w.store.PutIfAbsent(t.Context(), layout.OperatorKey("blue", "operator-damaged"), []byte("{"))
	require.NoError(t, err)
	resp, err := w.admin().ListOperators(t.Context(), &apiv1.ListOperatorsRequest{})
	require.NoError(t, err)
	found := map[string]*apiv1.Operator{}
	for _, o := range resp.GetOperators() {
		found[o.GetTenant()+"/"+o.GetId()] = o
	}
	require.Nil(t, found["blue/"+bob.identity().Subject].GetRevokedAt())
	require.Equal(t, "operator", found["blue/"+bob.identity().Subject].GetRole())
	require.Equal(t, w.keys.Identity.Issuer(), found["blue/"+bob.identity().Subject].GetIssuer())
	require.Equal(t, bob.identity().NotAfter, found["blue/"+bob.identity().Subject].GetNotAfter().AsTime())
	require.NotNil(t, found["default/"+eve.identity().Subject].GetRevokedAt())
	require.Equal(t, "left us", found["default/"+eve.identity().Subject].GetRevokedReason())
	require.NotEmpty(t, found["blue/operator-damaged"].GetError(), "what cannot be read is shown as just that")
}

// mintOperatorNonce mints a nonce for an operator.
func (w *world) mintOperatorNonce(tenant nstance.TenantID) string {
	nonce, err := w.keys.Nonces.Mint("", keyring.Claims{
		Kind: nstance.RoleOperator, Subject: string(cluster), Cluster: cluster, Tenant: tenant, JTI: rand.Text(),
		NotBefore: time.Now().Add(-time.Hour), Expiry: time.Now().Add(time.Hour),
	})
	require.NoError(w, err)
	return nonce
}

// registerOperator registers as an operator with the client's key.
func (h *client) registerOperator(nonce string) error {
	cert := h.cert
	h.cert = nil
	conn := h.dial(h.w.server.Addresses().Registration)
	defer conn.Close()
	resp, err := apiv1.NewRegistrationServiceClient(conn).RegisterOperator(h.w.Context(), &apiv1.RegisterOperatorRequest{Nonce: nonce, Csr: h.csr(h.key)})
	if err != nil {
		h.cert = cert
		return wire.ErrorOf(err)
	}
	h.useCredential(h.key, wire.CredentialOf(resp.GetCredential()))
	return nil
}

// operatorRecord has the fields of an operator's record that tests read.
type operatorRecord struct {
	records.Header
	Operator map[string]any `json:"operator"`
}

// TestRevocationThatIsNotDurable: nothing ends for a revocation that the next leader would
// not know of.
func TestRevocationThatIsNotDurable(t *testing.T) {
	t.Parallel()
	store := storagetest.NewFaulty(storage.NewMemory())
	w := newWorld(t, setup{webSize: 1, store: store})
	id := w.awaitMachine("default")
	eve, admin := w.registerClient(nstance.RoleOperator, "default"), w.admin()
	watch := w.watch(eve.operatorAPI(), &apiv1.WatchInstanceEventsRequest{})
	watch.snapshot()
	store.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: layout.OperatorPrefix, Err: nstance.Denied})
	revoke := &apiv1.RevokeOperatorRequest{Id: eve.identity().Subject, Tenant: "default"}
	_, err := admin.RevokeOperator(t.Context(), revoke)
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
	require.Zero(t, w.countEvents(eventtype.OperatorRevoked))
	_, err = admin.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(id)})
	require.NoError(t, err)
	require.NotNil(t, watch.nextEvent(), "its stream goes on")
	_, err = admin.RevokeOperator(t.Context(), revoke)
	require.NoError(t, err)
	require.ErrorIs(t, watch.awaitEnd(), nstance.Denied)
}
