package operator

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/clip"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/shards"
)

// fleets holds the connections to the shards of every NstanceCluster, while the
// manager leads. It is safe for concurrent use.
type fleets struct {
	log     *slog.Logger
	objects client.Reader  // of the management cluster
	running sync.WaitGroup // the shards
	ready   chan struct{}  // closed once ctx is set

	evictionRequests bool                  // of Options
	metrics          prometheus.Registerer // nil: none

	mu        sync.Mutex
	ctx       context.Context // of the leadership
	byCluster map[client.ObjectKey]*fleet

	// clusterChanged is told when a shard of a cluster is reached or lost, or
	// wants its certificate renewed. It must not block.
	clusterChanged func(client.ObjectKey)

	// podChanged is told when the pod of a Machine has changed, in a Cluster; without
	// a Machine when all pods have been listed. It must not block.
	podChanged func(cluster client.ObjectKey, machine string)

	// nodesChanged is told when nodes of a Cluster come, go or are about to end. It must
	// not block.
	nodesChanged func(cluster client.ObjectKey)

	// surgeChanged is told when Deployments of the cluster of an NstanceCluster are to be
	// surged, or may be. It must not block.
	surgeChanged func(client.ObjectKey)

	// subscribers are told of changes at shards. They must not block.
	subscribers []func(change)
}

// A change is of a group of a shard, or of one of its instances.
type change struct {
	cluster  client.ObjectKey // of the NstanceCluster
	shard    nstance.ShardID
	group    nstance.GroupID
	instance nstance.InstanceID // empty: the group has changed
}

func newFleets(objects client.Reader, log *slog.Logger) *fleets {
	return &fleets{
		log: log, objects: objects, ready: make(chan struct{}), byCluster: map[client.ObjectKey]*fleet{},
		clusterChanged: func(client.ObjectKey) {}, podChanged: func(client.ObjectKey, string) {},
		nodesChanged: func(client.ObjectKey) {}, surgeChanged: func(client.ObjectKey) {},
	}
}

func (f *fleets) onClusterChanged(do func(client.ObjectKey)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clusterChanged = do
}

func (f *fleets) onPodChanged(do func(cluster client.ObjectKey, machine string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.podChanged = do
}

func (f *fleets) tellPod(cluster client.ObjectKey, machine string) {
	f.mu.Lock()
	tell := f.podChanged
	f.mu.Unlock()
	tell(cluster, machine)
}

func (f *fleets) onNodesChanged(do func(cluster client.ObjectKey)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodesChanged = do
}

func (f *fleets) tellNodes(cluster client.ObjectKey) {
	f.mu.Lock()
	tell := f.nodesChanged
	f.mu.Unlock()
	tell(cluster)
}

func (f *fleets) onSurgeChanged(do func(client.ObjectKey)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.surgeChanged = do
}

func (f *fleets) tellSurge(key client.ObjectKey) {
	f.mu.Lock()
	tell := f.surgeChanged
	f.mu.Unlock()
	tell(key)
}

func (f *fleets) subscribe(do func(change)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subscribers = append(f.subscribers, do)
}

// changes returns the source of a controller whose objects follow what happens at
// shards. keys are those of the objects that a change is about.
func (f *fleets) changes(keys func(change) []client.ObjectKey) source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		f.subscribe(func(c change) {
			for _, key := range keys(c) {
				queue.Add(reconcile.Request{NamespacedName: key})
			}
		})
		return nil
	})
}

func (f *fleets) tellCluster(key client.ObjectKey) {
	f.mu.Lock()
	tell := f.clusterChanged
	f.mu.Unlock()
	tell(key)
}

func (f *fleets) tell(c change) {
	f.mu.Lock()
	subscribers := f.subscribers
	f.mu.Unlock()
	for _, tell := range subscribers {
		tell(c)
	}
}

// byKey returns the fleet of an NstanceCluster; nil: there is none yet.
func (f *fleets) byKey(key client.ObjectKey) *fleet {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byCluster[key]
}

// drainer returns what reaches the nodes; nil: nothing does.
func (fl *fleet) drainer() *nodeDrainer {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if !fl.reachesNodes() {
		return nil
	}
	return fl.nodes
}

// all returns the fleets of all clusters.
func (f *fleets) all() []*fleet {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.byCluster))
}

// shardOf returns the copy and the API of a shard of a Cluster's infrastructure.
// Fails with Unavailable while it is not connected.
func (f *fleets) shardOf(cluster *clusterv1.Cluster, name nstance.ShardID) (*shards.Shard, apiv1.OperatorServiceClient, error) {
	fl := f.of(cluster)
	if fl == nil {
		return nil, nil, nstance.Errorf(nstance.Unavailable, "NstanceCluster %s has no connections", cluster.Spec.InfrastructureRef.Name)
	}
	fl.mu.Lock()
	c := fl.shards[string(name)]
	fl.mu.Unlock()
	if c == nil {
		return nil, nil, nstance.FieldError("spec.shard", "name a shard of the NstanceCluster", "NstanceCluster %s has no shard %s", cluster.Spec.InfrastructureRef.Name, name)
	}
	api, err := c.API()
	if err == nil && !c.Synced() {
		err = nstance.Errorf(nstance.Unavailable, "shard %s is being listed", name)
	}
	return c.Shard, api, err
}

