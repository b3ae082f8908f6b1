package server_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// A heldStore holds one call, as a slow network does: what was sent is carried out although
// its sender has gone.
type heldStore struct {
	storage.Store

	mu   sync.Mutex
	next *heldCall
}

// A heldCall is the next call of a kind.
type heldCall struct {
	prefix  string
	about   string        // part of the key: replacements have records too
	read    bool          // a Get, which is held until its context ends; else a write
	early   bool          // carried out before it is held, else after its release
	arrived chan struct{} // closed when it has arrived
	release chan struct{}
	done    chan struct{} // closed when it was carried out
	err     error         // of a write; valid once done
}

func (s *heldStore) hold(prefix string, read, early bool) *heldCall {
	return s.holdOf(prefix, "", read, early)
}

func (s *heldStore) holdOf(prefix, about string, read, early bool) *heldCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = &heldCall{prefix: prefix, about: about, read: read, early: early, arrived: make(chan struct{}), release: make(chan struct{}), done: make(chan struct{})}
	return s.next
}

// holdWrite holds the next write of an object; of an instance's record only that of about.
func (s *heldStore) holdWrite(prefix, about string, early bool) *heldCall {
	if prefix != "instance/" {
		about = ""
	}
	return s.holdOf(prefix, about, false, early)
}

func (s *heldStore) take(key string, read bool) *heldCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.next
	if c == nil || c.read != read || !strings.HasPrefix(key, c.prefix) || !strings.Contains(key, c.about) {
		return nil
	}
	s.next = nil
	return c
}

func (s *heldStore) Get(ctx context.Context, key string) (storage.Object, error) {
	if c := s.take(key, true); c != nil {
		close(c.arrived)
		<-ctx.Done() // the server has seen that its caller has left
		close(c.done)
	}
	return s.Store.Get(context.WithoutCancel(ctx), key)
}

func (s *heldStore) write(ctx context.Context, key string, write func(context.Context) error) error {
	c := s.take(key, false)
	if c == nil {
		return write(ctx)
	}
	carryOut := func() { c.err = write(context.WithoutCancel(ctx)); close(c.done) }
	if c.early {
		carryOut()
	}
	close(c.arrived)
	answered := make(chan struct{})
	go func() {
		<-c.release
		if !c.early {
			carryOut()
		}
		close(answered)
	}()
	select {
	case <-answered:
		return c.err
	case <-ctx.Done():
		return nstance.Errorf(nstance.Ambiguous, "write %s: %w", key, ctx.Err())
	}
}

func (s *heldStore) PutIfAbsent(ctx context.Context, key string, data []byte) (v storage.Version, err error) {
	err = s.write(ctx, key, func(ctx context.Context) (err error) { v, err = s.Store.PutIfAbsent(ctx, key, data); return err })
	return v, err
}

func (s *heldStore) PutIfMatch(ctx context.Context, key string, data []byte, at storage.Version) (v storage.Version, err error) {
	err = s.write(ctx, key, func(ctx context.Context) (err error) { v, err = s.Store.PutIfMatch(ctx, key, data, at); return err })
	return v, err
}

func (s *heldStore) DeleteIfMatch(ctx context.Context, key string, at storage.Version) error {
	return s.write(ctx, key, func(ctx context.Context) error { return s.Store.DeleteIfMatch(ctx, key, at) })
}

// A writingCall is one call of the operators' API that writes.
type writingCall struct {
	writes string // prefix of the object
	// prepare returns what the call is about.
	prepare func(w *writingWorld) string
	call    func(ctx context.Context, api apiv1.OperatorServiceClient, about string) error
	// effect reports whether the call is in force.
	effect func(w *writingWorld, api apiv1.OperatorServiceClient, about string) bool
}

type writingWorld struct {
	*world
	store *heldStore
	admin *client
	other *client // an operator
}

