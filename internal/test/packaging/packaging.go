// Package packaging tests what clusters are given of the operator: the chart of
// Helm, the kustomization, and the components that clusterctl installs. Each is
// rendered by its own tool, and applied to a real API server.
package packaging
