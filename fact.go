package nstance

// A Fact is something that happened and that a Reconciler should know. The set
// is closed.
type Fact interface{ fact() }

type (
	// Desired replaces the wanted state of every group of the shard. A group
	// that is missing keeps its members: removal is Removed, never an omission.
	Desired struct {
		Groups []Group
		Open   []Unresolved // wanted as well, but not known well enough
	}

	// Removed asks for a group's managed members to be drained and deleted,
	// until a Desired names the group again. It is the same as a Desired whose
	// group says Removing, which whoever remembers groups repeats in each term.
	Removed struct{ Key GroupKey }

	// Balancing replaces the load balancers that groups may name. One that is
	// missing is withdrawn from as well as it can be, and forgotten.
	Balancing struct{ LoadBalancers []LoadBalancer }

	// Registered says that an instance has its certificate, durably.
	Registered struct{ ID InstanceID }

	// Reported carries one health report, already checked to be in order.
	Reported struct{ Report Report }

	// Filed says how an instance's files are since its last report. An empty
	// ConfigHash is the one that it had before.
	Filed struct {
		ID         InstanceID
		ConfigHash string
		Files      []FileStatus
		Error      string
	}

	// Noticed carries a notice that only the machine's own agent, or the
	// provider, may bring. Ack is called once the notice's consequence is
	// durable or the notice was ignored with a journal entry; it may be nil,
	// must not block, and is not called when the term ends first.
	Noticed struct {
		ID     InstanceID
		Notice Notice
		Ack    func()
	}

	// Disconnected says that an agent's session ended: Clean when it said
	// goodbye.
	Disconnected struct {
		ID    InstanceID
		Clean bool
	}

	// Connected says that an agent's session began.
	Connected struct{ ID InstanceID }

	// Drained carries an accepted acknowledgement.
	Drained struct{ Ack Ack }

	// ExecutorsChanged says that an operator that carries out a tenant's drains
	// (empty: every tenant's) has come or gone.
	ExecutorsChanged struct{ Tenant TenantID }

	// Seen carries the provider's present answer about a machine. A machine
	// that the provider definitely does not know is Missing.
	Seen struct{ Machine Machine }

	// Missing says that the provider answered NotFound, which is no error, and
	// why the machine is gone as far as it says.
	Missing struct {
		ID    InstanceID
		Cause LossCause
	}
)

func (Desired) fact()          {}
func (Removed) fact()          {}
func (Balancing) fact()        {}
func (Registered) fact()       {}
func (Reported) fact()         {}
func (Filed) fact()            {}
func (Noticed) fact()          {}
func (Connected) fact()        {}
func (Disconnected) fact()     {}
func (Drained) fact()          {}
func (ExecutorsChanged) fact() {}
func (Seen) fact()             {}
func (Missing) fact()          {}
