package reconcile

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

// A group is one group's state in memory. All of it is guarded by the
// reconciler's lock, which is never held across I/O.
type group struct {
	key nstance.GroupKey
	desiredSpec
	configured       desiredSpec  // by configuration and API; differs from desiredSpec while the group is rolled back
	pendingSince     time.Time    // since when a definition is pending
	rollbackSpec     *desiredSpec // last good definition while the group is rolled back; nil: it could not be read
	members          []*member
	ownBalancers     map[string]int // by name: members that name a load balancer in place of the group
	history          groupState
	recorded         bool // history stands in storage, or will
	pace             pace
	unreadable       int
	belowSizeSince   time.Time // since when it has had fewer ready members than its size; zero: it has not
	breakerTripped   bool
	breakerHoldUntil time.Time     // zero while what tripped it goes on
	creates          []plan.Action // of the last plan, which the admission queue refers to
	createsHash      string        // the desired hash then
	holds            []HoldView
	buffer           []plan.Member // reused for every census
	hadMembers       bool          // in this term
	published        groupPublications
}

// groupPublications is what the journal and the watchers of groups were told of a group.
type groupPublications struct {
	ready      bool // group_ready, which still holds
	massNotice bool // that most of it is under notice, which still holds
	removal    bool // that it is gone
	holds      []publishedHold
	view       *GroupView
}

// memberPublications is what the journal was told of a member.
type memberPublications struct {
	market    bool // that its market is another than was asked for
	contested bool // that its machine carries other marks
}

// A member is one instance's state in memory.
type member struct {
	id             nstance.InstanceID
	rec            storage.Instance // as last known to be durable
	durable        bool             // rec exists in storage, or may
	group          *group
	state          nstance.State      // pending, provisioning, booting, draining, deleting, failed
	lastGood       bool               // made from the last good definition
	requiredMarket nstance.MarketType // that it must be made in; empty: as its definition says. Spot: it returns from on-demand, until it is ready
	replaces       nstance.InstanceID

	machine      nstance.Machine
	machineSince time.Time // when this term first knew of the machine; zero: it knows of none
	missingSince time.Time // first NotFound of a registered machine
	published    memberPublications
	loss
	answeredAt time.Time // when the latest question was asked that the provider has answered

	machineCalls
	createGrant

	unrecordedRegistration bool // it was said to have registered, and its record does not say so

	healthTrack       health.Track
	report            nstance.Report
	reportAt          time.Time
	connected         bool
	streamBrokenAt    time.Time // when its stream broke without goodbye; zero while it is up
	queriesAfterBreak int       // how often the provider was asked again since then, and answered
	healthySince      time.Time
	wasReady          bool // in this term
	graceUntil        time.Time

	notices         []nstance.Notice
	noticeEnds      map[string]time.Duration // by event ID: until when, in elapsed time, one with a deadline stands
	droppedNotices  []string                 // event IDs of notices that the cloud did not follow up
	pendingAcks     map[string][]func()      // by event ID: owed once the consequence is durable
	removalCause    *nstance.Cause
	preserve        *storage.Preserve // as asked for; durable unless that is under way
	preserveExpired bool              // it was preserved for as long as was asked for
	skipDrain       bool
	drain           *nstance.Drain // as planned; durable once step is done
	drainDeadline   time.Time      // when this term planned that it ends, with the monotonic clock; zero: as recorded
	drainEnded      bool
	formerExecutor  nstance.Executor // whose drain goes to drain.Executor; empty: the executor is the one on record
	operatorGoneAt  time.Time        // when this term first saw that no operator is there to drain; zero: one is, or another executor drains
	deleteCauses    []nstance.Cause  // of the delete

	requestState // of what was made by request

	step         stepKind // what the executor owes this member
	planRevision int      // grows with every action, so that a step that ends late does not undo a newer one
	running      bool     // a lane has it
	retryDue     time.Time
	attempts     int

	definitionErr  error // why the definition on record was not read when it was to be created
	answered       bool  // a replacement has been created for it, or it is a failed creation
	creationFailed bool  // for what it was made from
	leftBefore     bool  // it was already leaving when this term found it

	withdrawBy     time.Time // its deletion waits for load balancers until then
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
	stepWriteNotices // make standing notices durable that nothing else follows from
)

// String returns the step's name in logs.
func (s stepKind) String() string {
	return [...]string{"none", "create", "drain", "cancel_drain", "delete", "note"}[s]
}

// due is when the next step of m is due; zero while it runs.
func (m *member) due() time.Time {
	if m.running || m.step == stepNone {
		return time.Time{}
	}
	return m.retryDue
}

// nextStep is when the next step of a member is due.
func (g *group) nextStep() (next time.Time) {
	for _, m := range g.members {
		next = earliest(next, m.due())
	}
	return next
}

// machineKnown reports whether this term knows the machine of m.
func (m *member) machineKnown() bool { return !m.machineSince.IsZero() }

func (m *member) registered() bool { return !m.rec.RegisteredAt.IsZero() }

