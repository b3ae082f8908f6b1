package reconcile

import (
	"log/slog"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
	"github.com/nstance-go/nstance/reconcile/internal/balance"
	"github.com/nstance-go/nstance/reconcile/internal/cloudfacts"
	"github.com/nstance-go/nstance/reconcile/internal/definitions"
	"github.com/nstance-go/nstance/reconcile/internal/history"
	"github.com/nstance-go/nstance/reconcile/internal/orphans"
	"github.com/nstance-go/nstance/reconcile/internal/place"
	"github.com/nstance-go/nstance/reconcile/internal/questions"
	"github.com/nstance-go/nstance/reconcile/internal/saver"
	"github.com/nstance-go/nstance/reconcile/internal/silence"
	"github.com/nstance-go/nstance/reconcile/internal/wallclock"
	"github.com/nstance-go/nstance/reconcile/internal/work"
)

// A shard is what one leadership term knows of its groups and members, and what is to
// be done for them. Its methods need the reconciler's lock and do no I/O: what has to
// be asked or written goes to the queues, lanes and lists here, which have locks of
// their own and are served without this one.
type shard struct {
	opts   Options // of them Tune changes some
	health health.Policy
	log    *slog.Logger

	queue        *work.Queue
	urgent       *work.Lane[*member]
	ordinary     *work.Lane[*member]
	deletions    *work.Lane[*member]
	definitions  *definitions.Reader
	questions    *questions.Asker
	cloud        *cloudfacts.Reader
	balance      *balance.Keeper
	announced    map[nstance.GroupKey]bool // watchers are to be notified of them
	announceWake chan struct{}             // has room for one: there are some
	admitWake    chan struct{}             // has room for one: nextGrants, or what is avoided, has changed

	reserve        func(now time.Time) (ok bool, retryAt time.Time) // takes one create from the budget
	slowDown       func()                                           // halves its rate: a create was throttled after it had been accepted
	callTimeout    func() time.Duration                             // of calls to the provider
	nodeProviderID func(nstance.Machine) string
	storedRecord   func(nstance.InstanceID) (records.Instance, bool)

	began  time.Time
	loaded bool // members are known; nothing is planned before
	shardTroubles
	groups         map[nstance.GroupKey]*group
	members        map[nstance.InstanceID]*member
	orphans        *orphans.Book
	foundNoRecord  bool                             // storage held no live record when the term began
	usedIDs        map[nstance.InstanceID]time.Time // IDs of instances on demand that are gone, since when
	places         *place.Map
	admission      *admission.Queue
	nextGrants     time.Time                 // when creates may be granted by time alone; zero: never
	unplanned      map[nstance.GroupKey]bool // groups not planned in this term: their demand is not known
	changed        chan struct{}             // closed and replaced whenever a step ended
	tuned          chan struct{}             // closed and replaced whenever settings were changed
	saver          *saver.Saver              // of state/{shard}.json
	absentGroups   map[string]history.Group  // what groups remember that are not in memory, by tenant/group
	rollbackSpecs  map[string]desiredSpec    // what groups were rolled back to when this term began
	silence        silence.Cache             // of all members
	clock          *wallclock.Clock
	heartbeatAt    time.Time       // when this process last showed that it runs
	onEnd          loop.LifeKeeper // nil: nothing keeps the lives of instances
	doubtPublished bool            // orphans are spared for lack of certainty, and that was published
}

// shardTroubles are what keeps the whole shard from acting, and what could not be read. What is in
// it is replaced, never changed.
type shardTroubles struct {
	loadError         error // why members are not known yet
	accountError      error // why the provider's account is not confirmed; nil: it is, or was not asked for yet
	refusedGroups     error // why the latest desired groups were refused; nil: they were not
	unreadableRecords []records.Problem
	frozen            *history.Freeze // the whole shard
	listing           listFailure
}

// A listFailure is why the shard's machines cannot be listed. The zero value: they can be.
type listFailure struct {
	since time.Time // the first failure in a row
	err   error     // of the last one
}

// record records how a list ended.
func (f *listFailure) record(err error, now time.Time) {
	if err == nil || f.err == nil {
		f.since = now
	}
	f.err = err
}

// lasts reports whether lists have failed for so long that this needs attention.
func (f *listFailure) lasts(now time.Time) bool {
	return f.err != nil && now.Sub(f.since) >= obstacleAfter
}

func newShard(o Options, client *provider.Client, records *records.Records, clock *wallclock.Clock) shard {
	places := place.New()
	return shard{
		opts: o, log: o.Log, health: policyFor(o.HealthInterval), clock: clock,
		queue: work.NewQueue(o.Now), urgent: work.NewLane[*member](o.Width), ordinary: work.NewLane[*member](o.Width), deletions: work.NewLane[*member](o.Width),
		definitions: definitions.New(records), places: places, admission: admission.New(places), admitWake: make(chan struct{}, 1),
		reserve: client.Reserve, slowDown: client.SlowDown, callTimeout: client.CallTimeout, nodeProviderID: client.Abilities().NodeProviderID, storedRecord: records.Get,
		groups: map[nstance.GroupKey]*group{}, members: map[nstance.InstanceID]*member{}, usedIDs: map[nstance.InstanceID]time.Time{},
		announced: map[nstance.GroupKey]bool{}, announceWake: make(chan struct{}, 1),
		unplanned: map[nstance.GroupKey]bool{}, absentGroups: map[string]history.Group{}, saver: saver.New(),
		changed: make(chan struct{}), tuned: make(chan struct{}),
	}
}

func (s *shard) withMember(id nstance.InstanceID, do func(*member)) {
	if m := s.members[id]; m != nil {
		do(m)
	}
}

// wake has the one wait end that c is for.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// wakeWaiters wakes the calls that wait for a change to be durable.
func (s *shard) wakeWaiters() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// publish writes an event about m to the journal.
func (s *shard) publish(m *member, e nstance.Event) {
	e.Instance, e.Tenant, e.Group = m.id, m.group.key.Tenant, m.group.key.Group
	e.Time = s.opts.Now().UTC()
	s.opts.Journal(e)
}

// publishGroup writes an event about g to the journal.
func (s *shard) publishGroup(g *group, e nstance.Event) {
	e.Tenant, e.Group, e.Time = g.key.Tenant, g.key.Group, s.opts.Now().UTC()
	s.opts.Journal(e)
}
