package operator

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/kubernetes/internal/kubeconfig"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// goneWidth is how many nodes of machines that are gone are removed at the same time.
const goneWidth = 64

// conditionRate is how many conditions of nodes are written in a second, at most.
const conditionRate = 50

// A nodeDrainer drains the nodes of one cluster, removes those whose machine is gone,
// and follows the pods that ask for machines. Its workloads may be protected.
type nodeDrainer struct {
	*nodedrain.Drainer
	access    *nodeAccess
	client    kubernetes.Interface
	pods      *podWatch
	workloads *workloadCluster
	surges    *surges
	gone      workqueue.TypedRateLimitingInterface[goneMachine]
	mu        sync.Mutex
	goneSince map[nstance.InstanceID]time.Time // of those in gone
	cancel    context.CancelFunc
}

// A goneMachine is a machine that does not exist any more.
type goneMachine struct {
	id         nstance.InstanceID
	providerID string // of its node; empty: not known
}

// drainNodes drains the nodes of the cluster that a kubeconfig is for, from now on, also when
// read returns another one. Fails with Invalid for what is no kubeconfig, or one that is no
// data.
func (fl *fleet) drainNodes(lead context.Context, cluster *clusterv1.Cluster, secret []byte, read func(context.Context) ([]byte, error)) error {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if fl.nodes != nil {
		return nil
	}
	access := newNodeAccess()
	connection, err := kubeconfig.Connect(secret, access.refuse)
	if err != nil {
		return err
	}
	access.use, access.read, access.changed = connection.Use, read, fl.nodesReached
	ctx, cancel := context.WithCancel(lead)
	n, err := fl.newNodeDrainer(ctx, cluster, connection.Config())
	if err != nil {
		cancel()
		return err
	}
	n.access, n.cancel = access, cancel
	if access.probe, err = probeNodes(connection.Config()); err != nil {
		cancel()
		return err
	}
	fl.nodes = n
	run := fl.fleets.running.Go
	run(func() {
		_ = n.Run(ctx) // nil, when ctx ends
		n.gone.ShutDown()
	})
	run(func() { n.pods.run(ctx) })
	run(func() { access.run(ctx) })
	for range goneWidth {
		run(func() { n.removeGone(ctx) })
	}
	return nil
}

// newNodeDrainer returns what nothing runs yet. It is called with the fleet locked.
func (fl *fleet) newNodeDrainer(ctx context.Context, cluster *clusterv1.Cluster, cfg *rest.Config) (*nodeDrainer, error) {
	cfg.QPS, cfg.Burst = conditionRate, conditionRate
	log := fl.fleets.log.With("cluster", fl.key.String())
	nodes, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	surges := newSurges(func() { fl.fleets.tellSurge(fl.key) })
	managed := newManagedNodes(fl.fleets.objects, cluster, nodes, surges)
	options := &nodedrain.Options{Tenant: fl.identity.Tenant, Rules: managed, Hooks: managed, Instances: fl, Log: log}
	if fl.fleets.evictionRequests {
		if options.Evictor, err = nodedrain.NewEvictionRequests(cfg, log); err != nil {
			return nil, err
		}
	}
	d, err := nodedrain.New(cfg, shardDrains{fl.drains, fl}, options)
	if err != nil {
		return nil, err
	}
	of := client.ObjectKeyFromObject(cluster)
	pods, err := newPodWatch(cfg, cluster.Name, func(machine string) { fl.fleets.tellPod(of, machine) }, log)
	if err != nil {
		return nil, err
	}
	workloads, err := newWorkloadCluster(cfg, func() { fl.fleets.tellNodes(of) }, func(run func(context.Context)) {
		fl.fleets.running.Go(func() { run(ctx) })
	})
	if err != nil {
		return nil, err
	}
	gone := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[goneMachine]())
	return &nodeDrainer{Drainer: d, client: nodes, pods: pods, workloads: workloads, surges: surges, gone: gone, goneSince: map[nstance.InstanceID]time.Time{}}, nil
}

// nodesReached has the shards give drains to the operator while it reaches the nodes: until
// then an agent's hook, or the deadline, is the better executor.
func (fl *fleet) nodesReached(reached bool) {
	fl.mu.Lock()
	for _, c := range fl.shards {
		c.SetExecutor(reached)
	}
	fl.mu.Unlock()
	fl.fleets.tellCluster(fl.key)
	fl.fleets.tellSurge(fl.key) // one may have begun before
}

// reachesNodes is called with the fleet locked.
func (fl *fleet) reachesNodes() bool {
	return fl.nodes != nil && fl.nodes.access.reached()
}

