package operator

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/memkube"
	"github.com/nstance-go/nstance/kubernetes/internal/shards"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
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

// TestWhenRenewed: a server can have the certificate renewed earlier, and not later. Of several
// requests the earliest counts.
func TestWhenRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		fl := &fleet{fleets: newFleets(nil, slog.New(slog.DiscardHandler)), identity: shards.Identity{RenewAt: start.Add(time.Hour)}}
		require.Equal(t, start.Add(time.Hour), fl.renewAt())
		fl.renewWithin(10 * time.Hour)
		require.Equal(t, start.Add(time.Hour), fl.renewAt())
		fl.renewWithin(time.Hour)
		require.Equal(t, start.Add(30*time.Minute), fl.renewAt())
		fl.renewWithin(90 * time.Minute)
		require.Equal(t, start.Add(30*time.Minute), fl.renewAt())
	})
}

// TestConnectionIsTold: each change of a connection once, a refusal that is repeated too. The time is
// that of the last change.
func TestConnectionIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		used := shards.Identity{Chain: [][]byte{[]byte("used")}}
		fl := &fleet{fleets: newFleets(nil, slog.New(slog.DiscardHandler)), identity: used, shards: map[string]*connection{}}
		c := &connection{Shard: shards.New(shards.Options{}), status: infrav1.ShardStatus{Name: "a", Connected: new(bool)}}
		told := 0
		fl.fleets.onClusterChanged(func(client.ObjectKey) { told++ })
		refusal := &shards.Refusal{Certificate: used.Certificate(), Err: errors.New("revoked")}
		change := func(connected bool, why error, want int) {
			t.Helper()
			<-time.After(time.Minute)
			fl.connectionChanged(c, connected, why)
			require.Equal(t, want, told)
		}
		change(true, nil, 1)
		since := c.status.LastChange
		change(true, nil, 1)
		require.Equal(t, since, c.status.LastChange)
		change(false, refusal, 2)
		require.NotEqual(t, since, c.status.LastChange)
		since = c.status.LastChange
		change(false, refusal, 2)
		change(false, errors.New(strings.Repeat("x", 5000)), 3)
		require.Len(t, c.status.Message, 1024, "the API server takes no longer one")
		change(false, errors.New(strings.Repeat("x", 1023)+"é"), 4)
		require.Equal(t, strings.Repeat("x", 1023), c.status.Message, "nor half a character")
		require.Equal(t, since, c.status.LastChange)
	})
}

// comparisons counts how often nodes are compared with instances.
type comparisons struct{ atomic.Int32 }

func (c *comparisons) OfNodes(context.Context, []*corev1.Node) map[types.UID]nodedrain.Known {
	c.Add(1)
	return nil
}

// TestComparesOnConnect: what a shard that is reached again did meanwhile counts for the nodes at
// once. One that is lost says nothing about them.
func TestComparesOnConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube, compared := memkube.New(), &comparisons{}
		kube.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		drainer, err := nodedrain.New(kube.Config(), drain.New(nil), &nodedrain.Options{Instances: compared})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = drainer.Run(ctx) })
		fl := &fleet{fleets: newFleets(nil, slog.New(slog.DiscardHandler)), shards: map[string]*connection{}, nodes: &nodeDrainer{Drainer: drainer}}
		c := &connection{Shard: shards.New(shards.Options{}), status: infrav1.ShardStatus{Name: "a", Connected: new(bool)}}
		pass(5 * time.Second)
		began := compared.Load()
		fl.connectionChanged(c, false, errors.New("lost"))
		pass(5 * time.Second)
		require.Equal(t, began, compared.Load())
		fl.connectionChanged(c, true, nil)
		pass(5 * time.Second)
		require.Equal(t, began+1, compared.Load())
		cancel()
		running.Wait()
	})
}

// TestAddedShardDrains: the operator drains the machines of a shard that is added while it reaches the nodes.
func TestAddedShardDrains(t *testing.T) {
	r, _ := newCertificateRig(t, "a")
	drainer, err := nodedrain.New(memkube.New().Config(), drain.New(nil), nil)
	require.NoError(t, err)
	fl := r.fleet()
	fl.mu.Lock()
	fl.nodes = &nodeDrainer{Drainer: drainer, access: &nodeAccess{}, cancel: func() {}}
	fl.mu.Unlock()
	b := r.shards.Start("b", 1)
	r.nc.Spec.Shards = append(r.nc.Spec.Shards, infrav1.Shard{Name: "b", Address: b.Operator()})
	var id nstance.InstanceID
	r.until(func() bool {
		for _, i := range r.connection(b).AllInstances() {
			id = nstance.InstanceID(i.GetId())
			return i.GetState() == string(nstance.Ready)
		}
		return false
	}, "ready")
	r.drain(b, id)
	require.Equal(t, nstance.ExecutorOperator, b.Executor(id))
}

