package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// configWithTenantLimits is the default configuration with limits of tenants.
func configWithTenantLimits(t *testing.T) string {
	return strings.Replace(fmt.Sprintf(configuration, pools, 1), `"templates": {`, `"tenants": {
		"blue": {"templates": ["vm"], "subnet_pools": ["open"], "instance_types": ["small"], "max_instances": 3, "allow_args": ["disk.size"]}
	},
	"templates": {"vm2": {"kind": "web", "arch": "amd64"}, `, 1)
}

// TestLimitsCountInvalidGroups: a group that lost its subnet pool keeps its members,
// so they count.
func TestLimitsCountInvalidGroups(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{config: configWithTenantLimits(t)})
	blue := w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
	group := &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(2), SubnetPool: "open"}
	_, err := blue.CreateGroup(t.Context(), group)
	require.NoError(t, err)
	w.applyConfig(strings.NewReplacer(pools, "", `"subnet_pools": ["open"], `, "").Replace(configWithTenantLimits(t)))
	w.awaitHold(blue, "batch", plan.HoldPending)
	_, err = blue.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "more", Template: "vm", Size: proto.Int32(1)})
	requireFieldError(t, err, nstance.Quota, "size")
}

func TestTenantLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{config: configWithTenantLimits(t)})
	blue, red := w.registerClient(nstance.RoleOperator, "blue").operatorAPI(), w.registerClient(nstance.RoleOperator, "red").operatorAPI()
	free := w.registerClient(nstance.RoleOperator, "default").operatorAPI()
	group := func(change func(*apiv1.CreateGroupRequest)) *apiv1.CreateGroupRequest {
		req := &apiv1.CreateGroupRequest{
			Group: "batch", Template: "vm", Size: proto.Int32(1), InstanceTypes: []string{"small"}, SubnetPool: "open", Args: `{"disk": {"size": 1}}`,
		}
		if change != nil {
			change(req)
		}
		return req
	}
	t.Run("unlisted names are refused by field", func(t *testing.T) {
		for field, change := range map[string]func(*apiv1.CreateGroupRequest){
			"template":       func(r *apiv1.CreateGroupRequest) { r.Template = "vm2" },
			"instance_types": func(r *apiv1.CreateGroupRequest) { r.InstanceTypes = []string{"small", "large"} },
			"subnet_pool":    func(r *apiv1.CreateGroupRequest) { r.SubnetPool = "closed" },
			"args.role":      func(r *apiv1.CreateGroupRequest) { r.Args = `{"role": "admin"}` },
		} {
			_, err := blue.CreateGroup(t.Context(), group(change))
			requireFieldError(t, err, nstance.Denied, field)
		}
		_, err := blue.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "db", InstanceType: proto.String("large")})
		requireFieldError(t, err, nstance.Denied, "instance_type")
		_, err = blue.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: newRequestID(t), Group: "db", InstanceType: "large"})
		requireFieldError(t, err, nstance.Denied, "instance_type")
		_, err = red.CreateGroup(t.Context(), group(nil))
		requireFieldError(t, err, nstance.Denied, "template")
	})
	t.Run("listed names are accepted, and tenants without limits may use all", func(t *testing.T) {
		_, err := blue.CreateGroup(t.Context(), group(nil))
		require.NoError(t, err)
		_, err = free.CreateGroup(t.Context(), group(func(r *apiv1.CreateGroupRequest) { r.InstanceTypes = []string{"any"} }))
		require.NoError(t, err)
		_, err = w.admin().CreateGroup(t.Context(), group(func(r *apiv1.CreateGroupRequest) { r.Tenant, r.InstanceTypes = "red", []string{"any"} }))
		require.NoError(t, err)
	})
	t.Run("the instance limit counts sizes and instances on demand", func(t *testing.T) {
		_, err := blue.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Size: proto.Int32(3)})
		requireFieldError(t, err, nstance.Quota, "size")
		_, err = blue.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: newRequestID(t), Group: "db"})
		require.NoError(t, err)
		_, err = blue.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: newRequestID(t), Group: "db"})
		requireFieldError(t, err, nstance.Quota, "id")
		_, err = blue.CreateGroup(t.Context(), group(func(r *apiv1.CreateGroupRequest) { r.Group = "more" }))
		requireFieldError(t, err, nstance.Quota, "size")
		_, err = blue.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Size: proto.Int32(2)})
		requireFieldError(t, err, nstance.Quota, "size")
		_, err = blue.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Size: proto.Int32(0)})
		require.NoError(t, err, "a smaller size is always valid")
	})
}

// TestTenantLimitWhileAGroupGrows: an instance on demand counts the size whose write is under way, until
// that is refused.
func TestTenantLimitWhileAGroupGrows(t *testing.T) {
	for name, lands := range map[string]bool{"it lands": true, "it is refused": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := storagetest.NewFaulty(storage.NewMemory())
			w := newWorld(t, setup{config: configWithTenantLimits(t), store: store})
			blue := w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
			w.awaitMachine("blue")
			create := func() error {
				_, err := blue.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: newRequestID(t), Group: "db"})
				return err
			}
			writing, answer := make(chan struct{}), make(chan struct{})
			store.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: layout.GroupsKey(zone), Pass: lands, Err: nstance.Denied, Do: func() {
				close(writing)
				<-answer
			}})
			edited := make(chan error, 1)
			go func() {
				_, err := blue.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "db", Size: proto.Int32(3)})
				edited <- err
			}()
			<-writing
			requireFieldError(t, create(), nstance.Quota, "id")
			close(answer)
			if err := <-edited; lands {
				require.NoError(t, err)
				requireFieldError(t, create(), nstance.Quota, "id")
			} else {
				require.Error(t, err)
				require.Eventually(t, func() bool { return create() == nil }, eventually, time.Millisecond)
			}
		})
	}
}
