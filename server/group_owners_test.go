package server_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/server"
)

// ownedBy is a change of a group's size for an owner.
func ownedBy(owner, group string, size int32) *apiv1.UpdateGroupRequest {
	return &apiv1.UpdateGroupRequest{Group: group, Size: &size, Owner: owner}
}

// requireOwned checks that a request was refused because the group is another owner's, which
// the error names, with what to do.
func requireOwned(t *testing.T, err error, owner string) {
	t.Helper()
	requireFieldError(t, err, nstance.Conflict, "owner")
	require.ErrorContains(t, err, "is owned by "+owner)
	require.ErrorContains(t, err, "--owner ''")
}

// TestGroupsHaveOwners: a group is its first owner's, configured or made through the API,
// under every leader, until it is released or removed. What others ask for has no effect.
func TestGroupsHaveOwners(t *testing.T) {
	w := newWorld(t, setup{webSize: 1, shard: pools})
	api, admin := w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI(), w.admin()
	update := func(req *apiv1.UpdateGroupRequest) error {
		_, err := api.UpdateGroup(t.Context(), req)
		return err
	}
	remove := func(group, owner string) error {
		_, err := api.DeleteGroup(t.Context(), &apiv1.DeleteGroupRequest{Group: group, Owner: owner})
		return err
	}
	id := w.awaitMachine(nstance.DefaultTenant)
	require.NoError(t, update(ownedBy("", "web", 1)), "without owner every operator changes it")
	made := newGroupRequest()
	made.Owner = "one"
	_, err := api.CreateGroup(t.Context(), made)
	require.NoError(t, err)
	require.NoError(t, update(ownedBy("one", "web", 1)))

	refused := func(t *testing.T) {
		for _, group := range []string{"web", "batch"} {
			require.Equal(t, "one", w.getGroup(api, group).GetOwner())
			for _, other := range []string{"two", ""} {
				requireOwned(t, update(ownedBy(other, group, 7)), "one")
				requireOwned(t, update(&apiv1.UpdateGroupRequest{Group: group, Owner: other, RemoveFirst: []string{string(id)}}), "one")
				requireOwned(t, update(&apiv1.UpdateGroupRequest{Group: group, Owner: other, Release: true}), "one")
				requireOwned(t, remove(group, other), "one")
			}
			require.NotEqualValues(t, 7, w.getGroup(api, group).GetSize())
		}
		for _, other := range []string{"two", ""} {
			again := newGroupRequest()
			again.Owner = other
			_, err := api.CreateGroup(t.Context(), again)
			requireOwned(t, err, "one")
		}
		_, err := api.CreateGroup(t.Context(), made)
		require.NoError(t, err, "the owner's request is repeated")
		require.NoError(t, update(ownedBy("one", "web", 2)))
	}
	t.Run("others are refused", refused)
	t.Run("under the next leader too", func(t *testing.T) {
		w.startSuccessor(server.Options{})
		api, admin = w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI(), w.admin()
		refused(t)
	})
	t.Run("a reload of the configuration changes no owner", func(t *testing.T) {
		require.NoError(t, w.refreshConfig(admin))
		require.Equal(t, "one", w.getGroup(api, "web").GetOwner())
	})
	t.Run("bad owners are refused by name", func(t *testing.T) {
		for _, bad := range []string{"a b", "é", "\x1b[31m", strings.Repeat("a", 129)} {
			odd := newGroupRequest()
			odd.Group, odd.Owner = "odd", bad
			_, err := api.CreateGroup(t.Context(), odd)
			requireFieldError(t, err, nstance.Invalid, "owner")
		}
	})
	t.Run("an administrator gives a group to another owner", func(t *testing.T) {
		_, err := admin.UpdateGroup(t.Context(), ownedBy("", "web", 3))
		require.NoError(t, err)
		require.Equal(t, "one", w.getGroup(api, "web").GetOwner(), "a change without owner leaves it")
		_, err = admin.UpdateGroup(t.Context(), ownedBy("two", "web", 3))
		require.NoError(t, err)
		requireOwned(t, update(ownedBy("one", "web", 1)), "two")
	})
	t.Run("the owner releases it, and the next one has it", func(t *testing.T) {
		require.NoError(t, update(&apiv1.UpdateGroupRequest{Group: "web", Owner: "two", Release: true}))
		require.Empty(t, w.getGroup(api, "web").GetOwner())
		require.EqualValues(t, 3, w.getGroup(api, "web").GetSize(), "nothing else changes")
		require.NoError(t, update(ownedBy("three", "web", 1)))
		require.NoError(t, remove("web", "three"), "what the API changed of it, the owner too")
		require.Empty(t, w.getGroup(api, "web").GetOwner())
	})
	t.Run("a removed group has no owner", func(t *testing.T) {
		require.NoError(t, remove("batch", "one"))
		w.awaitEvent(nstance.EventGroupRemoved, "")
		second := newGroupRequest()
		second.Owner, second.Size = "two", proto.Int32(0)
		require.Eventually(t, func() bool { _, err := api.CreateGroup(t.Context(), second); return err == nil }, eventually, time.Millisecond)
		require.Equal(t, "two", w.getGroup(api, "batch").GetOwner())
	})
	t.Run("the journal has it", func(t *testing.T) {
		changed := eventsOfType(eventtype.GroupChanged)
		changed.Group = "web"
		w.awaitEventWithWords(admin, changed, "owner two")
		w.awaitEventWithWords(admin, changed, "no owner, was two")
	})
}

// TestOneOwner: of many that want a group at the same time one has it.
func TestOneOwner(t *testing.T) {
	w := newWorld(t, setup{webSize: 0})
	api := w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI()
	var tasks errgroup.Group
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	won := make([]bool, len(names))
	for i, name := range names {
		tasks.Go(func() error {
			_, err := api.UpdateGroup(t.Context(), ownedBy(name, "web", 0))
			won[i] = err == nil
			return nil
		})
	}
	require.NoError(t, tasks.Wait())
	owner := w.getGroup(api, "web").GetOwner()
	for i, name := range names {
		require.Equal(t, name == owner, won[i], name)
	}
}