func newWritingWorld(t *testing.T) *writingWorld {
	store := &heldStore{Store: storage.NewMemory()}
	w := &writingWorld{store: store}
	conf := strings.NewReplacer(
		"%s", `"gc": {"interval": "1s"}, "max_change": 1,`,
		`"shutdown_timeout": "30s"`, `"shutdown_timeout": "1s"`, // so long a former leader waits for the calls that are held
		`"web": {"template": "vm", "size": %d}`, `"web": {"template": "vm", "size": 1, "warm_pool": {"size": 1, "mode": "stopped"}}`,
	).Replace(configuration)
	w.world = newWorld(t, setup{store: store, cloud: simcloud.Options{}, config: conf})
	require.Eventually(t, func() bool { return groupsKnown(w.server) }, eventually, time.Millisecond)
	w.awaitEpoch(settledKeys...) // else what is held is the leader's own write
	w.admin = w.registerClient(nstance.RoleAdmin, nstance.DefaultTenant)
	w.other = w.registerClient(nstance.RoleOperator, "blue")
	return w
}

func (w *writingWorld) group(api apiv1.OperatorServiceClient, name string) *apiv1.Group {
	list, err := api.ListGroups(w.Context(), &apiv1.ListGroupsRequest{})
	require.NoError(w, err)
	for _, g := range list.GetGroups() {
		if g.GetGroup() == name {
			return g
		}
	}
	return nil
}

func (w *writingWorld) instance(api apiv1.OperatorServiceClient, id string) *apiv1.Instance {
	got, err := api.GetInstance(w.Context(), &apiv1.GetInstanceRequest{Id: id})
	if err != nil {
		return nil
	}
	return got.GetInstance()
}

func nothing(*writingWorld) string { return "" }

// member returns a ready member of the group db.
func member(w *writingWorld) string {
	id := w.awaitMachine("blue")
	w.connectReady(id)
	return string(id)
}

func (w *writingWorld) set(size string) {
	w.conf.mu.Lock()
	defer w.conf.mu.Unlock()
	w.conf.text = strings.Replace(w.conf.text, `"db": {"template": "vm", "size": 1`, `"db": {"template": "vm", "size": `+size, 1)
}

func (w *writingWorld) proposed(api apiv1.OperatorServiceClient, size int32) bool {
	return w.group(api, "db").GetSize() == size
}

