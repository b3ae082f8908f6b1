package server_test

import (
	"context"
	"iter"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// A shutStore refuses reads of keys that begin with a prefix while it is shut.
type shutStore struct {
	storage.Store
	mu   sync.Mutex
	shut string // empty: open
}

func (s *shutStore) shutFor(prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut = prefix
}

func (s *shutStore) check(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut != "" && strings.HasPrefix(key, s.shut) {
		return nstance.Errorf(nstance.Unavailable, "no answer")
	}
	return nil
}

func (s *shutStore) Get(ctx context.Context, key string) (storage.Object, error) {
	if err := s.check(key); err != nil {
		return storage.Object{}, err
	}
	return s.Store.Get(ctx, key)
}

func (s *shutStore) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	if err := s.check(prefix); err != nil {
		return func(yield func(storage.Entry, error) bool) { yield(storage.Entry{}, err) }
	}
	return s.Store.List(ctx, prefix, after)
}

// A lateStore answers reads of one key once it is open.
type lateStore struct {
	storage.Store
	key  string
	open chan struct{}
}

func (s *lateStore) Get(ctx context.Context, key string) (storage.Object, error) {
	if key == s.key {
		select {
		case <-s.open:
		case <-ctx.Done():
			return storage.Object{}, nstance.Errorf(nstance.Unavailable, "no answer")
		}
	}
	return s.Store.Get(ctx, key)
}

// firstAnswers are the calls whose answers clients take for all that there is, each with
// what it must contain.
func firstAnswers(ctx context.Context, api apiv1.OperatorServiceClient) map[string]func() ([]string, error) {
	return map[string]func() ([]string, error){
		"instances": func() (ids []string, err error) {
			resp, err := api.ListInstances(ctx, &apiv1.ListInstancesRequest{})
			for _, i := range resp.GetInstances() {
				ids = append(ids, i.GetId())
			}
			return ids, err
		},
		"watched instances": func() (ids []string, err error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := api.WatchInstanceEvents(ctx, &apiv1.WatchInstanceEventsRequest{})
			for err == nil {
				var m *apiv1.WatchInstanceEventsResponse
				if m, err = stream.Recv(); m.GetSynced() != nil {
					break
				}
				ids = append(ids, m.GetSnapshot().GetId())
			}
			return ids, err
		},
		"groups": func() (keys []string, err error) {
			resp, err := api.ListGroups(ctx, &apiv1.ListGroupsRequest{})
			for _, g := range resp.GetGroups() {
				keys = append(keys, g.GetTenant()+"/"+g.GetGroup())
			}
			return keys, err
		},
		"watched groups": func() (keys []string, err error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := api.WatchGroups(ctx, &apiv1.WatchGroupsRequest{})
			for err == nil {
				var m *apiv1.WatchGroupsResponse
				if m, err = stream.Recv(); m.GetSynced() != nil {
					break
				}
				keys = append(keys, m.GetSnapshot().GetTenant()+"/"+m.GetSnapshot().GetGroup())
			}
			return keys, err
		},
	}
}

// TestFirstAnswersAreComplete: a new leader answers nothing that lacks what it has not
// read yet. A client that took an incomplete answer for the truth would delete machines.
func TestFirstAnswersAreComplete(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		shut    string
		refused []string // while it is shut; the others are complete
	}{
		"instance records": {layout.InstancePrefix(zone), []string{"instances", "watched instances", "groups", "watched groups"}},
		"overlays":         {layout.GroupsKey(zone), []string{"groups", "watched groups"}},
	} {
		t.Run(name, func(t *testing.T) {
			store := &shutStore{Store: storage.NewMemory()}
			w := newWorld(t, setup{webSize: 2, store: store})
			admin := w.registerClient(nstance.RoleAdmin, nstance.DefaultTenant)
			_, err := admin.operatorAPI().CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(0)})
			require.NoError(t, err)
			require.Eventually(t, func() bool { return len(w.cloud.Machines()) == 3 }, eventually, time.Millisecond)
			before := w.cloud.Machines()
			require.NoError(t, w.stopServer())

			store.shutFor(c.shut)
			opts := server.Options{Journal: w.journal, Kinds: kinds}
			hasten(&opts, func() {})
			w.server, err = server.New(t.Context(), w.store, w.cloud, w.conf.read, &opts)
			require.NoError(t, err)
			w.run()
			calls := firstAnswers(t.Context(), admin.operatorAPI())
			complete := map[string]int{"instances": len(before), "watched instances": len(before), "groups": 3, "watched groups": 3}
			leads := func(call string) bool {
				_, err := calls[call]()
				return err == nil || !strings.Contains(err.Error(), "does not lead")
			}
			require.Eventually(t, func() bool { return leads("instances") }, eventually, time.Millisecond)
			for _, call := range c.refused {
				_, err := calls[call]()
				require.ErrorIs(t, wire.ErrorOf(err), nstance.Unavailable, call)
				delete(complete, call)
			}
			requireComplete(t, calls, complete)
			store.shutFor("")
			requireComplete(t, calls, map[string]int{"instances": len(before), "watched instances": len(before), "groups": 3, "watched groups": 3})
		})
	}
}

// requireComplete requires that the first answer of each call has so many entries.
func requireComplete(t *testing.T, calls map[string]func() ([]string, error), want map[string]int) {
	t.Helper()
	for call, n := range want {
		var found []string
		require.Eventually(t, func() (ok bool) {
			var err error
			found, err = calls[call]()
			return err == nil
		}, eventually, time.Millisecond, call)
		require.Len(t, found, n, call)
	}
}

// TestFirstGroupsHaveNoDefinition: a new leader lists a group that never had a whole
// definition, also while what its configuration names is still being read.
func TestFirstGroupsHaveNoDefinition(t *testing.T) {
	t.Parallel()
	store := storage.NewMemory()
	w := newWorld(t, setup{config: joinConfig(1), store: store})
	w.awaitHold(w.admin(), "web", plan.HoldPending)
	admin := w.registerClient(nstance.RoleAdmin, nstance.DefaultTenant)
	require.NoError(t, w.stopServer())
	late := &lateStore{Store: store, key: layout.ResolvedKey(zone), open: make(chan struct{})}
	w.store = late
	w.startSuccessor(server.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	early := firstAnswers(ctx, admin.operatorAPI())
	for _, call := range []string{"groups", "watched groups"} {
		found, err := early[call]()
		require.Error(t, err, "%s: %v", call, found)
	}
	close(late.open)
	requireComplete(t, firstAnswers(t.Context(), admin.operatorAPI()), map[string]int{"groups": 1, "watched groups": 1})
}