// shardWith returns the first shard of a Cluster that is connected and has a group; empty:
// none.
func (f *fleets) shardWith(cluster *clusterv1.Cluster, group nstance.GroupID) string {
	return f.shardWithBest(cluster, group, func(string, *apiv1.Group) int { return 0 })
}

// shardWithBest returns that of those shards whose group has the highest rank, of equals the
// first.
func (f *fleets) shardWithBest(cluster *clusterv1.Cluster, group nstance.GroupID, rank func(shard string, g *apiv1.Group) int) (best string) {
	fl := f.of(cluster)
	if fl == nil {
		return ""
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	highest := 0
	for _, name := range slices.Sorted(maps.Keys(fl.shards)) {
		c := fl.shards[name]
		if _, err := c.API(); err != nil {
			continue
		}
		if g, ok := c.Group(group); ok {
			if r := rank(name, g); best == "" || r > highest {
				best, highest = name, r
			}
		}
	}
	return best
}

// nodesOf returns what reaches the nodes of a Cluster; nil: nothing yet.
func (f *fleets) nodesOf(cluster *clusterv1.Cluster) *nodeDrainer {
	fl := f.of(cluster)
	if fl == nil {
		return nil
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return fl.nodes
}

// nodesOfCluster returns what reaches the nodes of the Cluster of that name; nil: nothing yet.
func (f *fleets) nodesOfCluster(cluster client.ObjectKey) *nodeDrainer {
	for _, n := range f.nodesIn(cluster.Namespace) {
		if n.pods.cluster == cluster.Name {
			return n
		}
	}
	return nil
}

// clusterOfPod returns the name of the Cluster with the living pod of a Machine; empty:
// there is none.
func (f *fleets) clusterOfPod(machine client.ObjectKey) string {
	for _, n := range f.nodesIn(machine.Namespace) {
		if n.pods.pod(machine.Name) != nil {
			return n.pods.cluster
		}
	}
	return ""
}

// nodesIn returns what reaches the nodes of the Clusters in a namespace.
func (f *fleets) nodesIn(namespace string) (out []*nodeDrainer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, fl := range f.byCluster {
		if key.Namespace != namespace {
			continue
		}
		fl.mu.Lock()
		if fl.nodes != nil {
			out = append(out, fl.nodes)
		}
		fl.mu.Unlock()
	}
	return out
}

// of returns the fleet of a Cluster; nil: there is none yet.
func (f *fleets) of(cluster *clusterv1.Cluster) *fleet {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byCluster[infrastructureOf(cluster)]
}

// infrastructureOf names the NstanceCluster of a Cluster.
func infrastructureOf(cluster *clusterv1.Cluster) client.ObjectKey {
	return client.ObjectKey{Namespace: cluster.Namespace, Name: cluster.Spec.InfrastructureRef.Name}
}

// Start implements manager.Runnable: it ends the connections with ctx.
func (f *fleets) Start(ctx context.Context) error {
	f.mu.Lock()
	f.ctx = ctx
	f.mu.Unlock()
	if f.metrics != nil {
		if err := f.metrics.Register(drainMetrics{f.drainStats}); err != nil {
			return err
		}
		defer f.metrics.Unregister(drainMetrics{f.drainStats})
	}
	close(f.ready)
	<-ctx.Done()
	f.running.Wait()
	return nil
}

// lead returns the context of the leadership. It is called after follow.
func (f *fleets) lead() context.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ctx
}

// A fleet is the shards of one cluster. It is safe for concurrent use.
type fleet struct {
	key    client.ObjectKey
	fleets *fleets
	began  time.Time // in this process

	drains *drain.Coordinator // mirrors the drains of every shard

	mu             sync.Mutex
	identity       shards.Identity
	renewRequested time.Time // when a server wants the certificate renewed; zero: none does
	lastRequest    time.Time // for another certificate
	shards         map[string]*connection
	nodes          *nodeDrainer // nil: not yet
	noKubeconfig   bool         // there was none when it was looked for
}

// A connection is one shard of a fleet.
type connection struct {
	*shards.Shard
	cancel context.CancelCauseFunc

	// Guarded by the fleet.
	address string
	status  infrav1.ShardStatus
	refused error // of the certificate, since the shard was reached last; nil: it was not refused
}

// follow connects to the shards that a cluster names, and to no others.
func (f *fleets) follow(ctx context.Context, cluster *infrav1.NstanceCluster, id shards.Identity) (*fleet, error) {
	select {
	case <-f.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	key := client.ObjectKeyFromObject(cluster)
	f.mu.Lock()
	fl := f.byCluster[key]
	if fl == nil {
		fl = &fleet{key: key, fleets: f, began: time.Now(), drains: drain.New(&drain.Options{Log: f.log}), shards: map[string]*connection{}}
		f.byCluster[key] = fl
	}
	lead := f.ctx
	f.mu.Unlock()
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.use(id)
	named := map[string]bool{}
	for _, s := range cluster.Spec.Shards {
		named[s.Name] = true
		switch c := fl.shards[s.Name]; {
		case c == nil:
			fl.connect(lead, s)
		case c.address != s.Address:
			c.address, c.refused = s.Address, nil
			c.Reconnect()
		}
	}
	for name := range maps.Clone(fl.shards) {
		if !named[name] {
			fl.drop(name, errRemoved)
		}
	}
	return fl, nil
}

// errRemoved ends the connection to a shard that its cluster does not name any more.
var errRemoved = errors.New("the shard was removed")

// use has the shards see an identity from now on. What was said of another certificate does
// not hold for this one. It is called with the fleet locked.
func (fl *fleet) use(id shards.Identity) {
	replaced := !bytes.Equal(fl.identity.Certificate(), id.Certificate())
	fl.identity = id
	if !replaced {
		return
	}
	fl.renewRequested = time.Time{}
	for _, c := range fl.shards {
		c.refused = nil
		c.Reconnect()
	}
}

// forget ends the connections of a cluster.
func (f *fleets) forget(key client.ObjectKey) {
	f.mu.Lock()
	fl := f.byCluster[key]
	delete(f.byCluster, key)
	f.mu.Unlock()
	if fl == nil {
		return
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for name := range maps.Clone(fl.shards) {
		fl.drop(name, nil)
	}
	if fl.nodes != nil {
		fl.nodes.cancel()
	}
}

// connect is called with the fleet locked.
func (fl *fleet) connect(lead context.Context, s infrav1.Shard) {
	ctx, cancel := context.WithCancelCause(lead)
	c := &connection{address: s.Address, cancel: cancel, status: infrav1.ShardStatus{Name: s.Name, Connected: new(bool), LastChange: metav1.Now()}}
	c.Shard = shards.New(shards.Options{
		Name: nstance.ShardID(s.Name), Servers: func() []string { return fl.addressesOf(c) }, Identity: fl.currentIdentity, Renew: fl.renewWithin, Drains: fl.drains,
		Connection: func(connected bool, why error) { fl.connectionChanged(c, connected, why) },
		InstanceChanged: func(id nstance.InstanceID, group nstance.GroupID) {
			fl.fleets.tell(change{cluster: fl.key, shard: c.Name(), group: group, instance: id})
		},
		GroupChanged: func(group nstance.GroupID) { fl.fleets.tell(change{cluster: fl.key, shard: c.Name(), group: group}) },
		Gone:         fl.machineGone,
		Log:          fl.fleets.log.With("cluster", fl.key.String()),
	})
	c.SetExecutor(fl.reachesNodes())
	fl.shards[s.Name] = c
	fl.fleets.running.Go(func() {
		c.Run(ctx)
		if errors.Is(context.Cause(ctx), errRemoved) {
			c.GiveUpDrains(lead)
		}
	})
}

// drop is called with the fleet locked.
func (fl *fleet) drop(name string, why error) {
	if c := fl.shards[name]; c != nil {
		c.cancel(why)
		delete(fl.shards, name)
	}
}

func (fl *fleet) addressesOf(c *connection) []string {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return []string{c.address}
}

func (fl *fleet) currentIdentity() shards.Identity {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return fl.identity
}

// renewWithin is told by a server whose authority's key is being retired.
func (fl *fleet) renewWithin(within time.Duration) {
	fl.mu.Lock()
	if at := time.Now().Add(within / 2); fl.renewRequested.IsZero() || at.Before(fl.renewRequested) {
		fl.renewRequested = at
	}
	fl.mu.Unlock()
	fl.fleets.tellCluster(fl.key)
}

func (fl *fleet) connectionChanged(c *connection, connected bool, why error) {
	fl.mu.Lock()
	message := ""
	if why != nil {
		message = clip.Text(why.Error(), 1024)
	}
	changed := *c.status.Connected != connected || c.status.Message != message
	changed = fl.recordRefusal(c, connected, why) || changed
	if *c.status.Connected != connected {
		c.status.LastChange = metav1.Now()
	}
	c.status.Connected, c.status.Message = &connected, message
	if connected && fl.nodes != nil {
		fl.nodes.Compare()
	}
	fl.mu.Unlock()
	if changed {
		fl.fleets.tellCluster(fl.key)
	}
}

// status returns what is known of the shards, in the order of names.
func (fl *fleet) status() (out []infrav1.ShardStatus) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(fl.shards)) {
		out = append(out, fl.shards[name].status)
	}
	return out
}

// checkSynced fails with Unavailable while a shard is not connected and listed.
func (fl *fleet) checkSynced() error {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(fl.shards)) {
		c := fl.shards[name]
		if _, err := c.API(); err != nil {
			return err
		}
		if !c.Synced() {
			return nstance.Errorf(nstance.Unavailable, "shard %s is being listed", name)
		}
	}
	return nil
}

// connectedAPIs returns the APIs of the shards that are connected, in the order of names.
func (fl *fleet) connectedAPIs() (out []apiv1.OperatorServiceClient) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(fl.shards)) {
		if api, err := fl.shards[name].API(); err == nil {
			out = append(out, api)
		}
	}
	return out
}