var writingCalls = map[string]writingCall{
	"CreateGroup": {"groups/", nothing, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.CreateGroup(ctx, &apiv1.CreateGroupRequest{Group: "job", Template: "vm", Size: new(int32(2))})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, _ string) bool {
		return w.group(api, "job").GetSize() == 2
	}},
	"UpdateGroup": {"groups/", nothing, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.UpdateGroup(ctx, &apiv1.UpdateGroupRequest{Group: "web", Size: new(int32(0))})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, _ string) bool {
		return w.group(api, "web").GetSize() == 0
	}},
	"DeleteGroup": {"groups/", func(w *writingWorld) string {
		api := w.admin.operatorAPI()
		_, err := api.CreateGroup(w.Context(), &apiv1.CreateGroupRequest{Group: "job", Template: "vm", Size: new(int32(1))})
		require.NoError(w, err)
		return ""
	}, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.DeleteGroup(ctx, &apiv1.DeleteGroupRequest{Group: "job"})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, _ string) bool {
		g := w.group(api, "job")
		return g == nil || g.GetRemoving()
	}},
	"DeleteGroup of an overlay": {"groups/", func(w *writingWorld) string {
		_, err := w.admin.operatorAPI().UpdateGroup(w.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: new(int32(2))})
		require.NoError(w, err)
		return ""
	}, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.DeleteGroup(ctx, &apiv1.DeleteGroupRequest{Group: "web"})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, _ string) bool {
		return w.group(api, "web").GetSize() == 1
	}},
	"PauseGroup": {"state/", nothing, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.PauseGroup(ctx, &apiv1.PauseGroupRequest{Group: "web"})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, _ string) bool {
		return w.group(api, "web").GetPaused()
	}},
	"ResumeGroup": {"state/", func(w *writingWorld) string {
		_, err := w.admin.operatorAPI().PauseGroup(w.Context(), &apiv1.PauseGroupRequest{Group: "web"})
		require.NoError(w, err)
		return ""
	}, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.ResumeGroup(ctx, &apiv1.ResumeGroupRequest{Group: "web"})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, _ string) bool {
		return !w.group(api, "web").GetPaused()
	}},
	"Freeze": {"state/", nothing, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.Freeze(ctx, &apiv1.FreezeRequest{})
		return err
	}, frozen},
	"Freeze of a group": {"state/", nothing, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.Freeze(ctx, &apiv1.FreezeRequest{Group: "web"})
		return err
	}, frozen},
	"Thaw": {"state/", func(w *writingWorld) string {
		_, err := w.admin.operatorAPI().Freeze(w.Context(), &apiv1.FreezeRequest{})
		require.NoError(w, err)
		return ""
	}, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.Thaw(ctx, &apiv1.ThawRequest{})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, about string) bool {
		return !frozen(w, api, about)
	}},
	"AvoidPool": {"state/", nothing, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.AvoidPool(ctx, avoidSpot(time.Hour))
		return err
	}, avoiding},
	"ReleasePool": {"state/", func(w *writingWorld) string {
		_, err := w.admin.operatorAPI().AvoidPool(w.Context(), avoidSpot(time.Hour))
		require.NoError(w, err)
		return ""
	}, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.ReleasePool(ctx, &apiv1.ReleasePoolRequest{Pool: &apiv1.Pool{Market: "spot"}})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, about string) bool {
		return !avoiding(w, api, about)
	}},
	"AcknowledgeAttention": {"attention/", frozenShard, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.AcknowledgeAttention(ctx, acknowledge("frozen", "shard", time.Hour))
		return err
	}, acknowledged},
	"UnacknowledgeAttention": {"attention/", func(w *writingWorld) string {
		frozenShard(w)
		_, err := w.admin.operatorAPI().AcknowledgeAttention(w.Context(), acknowledge("frozen", "shard", time.Hour))
		require.NoError(w, err)
		return ""
	}, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.UnacknowledgeAttention(ctx, &apiv1.UnacknowledgeAttentionRequest{Kind: "frozen"})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, about string) bool {
		return !acknowledged(w, api, about)
	}},
	"ClaimStandby": {"state/", nothing, claim, claimed},
	"ReleaseStandby": {"state/", func(w *writingWorld) string {
		require.NoError(w, claim(w.Context(), w.admin.operatorAPI(), ""))
		return ""
	}, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.ReleaseStandby(ctx, &apiv1.ReleaseStandbyRequest{Group: "web", Node: "n1"})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, about string) bool {
		return !claimed(w, api, about)
	}},
	"RollbackGroup": {"state/", rolledForward, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.RollbackGroup(ctx, &apiv1.RollbackGroupRequest{Group: "db", Tenant: "blue"})
		return err
	}, rolledBack},
	"RollbackGroup undone": {"state/", func(w *writingWorld) string {
		rolledForward(w)
		_, err := w.admin.operatorAPI().RollbackGroup(w.Context(), &apiv1.RollbackGroupRequest{Group: "db", Tenant: "blue"})
		require.NoError(w, err)
		return ""
	}, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.RollbackGroup(ctx, &apiv1.RollbackGroupRequest{Group: "db", Tenant: "blue", Undo: true})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, about string) bool {
		return !rolledBack(w, api, about)
	}},
	"CreateInstance": {"instance/", func(w *writingWorld) string { member(w); return string(newInstanceID()) }, func(ctx context.Context, api apiv1.OperatorServiceClient, id string) error {
		_, err := api.CreateInstance(ctx, &apiv1.CreateInstanceRequest{Id: id, Group: "db", Tenant: "blue"})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, id string) bool {
		return w.instance(api, id) != nil
	}},
	"DeleteInstance": {"instance/", member, func(ctx context.Context, api apiv1.OperatorServiceClient, id string) error {
		_, err := api.DeleteInstance(ctx, &apiv1.DeleteInstanceRequest{Id: id})
		return err
	}, leaving},
	"DrainInstance": {"instance/", member, func(ctx context.Context, api apiv1.OperatorServiceClient, id string) error {
		_, err := api.DrainInstance(ctx, &apiv1.DrainInstanceRequest{Id: id})
		return err
	}, leaving},
	"Interrupt": {"instance/", member, func(ctx context.Context, api apiv1.OperatorServiceClient, id string) error {
		_, err := api.Interrupt(ctx, &apiv1.InterruptRequest{Id: id})
		return err
	}, leaving},
	"PreserveInstance": {"instance/", member, func(ctx context.Context, api apiv1.OperatorServiceClient, id string) error {
		_, err := api.PreserveInstance(ctx, &apiv1.PreserveInstanceRequest{Id: id, Duration: durationpb.New(time.Hour)})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, id string) bool {
		return w.instance(api, id).GetPreservedUntil() != nil
	}},
	"AdoptOrphan": {"instance/", func(w *writingWorld) string { return string(w.createOrphan()) }, func(ctx context.Context, api apiv1.OperatorServiceClient, id string) error {
		_, err := api.AdoptOrphan(ctx, &apiv1.AdoptOrphanRequest{Id: id})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, id string) bool {
		return w.instance(api, id).GetGroup() == "lost"
	}},
	"DeleteOrphan": {"instance/", func(w *writingWorld) string { return string(w.createOrphan()) }, func(ctx context.Context, api apiv1.OperatorServiceClient, id string) error {
		_, err := api.DeleteOrphan(ctx, &apiv1.DeleteOrphanRequest{Id: id})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, id string) bool {
		list, err := api.ListOrphans(w.Context(), &apiv1.ListOrphansRequest{})
		require.NoError(w, err)
		return len(list.GetOrphans()) == 0
	}},
	"RefreshConfig": {"accepted/", func(w *writingWorld) string { w.set("2"); return "" }, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.RefreshConfig(ctx, &apiv1.RefreshConfigRequest{})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, _ string) bool { return w.proposed(api, 2) }},
	"ConfirmConfig": {"accepted/", func(w *writingWorld) string {
		api := w.admin.operatorAPI()
		for _, tenant := range []nstance.TenantID{nstance.DefaultTenant, "blue"} { // what is held would change these
			w.awaitMachine(tenant)
		}
		w.conf.mu.Lock()
		w.conf.text = strings.Replace(w.conf.text, `"colour": "red"`, `"colour": "blue"`, 1)
		w.conf.text = strings.Replace(w.conf.text, `{{.Nonce}}`, `{{.Nonce}} x`, 1)
		w.conf.mu.Unlock()
		w.set("3")
		_, err := api.RefreshConfig(w.Context(), &apiv1.RefreshConfigRequest{})
		require.ErrorContains(w, err, "is held")
		status, err := api.GetConfigStatus(w.Context(), &apiv1.GetConfigStatusRequest{})
		require.NoError(w, err)
		return status.GetHeldDigest()
	}, func(ctx context.Context, api apiv1.OperatorServiceClient, digest string) error {
		_, err := api.ConfirmConfig(ctx, &apiv1.ConfirmConfigRequest{Digest: digest})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, digest string) bool {
		status, err := api.GetConfigStatus(w.Context(), &apiv1.GetConfigStatusRequest{})
		require.NoError(w, err)
		return w.proposed(api, 3) && status.GetDigest() == digest
	}},
	"RotateKey": {"secret/", nothing, func(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
		_, err := api.RotateKey(ctx, &apiv1.RotateKeyRequest{Name: keyring.Workload, Step: "begin"})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, _ string) bool {
		list, err := api.ListKeys(w.Context(), &apiv1.ListKeysRequest{})
		require.NoError(w, err)
		n := 0
		for _, k := range list.GetKeys() {
			if k.GetName() == keyring.Workload {
				n++
			}
		}
		return n == 2
	}},
	"RevokeOperator": {layout.OperatorPrefix, func(w *writingWorld) string { return w.other.identity().Subject }, func(ctx context.Context, api apiv1.OperatorServiceClient, id string) error {
		_, err := api.RevokeOperator(ctx, &apiv1.RevokeOperatorRequest{Id: id, Tenant: "blue"})
		return err
	}, func(w *writingWorld, api apiv1.OperatorServiceClient, id string) bool {
		_, err := w.other.operatorAPI().ListGroups(w.Context(), &apiv1.ListGroupsRequest{})
		return err != nil
	}},
}

