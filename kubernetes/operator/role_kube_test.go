//go:build kube

package operator_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	authv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestKubeRole has what the operator does not need refused. What it needs is shown by
// the other tests, which run under the same role.
func TestKubeRole(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]authv1.ResourceAttributes{
		"see who else has secrets":      {Verb: "list", Resource: "secrets"},
		"delete secrets":                {Verb: "delete", Resource: "secrets"},
		"change clusters":               {Verb: "patch", Group: "cluster.x-k8s.io", Resource: "clusters"},
		"delete its own clusters":       {Verb: "delete", Group: "infrastructure.cluster.x-k8s.io", Resource: "nstanceclusters"},
		"drain nodes where it runs":     {Verb: "create", Resource: "pods", Subresource: "eviction"},
		"change nodes where it runs":    {Verb: "patch", Resource: "nodes"},
		"scale workloads where it runs": {Verb: "patch", Group: "apps", Resource: "deployments"},
		"change budgets where it runs":  {Verb: "patch", Group: "policy", Resource: "poddisruptionbudgets"},
		"protect what it likes":         {Verb: "create", Group: "infrastructure.cluster.x-k8s.io", Resource: "spotprotections"},
		"give itself what it has not":   {Verb: "bind", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
		"act as somebody else":          {Verb: "impersonate", Resource: "users"},
		"read what is configured":       {Verb: "get", Resource: "configmaps"},
		"change resources of the kind":  {Verb: "patch", Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
	} {
		t.Run(name, func(t *testing.T) {
			review, err := servers.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authv1.SubjectAccessReview{
				Spec: authv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &r},
			}, metav1.CreateOptions{})
			require.NoError(t, err)
			require.False(t, review.Status.Allowed)
		})
	}
}
