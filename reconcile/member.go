package reconcile

import (
	"cmp"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile/internal/notices"
	"github.com/nstance-go/nstance/reconcile/internal/place"
)

// A member is one instance's state in memory.
type member struct {
	id        nstance.InstanceID
	rec       records.Instance // as last known to be durable
	durable   bool             // rec exists in storage, or may
	group     *group
	state     nstance.State // pending, provisioning, booting, draining, parking, parked, waking, deleting, failed
	published memberPublications

	origin
	requestState
	machineState
	machineCalls
	createGrant
	agentState
	noticeState
	removalState
	standbyState
	drainState
	stepState
}

// An origin is why a member was made, and what from.
type origin struct {
	lastGood       bool               // from the last good definition
	requiredMarket nstance.MarketType // that it must be made in; empty: as its definition says. Spot: it returns from on-demand, until it is ready
	replaces       nstance.InstanceID
	definitionErr  error // why the definition on record was not read when it was to be created
}

// machineState is what is known of a member's machine.
type machineState struct {
	machine      nstance.Machine
	machineSince time.Time // when this term first knew of the machine; zero: it knows of none
	missingSince time.Time // first NotFound of a registered machine
	answeredAt   time.Time // when the latest question was asked that the provider has answered
	loss
	replacement replacementState
}

// A replacementState says whether the loss of a member is to be made good.
type replacementState int

const (
	replacementOwed replacementState = iota
	replacementCreated
	replacementNotOwed // it failed for what it was made from
)

// agentState is what a member's agent has shown in this term.
type agentState struct {
	unknownStatus          nstance.MachineStatus // that the provider last said of its machine in words of its own; empty: none
	unrecordedRegistration bool                  // it was said to have registered, and its record does not say so
	healthTrack            health.Track
	report                 nstance.Report
	reportAt               time.Time
	connected              bool
	heard                  bool      // in this term, and since its stream last ended
	streamBrokenAt         time.Time // when its stream broke without goodbye; zero while it is up
	queriesAfterBreak      int       // how often the provider was asked again since then, and answered
	healthySince           time.Time
	wasReady               bool
	readyAt                time.Time // when it became ready first; zero: not known
	graceUntil             time.Time
}

// noticeState is what was announced about a member.
type noticeState struct {
	notices.Book
	rehearsalMet bool       // the rehearsal on record was announced
	loneDrain    *loneDrain // that of the latest notice; nil: none
}

// A loneDrain is a drain by the agent without a command.
type loneDrain struct {
	eventID string // of its notice
	end     *records.DrainEnd
}

// removalState is why a member goes, and what keeps it.
type removalState struct {
	removalCause *nstance.Cause
	skipDrain    bool
	goesFirst    bool                // when its group has more than its size
	preserving   []*records.Preserve // requests to keep it for inspection that are being written
	keptEnd      time.Time           // the end of its preservation that was reached, which is final
	deleteCauses []nstance.Cause
	deleteBegan  time.Duration // elapsed time when its deletion after a drain began; 0: it has not
	leftBefore   bool          // it was already leaving when this term found it
}

// drainState is the drain of a member. The zero drainState is none.
type drainState struct {
	drain          *nstance.Drain // as planned; durable once step is done
	drainDeadline  time.Time      // when this term planned that it ends, with the monotonic clock; zero: as recorded
	drainEnded     bool
	drainBlocked   string // what keeps the machine from being empty, as the executor says; empty: it names nothing
	lastAck        *records.DrainEnd
	formerExecutor nstance.Executor // whose drain goes to drain.Executor; empty: the executor is the one on record
	executorGoneAt time.Time        // when this term first saw that the executor is gone; zero: it is not
}

// standbyState is what this term knows of a stand-by member's sleep.
type standbyState struct {
	wokenThisTerm bool      // this term has it woken
	awokeAt       time.Time // when its machine ran again, as far as this term has seen it
	wakeFailed    bool      // the latest attempt to start its machine came to nothing
	parkFailed    bool      // the latest attempt to park it likewise
}

