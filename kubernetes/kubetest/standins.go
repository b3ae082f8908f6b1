package kubetest

import (
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Kinds of providers that do not run in the tests, with any fields in spec and status. The
// templates of ControlPlane and BootstrapConfig are called as these, and Template.
var (
	// ControlPlane is a control plane that is managed elsewhere: Cluster API drains nodes
	// and checks health only in clusters whose control plane it knows.
	ControlPlane = schema.GroupVersionKind{Group: "controlplane.cluster.x-k8s.io", Version: "v1beta1", Kind: "StubControlPlane"}

	// BootstrapConfig is what bootstrap data is made from.
	BootstrapConfig = schema.GroupVersionKind{Group: "bootstrap.cluster.x-k8s.io", Version: "v1beta1", Kind: "StubConfig"}
)

// InstallStandIns installs ControlPlane and BootstrapConfig, and their templates.
func (c *Cluster) InstallStandIns() error {
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, kind := range []schema.GroupVersionKind{ControlPlane, BootstrapConfig} {
		crds = append(crds, standIn(kind), standIn(kind.GroupVersion().WithKind(kind.Kind+"Template")))
	}
	_, err := envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{CRDs: crds})
	return err
}

func standIn(kind schema.GroupVersionKind) *apiextensionsv1.CustomResourceDefinition {
	anything := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
	singular := strings.ToLower(kind.Kind)
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name: singular + "s." + kind.Group, Labels: map[string]string{"cluster.x-k8s.io/v1beta2": kind.Version},
		},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: kind.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: singular + "s", Singular: singular, Kind: kind.Kind, ListKind: kind.Kind + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: kind.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": anything, "status": anything},
				}},
			}},
		},
	}
}

// NewControlPlane is a control plane that is initialized and managed elsewhere.
func NewControlPlane(namespace, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{},
		"status": map[string]any{
			"initialization": map[string]any{"controlPlaneInitialized": true}, "externalManagedControlPlane": true,
		},
	}}
	u.SetGroupVersionKind(ControlPlane)
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}
