// Package e2e tests everything together: nstance-server and nstance-operator in processes
// of their own, a real API server with its controllers and Cluster API's own manager,
// storage that speaks S3, and machines that are processes with real agents. See make e2e
// and make e2e-bridge.
package e2e
