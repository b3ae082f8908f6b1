// Package operatorclouds tests the operator with the real providers of AWS, Google Cloud
// and Azure: a shard server whose provider speaks to a test cloud, agents that read that
// cloud's metadata service, a real API server and Cluster API's own manager. See make test-kube.
package operatorclouds
