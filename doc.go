// Package nstance keeps fleets of virtual machines alive on capacity that can
// vanish at any second.
//
// This package is the language that all others speak: identifiers, states,
// notices, reports, errors, and the five seams at which a program can put its
// own part or take ours. It imports the standard library only, and of this module the
// rules for names.
//
// # How it works
//
// Facts come in, one pure function says what a group needs next, an executor
// does it, and its outcomes are facts again: observe, plan, act.
//
// A [Group] is a named set with a desired size. Its machines are instances,
// each with an [InstanceID] that is permanent and never reused. A machine comes
// into being when the reconciler writes an intent to storage and asks the
// [Provider] for it. On it runs an agent, which presents a one-time nonce to
// the [Registrar], receives a certificate, and from then on holds one stream to
// its shard's server: health reports up, commands down.
//
// The agent's [SpotDetector] watches the cloud's metadata service. When the
// cloud announces that it takes the machine back, the [Notice] travels up the
// stream at once. The [Reconciler] then counts the member as lost, so the group
// has a deficit, and a deficit is filled: the replacement is requested in the
// same pass in which the drain of the doomed machine starts. The
// [DrainCoordinator] announces the drain to its executor (an operator in
// Kubernetes, or the agent's own hook) and takes the acknowledgement. Then, or at the
// deadline, the machine is deleted: first a durable mark on its record, then
// the provider is asked until it answers [NotFound].
//
// # What holds always
//
// Truth is in object storage and every write to it is conditional. An error is
// never read as absence, and nothing is deleted because of one. A leaving
// member is not counted, so replacement never waits for deletion. Voluntary
// change (a rollout, an expiry, a scale-down) waits until the replacement is
// ready; an involuntary loss waits for nothing. A drain's deadline only ever
// tightens. The same notice seen twice changes nothing.
//
// # Where to start
//
// Embed the loop with package reconcile, write a provider against
// provider/providertest, a detector against spot/spottest, run an agent inside
// your daemon with package agent. The directory examples holds a whole program
// for each. cmd holds the reference programs; nstance-dev shows all of
// it working on one machine.
//
// Groups, machines, facts, notices and errors are values. Implementations of the
// interfaces are safe for concurrent use.
package nstance
