// Package packaging tests what others are given of the operator: the chart of Helm, the
// kustomization, the components that clusterctl installs, and the examples for managers
// of controller-runtime. Each is rendered or built by its own tool, and runs against a
// real API server.
package packaging