// TestNodesOfClusters: Clusters of two namespaces may have one name. What reaches the nodes of one
// ends with its connections.
func TestNodesOfClusters(t *testing.T) {
	f, ended := newFleets(nil, slog.New(slog.DiscardHandler)), ""
	for _, namespace := range []string{"blue", "green"} {
		nodes := &nodeDrainer{pods: &podWatch{cluster: "c"}, cancel: func() { ended += namespace }}
		shard := &connection{cancel: func(why error) {
			require.NoError(t, why, "drains are not given up: another operator may have the cluster")
			ended += namespace + " a "
		}}
		f.byCluster[client.ObjectKey{Namespace: namespace, Name: "infra"}] = &fleet{nodes: nodes, shards: map[string]*connection{"a": shard}}
	}
	require.Same(t, f.byCluster[client.ObjectKey{Namespace: "green", Name: "infra"}].nodes, f.nodesOfCluster(client.ObjectKey{Namespace: "green", Name: "c"}))
	require.Nil(t, f.nodesOfCluster(client.ObjectKey{Namespace: "green", Name: "d"}))
	f.forget(client.ObjectKey{Namespace: "green", Name: "infra"})
	require.Equal(t, "green a green", ended)
	require.Nil(t, f.nodesOfCluster(client.ObjectKey{Namespace: "green", Name: "c"}))
	require.NotNil(t, f.nodesOfCluster(client.ObjectKey{Namespace: "blue", Name: "c"}))
}

// TestShardWithGroup: of the shards that have a group, one that is away is not chosen.
func TestShardWithGroup(t *testing.T) {
	r, servers := newCertificateRig(t, "a", "b")
	with := func() string { return r.fleets.shardWith(r.cluster, "web") }
	require.Equal(t, "a", with())
	require.Empty(t, r.fleets.shardWith(r.cluster, "nowhere"))
	require.NoError(t, r.fleet().checkSynced())
	servers[0].Stop()
	r.until(func() bool { return with() == "b" }, "the other one")
	require.ErrorIs(t, r.fleet().checkSynced(), nstance.Unavailable)
}

// TestAccessIsTold: refused credentials count at once, and what is wrong is as it is now.
func TestAccessIsTold(t *testing.T) {
	a := newNodeAccess()
	var told []bool
	a.changed = func(reached bool) { told = append(told, reached) }
	a.record(errors.New("no route to host"))
	require.Contains(t, a.condition().Message, "no route to host", "the first answer counts")
	told = nil
	a.record(nil)
	require.Equal(t, []bool{true}, told)
	a.record(errors.New("connection refused"))
	require.True(t, a.reached(), "it may restart")
	a.record(nil)
	a.record(apierrors.NewUnauthorized("expired"))
	require.Equal(t, []bool{true, false}, told)
	a.record(apierrors.NewServiceUnavailable("starting"))
	require.Contains(t, a.condition().Message, "starting", "the latest")
	require.Equal(t, []bool{true, false, false}, told, "another reason")
	a.record(apierrors.NewServiceUnavailable("starting, still"))
	require.Len(t, told, 3, "other words")
	a.record(nil)
	require.Equal(t, []bool{true, false, false, true}, told)

	a.read = func(context.Context) ([]byte, error) { return nil, nil }
	a.use = func([]byte) (bool, error) { return false, errors.New("no kubeconfig") }
	a.reread(t.Context())
	require.Contains(t, a.condition().Message, "is not used")
	a.use = func([]byte) (bool, error) { return true, nil }
	require.True(t, a.reread(t.Context()))
	require.Empty(t, a.condition().Message)
}

// TestRereadsKubeconfig: one that works is looked at every ten minutes: a server that is replaced
// need not refuse anything.
func TestRereadsKubeconfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAccessRig(t, 100*time.Hour)
		defer r.stop()
		pass(time.Hour)
		require.InDelta(t, 6, r.readings(), 1)
	})
}
