package operator

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
)

// forbidding refuses everything.
type forbidding struct{ client.Client }

func forbidden() error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "c-kubeconfig", nil)
}

func (forbidding) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return forbidden()
}
func (forbidding) Create(context.Context, client.Object, ...client.CreateOption) error {
	return forbidden()
}
func (forbidding) Update(context.Context, client.Object, ...client.UpdateOption) error {
	return forbidden()
}

// TestSecretsAreNotPermitted: the error names the namespace and the command that permits it.
func TestSecretsAreNotPermitted(t *testing.T) {
	c := secretsClient{forbidding{}}
	secret := &corev1.Secret{}
	secret.Namespace = "shop"
	for name, err := range map[string]error{
		"get": c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "c-kubeconfig"}, secret), "create": c.Create(t.Context(), secret), "update": c.Update(t.Context(), secret),
	} {
		require.ErrorIs(t, err, nstance.Denied, name)
		require.ErrorContains(t, err, "kubectl -n shop create rolebinding nstance-operator-secrets", name)
		require.True(t, apierrors.IsForbidden(err), name)
	}
	require.NotErrorIs(t, c.Get(t.Context(), client.ObjectKey{Namespace: "shop"}, &corev1.Pod{}), nstance.Denied, "a right of another kind")
}
