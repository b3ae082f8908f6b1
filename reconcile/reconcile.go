// Package reconcile keeps groups of machines at their size: observe, plan, act.
//
// [Plan] is the pure heart: one group's desired values, members and history
// in, actions out. The [Reconciler] around it owns the state of a shard in
// memory, takes note of facts, plans whichever group they touch, and carries
// the actions out: first durably in storage, then at the provider. It can be
// embedded in any program; it knows nothing of gRPC, SQL, clouds or Kubernetes.
package reconcile

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/internal/feed"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile/admission"
	"github.com/nstance-go/nstance/reconcile/balance"
	"github.com/nstance-go/nstance/reconcile/orphans"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/reconcile/wallclock"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// A Bootstrap renders what differs between the machines of one definition.
// Equal records and definitions give equal bytes, so that a repeated create is
// recognised as a repeat. Another server may give others: an intent whose bytes
// cannot be made again, and that has no machine, is given up for a new one. It
// may note in the record what it signed with. It is called concurrently.
type Bootstrap interface {
	Render(ctx context.Context, rec *storage.Instance, def nstance.Definition) (Rendered, error)
}

// Rendered is what a Bootstrap makes for one machine.
type Rendered struct {
	UserData []byte          // which the machine gets at its first boot
	Args     json.RawMessage // for the provider
}

// Options configure a Reconciler. Zero values mean the defaults given.
type Options struct {
	Owner     nstance.Owner          // required: marks every machine; its tenant is ignored
	Groups    []nstance.Group        // desired at the start; Observe(Desired) replaces them
	Balancers []nstance.LoadBalancer // that groups may name; Observe(Balancing) replaces them
	Subnets   []string               // that groups to come may choose among: counted once at the start, those of known groups are counted anyway
	Epoch     uint64                 // of the leadership term
	Check     func() error           // says whether the term still stands; asked before every mutation; nil: always
	Bootstrap Bootstrap              // nil: user data and arguments as the definition has them

	// Drains announces drains. Run takes acknowledgements from its Watch, and has
	// the drains of executors that come and go reassigned where it has the methods
	// HasExecutor and NotifyExecutors of drain.Coordinator; without them no operator
	// drains. Nil: a coordinator of its own, deadlines decide.
	Drains nstance.DrainCoordinator

	// Changed is called for each group whose view has changed, and of each that is
	// gone, as Groups would show it; several changes may come as one. It is
	// called under the reconciler's lock: it must not block, nor call back.
	Changed func(v GroupView, gone bool)

	// Deleting is called when the deletion of an instance has become durable, and
	// Deleted when its record is gone. Both are called under the reconciler's lock,
	// as Changed is.
	Deleting, Deleted func(nstance.InstanceID)

	// Journal receives every decision, in order and numbered, under the reconciler's
	// lock: it must not block, nor call back. Events has neither restriction.
	Journal func(nstance.Event)

	MaxUnhealthy      nstance.Count // more than that part of the shard silent at once, and than two members, is no reason to replace any; 20%
	HealthInterval    time.Duration // between two reports of an agent; 60 s
	DrainTimeout      time.Duration // longest drain of a member that is asked to go, in a group without a definition; 5 min
	FullPass          time.Duration // between two looks at everything, jittered; 5 min
	Snapshots         time.Duration // between two snapshots of the records, jittered, if any changed; 5 min
	ConsistencyWindow time.Duration // how long the provider may not know its own new machine; 10 s
	GC                GC            // of machines without a record
	Width             int           // steps under way at the same time, for each of voluntary and involuntary; 128
	Provider          *provider.Options
	Now               func() time.Time // time.Now

	// Elapsed is the time since some fixed instant. It never goes back, and
	// goes on while the machine sleeps, as lease.Elapsed does. Nil: it is not
	// noticed when the clock is set, unless Dated says so.
	Elapsed func() time.Duration

	// Dated is where the time comes from by which this process's clock is
	// judged. Nil: the store, if it is one.
	Dated storage.Dated

	// Lease adjusts the lease of Lead; New does not look at it. Log and Marks are set
	// where they are nil.
	Lease *lease.Options

	Log *slog.Logger // discarded
}

