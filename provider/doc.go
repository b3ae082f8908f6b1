// Package provider holds the parts that all cloud providers share.
//
// A [Client] wraps any [nstance.Provider]. It refuses specs that no cloud accepts,
// bounds the time of every call and the number of calls in flight, gives every
// error a code, repeats reads that were throttled, reports each call to a metrics
// hook, and limits the rate of creates. It never repeats a create or a delete: the
// reconciler decides that from durable records.
//
// Optional features, such as resolving image names or changing load balancers, are
// [Abilities]: small interfaces that a provider may implement too.
//
// A provider uses [ValidateSpec], [DecodeArgs] and [Fingerprint], and is tested
// with provider/providertest.
//
// The packages below are providers: provider/simcloud is a cloud in memory, for
// tests and simulations; in provider/local machines are child processes.
//
// A [Client] is safe for concurrent use; specs, kinds and settings are values.
package provider