// group returns the group's state, made when it is first mentioned.
func (r *Reconciler) groupOf(key nstance.GroupKey) *group {
	g := r.groups[key]
	if g == nil {
		g = &group{key: key}
		r.groups[key] = g
		r.restoreGroup(g)
	}
	return g
}

// desire replaces the desired values of all groups. A group that is not among
// them keeps its values: nothing is removed by omission. An unchanged group costs
// nothing.
func (r *Reconciler) desire(d nstance.Desired) error {
	specs, news, err := r.desiredSpecsFor(d.Groups)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, w := range specs {
		if !news[i] {
			continue
		}
		g := r.groupOf(w.spec.Key)
		r.changeBalancers(g, w.spec.Definition.LoadBalancers)
		r.setRemoving(g, w.spec.Removing)
		g.configure(w, r.opts.Now().UTC())
		r.resolveDesired(g)
		r.queue.add(g.key, false)
	}
	r.dropUndefined(d.Groups)
	return nil
}

// configure sets what a group should be.
func (g *group) configure(w desiredSpec, now time.Time) {
	switch {
	case w.spec.Pending == "":
		g.pendingSince = time.Time{}
	case g.configured.spec.Pending == "":
		g.pendingSince = now
	}
	g.configured = w
}

// defined reports whether the group's definition is known. Without one nothing is
// planned.
func (g *group) defined() bool { return g.configured.spec.Defined() }

// dropUndefined forgets groups without definition and members that are not named. It
// needs the lock.
func (r *Reconciler) dropUndefined(named []nstance.Group) {
	keep := map[nstance.GroupKey]bool{}
	for i := range named {
		keep[named[i].Key] = true
	}
	for key, g := range r.groups {
		if !keep[key] && !g.defined() && len(g.members) == 0 && g.unreadable == 0 {
			r.drop(g)
		}
	}
}

// desiredSpecsFor returns what groups are to be, and which of them differ from what is
// known. Hashes are computed only for those: that is expensive.
func (r *Reconciler) desiredSpecsFor(groups []nstance.Group) (specs []desiredSpec, news []bool, err error) {
	if err := checkKeys(groups); err != nil {
		return nil, nil, err
	}
	specs, news = r.configured(groups)
	for i, spec := range groups {
		if news[i] = news[i] || !reflect.DeepEqual(specs[i].spec, spec); !news[i] {
			continue
		}
		if err = spec.Validate(""); err == nil {
			specs[i], err = desiredSpecFor(spec)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("group %s: %w", spec.Key, err)
		}
	}
	return specs, news, nil
}

// checkKeys refuses groups with the same key.
func checkKeys(groups []nstance.Group) error {
	seen := make(map[nstance.GroupKey]bool, len(groups))
	for i := range groups {
		if key := groups[i].Key; seen[key] {
			return nstance.FieldError("group", "name each group once", "group %s is listed twice", key)
		}
		seen[groups[i].Key] = true
	}
	return nil
}

// configured returns what groups should have been so far, and which of them must be
// resolved again in any case.
func (r *Reconciler) configured(groups []nstance.Group) (was []desiredSpec, anew []bool) {
	was, anew = make([]desiredSpec, len(groups)), make([]bool, len(groups))
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range groups {
		g := r.groups[groups[i].Key]
		if anew[i] = g == nil; !anew[i] {
			was[i] = g.configured
		}
	}
	return was, anew
}

// addMember puts a member into the shard's state.
func (r *Reconciler) addMember(g *group, m *member) {
	m.group, g.hadMembers = g, true
	r.members[m.id] = m
	g.members = append(g.members, m)
	g.countBalancers(m, 1)
}

// forget removes a member: its record is gone.
func (r *Reconciler) forget(m *member) {
	r.timeDrain(m)
	r.createEndedWith(m, errOutdated)
	r.admission.ReturnAddress(m.subnetWithoutMachine())
	r.reopenLoss(m)
	r.abandonReturn(m)
	delete(r.members, m.id)
	m.group.countBalancers(m, -1)
	m.group.members = slices.DeleteFunc(m.group.members, func(o *member) bool { return o == m })
	r.rememberUsedID(m)
	if g := m.group; len(g.members) == 0 && !g.defined() && g.unreadable == 0 {
		r.drop(g)
	}
}

// publish writes an event about m to the journal.
func (r *Reconciler) publish(m *member, e nstance.Event) {
	e.Instance, e.Tenant, e.Group = m.id, m.group.key.Tenant, m.group.key.Group
	e.Time = r.opts.Now().UTC()
	r.opts.Journal(e)
}

// publishGroup writes an event about g to the journal.
func (r *Reconciler) publishGroup(g *group, e nstance.Event) {
	e.Tenant, e.Group, e.Time = g.key.Tenant, g.key.Group, r.opts.Now().UTC()
	r.opts.Journal(e)
}

// subnetWithoutMachine returns the subnet in which an address is counted for m that
// no machine has taken; empty: none.
func (m *member) subnetWithoutMachine() string {
	if m.machineKnown() {
		return ""
	}
	return m.subnet
}
