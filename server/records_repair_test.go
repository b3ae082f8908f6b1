package server_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// corruptRecord overwrites an instance's record and returns its key and earlier
// content.
func (w *world) corruptRecord(id nstance.InstanceID) (string, []byte) {
	w.Helper()
	key := records.Ref{Shard: zone, Tenant: nstance.DefaultTenant, Group: "web", ID: id}.Key()
	obj, err := w.store.Get(w.Context(), key)
	require.NoError(w, err)
	_, err = w.store.PutIfMatch(w.Context(), key, []byte(`{"format": "1.0", "id": `), obj.Version)
	require.NoError(w, err)
	return key, obj.Data
}

func TestRepairRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	agent := w.registerAgent(id)
	require.NoError(t, w.stopServer())
	key, good := w.corruptRecord(id)
	w.startSuccessor(server.Options{})
	api := w.admin()
	get := func(name string) (*apiv1.GetRecordResponse, error) {
		resp, err := api.GetRecord(t.Context(), &apiv1.GetRecordRequest{Key: name})
		return resp, wire.ErrorOf(err)
	}
	repair := func(req *apiv1.RepairRecordRequest) error {
		_, err := api.RepairRecord(t.Context(), req)
		return wire.ErrorOf(err)
	}

	t.Run("a damaged record is shown, by key and by ID", func(t *testing.T) {
		for _, name := range []string{key, string(id)} {
			resp, err := get(name)
			require.NoError(t, err)
			require.Equal(t, key, resp.GetKey())
			require.Equal(t, `{"format": "1.0", "id": `, string(resp.GetData()))
			require.NotEmpty(t, resp.GetError())
		}
		require.Contains(t, strings.Join(server.Problems(w.server), "\n"), key)
	})
	t.Run("its instance is not said to be deleted, and neither drained nor deleted", func(t *testing.T) {
		got, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
		require.NoError(t, err)
		require.NotEmpty(t, got.GetEvents())
		require.Empty(t, got.GetInstance().GetState())
		require.Equal(t, []string{wire.Unreadable}, got.GetInstance().GetConditions())
		require.Equal(t, "web", got.GetInstance().GetGroup())
		_, err = api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(id), NoDrain: true})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable)
		require.ErrorContains(t, err, "nstance-admin record show "+string(id))
		_, err = api.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(id)})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable)
		_, err = api.PreserveInstance(t.Context(), &apiv1.PreserveInstanceRequest{Id: string(id)})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable)
		_, err = w.registerClient(nstance.RoleOperator, "blue").operatorAPI().GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound, "to another tenant it does not exist")
	})
	t.Run("its agent is told the same", func(t *testing.T) {
		stream, err := apiv1.NewAgentServiceClient(agent.dial(w.server.Addresses().Agent)).Connect(t.Context())
		require.NoError(t, err)
		_, err = stream.Recv()
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable)
		require.ErrorContains(t, err, key)
	})
	t.Run("a readable record is shown too", func(t *testing.T) {
		for _, name := range []string{layout.AcceptedKey(zone)} {
			resp, err := get(name)
			require.NoError(t, err)
			require.Empty(t, resp.GetError())
			require.NotEmpty(t, resp.GetVersion())
		}
	})
	t.Run("secrets and other shards' records are not shown", func(t *testing.T) {
		for _, name := range []string{"secret/nonce.key", "ca/identity-ca.crt", "lease/other.json", "instance/s2/default/web/x.json", "", "instance/s1/../../secret/x"} {
			_, err := get(name)
			require.ErrorIs(t, err, nstance.Invalid, name)
		}
		_, err := get("web0000000000000000000000000000"[:29])
		require.Error(t, err)
	})
	t.Run("repair requires the shown version and readable content", func(t *testing.T) {
		shown, err := get(key)
		require.NoError(t, err)
		for name, c := range map[string]struct {
			req  *apiv1.RepairRecordRequest
			code nstance.Code
		}{
			"an older version": {&apiv1.RepairRecordRequest{Key: key, Version: "x", Data: good}, nstance.Conflict},
			"broken content":   {&apiv1.RepairRecordRequest{Key: key, Version: shown.GetVersion(), Data: []byte("{")}, nstance.Invalid},
			"nothing":          {&apiv1.RepairRecordRequest{Key: key, Version: shown.GetVersion()}, nstance.Invalid},
			"both":             {&apiv1.RepairRecordRequest{Key: key, Version: shown.GetVersion(), Data: good, Remove: true}, nstance.Invalid},
			"another shard":    {&apiv1.RepairRecordRequest{Key: strings.Replace(key, "/s1/", "/s2/", 1), Remove: true}, nstance.Invalid},
			"no record":        {&apiv1.RepairRecordRequest{Key: layout.AcceptedKey(zone), Remove: true}, nstance.Invalid},
		} {
			require.ErrorIs(t, repair(c.req), c.code, name)
			c.req.DryRun = true
			require.ErrorIs(t, repair(c.req), c.code, name)
		}
		require.NoError(t, repair(&apiv1.RepairRecordRequest{Key: key, Version: shown.GetVersion(), Data: good, DryRun: true}))
		still, err := get(key)
		require.NoError(t, err)
		require.Equal(t, shown.GetVersion(), still.GetVersion())
	})
	t.Run("after a repair the machine is a member again", func(t *testing.T) {
		shown, err := get(key)
		require.NoError(t, err)
		require.NoError(t, repair(&apiv1.RepairRecordRequest{Key: key, Version: shown.GetVersion(), Data: good}))
		resp, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
		require.NoError(t, err)
		require.Equal(t, string(id), resp.GetInstance().GetId())
		require.NotContains(t, strings.Join(server.Problems(w.server), "\n"), key)
		require.ErrorIs(t, repair(&apiv1.RepairRecordRequest{Key: key, Version: shown.GetVersion(), Data: good}), nstance.Conflict)
		w.awaitEvent(eventtype.RecordRepaired, id)
		require.Equal(t, 1, w.countMachines(nstance.DefaultTenant))
		agent.connect()
	})
	t.Run("after a removal the machine is an orphan", func(t *testing.T) {
		require.NoError(t, w.stopServer())
		w.corruptRecord(id)
		w.startSuccessor(server.Options{})
		api = w.admin()
		shown, err := get(string(id))
		require.NoError(t, err)
		require.NoError(t, repair(&apiv1.RepairRecordRequest{Key: key, Version: shown.GetVersion(), Remove: true}))
		_, err = api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound, "nothing says that it was deleted")
		require.Eventually(t, func() bool { return w.countMachines(nstance.DefaultTenant) == 2 }, eventually, time.Millisecond, "the group is held no more")
		_, err = w.cloud.Get(t.Context(), id)
		require.NoError(t, err, "it is not deleted before its deadline")
	})
}

