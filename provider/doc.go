// Package provider holds what every cloud needs and none should write again.
//
// A [Client] stands in front of any [nstance.Provider]. It refuses specs that
// no cloud could serve, bounds every call in time and all calls in number,
// gives every error a code, repeats reads that were throttled, reports each
// call to a metrics hook, and keeps the budget that paces creates. It never
// repeats a create or a delete: whether those should happen again is the
// reconciler's decision, made from durable records.
//
// What only some clouds can do, such as resolving image names or changing load
// balancers, are [Abilities]: small interfaces that a provider may have too.
//
// Those who write a provider use [ValidateSpec], [DecodeArgs] and
// [Fingerprint], and check the result with provider/providertest.
//
// The packages below are providers themselves: provider/simcloud is a cloud in
// memory, for tests and simulations; provider/local makes machines out of child
// processes.
package provider
