// Package server runs servers over S3 with faults on the wire, and over AWS with a queue of
// interruptions.
//
// The world of these tests is that of package server's own tests, as a symbolic link: Go
// shares no test files between packages.
package server