func claim(ctx context.Context, api apiv1.OperatorServiceClient, _ string) error {
	_, err := api.ClaimStandby(ctx, &apiv1.ClaimStandbyRequest{Group: "web", Node: "n1"})
	return err
}

func claimed(w *writingWorld, api apiv1.OperatorServiceClient, _ string) bool {
	return len(w.group(api, "web").GetClaims()) > 0
}

func frozenShard(w *writingWorld) string {
	_, err := w.admin.operatorAPI().Freeze(w.Context(), &apiv1.FreezeRequest{})
	require.NoError(w, err)
	return ""
}

// acknowledged reports whether the freeze of the shard is, once this leader has settled what
// is durable.
func acknowledged(w *writingWorld, api apiv1.OperatorServiceClient, _ string) bool {
	w.awaitEpoch(layout.AttentionKey(zone))
	list := listAttention(w.T, api)["frozen"]
	require.Len(w, list, 1)
	return list[0].GetAcknowledged() != nil
}

func frozen(w *writingWorld, api apiv1.OperatorServiceClient, _ string) bool {
	return w.group(api, "web").GetFrozen()
}

func avoiding(w *writingWorld, api apiv1.OperatorServiceClient, _ string) bool {
	list, err := api.ListAvoidedPools(w.Context(), &apiv1.ListAvoidedPoolsRequest{})
	require.NoError(w, err)
	return len(list.GetPools()) > 0
}

