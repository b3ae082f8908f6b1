// Package reconcile strikes each request to a cloud in turn, through the cloud's real
// client, while the stories of the crash tests of package reconcile are played.
//
// The stories and their world are those tests' own files, as symbolic links: Go shares no
// test files between packages.
package reconcile
