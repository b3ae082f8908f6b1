package nstance

import (
	"context"
	"iter"
)

// A Provider creates and destroys machines on one cloud, in one account.
// Implementations are safe for concurrent use, return promptly when ctx is
// done, and classify every error with a Code. An answer is NotFound only when
// the cloud definitely said so. provider/providertest checks this contract.
type Provider interface {
	// Create launches one machine, marked with its owner, ID and epoch from
	// the first moment. It returns as soon as the cloud has accepted it. Two
	// calls with the same spec return the same machine. Fails with Invalid
	// when no repeat can help, Capacity when the shape is sold out, Quota,
	// Throttled or Denied as the codes say, Conflict when a machine with this ID
	// exists under another owner or with other parameters, and Ambiguous when
	// the machine may have been created: Get, then repeat the same spec.
	Create(ctx context.Context, spec MachineSpec) (Machine, error)

	// Get returns the machine with this ID, or NotFound. For a short while
	// after Create a cloud may not know its own machine yet; one such answer
	// is no proof of absence.
	Get(ctx context.Context, id InstanceID) (Machine, error)

	// List yields every machine that falls under owner, filtered by the
	// cloud, page by page. An error ends the sequence: the list is incomplete.
	// The loop may call the provider: no lock is held while it yields.
	List(ctx context.Context, owner Owner) iter.Seq2[Machine, error]

	// Delete requests termination of m; nil means only that it was accepted.
	// Callers repeat it until it fails with NotFound, which is the proof of
	// absence: of the machine, and of every resource that its create made beside
	// it. Without a ProviderID, m is looked up by its ID. Fails with Conflict, and
	// changes nothing, when the machine found does not carry m's ID and owner.
	Delete(ctx context.Context, m Machine) error
}

// A SpotDetector learns, on a machine, which interruptions its cloud announces.
// spot/spottest checks this contract. Implementations must be safe for concurrent use.
type SpotDetector interface {
	// Interruptible reports whether this machine is spot capacity. An error is
	// not a no.
	Interruptible(ctx context.Context) (bool, error)

	// Watch yields notices as they appear, change or are withdrawn, until ctx
	// ends. The same announcement is yielded once. A notice that stands when the
	// watch begins and is past its deadline by the cloud's clock is stale and not
	// yielded. A notice that appears later is yielded, however late. An error is
	// for the log: the watch goes on, and an error never withdraws a notice.
	Watch(ctx context.Context) iter.Seq2[Notice, error]
}

// A Reconciler keeps groups at their size. Facts make it faster; its own full pass makes
// it right. Implementations must be safe for concurrent use.
type Reconciler interface {
	// Observe takes note of a fact. It never blocks on I/O and may be called
	// concurrently, before, during and after Run.
	Observe(Fact)

	// Run works until ctx, which is one leadership term, ends, and then
	// returns nil after everything it started has stopped. It is called once.
	Run(ctx context.Context) error
}

// A DrainCoordinator connects the executors of drains with the reconciler that waits for
// them. It decides nothing and makes nothing durable. Watching drains is not executing
// them: a drain names its executor, and only its executor acknowledges it.
// Implementations must be safe for concurrent use.
type DrainCoordinator interface {
	// Start announces a drain. Starting the same generation again is
	// idempotent, an earlier deadline tightens the one announced, a later one
	// is ignored, and another executor replaces the one announced. Fails with
	// Conflict for an older generation.
	Start(ctx context.Context, d Drain) error

	// Acknowledge reports an outcome. OutcomeBlocked may be reported again and again, and
	// ends nothing. Fails with NotFound when the instance is
	// not draining, Conflict for another generation, Denied when By is not the
	// drain's executor.
	Acknowledge(ctx context.Context, a Ack) error

	// Cancel withdraws a drain: the instance stays. Nil if there is none.
	Cancel(ctx context.Context, id InstanceID, generation uint64) error

	// End says that the instance is being deleted. Nil if there is no drain.
	End(ctx context.Context, id InstanceID) error

	// Watch yields the drains of a tenant (empty: of all): a snapshot, then
	// events in order, or only the events after the given one if they are
	// still known. A watcher that does not keep up ends with Unavailable and
	// may resume. It yields until ctx ends. A watcher sees the drains of every
	// executor.
	Watch(ctx context.Context, tenant TenantID, after Seq) iter.Seq2[DrainEvent, error]

	// HasExecutor reports whether an operator carries out the tenant's drains now. It
	// does no I/O.
	HasExecutor(tenant TenantID) bool

	// NotifyExecutors calls f when the first executor of a tenant (empty: of every
	// tenant) has come and when the last has gone, until stop is called. f must not
	// block.
	NotifyExecutors(f func(TenantID)) (stop func())
}

// A Registrar turns one-time nonces into certificates. Implementations must be safe for
// concurrent use.
type Registrar interface {
	// Register consumes a nonce. The same nonce with the same key returns the
	// same certificate again, so that a lost reply heals itself; with another
	// key it fails with Denied and raises an alarm. Fails with Denied for a
	// nonce that is expired, foreign or forged, NotFound when the instance is
	// deleted or unknown, Throttled when asked too often, Invalid for a bad
	// request. The registration is durable before Register returns.
	//
	// With a Recovery in place of the nonce it renews the expired certificate of
	// an agent, as Renew does a valid one. Fails with Denied for a wrong proof or
	// a superseded certificate, both with an alarm.
	Register(ctx context.Context, r RegistrationRequest) (Credential, error)

	// Renew issues the successor of a valid certificate, for the key in csr
	// (PKCS#10, DER). The same key again returns the same certificate. The old
	// certificate stays valid until the new one has been used.
	Renew(ctx context.Context, id Identity, csr []byte) (Credential, error)
}
