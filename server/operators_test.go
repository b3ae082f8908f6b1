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
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func (w *world) revoke(h *holder) {
	w.Helper()
	_, err := w.admin().RevokeOperator(w.Context(), &apiv1.RevokeOperatorRequest{
		Id: h.who().Subject, Tenant: string(h.who().Tenant), Reason: "left us",
	})
	require.NoError(w, err)
}

// removeRecord removes the record of an operator or administrator, as by hand.
func removeRecord(store storage.Store, key string) error {
	obj, err := store.Get(context.Background(), key)
	if err != nil {
		return err
	}
	return store.DeleteIfMatch(context.Background(), key, obj.Version)
}

func TestRevokeOperator(t *testing.T) {
	t.Run("ends its calls and its streams at once, for good", func(t *testing.T) {
		w := newWorld(t, setup{size: 1})
		eve, bob := w.client(nstance.RoleOperator, "default"), w.client(nstance.RoleOperator, "default")
		api := eve.api()
		watch, stays := w.watch(api, &apiv1.WatchInstanceEventsRequest{}), w.watch(bob.api(), &apiv1.WatchInstanceEventsRequest{})
		watch.snapshot()
		stays.snapshot()
		w.revoke(eve)
		require.ErrorIs(t, watch.ends(), nstance.Denied)
		_, err := api.ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
		_, err = api.RenewCertificate(t.Context(), &apiv1.OperatorServiceRenewCertificateRequest{Csr: eve.csr(pki.NewKey())})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)

		w.revoke(eve) // again
		_, err = w.admin().DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(w.machine("default"))})
		require.NoError(t, err)
		require.NotNil(t, stays.event(), "others are not touched")
		require.Equal(t, 1, w.count(nstance.EventOperatorRevoked))
		require.Contains(t, w.await(nstance.EventOperatorRevoked, "").Reason, "left us")

		next := newWorld(t, setup{size: 1, store: w.store, opts: server.Options{Elector: takesAtOnce(t, w.store)}}) // a server that has not heard of it
		eve.w = next
		_, err = eve.api().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
	})
	t.Run("the nonce is of no use any more, a new one is", func(t *testing.T) {
		w := newWorld(t, setup{size: 1})
		nonce := w.operatorNonce("default")
		eve := w.holder()
		require.NoError(t, eve.enrol(nonce))
		w.revoke(eve)
		require.ErrorIs(t, eve.enrol(nonce), nstance.Denied)
		require.NoError(t, w.holder().enrol(w.operatorNonce("default")))
	})
	t.Run("by a server of another shard, or by hand: within an interval", func(t *testing.T) {
		w := newWorld(t, setup{size: 1, opts: server.Options{KeyInterval: 10 * time.Millisecond}})
		eve := w.client(nstance.RoleAdmin, "default")
		watch := w.watch(eve.api(), &apiv1.WatchInstanceEventsRequest{})
		watch.snapshot()
		key := storage.OperatorKey("default", eve.who().Subject)
		_, err := storage.NewDoc[operatorRecord](w.store, key, nil).Update(t.Context(), func(r *operatorRecord) error {
			r.Operator["revoked"] = true
			return nil
		})
		require.NoError(t, err)
		require.ErrorIs(t, watch.ends(), nstance.Denied)
	})
	t.Run("one whose record is gone, likewise", func(t *testing.T) {
		w := newWorld(t, setup{size: 1, opts: server.Options{KeyInterval: 10 * time.Millisecond}})
		eve, bob := w.client(nstance.RoleAdmin, "default"), w.client(nstance.RoleAdmin, "default")
		watch, stays := w.watch(eve.api(), &apiv1.WatchInstanceEventsRequest{}), w.watch(bob.api(), &apiv1.WatchInstanceEventsRequest{})
		watch.snapshot()
		stays.snapshot()
		require.NoError(t, removeRecord(w.store, storage.OperatorKey("default", eve.who().Subject)))
		require.ErrorIs(t, watch.ends(), nstance.NotFound)
		_, err := bob.api().DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(w.machine("default"))})
		require.NoError(t, err)
		require.NotNil(t, stays.event())
	})
	t.Run("between the check of a call and the beginning of its stream", func(t *testing.T) {
		memory := storage.NewMemory()
		store := storagetest.NewFaulty(memory)
		w := newWorld(t, setup{size: 1, store: store})
		eve := w.client(nstance.RoleAdmin, "default")
		api, key := eve.api(), storage.OperatorKey("default", eve.who().Subject)
		store.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: key, Skip: 1, Pass: true, Do: func() { _ = removeRecord(memory, key) }})
		watch := w.watch(api, &apiv1.WatchInstanceEventsRequest{})
		require.ErrorIs(t, watch.ends(), nstance.NotFound)
	})
	t.Run("a record of a shard with a lower epoch", func(t *testing.T) {
		w := newWorld(t, setup{size: 1})
		bob := w.client(nstance.RoleOperator, "default")
		key := storage.OperatorKey("default", bob.who().Subject)
		obj, err := w.store.Get(t.Context(), key)
		require.NoError(t, err)
		var rec map[string]any
		require.NoError(t, json.Unmarshal(obj.Data, &rec))
		rec["epoch"] = 1000
		data, err := json.Marshal(rec)
		require.NoError(t, err)
		_, err = w.store.PutIfMatch(t.Context(), key, data, obj.Version)
		require.NoError(t, err)
		bob.renewed()
		w.revoke(bob)
		_, err = bob.api().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Denied)
	})
	t.Run("a dry run changes nothing", func(t *testing.T) {
		w := newWorld(t, setup{size: 1})
		bob := w.client(nstance.RoleOperator, "default")
		_, err := w.admin().RevokeOperator(t.Context(), &apiv1.RevokeOperatorRequest{Id: bob.who().Subject, DryRun: true})
		require.NoError(t, err)
		_, err = bob.api().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
	})
	t.Run("refuses", func(t *testing.T) {
		w := newWorld(t, setup{size: 1})
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
	w := newWorld(t, setup{size: 1})
	bob, eve := w.client(nstance.RoleOperator, "blue"), w.client(nstance.RoleOperator, "default")
	w.revoke(eve)
	_, err := w.store.PutIfAbsent(t.Context(), storage.OperatorKey("blue", "operator-damaged"), []byte("{"))
	require.NoError(t, err)
	resp, err := w.admin().ListOperators(t.Context(), &apiv1.ListOperatorsRequest{})
	require.NoError(t, err)
	found := map[string]*apiv1.Operator{}
	for _, o := range resp.GetOperators() {
		found[o.GetTenant()+"/"+o.GetId()] = o
	}
	require.Nil(t, found["blue/"+bob.who().Subject].GetRevokedAt())
	require.Equal(t, "operator", found["blue/"+bob.who().Subject].GetRole())
	require.Equal(t, w.keys.Identity.Issuer(), found["blue/"+bob.who().Subject].GetIssuer())
	require.Equal(t, bob.who().NotAfter, found["blue/"+bob.who().Subject].GetNotAfter().AsTime())
	require.NotNil(t, found["default/"+eve.who().Subject].GetRevokedAt())
	require.Equal(t, "left us", found["default/"+eve.who().Subject].GetRevokedReason())
	require.NotEmpty(t, found["blue/operator-damaged"].GetError(), "what cannot be read is shown as just that")
}

// operatorNonce mints a nonce for an operator.
func (w *world) operatorNonce(tenant nstance.TenantID) string {
	nonce, err := w.keys.Nonces.Mint("", registration.Claims{
		Kind: nstance.RoleOperator, Subject: string(cluster), Cluster: cluster, Tenant: tenant, JTI: rand.Text(),
		NotBefore: time.Now().Add(-time.Hour), Expiry: time.Now().Add(time.Hour),
	})
	require.NoError(w, err)
	return nonce
}

// enrol registers as an operator, with the key that the holder has.
func (h *holder) enrol(nonce string) error {
	cert := h.cert
	h.cert = nil
	conn := h.dial(h.w.server.Addresses().Registration)
	defer conn.Close()
	resp, err := apiv1.NewRegistrationServiceClient(conn).RegisterOperator(h.w.Context(), &apiv1.RegisterOperatorRequest{Nonce: nonce, Csr: h.csr(h.key)})
	if err != nil {
		h.cert = cert
		return wire.ErrorOf(err)
	}
	h.use(h.key, wire.CredentialOf(resp.GetCredential()))
	return nil
}

// operatorRecord is an operator's record, freely decoded.
type operatorRecord struct {
	storage.Header
	Operator map[string]any `json:"operator"`
}
