package server_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// storedFields decodes the document under key.
func (w *world) storedFields(key string) (fields map[string]any) {
	w.Helper()
	obj, err := w.store.Get(context.Background(), key)
	require.NoError(w, err)
	require.NoError(w, json.Unmarshal(obj.Data, &fields), key)
	return fields
}

// addUnknownField adds a field as a newer program would.
func (w *world) addUnknownField(key string) {
	w.Helper()
	fields := w.storedFields(key)
	fields["format"], fields["later"] = "1.9", map[string]any{"mode": "<new>"}
	data, err := json.Marshal(fields)
	require.NoError(w, err)
	obj, err := w.store.Get(w.Context(), key)
	require.NoError(w, err)
	_, err = w.store.PutIfMatch(w.Context(), key, data, obj.Version)
	require.NoError(w, err)
}

// TestUnknownFieldsArePreserved: a server keeps fields that a newer one added to a
// document, and the document's format number.
func TestUnknownFieldsArePreserved(t *testing.T) {
	t.Parallel()
	store := storage.NewMemory()
	const script = "userdata/base.sh"
	v, err := store.PutIfAbsent(t.Context(), script, []byte("{{.Nonce}}"))
	require.NoError(t, err)
	conf := func(size int) string {
		return configWithTemplate(size, `"userdata": {"source": "url", "content": "storage:`+script+`"}, `, "")
	}
	w := newWorld(t, setup{store: store, config: conf(1)})
	id := w.awaitMachine("default")
	w.connectReady(id)
	holder := w.registerClient(nstance.RoleOperator, "default")
	call := func(fn func(apiv1.OperatorServiceClient) error) func() {
		return func() { require.NoError(t, fn(w.admin())) }
	}
	resize := call(func(api apiv1.OperatorServiceClient) error {
		_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(2)})
		return err
	})
	resize()

	rewrites := []struct {
		key     string
		rewrite func()
	}{
		{layout.LeaseKey(zone), func() {}}, // written by the next term
		{layout.InstanceKey(zone, "default", "web", id), call(func(api apiv1.OperatorServiceClient) error {
			_, err := api.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(id)})
			return err
		})},
		{layout.OperatorKey("default", holder.identity().Subject), func() { w.revoke(holder) }},
		{layout.GroupsKey(zone), call(func(api apiv1.OperatorServiceClient) error {
			_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(3)})
			return err
		})},
		{layout.AcceptedKey(zone), func() { w.applyConfig(conf(4)) }},
		{layout.ResolvedKey(zone), func() {
			_, err := store.PutIfMatch(t.Context(), script, []byte("{{.Nonce}} v2"), v)
			require.NoError(t, err)
			w.applyConfig(conf(4))
		}},
		{layout.StateKey(zone), call(func(api apiv1.OperatorServiceClient) error {
			_, err := api.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "web"})
			return err
		})},
		{layout.AttentionKey(zone), call(func(api apiv1.OperatorServiceClient) error {
			_, err := api.AcknowledgeAttention(t.Context(), acknowledge("paused", "group default/web", time.Hour))
			return err
		})},
		{layout.ClusterLeaseKey, call(func(api apiv1.OperatorServiceClient) error {
			_, err := api.RotateKey(t.Context(), &apiv1.RotateKeyRequest{Name: "nonce", Step: "begin"})
			return err
		})},
	}
	for _, r := range rewrites {
		require.Eventually(t, func() bool { _, err := store.Get(t.Context(), r.key); return err == nil }, eventually, 5*time.Millisecond, r.key)
	}
	require.NoError(t, w.stopServer())
	before := map[string]any{}
	for _, r := range rewrites {
		w.addUnknownField(r.key)
		before[r.key] = w.storedFields(r.key)["write_id"]
	}
	w.startSuccessor(server.Options{})
	for _, r := range rewrites {
		t.Run(r.key, func(t *testing.T) {
			r.rewrite()
			require.Eventually(t, func() bool { return w.storedFields(r.key)["write_id"] != before[r.key] }, eventually, 5*time.Millisecond)
			after := w.storedFields(r.key)
			require.Equal(t, "1.9", after["format"])
			require.Equal(t, map[string]any{"mode": "<new>"}, after["later"])
		})
	}
}
