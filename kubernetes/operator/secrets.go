package operator

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
)

// A secretsClient is a client whose errors say how the right on Secrets is given, which
// the operator has in the namespaces of Clusters only.
type secretsClient struct{ client.Client }

// Get implements client.Client.
func (c secretsClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return explained(c.Client.Get(ctx, key, obj, opts...), obj, key.Namespace)
}

// Create implements client.Client.
func (c secretsClient) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	namespace := obj.GetNamespace()
	return explained(c.Client.Create(ctx, obj, opts...), obj, namespace)
}

// Update implements client.Client.
func (c secretsClient) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	return explained(c.Client.Update(ctx, obj, opts...), obj, obj.GetNamespace())
}

// explained returns an error about a Secret that is not permitted with its remedy.
func explained(err error, obj client.Object, namespace string) error {
	if _, ok := obj.(*corev1.Secret); !ok || !apierrors.IsForbidden(err) {
		return err
	}
	return &nstance.Error{
		Code: nstance.Denied, Field: "secrets", Msg: fmt.Sprintf("the operator has no right on Secrets of namespace %s: %v", namespace, err), Err: err,
		Remedy: "kubectl -n " + namespace + " create rolebinding nstance-operator-secrets --clusterrole nstance-operator-secrets --serviceaccount NAMESPACE:NAME of the operator",
	}
}