// memberPublications is what the journal was told of a member.
type memberPublications struct {
	market    bool // that its market is another than was asked for
	contested bool // that its machine carries other marks
	unwoken   bool // that its machine does not start
	unparked  bool // that its machine cannot be parked
}

// stepState is the step that a member is owed.
type stepState struct {
	step     stepKind
	revision int  // grows with every step, so that one that ends late does not undo a newer one
	running  bool // a lane has it
	retryDue time.Time
	attempts int
	obstacle obstacle

	withdrawBy     time.Time // the step waits for load balancers until then; zero: it has not begun to
	withdrawalOver bool
}

// A stepKind is what the executor does next for a member.
type stepKind int

const (
	stepNone stepKind = iota
	stepCreate
	stepDrain  // make the drain in memory durable, then announce it
	stepCancel // make the end of the drain durable, then announce it
	stepDelete
	stepPark         // make it durable that it is to sleep, then ask the provider until the machine is stopped
	stepWake         // make it durable that it is to run, then ask the provider until the machine does
	stepWriteNotices // make standing notices durable that nothing else follows from
	stepBalance      // join or leave a load balancer, of a member that stays: package balance does it
)

// String returns the step's name in logs.
func (s stepKind) String() string {
	return [...]string{"none", "create", "drain", "cancel_drain", "delete", "park", "wake", "note", "balance"}[s]
}

// owe has a step done next, in place of any other, and at once. It waits for load balancers
// by itself: since an earlier step, the machine may have joined some again.
func (s *stepState) owe(step stepKind) {
	s.step, s.retryDue, s.attempts = step, time.Time{}, 0
	s.withdrawBy, s.withdrawalOver = time.Time{}, false
	s.revision++
}

// due is when the step is due; zero while it runs.
func (s *stepState) due() time.Time {
	if s.running || s.step == stepNone {
		return time.Time{}
	}
	return s.retryDue
}

// machineKnown reports whether this term knows the machine of m.
func (m *member) machineKnown() bool { return !m.machineSince.IsZero() }

// recordMade ends the create of m: its machine is there, or was.
func (m *member) recordMade() {
	if m.state == nstance.Pending || m.state == nstance.Provisioning {
		m.state = nstance.Booting
	}
}

func (m *member) registered() bool { return !m.rec.RegisteredAt.IsZero() }

// subnetWithoutMachine returns the subnet in which an address is counted for m that
// no machine has taken; empty: none.
func (m *member) subnetWithoutMachine() string {
	if m.machineKnown() {
		return ""
	}
	return m.subnet
}

// definition returns what decides the shape of m: its own definition, or until that
// has been read its group's.
func (m *member) definition() nstance.Definition {
	if m.requestedDefinition != nil {
		return *m.requestedDefinition
	}
	return m.group.spec.Definition
}

// machineCalls is what is known of the provider's answers about one member:
// whether a create may have made its machine, and from when on the provider
// would know. All of it is guarded by the reconciler's lock.
type machineCalls struct {
	createSent    time.Time // when this term last asked for the machine; zero: not yet
	lastCreateEnd time.Time // when the last call of this term that may have made it ended; while that lasts, when it ends at the latest; zero: none may have
	inheritedAt   time.Time // when this term found the intent of a former leader, whose call may still be under way; zero: the intent is this term's

	deleteAccepted bool      // the provider has found the machine and ends it
	removed        bool      // the provider has nothing left of the machine, which leaves the record
	life           lifeState // whether its life is on record
}

// mayHaveMachine reports whether a call may have made the machine.
func (c *machineCalls) mayHaveMachine() bool {
	return !c.lastCreateEnd.IsZero() || !c.inheritedAt.IsZero()
}

// A createGrant is what a member may do with its create. It needs the lock.
type createGrant struct {
	grant     grantState
	grantedAt time.Time
	shape     records.Shape // granted, or to be repeated; the zero shape: none yet
	price     float64       // of the shape for an hour; 0: not known
	choice    place.Choice
	inFlight  bool   // the admission queue counts it
	throttled bool   // the last create was refused for its rate alone: it is repeated as it was
	subnet    string // in which an address is counted for it
}

