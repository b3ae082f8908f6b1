package kube

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// ControlPlane is a kind of control plane that is managed elsewhere: Cluster API drains
// nodes and checks health only in clusters whose control plane it knows.
var ControlPlane = schema.GroupVersionKind{Group: "controlplane.cluster.x-k8s.io", Version: "v1beta1", Kind: "StubControlPlane"}

// InstallControlPlane installs the kind ControlPlane.
func (c *Cluster) InstallControlPlane() error {
	anything := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name: "stubcontrolplanes." + ControlPlane.Group, Labels: map[string]string{"cluster.x-k8s.io/v1beta2": ControlPlane.Version},
		},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: ControlPlane.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "stubcontrolplanes", Singular: "stubcontrolplane", Kind: ControlPlane.Kind, ListKind: ControlPlane.Kind + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: ControlPlane.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": anything, "status": anything},
				}},
			}},
		},
	}
	_, err := envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}})
	return err
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