// machineGone has the node of a machine removed that the provider says is gone. It
// has that provider ID, or that of the instance.
func (fl *fleet) machineGone(id nstance.InstanceID, providerID string) {
	fl.mu.Lock()
	nodes := fl.nodes
	fl.mu.Unlock()
	if nodes != nil {
		nodes.remove(goneMachine{id, providerID})
	}
}

// kubeconfigRead records whether there is a kubeconfig, from how it could be read.
func (fl *fleet) kubeconfigRead(err error) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.noKubeconfig = errors.Is(err, nstance.NotFound)
}

// removesNode has the node of a machine removed that the provider says is gone, and reports
// whether it may still be there, and has been for no longer than nodeLimit: who deletes it
// sooner leaves its volumes attached for six minutes.
func (f *fleets) removesNode(cluster *clusterv1.Cluster, id nstance.InstanceID, providerID string) bool {
	fl := f.of(cluster)
	if fl == nil || !cluster.DeletionTimestamp.IsZero() {
		return false
	}
	fl.mu.Lock()
	nodes, began, none := fl.nodes, fl.began, fl.noKubeconfig
	fl.mu.Unlock()
	if nodes == nil {
		return !none && time.Since(began) < nodeLimit
	}
	switch _, err := nodes.Find(id, providerID); {
	case errors.Is(err, nstance.NotFound):
		return false
	case err != nil || !nodes.access.reached():
		return time.Since(began) < nodeLimit
	}
	return time.Since(nodes.remove(goneMachine{id, providerID})) < nodeLimit
}

// remove has the node of a machine removed, and returns since when.
func (n *nodeDrainer) remove(m goneMachine) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	since, ok := n.goneSince[m.id]
	if !ok {
		since = time.Now()
		n.goneSince[m.id] = since
		n.gone.Add(m)
	}
	return since
}

// removeGone removes nodes until the queue is shut down.
func (n *nodeDrainer) removeGone(ctx context.Context) {
	for {
		m, over := n.gone.Get()
		if over {
			return
		}
		if err := n.Gone(ctx, m.id, m.providerID); err != nil {
			n.gone.AddRateLimited(m)
		} else {
			n.gone.Forget(m)
			n.mu.Lock()
			delete(n.goneSince, m.id)
			n.mu.Unlock()
		}
		n.gone.Done(m)
	}
}

// setCondition sets a condition of the node of a machine, unless it has it. A node that does
// not exist, or whose name another one has by now, is left alone.
func (n *nodeDrainer) setCondition(ctx context.Context, id nstance.InstanceID, providerID string, c corev1.NodeCondition) error {
	node, err := n.Find(id, providerID)
	switch {
	case errors.Is(err, nstance.NotFound):
		return nil
	case err != nil:
		return err
	case hasCondition(node, c):
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"status":   map[string]any{"conditions": []corev1.NodeCondition{c}},
	})
	if err != nil {
		return err
	}
	_, err = n.client.CoreV1().Nodes().PatchStatus(ctx, node.Name, patch)
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || apierrors.IsConflict(err) { // gone, or another UID
		return nil
	}
	return err
}

func hasCondition(node *corev1.Node, want corev1.NodeCondition) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == want.Type && c.Status == want.Status && c.Reason == want.Reason && c.Message == want.Message
	})
}

// shardDrains are the drains of a fleet's shards: mirrored here, acknowledged there.
type shardDrains struct {
	*drain.Coordinator
	fleet *fleet
}

// Acknowledge implements nstance.DrainCoordinator.
func (s shardDrains) Acknowledge(ctx context.Context, a nstance.Ack) error {
	api, err := s.fleet.apiOf(a.Instance)
	if err != nil {
		return err
	}
	if _, err := api.AcknowledgeDrained(ctx, &apiv1.AcknowledgeDrainedRequest{
		Id: string(a.Instance), Generation: a.Generation, Outcome: string(a.Outcome), Delete: a.Delete, Message: a.Message,
	}); err != nil {
		return err
	}
	_ = s.Coordinator.Acknowledge(ctx, a) // its drain may have ended meanwhile
	return nil
}

// apiOf returns the API of the shard that has an instance. Fails with NotFound when
// none has it, Unavailable when that is not connected, or a shard that may have it is not
// connected and listed.
func (fl *fleet) apiOf(id nstance.InstanceID) (apiv1.OperatorServiceClient, error) {
	unsynced := fl.checkSynced() // before the copies are looked at: one may be completed meanwhile
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for _, c := range fl.shards {
		if _, ok := c.Instance(id); ok {
			return c.API()
		}
	}
	if unsynced != nil {
		return nil, unsynced
	}
	return nil, nstance.Errorf(nstance.NotFound, "no shard of %s has instance %s", fl.key, id)
}