// A Reconciler works for one shard during one leadership term.
type Reconciler struct {
	opts     Options
	provider *provider.Client
	records  *storage.Records
	states   *storage.Doc[shardState]
	health   health.Policy
	log      *slog.Logger

	queue       *queue
	urgent      *lane
	ordinary    *lane
	deletions   *lane
	definitions *definitionReader
	admitWake   chan struct{} // has room for one: nextGrants has changed
	addresses   *addressCounter
	questions   *asker

	reserve      func(now time.Time) (ok bool, retryAt time.Time) // takes one create from the budget
	callTimeout  func() time.Duration                             // of calls to the provider
	storedRecord func(nstance.InstanceID) (storage.Instance, bool)
	orphanLock   chan struct{} // has room for one: whose turn it is to deal with orphans
	known        chan struct{} // closed once members are known

	balance *balance.Keeper
	events  *feed.Feed[nstance.Event]

	mu                sync.Mutex
	loaded            bool  // members are known; nothing is planned before
	loadError         error // why they are not yet
	groups            map[nstance.GroupKey]*group
	members           map[nstance.InstanceID]*member
	orphans           *orphans.Book
	refusedGroups     error // why the latest desired groups were refused; nil: they were not
	unreadableRecords []storage.Problem
	usedIDs           map[nstance.InstanceID]time.Time // IDs of instances on demand that are gone, since when
	admission         *admission.Queue
	nextGrants        time.Time                 // when creates may be granted by time alone; zero: never
	unplanned         map[nstance.GroupKey]bool // groups not planned in this term: their demand is not known
	changed           chan struct{}             // closed and replaced whenever a step ended
	tuned             chan struct{}             // closed and replaced whenever settings were changed
	ledger            ledger
	frozen            *freeze                // the whole shard
	absentGroups      map[string]groupState  // what groups remember that are not in memory, by tenant/group
	rollbackSpecs     map[string]desiredSpec // what groups were rolled back to when this term began
	began             time.Time
	foundNoRecord     bool         // storage held no live record then
	silenceCache      silenceCount // for the breaker
	clock             *wallclock.Clock
	heartbeatAt       time.Time // when this process last showed that it runs
	doubtPublished    bool      // orphans are spared for lack of certainty, and that was said
}

var _ nstance.Reconciler = (*Reconciler)(nil)

// New returns a Reconciler for the shard named in opts.Owner, which keeps its
// truth in store and its machines at p. It fails with Invalid, naming the field, when
// p or store is nil, or when opts lack an owner or hold what makes no sense.
func New(p nstance.Provider, store storage.Store, opts *Options) (*Reconciler, error) {
	if err := checkOptions(store, opts); err != nil {
		return nil, err
	}
	o := withDefaults(opts)
	client, err := provider.New(p, o.Provider)
	if err != nil {
		return nil, err
	}
	records := storage.NewRecords(store, o.Owner.Shard, &storage.RecordsOptions{Epoch: o.Epoch, Check: o.Check, Log: o.Log, Elapsed: o.Elapsed})
	r := &Reconciler{
		opts: o, provider: client, log: o.Log, records: records,
		states: storage.NewDoc[shardState](store, storage.StateKey(o.Owner.Shard), &storage.DocOptions{Epoch: o.Epoch, Check: o.Check}),
		health: policyFor(o.HealthInterval),
		queue:  newQueue(o.Now), urgent: newLane(o.Width), ordinary: newLane(o.Width), deletions: newLane(o.Width),
		definitions: newDefinitionReader(records), admitWake: make(chan struct{}, 1), admission: admission.New(), unplanned: map[nstance.GroupKey]bool{},
		reserve: client.Reserve, callTimeout: client.CallTimeout, storedRecord: records.Get,
		ledger: newLedger(), absentGroups: map[string]groupState{}, usedIDs: map[nstance.InstanceID]time.Time{},
		orphanLock: make(chan struct{}, 1), known: make(chan struct{}),
		groups: map[nstance.GroupKey]*group{}, members: map[nstance.InstanceID]*member{},
		events: feed.New[nstance.Event](eventBacklog), changed: make(chan struct{}), tuned: make(chan struct{}), clock: newClock(&o, store),
	}
	r.addresses = newAddressCounter(client.Abilities().Subnets, r.recordAddresses, &o)
	r.questions = newAsker(r.listMachines, r.askMachine, r.planMembers)
	r.opts.Journal = func(e nstance.Event) {
		e.Seq = r.events.Publish(e)
		o.Journal(e)
	}
	r.orphans = orphans.New(r.orphanRule())
	r.balance = balance.New(balancedMembers{r}, balance.Options{Check: o.Check, Now: o.Now, Log: o.Log})
	r.balance.Configure(o.Balancers)
	return r, r.Desire(o.Groups)
}

