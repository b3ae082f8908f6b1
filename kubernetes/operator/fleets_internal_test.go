package operator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/internal/test/shardtest"
)

// machines has a shard have so many ready machines, of which the operator knows.
func (r *certificateRig) machines(shard *shardtest.Shard, n int32) (ids []nstance.InstanceID) {
	r.Helper()
	c := r.connection(shard)
	c.SetExecutor(true)
	r.until(func() bool {
		api, err := c.API()
		if err == nil {
			_, err = api.UpdateGroup(r.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: ptr.To(n)})
		}
		return err == nil
	}, "resized")
	r.until(func() bool {
		ids = nil
		for _, i := range c.AllInstances() {
			if i.GetState() == string(nstance.Ready) {
				ids = append(ids, nstance.InstanceID(i.GetId()))
			}
		}
		return len(ids) == int(n)
	}, "ready")
	return ids
}

func (r *certificateRig) connection(shard *shardtest.Shard) *connection {
	fl := r.fleet()
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return fl.shards[string(shard.Name())]
}

func (r *certificateRig) mirrored(id nstance.InstanceID) bool {
	_, ok := r.fleet().drains.Of(id)
	return ok
}

// reclaim has the cloud take a machine back in ten minutes.
func (r *certificateRig) reclaim(shard *shardtest.Shard, id nstance.InstanceID) {
	r.Helper()
	require.NoError(r, shard.Cloud.Reclaim(id, 10*time.Minute))
	r.until(func() bool { return r.mirrored(id) }, "mirrored")
}

// drain has a shard drain a machine, which the cloud does not take back.
func (r *certificateRig) drain(shard *shardtest.Shard, id nstance.InstanceID) {
	r.Helper()
	api, err := r.connection(shard).API()
	require.NoError(r, err)
	_, err = api.DrainInstance(r.Context(), &apiv1.DrainInstanceRequest{Id: string(id)})
	require.NoError(r, err)
	r.until(func() bool { return r.mirrored(id) }, "mirrored")
}

// TestShardMoves: a shard that gets another address is the same shard. What ended there meanwhile is
// not drained any more.
func TestShardMoves(t *testing.T) {
	r, servers := newCertificateRig(t, "a")
	a := servers[0]
	ids := r.machines(a, 2)
	for _, id := range ids {
		r.reclaim(a, id)
	}
	wire, err := faultproxy.NewWire(a.Operator())
	require.NoError(t, err)
	t.Cleanup(wire.Close)
	move := func(address string) {
		r.nc.Spec.Shards[0].Address = address
		r.pass()
	}
	move("127.0.0.1:1") // where nothing is
	a.Delete(ids[0])
	require.Eventually(t, func() bool { return a.Ended(ids[0]) }, time.Minute, 2*time.Second, "deleted")
	move(wire.Addr())
	r.until(func() bool { return wire.Open() > 0 && r.connected() }, "connected there")
	r.until(func() bool { return !r.mirrored(ids[0]) }, "its machine is gone")
	require.True(t, r.mirrored(ids[1]))
}

// TestRemovedShardDrains: nothing else ends the drains of a shard that was removed, whether it is lost
// or not. What the cloud takes back is drained all the same.
func TestRemovedShardDrains(t *testing.T) {
	for name, lost := range map[string]bool{"it is there": false, "it is lost": true} {
		t.Run(name, func(t *testing.T) {
			r, servers := newCertificateRig(t, "a", "b")
			a, b := servers[0], servers[1]
			atA, atB := r.machines(a, 1), r.machines(b, 2)
			r.reclaim(b, atB[0])
			r.drain(b, atB[1])
			r.drain(a, atA[0])
			if lost {
				b.Stop()
			}
			r.nc.Spec.Shards = r.nc.Spec.Shards[:1]
			r.until(func() bool { return !r.mirrored(atB[1]) }, "given up")
			require.True(t, r.mirrored(atB[0]))
			require.True(t, r.mirrored(atA[0]))

			drains := r.fleet().drains
			r.fleets.forget(client.ObjectKeyFromObject(r.nc)) // another operator has the cluster
			r.stop()
			_, ok := drains.Of(atA[0])
			require.True(t, ok, "its nodes stay as they are")
		})
	}
}
