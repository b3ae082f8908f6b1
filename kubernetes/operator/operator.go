// Package operator holds the controllers that make a shard's machines
// infrastructure of Cluster API: clusters, pools and machines, machines for
// pods that ask for them, the drains of nodes, and the protection of workloads
// on nodes that a cloud may take back.
//
// A program adds them to its own manager with Add. They act only in the
// replica that leads. Options are a value; Add is called once, and not
// concurrently.
package operator

import (
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/nstance-go/nstance"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/identity"
)

// Options change how the controllers work. Nil and zero fields mean the defaults.
type Options struct {
	// WatchFilter is the value of the label cluster.x-k8s.io/watch-filter that
	// objects must have. Empty: all objects.
	WatchFilter string

	// Concurrency is how many objects of a kind are reconciled at the same time. 10.
	Concurrency int

	// EvictionRequests has pods asked to leave with EvictionRequests (lifecycle.k8s.io/v1alpha1)
	// where a workload cluster serves them, in place of evictions.
	EvictionRequests bool

	// Metrics has the figures of drains while this replica leads; their names begin with
	// nstance_drain_. Nil: they are not registered.
	Metrics prometheus.Registerer

	// Log receives what the connections to shards say. Nil discards.
	Log *slog.Logger
}

// ignores reports whether an object is another operator's.
func (o *Options) ignores(obj client.Object) bool {
	return o.WatchFilter != "" && obj.GetLabels()[clusterv1.WatchLabel] != o.WatchFilter
}

// Add adds the controllers to a manager, whose scheme must have what AddToScheme
// adds. It is called once, before the manager starts.
func Add(mgr manager.Manager, opts *Options) error {
	o := Options{}
	if opts != nil {
		o = *opts
	}
	if o.Concurrency < 0 {
		return nstance.FieldError("Concurrency", "give how many objects are reconciled at the same time, or 0 for the default", "is %d", o.Concurrency)
	}
	if o.Concurrency == 0 {
		o.Concurrency = 10
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for _, kind := range []client.Object{&infrav1.NstanceCluster{}, &clusterv1.Cluster{}} {
		if _, _, err := mgr.GetScheme().ObjectKinds(kind); err != nil {
			return nstance.FieldError("scheme", "call the AddToScheme of kubernetes/api/v1beta1, and of Cluster API's api/core/v1beta2", "%v", err)
		}
	}
	// Secrets are read one by one: a cache would hold those of everybody. So is what must not be old.
	direct, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient()})
	if err != nil {
		return err
	}
	uncached := secretsClient{direct}
	fleets := newFleets(mgr.GetClient(), o.Log)
	fleets.evictionRequests, fleets.metrics = o.EvictionRequests, o.Metrics
	if err := mgr.Add(fleets); err != nil {
		return err
	}
	status := &statusKeeper{client: mgr.GetClient(), events: mgr.GetEventRecorder(string(fieldOwner))}
	if err := (&clusterController{Client: mgr.GetClient(), status: status, keeper: identity.Keeper{Client: uncached}, fleets: fleets, options: o}).setUp(mgr); err != nil {
		return err
	}
	c := mgr.GetClient()
	return errors.Join(
		(&shardGroupController{Client: c, status: status, fleets: fleets, secrets: uncached, options: o}).setUp(mgr),
		(&poolController{Client: c, status: status, fleets: fleets, options: o}).setUp(mgr),
		(&templateController{Client: c, options: o}).setUp(mgr),
		(&machineController{Client: c, status: status, fleets: fleets, secrets: uncached, options: o}).setUp(mgr),
		(&podController{Client: c, uncached: uncached, fleets: fleets, options: o}).setUp(mgr),
		(&surgeController{Client: c, fleets: fleets}).setUp(mgr),
		(&protectionController{Client: c, status: status, uncached: uncached, fleets: fleets, options: o}).setUp(mgr),
	)
}