func withDefaults(opts *Options) Options {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.Owner.Tenant = ""
	o.MaxUnhealthy = cmp.Or(o.MaxUnhealthy, defaultMaxUnhealthy)
	o.HealthInterval = orElse(o.HealthInterval, health.DefaultInterval)
	o.DrainTimeout = orElse(o.DrainTimeout, defaultDrainTimeout)
	o.FullPass = orElse(o.FullPass, 5*time.Minute)
	o.Snapshots = orElse(o.Snapshots, 5*time.Minute)
	o.ConsistencyWindow = orElse(o.ConsistencyWindow, 10*time.Second)
	o.GC = o.GC.withDefaults()
	o.Width = orElse(o.Width, 128)
	if o.Check == nil {
		o.Check = func() error { return nil }
	}
	if o.Journal == nil {
		o.Journal = func(nstance.Event) {}
	}
	if o.Deleting == nil {
		o.Deleting = func(nstance.InstanceID) {}
	}
	if o.Deleted == nil {
		o.Deleted = func(nstance.InstanceID) {}
	}
	if o.Drains == nil {
		o.Drains = drain.New(nil)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Provider == nil {
		o.Provider = &provider.Options{Log: o.Log}
	}
	return o
}

func orElse[T time.Duration | int](v, fallback T) T {
	if v > 0 {
		return v
	}
	return fallback
}

// checkOptions refuses what makes no sense. Zero values mean defaults.
func checkOptions(store storage.Store, o *Options) error {
	switch {
	case store == nil:
		return nstance.FieldError("store", "give the store that keeps the shard's truth, storage.NewMemory() for a trial", "is nil")
	case o == nil || o.Owner.Installation == "":
		return nstance.FieldError("owner.installation", "use the ID that was made with the certificate authorities", "is empty")
	}
	for field, d := range map[string]time.Duration{
		"health_interval": o.HealthInterval, "drain_timeout": o.DrainTimeout, "full_pass": o.FullPass, "snapshots": o.Snapshots,
		"consistency_window": o.ConsistencyWindow, "gc.interval": o.GC.Interval, "gc.registration_timeout": o.GC.RegistrationTimeout,
		"width": time.Duration(o.Width), "max_unhealthy": time.Duration(o.MaxUnhealthy.N),
	} {
		if d < 0 {
			return nstance.FieldError(field, "use more than 0, or leave it out for the default", "is negative")
		}
	}
	named := map[string]bool{}
	for _, lb := range o.Balancers {
		if lb.Name == "" || named[lb.Name] {
			return nstance.FieldError("balancers", "name each load balancer once", "%q is empty or listed twice", lb.Name)
		}
		named[lb.Name] = true
	}
	return errors.Join(o.Owner.Cluster.Validate("owner.cluster_id"), o.Owner.Shard.Validate("owner.shard"))
}

// Records gives access to the instance records, for components that own other fields
// of them: registration. Tell the reconciler with a fact afterwards.
func (r *Reconciler) Records() *storage.Records { return r.records }

// Run loads the shard and keeps its groups at their size until ctx, which is
// one leadership term, ends. Then it returns nil, after every step under way
// has stopped. Whatever fails is tried again. Run returns early only when the
// provider uses another account than the shard's machines are in: with Invalid,
// before anything was done.
func (r *Reconciler) Run(ctx context.Context) error {
	if err := r.load(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { r.planGroups(ctx) })
	wg.Go(func() { r.urgent.run(provider.Urgent(ctx), r.perform) })
	wg.Go(func() { r.ordinary.run(ctx, r.perform) })
	wg.Go(func() { r.deletions.run(ctx, r.perform) })
	wg.Go(func() { r.admit(ctx) })
	wg.Go(func() { r.definitions.run(ctx, func(key nstance.GroupKey) { r.queue.add(key, true) }, r.log) })
	wg.Go(func() { r.questions.run(ctx) })
	wg.Go(func() { r.followDrains(ctx) })
	wg.Go(func() { r.saveStates(ctx) })
	wg.Go(func() { r.saveSnapshots(ctx) })
	wg.Go(func() { r.collectOrphans(ctx) })
	wg.Go(func() { r.heartbeat(ctx) })
	wg.Go(func() { r.addresses.run(ctx, func() []string { return r.subnetsInUse(nil) }) })
	if can := r.provider.Abilities().Balancers; can != nil {
		wg.Go(func() { r.balance.Run(ctx, can) })
	}
	r.runFullPasses(ctx)
	return nil
}

// planGroups plans groups as they come due.
func (r *Reconciler) planGroups(ctx context.Context) {
	for {
		key, ok := r.queue.take(ctx)
		if !ok {
			return
		}
		r.process(key)
	}
}

// process plans one group and hands the actions to the lanes.
func (r *Reconciler) process(key nstance.GroupKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.groups[key]
	if g == nil || !r.loaded {
		return
	}
	now := r.opts.Now()
	r.detectPause(now)
	r.updateClock()
	next := earliest(r.askProvider(g, now), r.endPreserves(g, now))
	v := r.view(g, now, g.buffer[:0])
	g.buffer = v.Members
	census := plan.NewCensus(v, now)
	r.recordCensus(g, census, now)
	d := census.Plan()
	next = earliest(next, d.Next, r.apply(g, census, d, now), g.nextStep())
	if !next.IsZero() && !next.After(now) {
		next = now.Add(time.Second) // skip deadlines in the past: never spin on them
	}
	r.queue.addAt(key, next)
	r.publishView(g)
}

// runFullPasses looks at everything now and then, whatever happened or did not: at the
// records too, since the intent of a former leader, sent before its term was
// over, may have landed after this one had read them all.
func (r *Reconciler) runFullPasses(ctx context.Context) {
	for {
		jittered := r.opts.FullPass*9/10 + rand.N(r.opts.FullPass/5+1)
		select {
		case <-ctx.Done():
			return
		case <-time.After(jittered):
		}
		if err := r.readRecordsAgain(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn("records not listed", "code", nstance.CodeOf(err), "err", err)
		}
		r.reconcileMachines(ctx)
		r.addresses.ask()
		r.mu.Lock()
		r.balance.CompareAll(true)
		for key := range r.groups {
			r.queue.add(key, false)
		}
		r.mu.Unlock()
	}
}

// earliest returns the first of the times that are not zero, or zero.
func earliest(times ...time.Time) time.Time {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
