package reconcile

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/storage"
)

// A group is one group's state in memory. All of it is guarded by the
// reconciler's lock, which is never held across I/O.
type group struct {
	key        nstance.GroupKey
	spec       nstance.Group
	desired    bool   // spec is known; without it nothing is planned
	hash       string // infra hash of spec.Definition
	runtime    string // its runtime hash
	members    []*member
	history    groupState
	unreadable int
	removing   bool
	full       bool // group_ready was said and still holds
	suspected  bool // most of it is under notice, and that was said
	holds      []HoldView
	buffer     []Member // reused for every view
}

// A member is one instance's state in memory.
type member struct {
	id       nstance.InstanceID
	rec      storage.Instance // as last known to be durable
	durable  bool             // rec exists in storage, or may
	group    *group
	state    nstance.State // pending, provisioning, booting, draining, deleting, failed
	lastGood bool          // made from the last good definition
	replaces nstance.InstanceID

	machine   nstance.Machine
	hasMach   bool
	machSince time.Time // when this term first knew of the machine
	asked     time.Time // last create call that may have made a machine
	absent    time.Time // first NotFound of a registered machine
	gone      bool

	track      health.Track
	report     nstance.Report
	reportAt   time.Time
	connected  bool
	brokeAt    time.Time // when its stream broke without goodbye; zero while it is up
	looks      int       // how often the provider was asked again since then
	goodSince  time.Time
	everReady  bool // in this term
	graceUntil time.Time

	notices   []nstance.Notice
	stale     []string            // event IDs of notices that the cloud did not follow up
	acks      map[string][]func() // by event ID: owed once the consequence is durable
	requested *nstance.Cause
	noDrain   bool
	contested bool           // its machine carries other marks, and that was said
	drain     *nstance.Drain // as planned; durable once step is done
	drainOver bool
	why       []nstance.Cause // of the delete

	step     stepKind // what the executor owes this member
	planned  int      // grows with every action, so that a step that ends late does not undo a newer one
	running  bool     // a lane has it
	retryAt  time.Time
	attempts int
}

// A stepKind names what the executor does next for a member.
type stepKind int

const (
	stepNone stepKind = iota
	stepCreate
	stepDrain  // make the drain in memory durable, then announce it
	stepCancel // make the end of the drain durable, then announce it
	stepDelete
)

// String returns the step's name in logs.
func (s stepKind) String() string {
	return [...]string{"none", "create", "drain", "cancel_drain", "delete"}[s]
}

// due is when the step that m owes is to be tried again; zero while a lane has it.
func (m *member) due() time.Time {
	if m.running || m.step == stepNone {
		return time.Time{}
	}
	return m.retryAt
}

func (m *member) registered() bool { return !m.rec.RegisteredAt.IsZero() }

// group returns the group's state, made when it is first mentioned.
func (r *Reconciler) groupOf(key nstance.GroupKey) *group {
	g := r.groups[key]
	if g == nil {
		g = &group{key: key}
		r.groups[key] = g
	}
	return g
}

// desire replaces the desired values of all groups. A group that is not among
// them keeps its values: nothing is removed by omission.
func (r *Reconciler) desire(groups []nstance.Group) error {
	type hashes struct{ infra, runtime confighash.Hash }
	of := make([]hashes, len(groups))
	for i, spec := range groups {
		var err, err2 error
		of[i].infra, err = confighash.InfraOf(spec.Definition).Hash()
		of[i].runtime, err2 = confighash.RuntimeOf(spec.Definition).Hash()
		if err := errors.Join(err, err2, spec.Key.Group.Validate("group"), spec.Key.Tenant.Validate("tenant")); err != nil {
			return fmt.Errorf("group %s: %w", spec.Key, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, spec := range groups {
		g := r.groupOf(spec.Key)
		if g.hash != string(of[i].infra) && g.history.Failures > 0 {
			g.history.Failures = 0
			r.saveSoon()
		}
		g.spec, g.hash, g.runtime, g.desired = spec, string(of[i].infra), string(of[i].runtime), true
		r.queue.add(spec.Key, false)
	}
	return nil
}

// admit puts a member into the shard's state.
func (r *Reconciler) admit(g *group, m *member) {
	m.group = g
	r.members[m.id] = m
	g.members = append(g.members, m)
}

// forget removes a member: its record is gone.
func (r *Reconciler) forget(m *member) {
	delete(r.members, m.id)
	m.group.members = slices.DeleteFunc(m.group.members, func(o *member) bool { return o == m })
	if g := m.group; len(g.members) == 0 && !g.desired && g.unreadable == 0 {
		delete(r.groups, g.key)
	}
}

// say writes an event about m to the journal.
func (r *Reconciler) say(m *member, e nstance.Event) {
	e.Instance, e.Tenant, e.Group = m.id, m.group.key.Tenant, m.group.key.Group
	e.Time = r.opts.Now().UTC()
	r.opts.Journal(e)
}

// sayGroup writes an event about g to the journal.
func (r *Reconciler) sayGroup(g *group, e nstance.Event) {
	e.Tenant, e.Group, e.Time = g.key.Tenant, g.key.Group, r.opts.Now().UTC()
	r.opts.Journal(e)
}