func leaving(w *writingWorld, api apiv1.OperatorServiceClient, id string) bool {
	i := w.instance(api, id)
	return i == nil || i.GetDrain() != nil || i.GetState() == string(nstance.Deleting) || i.GetState() == string(nstance.Deleted)
}

func rolledForward(w *writingWorld) string {
	member(w)
	api := w.admin.operatorAPI()
	require.Eventually(w, func() bool {
		_, err := api.RollbackGroup(w.Context(), &apiv1.RollbackGroupRequest{Group: "db", Tenant: "blue", DryRun: true})
		return err != nil && strings.Contains(err.Error(), "it is the last good one")
	}, eventually, time.Millisecond)
	_, err := api.UpdateGroup(w.Context(), &apiv1.UpdateGroupRequest{Group: "db", Tenant: "blue", InstanceType: new("large")})
	require.NoError(w, err)
	return ""
}

func rolledBack(w *writingWorld, api apiv1.OperatorServiceClient, _ string) bool {
	return w.group(api, "db").GetRolledBack()
}

// successor starts the next server, and returns its API.
func (w *writingWorld) successor() apiv1.OperatorServiceClient {
	w.startSuccessor(server.Options{})
	require.Eventually(w, func() bool { return groupsKnown(w.server) }, eventually, time.Millisecond)
	return w.admin.operatorAPI()
}