// TestRepairIsInForce: whatever fails around the write of a repair, what is durable is in
// force with this leader.
func TestRepairIsInForce(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]storagetest.Fault{
		"the records cannot be read": {Op: storagetest.List, Prefix: "instance/", Err: nstance.Unavailable},
		"the answer is lost":         {Op: storagetest.PutIfMatch, Prefix: "instance/", Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous},
	} {
		t.Run(name, func(t *testing.T) {
			store := storagetest.NewFaulty(storage.NewMemory())
			w := newWorld(t, setup{webSize: 1, store: store})
			id := w.awaitMachine(nstance.DefaultTenant)
			require.NoError(t, w.stopServer())
			key, good := w.corruptRecord(id)
			w.startSuccessor(server.Options{})
			api := w.admin()
			is, err := api.GetRecord(t.Context(), &apiv1.GetRecordRequest{Key: key})
			require.NoError(t, err)
			require.NotEmpty(t, is.GetError())
			store.Inject(fault)
			_, err = api.RepairRecord(t.Context(), &apiv1.RepairRecordRequest{Key: key, Version: is.GetVersion(), Data: good})
			require.Equal(t, fault.Mode == storagetest.LoseAnswer, err != nil, "%v", err)
			got, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
			require.NoError(t, err)
			require.NotEmpty(t, got.GetInstance().GetState(), "it is a member")
			require.NotContains(t, strings.Join(server.Problems(w.server), "\n"), key)
		})
	}
}
