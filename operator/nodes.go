package operator

import (
	"bytes"
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/drain/kube"
)

// goneWidth is how many nodes of machines that are gone are removed at the same time.
const goneWidth = 8

// conditionRate is how many conditions of nodes are written in a second, at most.
const conditionRate = 50

// A nodeDrainer drains the nodes of one cluster, removes those whose machine is gone,
// and follows the pods that ask for machines. Its workloads may be protected.
type nodeDrainer struct {
	*kube.Drainer
	client    kubernetes.Interface
	pods      *podWatch
	workloads *workloadCluster
	gone      workqueue.TypedRateLimitingInterface[string] // IDs that nodes may have
	cancel    context.CancelFunc
}

// drainNodes drains the nodes of the cluster that a kubeconfig is for, from now on.
// Fails with Invalid for what is no kubeconfig.
func (fl *fleet) drainNodes(lead context.Context, cluster *clusterv1.Cluster, kubeconfig []byte) error {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if fl.nodes != nil && bytes.Equal(fl.kubeconfig, kubeconfig) {
		return nil
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nstance.FieldError("kubeconfig", "correct the key value of the Secret", "%v", err)
	}
	cfg.QPS, cfg.Burst = conditionRate, conditionRate
	log := fl.fleets.log.With("cluster", fl.key.String())
	nodes, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	managed := &managedNodes{objects: fl.fleets.objects, cluster: cluster, nodes: nodes}
	d, err := kube.New(cfg, shardDrains{fl.drains, fl}, &kube.Options{Tenant: fl.identity.Tenant, Rules: managed, Hooks: managed, Log: log})
	if err != nil {
		return err
	}
	of := client.ObjectKeyFromObject(cluster)
	pods, err := newPodWatch(cfg, cluster.Name, func(machine string) { fl.fleets.tellPod(of, machine) }, log)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(lead)
	workloads, err := newWorkloadCluster(cfg, func() { fl.fleets.tellNodes(of) }, func(run func(context.Context)) {
		fl.fleets.running.Go(func() { run(ctx) })
	})
	if err != nil {
		cancel()
		return err
	}
	if fl.nodes != nil {
		fl.nodes.cancel()
	}
	n := &nodeDrainer{Drainer: d, client: nodes, pods: pods, workloads: workloads, gone: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()), cancel: cancel}
	fl.nodes, fl.kubeconfig = n, bytes.Clone(kubeconfig)
	fl.fleets.running.Go(func() {
		_ = d.Run(ctx) // nil, when ctx ends
		n.gone.ShutDown()
	})
	fl.fleets.running.Go(func() { pods.run(ctx) })
	for range goneWidth {
		fl.fleets.running.Go(func() { n.removeGone(ctx) })
	}
	for _, c := range fl.shards {
		c.SetExecutor(true)
	}
	return nil
}

// machineGone has the node of a machine removed that the provider says is gone. It
// has the provider's ID of the machine or that of the instance in its own.
func (fl *fleet) machineGone(id nstance.InstanceID, providerID string) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if fl.nodes != nil {
		if providerID != "" {
			fl.nodes.gone.Add(providerID)
		}
		fl.nodes.gone.Add(string(id))
	}
}

// removeGone removes nodes until the queue is shut down.
func (n *nodeDrainer) removeGone(ctx context.Context) {
	for {
		id, over := n.gone.Get()
		if over {
			return
		}
		if err := n.Gone(ctx, id); err != nil {
			n.gone.AddRateLimited(id)
		} else {
			n.gone.Forget(id)
		}
		n.gone.Done(id)
	}
}

// setCondition sets a condition of a node. A node that does not exist is left alone.
func (n *nodeDrainer) setCondition(ctx context.Context, name string, c corev1.NodeCondition) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{c}}})
	if err != nil {
		return err
	}
	_, err = n.client.CoreV1().Nodes().PatchStatus(ctx, name, patch)
	return client.IgnoreNotFound(err)
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
// none has it, Unavailable when that is not connected.
func (fl *fleet) apiOf(id nstance.InstanceID) (apiv1.OperatorServiceClient, error) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for _, c := range fl.shards {
		if _, ok := c.Instance(id); ok {
			return c.API()
		}
	}
	return nil, nstance.Errorf(nstance.NotFound, "no shard of %s has instance %s", fl.key, id)
}
