// Package apiv1 is the wire contract of Nstance, generated from its .proto
// files: registration, the agents' stream, the operators' calls, and what the
// servers of a shard tell each other. It is public so that others can write
// clients; domain types and their conversion live elsewhere. Regenerate with
// make generate.
package apiv1