// awaitEpoch waits until the leader has written these objects.
func (w *writingWorld) awaitEpoch(keys ...string) {
	var leads records.Header
	epoch := func(key string) uint64 {
		obj, err := w.store.Store.Get(w.Context(), key)
		if err != nil {
			return 0
		}
		h, err := records.ReadHeader(obj)
		require.NoError(w, err)
		return h.Epoch
	}
	obj, err := w.store.Store.Get(w.Context(), layout.LeaseKey(zone))
	require.NoError(w, err)
	require.NoError(w, json.Unmarshal(obj.Data, &leads))
	for _, key := range keys {
		require.Eventually(w, func() bool { return epoch(key) == leads.Epoch }, eventually, time.Millisecond, key)
	}
}

// settledKeys are what a leader writes when its term begins.
var settledKeys = []string{layout.GroupsKey(zone), layout.StateKey(zone), layout.AcceptedKey(zone), layout.AttentionKey(zone)}

// awaitSettled waits until the leader has made sure that no write of an earlier term lands.
func (w *writingWorld) awaitSettled(api apiv1.OperatorServiceClient) {
	w.awaitEpoch(settledKeys...)
	// These take their turn after whatever has landed.
	_, err := api.UpdateGroup(w.Context(), &apiv1.UpdateGroupRequest{Group: "db", Tenant: "blue", DryRun: true})
	require.NoError(w, err)
	_, err = api.ConfirmConfig(w.Context(), &apiv1.ConfirmConfigRequest{Digest: "x", DryRun: true})
	require.Error(w, err)
	_, err = api.PauseGroup(w.Context(), &apiv1.PauseGroupRequest{Group: "db", Tenant: "blue"})
	require.NoError(w, err)
}

// TestAbandonedCalls: whenever the caller of a call that writes leaves, and whenever the
// leader changes, what is durable is in force, or nothing is.
func TestAbandonedCalls(t *testing.T) {
	t.Parallel()
	for name, c := range writingCalls {
		abandon := func(t *testing.T, w *writingWorld, about string, held *heldCall) (over <-chan error) {
			ctx, leave := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			api := w.admin.operatorAPI()
			go func() { ended <- c.call(ctx, api, about) }()
			receive(t, held.arrived)
			leave()
			return ended
		}
		t.Run(name+", the caller leaves during the write", func(t *testing.T) {
			t.Parallel()
			for _, early := range []bool{true, false} {
				w := newWritingWorld(t)
				about, api := c.prepare(w), w.admin.operatorAPI()
				require.False(t, c.effect(w, api, about))
				held := w.store.holdWrite(c.writes, about, early)
				require.Error(t, receive(t, abandon(t, w, about, held)))
				close(held.release)
				require.Eventually(t, func() bool { return c.effect(w, api, about) }, eventually, 5*time.Millisecond, "what was begun is finished")
				require.True(t, c.effect(w, w.successor(), about), "also with the next leader")
			}
		})
		t.Run(name+", the caller leaves before the write", func(t *testing.T) {
			t.Parallel()
			w := newWritingWorld(t)
			about := c.prepare(w)
			held := w.store.hold(layout.OperatorPrefix, true, false) // whether the caller's certificate was revoked
			over := abandon(t, w, about, held)
			require.Error(t, receive(t, over))
			receive(t, held.done)
			require.False(t, c.effect(w, w.admin.operatorAPI(), about), "nothing was begun")
			if name != "RefreshConfig" { // the next leader reads the source by itself
				require.False(t, c.effect(w, w.successor(), about), "nothing was begun")
			}
		})
		t.Run(name+", the leader changes during the write", func(t *testing.T) {
			t.Parallel()
			w := newWritingWorld(t)
			about := c.prepare(w)
			held := w.store.holdWrite(c.writes, about, false)
			over := abandon(t, w, about, held)
			require.Error(t, receive(t, over))
			api := w.successor()
			close(held.release) // only now does it arrive at the store
			receive(t, held.done)
			if c.writes == "instance/" { // which the leader reads again, and does not write
				require.Eventually(t, func() bool { return c.effect(w, api, about) == (held.err == nil) }, eventually, 5*time.Millisecond, "the write has landed: %v", held.err == nil)
			} else {
				w.awaitSettled(api)
			}
			is := c.effect(w, api, about)
			require.Equal(t, is, c.effect(w, w.successor(), about), "the write has landed: %v", held.err == nil)
		})
		t.Run(name+", the leader changes before the write", func(t *testing.T) {
			t.Parallel()
			w := newWritingWorld(t)
			about := c.prepare(w)
			held := w.store.hold(layout.OperatorPrefix, true, false) // whether the caller's certificate was revoked
			over := make(chan error, 1)
			begun := w.admin.operatorAPI()
			go func() { over <- c.call(context.WithoutCancel(t.Context()), begun, about) }()
			receive(t, held.arrived)
			api := w.successor()
			receive(t, held.done)
			require.Error(t, receive(t, over))
			if name != "RefreshConfig" { // this leader reads the source by itself
				require.False(t, c.effect(w, api, about), "nothing was begun")
			}
		})
		if name == "RotateKey" {
			continue // of several objects the first is the key, which nothing names yet
		}
		t.Run(name+", the leader changes after the write", func(t *testing.T) {
			t.Parallel()
			w := newWritingWorld(t)
			about := c.prepare(w)
			held := w.store.holdWrite(c.writes, about, true)
			receive(t, abandon(t, w, about, held))
			api := w.successor()
			close(held.release)
			require.Eventually(t, func() bool { return c.effect(w, api, about) }, eventually, 5*time.Millisecond)
			require.True(t, c.effect(w, w.successor(), about), "also with the leader after it")
		})
	}
}

