// Command nodecontroller drains Kubernetes nodes inside a controller-runtime manager: each
// node with the annotation example.com/drain-by, by the time in it. It needs no shard
// and no Cluster API. Without $KUBECONFIG it does nothing.
package main

import (
	"context"
	"log"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

func main() {
	if os.Getenv("KUBECONFIG") == "" {
		return
	}
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{Metrics: server.Options{BindAddress: "0"}})
	drains := drain.New(nil)
	var drainer *nodedrain.Drainer
	if err == nil {
		drainer, err = nodedrain.New(mgr.GetConfig(), drains, nil)
	}
	if err == nil {
		err = mgr.Add(manager.RunnableFunc(drainer.Run))
	}
	if err == nil {
		err = ctrl.NewControllerManagedBy(mgr).For(&corev1.Node{}).Complete(reconcile.AsReconciler(mgr.GetClient(), starter{drains}))
	}
	if err == nil {
		err = mgr.Start(ctrl.SetupSignalHandler())
	}
	if err != nil {
		log.Fatal(err)
	}
}

// A starter starts drains.
type starter struct{ drains *drain.Coordinator }

// Reconcile implements reconcile.ObjectReconciler.
func (s starter) Reconcile(ctx context.Context, n *corev1.Node) (ctrl.Result, error) {
	text, asked := n.Annotations["example.com/drain-by"]
	if !asked {
		return ctrl.Result{}, nil
	}
	by, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return ctrl.Result{}, reconcile.TerminalError(err)
	}
	id := nstance.InstanceID(n.Name)
	return ctrl.Result{}, s.drains.Start(ctx, nstance.Drain{Instance: id, ProviderID: n.Spec.ProviderID, Generation: 1, Deadline: by, Executor: nstance.ExecutorOperator})
}
