package operator

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=nstancemachinetemplates,verbs=get;list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=nstancemachinetemplates/status,verbs=patch

// A templateController shows what an autoscaler must know of machines of which there is none
// yet, where the autoscaler looks for it.
type templateController struct {
	client.Client
	options Options
}

func (c *templateController) setUp(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&infrav1.NstanceMachineTemplate{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.options.Concurrency}).
		Complete(c)
}

// Reconcile implements reconcile.Reconciler.
func (c *templateController) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var t infrav1.NstanceMachineTemplate
	if err := c.Get(ctx, req.NamespacedName, &t); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if c.options.ignores(&t) || equality.Semantic.DeepEqual(t.Status.Scale, t.Spec.Scale) {
		return ctrl.Result{}, nil
	}
	base := t.DeepCopy()
	t.Status.Scale = t.Spec.Scale
	return ctrl.Result{}, client.IgnoreNotFound(c.Status().Patch(ctx, &t, client.MergeFrom(base)))
}