// A grantState says whether the create of a member may be sent.
type grantState int

const (
	grantNotNeeded grantState = iota // nothing is to be sent yet, or an earlier leader had the grant
	grantWanted                      // the create waits for one
	granted
)

// A requestState is what is known of an instance on demand until it has a machine.
type requestState struct {
	requestedDefinition *nstance.Definition // what it is made from
	requestReason       string              // of the request
	needsNewToken       bool                // its token made a machine that is gone: the next create needs another one
	failedLaunch        *absence            // how its machine ended that did not start, and is deleted before the next create; nil: there is none
	unanswered          int                 // creates in a row without a definite answer; also of others
	refusedWith         error               // why its create was definitely refused; also of others
	answeredWith        error               // the provider's answer to the last create that failed; also of others
}

// A loss is what is known about the end of a member's machine. The zero loss is
// a machine that is not gone.
type loss struct {
	gone  bool
	cause nstance.LossCause // as far as the provider says
	words string            // that it says; empty: none
	taken bool              // nothing that the machine was made from is to blame
	at    time.Time         // when that was first known

	explained bool // words are the cloud's about the end, and not only that there is no machine
}

// refusedLate reports whether the cloud ended a machine that it had accepted for what it is made
// from, as far as is known.
func (l *loss) refusedLate() bool {
	return l.cause == nstance.LossInvalid || l.cause == "" && l.explained && !l.taken
}

// shouldReport reports whether the agent of m is to report: it has registered, and its machine is
// to run on.
func (m *member) shouldReport() bool {
	runs := m.state == nstance.Booting || m.state == nstance.Parked && m.rec.Standby.Mode == nstance.ParkRunning
	return runs && m.registered() && !m.gone
}

// launchOver reports whether the launch timeout of m has passed.
func (s *shard) launchOver(m *member, now time.Time) bool {
	by := after(m.rec.CreatedAt, m.rec.LaunchTimeout)
	return !by.IsZero() && s.reached(by, now)
}

// market returns the market that m is in: the one that the provider says, else
// the one that it is asked for.
func (m *member) market() nstance.MarketType {
	if market := cmp.Or(m.machine.Market, m.rec.Shape.Market, m.requiredMarket); market != "" {
		return market // without a look at the definition, which is a copy
	}
	return cmp.Or(m.definition().Market.Type, nstance.OnDemand)
}

// zone returns the zone that m's machine is in; empty: it is not known.
func (m *member) zone() string { return cmp.Or(m.machine.Zone, m.rec.Zone) }

func (m *member) marketDiffers() bool {
	return m.machine.Market != "" && m.rec.Shape.Market != "" && m.machine.Market != m.rec.Shape.Market
}

// returnsToSpot reports whether m is made on spot in place of an on-demand member, and
// has not become ready yet.
func (m *member) returnsToSpot() bool { return m.requiredMarket == nstance.Spot }

// mayHaveHook reports whether m's agent has a hook. An agent that has not reported yet
// may have one.
func (m *member) mayHaveHook() bool { return m.report.CanDrain || m.reportAt.IsZero() }

// agentGone reports whether the agent of m is not connected, and has missed as many reports
// as make a member unhealthy.
func (s *shard) agentGone(m *member, now time.Time) bool {
	return !m.connected && s.health.Misses(m.healthTrack, now) >= s.health.Missed
}

// agentShows reports whether the agent of m is evidence that its machine exists: it was
// heard, its stream has not ended since, and no report is missed.
func (s *shard) agentShows(m *member, now time.Time) bool {
	return m.heard && m.registered() && s.health.Misses(m.healthTrack, now) == 0
}

// heardOf returns when m last reported in this term, which began at began.
func (m *member) heardOf(began time.Time) time.Time {
	if m.reportAt.IsZero() {
		return latest(began, m.rec.RegisteredAt)
	}
	return m.reportAt
}
