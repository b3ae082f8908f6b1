// Package apiv1 is the wire contract of Nstance, generated from nstance.proto:
// registration, the agents' stream and the operators' calls. It is public so
// that others can write clients; domain types and their conversion live
// elsewhere. Regenerate with make generate.
package apiv1