// TestAbandonedRegistration: a nonce that was used is not lost with its caller.
func TestAbandonedRegistration(t *testing.T) {
	t.Parallel()
	w := newWritingWorld(t)
	nonce, err := w.keys.Nonces.Mint("", keyring.Claims{
		Kind: nstance.RoleOperator, Subject: string(cluster), Cluster: cluster, Tenant: "blue", JTI: rand.Text(),
		NotBefore: time.Now().Add(-time.Hour), Expiry: time.Now().Add(time.Hour),
	})
	require.NoError(t, err)
	h := w.newClient()
	conn := h.dial(w.server.Addresses().Registration)
	held := w.store.hold(layout.NonceKey(""), false, true)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		_, _ = apiv1.NewRegistrationServiceClient(conn).RegisterOperator(ctx, &apiv1.RegisterOperatorRequest{Nonce: nonce, Csr: h.csr(h.key)})
	}()
	receive(t, held.arrived)
	leave()
	close(held.release)
	api := w.admin.operatorAPI()
	require.Eventually(t, func() bool {
		list, err := api.ListOperators(t.Context(), &apiv1.ListOperatorsRequest{})
		require.NoError(t, err)
		return len(list.GetOperators()) == 3
	}, eventually, 5*time.Millisecond, "it is registered as the nonce says, and may be revoked")
}

// TestEveryWritingCallIsAbandoned: a new call is either listed as one that only reads, or
// is in the table above.
func TestEveryWritingCallIsAbandoned(t *testing.T) {
	t.Parallel()
	exempt := map[string]string{
		"AcknowledgeDrained": "the drain is acknowledged in memory, and finished by the reconciler",
		"RenewCertificate":   "the certificate that the caller has stays valid, and a repetition gets another",
		"RepairRecord":       "TestRepairIsInForce: it needs a damaged record",
	}
	for method := range server.Access() {
		service, name, _ := strings.Cut(strings.TrimPrefix(method, "/nstance.v1."), "/")
		if service != "OperatorService" || server.Reads(method) || strings.HasPrefix(name, "Watch") || exempt[name] != "" {
			continue
		}
		require.Contains(t, writingCalls, name)
	}
}
