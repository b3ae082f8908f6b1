package nstance

// A Fact is something that happened and that a Reconciler should know. The set is
// closed:
//
//   - about groups: [Desired], [Balancing]
//   - from agents: [Registered], [Connected], [Disconnected], [Reported],
//     [FilesReported], [Noticed]
//   - about drains: [DrainedWithoutServer]
//   - from the provider: [MachineSeen], [MachineMissing]
//
// A fact is a value: it is read concurrently, and must not be changed, once it was
// observed.
type Fact interface{ fact() }

type (
	// Desired replaces the wanted state of every group of the shard. A group
	// that is missing keeps its members: removal is Group.Removing, never an omission.
	Desired struct{ Groups []Group }

	// Balancing replaces the load balancers that groups may name. Members leave
	// a load balancer that is missing, as far as its provider still permits,
	// and it is forgotten.
	Balancing struct{ LoadBalancers []LoadBalancer }

	// Registered says that an instance has its certificate, durably.
	Registered struct{ ID InstanceID }

	// Reported carries one health report, already checked to be in order. Its notices
	// are for display: each is a Noticed fact of its own.
	Reported struct{ Report Report }

	// FilesReported carries the state of an instance's files. With an empty
	// ConfigHash the hash has not changed.
	FilesReported struct {
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

	// Disconnected says that an agent's session ended: Clean when the agent
	// closed it.
	Disconnected struct {
		ID    InstanceID
		Clean bool
	}

	// Connected says that an agent's session began.
	Connected struct{ ID InstanceID }

	// DrainedWithoutServer says that the instance's agent ran its hook without a
	// command, because no server acknowledged the notice EventID in time.
	DrainedWithoutServer struct {
		ID      InstanceID
		EventID string
		Outcome Outcome
		Message string // at most 256 bytes
	}

	// MachineSeen carries the provider's present answer about a machine. A
	// definite NotFound is MachineMissing.
	MachineSeen struct{ Machine Machine }

	// MachineMissing says that the provider answered NotFound, which is not an
	// error, and why the machine is gone if the provider says so.
	MachineMissing struct {
		ID        InstanceID
		Cause     LossCause
		CauseText string // in the provider's own words; empty: it was not asked about this machine alone
	}
)

func (Desired) fact()              {}
func (Balancing) fact()            {}
func (Registered) fact()           {}
func (Reported) fact()             {}
func (FilesReported) fact()        {}
func (Noticed) fact()              {}
func (Connected) fact()            {}
func (Disconnected) fact()         {}
func (DrainedWithoutServer) fact() {}
func (MachineSeen) fact()          {}
func (MachineMissing) fact()       {}
