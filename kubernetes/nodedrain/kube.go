// Package nodedrain drains Kubernetes nodes: it executes the drains of an
// nstance.DrainCoordinator in one cluster, which may be another than the caller's.
//
// A [Drainer] finds the node of each drain by its provider ID, cordons it, evicts its
// pods in tiers and within their disruption budgets, waits until pods and volumes are
// gone, and acknowledges. A drain ends at its deadline at the latest, since the machine
// is deleted then. What a drain does to a node is recorded in the node's annotations
// (nstance.dev/drain-...) and in events, so that kubectl describe shows why and until
// when, and so that a restarted Drainer continues.
//
//   - All nodes that are known to be doomed are cordoned before a pod is evicted, so
//     that no pod moves twice.
//   - Requests are bounded in rate and number, and the earliest deadline goes first.
//   - A pod's grace period is cut to the time left, never to zero.
//   - A pod whose eviction is still refused when its grace period must begin is deleted
//     past its disruption budget, since it would be killed without notice otherwise. The
//     budget has half of the drain's time at least. It is recorded as pdb_overridden. A
//     drain without deadline waits for budgets, and says for which. It also says which error
//     keeps it from going on, such as a node that does not exist.
//   - Voluntary drains leave pods alone that refuse disruption.
//   - A pod that does not end, a kubelet that is silent and a webhook that hangs delay no
//     other pod.
//   - Mirror pods, pods of DaemonSets, finished pods, and pods labelled
//     cluster.x-k8s.io/drain=skip stay. Pods labelled wait-completed are given all the
//     time there is.
//   - A node that is not found is never acknowledged as drained.
//
// A coordinator in the same process learns from its own AddExecutor that there is an
// executor.
//
// With Options.Instances a Drainer compares nodes with instances, at its start and every
// minute: a cordon of a drain that was cancelled, and the node of a machine that ended, are
// found also when no Drainer ran at that moment.
//
// It needs these permissions: get, list, watch, patch (and for Gone: delete) nodes;
// list, delete pods; create pods/eviction and events; list poddisruptionbudgets, daemonsets and
// volumeattachments; get persistentvolumeclaims; to compare nodes also get leases in the
// namespace kube-node-lease.
//
// A Drainer is safe for concurrent use.
package nodedrain

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/kubernetes/internal/snapshot"
)

const (
	callTimeout = 5 * time.Second // of one request; client-go retries refusals in silence until then
	cordonHold  = 5 * time.Second // longest wait of evictions for the cordons of other nodes
	settleTime  = 100 * time.Millisecond
)

// A Drainer drains the nodes of one cluster. Create it with New, start it with Run.
// Its methods are safe for concurrent use.
type Drainer struct {
	options     Options
	drains      nstance.DrainCoordinator
	client      kubernetes.Interface
	budget      *budget
	nodes       *nodeIndex
	gate        *cordonGate
	slots       *slots
	retries     *slots // of evictions that had no answer
	events      *recorder
	attachments *snapshot.Snapshot[map[string][]attachment]
	daemonSets  *snapshot.Snapshot[map[string]bool]
	kubelets    *kubelets
	wakeCompare chan struct{} // capacity 1

	mu      sync.Mutex
	workers map[nstance.InstanceID]*worker
	latest  time.Time // when the latest drain was requested
	stats   Stats
	running sync.WaitGroup
}

// New returns a Drainer for the nodes of the cluster that cfg connects to, which
// executes the drains of the coordinator whose executor is an operator. Fails with
// Invalid for options that make no sense.
func New(cfg *rest.Config, drains nstance.DrainCoordinator, opts *Options) (*Drainer, error) {
	switch {
	case cfg == nil:
		return nil, nstance.FieldError("cfg", "pass the client configuration of the nodes' cluster", "is nil")
	case drains == nil:
		return nil, nstance.FieldError("drains", "pass a drain.Coordinator, or a client of a remote one", "is nil")
	}
	o, err := opts.complete()
	if err != nil {
		return nil, err
	}
	budget := newBudget(o.QPS)
	client, err := kubernetes.NewForConfig(clientConfig(cfg, budget))
	if err != nil {
		return nil, nstance.FieldError("cfg", "correct the client configuration", "%s", err)
	}
	return newDrainer(client, budget, drains, o), nil
}

func newDrainer(client kubernetes.Interface, budget *budget, drains nstance.DrainCoordinator, o Options) *Drainer {
	d := &Drainer{
		options: o, drains: drains, client: client, budget: budget,
		gate: newCordonGate(), slots: newSlots(o.MaxCalls), retries: newSlots(max(1, o.MaxCalls/4)), events: newRecorder(client, o.Log),
		kubelets: newKubelets(client), wakeCompare: make(chan struct{}, 1), workers: map[nstance.InstanceID]*worker{},
	}
	d.nodes = newNodeIndex(client, d.Compare, o.Log)
	d.attachments = snapshot.New(d.listAttachments)
	d.daemonSets = snapshot.New(d.listDaemonSets)
	if d.options.Evictor == nil {
		d.options.Evictor = evictionAPI{client}
	}
	return d
}

// clientConfig returns a copy of cfg with our budget. Built-in types travel as protobuf.
func clientConfig(cfg *rest.Config, budget *budget) *rest.Config {
	own := rest.CopyConfig(cfg)
	own.RateLimiter = budget
	own.ContentType = "application/vnd.kubernetes.protobuf"
	own.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	if own.UserAgent == "" {
		own.UserAgent = "nstance-drain"
	}
	return own
}

// Run drains nodes until ctx ends, and returns nil then. Trouble with the cluster or
// the coordinator is logged and retried. Drains under way when it returns are
// continued by the next Run, of this or another Drainer. Call it once.
func (d *Drainer) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer d.running.Wait()
	defer stop()
	d.start(func() { d.nodes.run(ctx) })
	d.start(func() { d.resizeBudget(ctx) })
	if d.options.Instances != nil {
		d.start(func() { d.compare(ctx) })
	}
	for range eventWriters {
		d.start(func() { d.events.run(ctx) })
	}
	d.watch(ctx)
	return nil
}

func (d *Drainer) start(f func()) { d.running.Go(f) }

// resizeBudget fits the rate of requests to the number of nodes.
func (d *Drainer) resizeBudget(ctx context.Context) {
	ticker := time.NewTicker(5 * time.Second)
	defer ticker.Stop()
	for d.nodes.awaitSync(ctx); ctx.Err() == nil; {
		d.budget.resize(d.nodes.count())
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

func discardIfNil(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}
