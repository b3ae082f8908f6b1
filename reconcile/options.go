package reconcile

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile/internal/silence"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

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
	// the drains of executors that come and go reassigned. Nil: a coordinator of its
	// own, deadlines decide.
	Drains nstance.DrainCoordinator

	// Changed is called for each group whose view has changed, and of each that is
	// gone, as Groups would show it; several changes may come as one. It is
	// called under the reconciler's lock: it must not block, nor call back.
	Changed func(v GroupView, gone bool)

	// Deleting is called when the deletion of an instance has become durable, Deleted
	// when its record is gone, and Parked when the machine of a stand-by instance has
	// been stopped. They are called under the reconciler's lock, as Changed is.
	Deleting, Deleted, Parked func(nstance.InstanceID)

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

// GC says when a machine that carries our marks and has no record, an orphan,
// is deleted. See package orphans.
type GC struct {
	Interval            time.Duration // between two listings that must both show it; 2 min
	RegistrationTimeout time.Duration // how old it must be; 5 min
}

// A Bootstrap renders what differs between the machines of one definition.
// Equal requests give equal bytes, so that a repeated create is recognised as a
// repeat. Another server may give others: an intent whose bytes cannot be made
// again, and that has no machine, is given up for a new one. It is called
// concurrently.
type Bootstrap interface {
	Render(ctx context.Context, req RenderRequest) (Rendered, error)
}

// A RenderRequest is one machine that is about to be created.
type RenderRequest struct {
	ID            nstance.InstanceID
	Group         nstance.GroupKey
	OnDemand      bool   // requested by itself, not a member by size
	InstanceType  string // may change before the create succeeds: user data with it is rendered again
	Image         string // resolved
	BootstrapData string // its name, as in nstance.Group; recorded, so that it is the same for the machine's whole life
	RuntimeHash   string // of Definition
	CreatedAt     time.Time
	RegisterBy    time.Time // when its agent must have registered
	Definition    nstance.Definition
	SignedWith    SignedWith // as recorded when it was rendered first; zero: choose
}

// Rendered is what a Bootstrap makes for one machine.
type Rendered struct {
	UserData   []byte          // which the machine gets at its first boot
	Args       json.RawMessage // for the provider
	SignedWith SignedWith      // recorded for the next RenderRequest of this machine
}

// SignedWith names the keys that user data depends on, so that it can be rendered
// again after they were rotated.
type SignedWith struct {
	NonceKeyID  string
	Authorities []string // IDs of the keys that the machine is to trust
}

// Tuning holds the Options that can be changed while a Reconciler runs. Zero values
// mean the defaults given there.
type Tuning struct {
	HealthInterval time.Duration
	DrainTimeout   time.Duration
	MaxUnhealthy   nstance.Count
	GC             GC
	Provider       provider.Tuning
}

const defaultDrainTimeout = 5 * time.Minute

var defaultMaxUnhealthy = nstance.Count{N: 20, Percent: true}

// eventBacklog is how many events a consumer of Events may be behind.
const eventBacklog = 1024

// checkOptions refuses what makes no sense. Zero values mean defaults.
func checkOptions(store storage.Store, o *Options) error {
	if err := validate.Given("store", "give the store that keeps the shard's truth, storage.NewMemory() for a trial", store); err != nil {
		return err
	}
	if o == nil || o.Owner.Installation == "" {
		return nstance.FieldError("owner.installation", "use the ID that was made with the certificate authorities", "is empty")
	}
	for field, v := range map[string]any{"drains": o.Drains, "bootstrap": o.Bootstrap, "dated": o.Dated} {
		if err := validate.Optional(field, "leave it out for the default", v); err != nil {
			return err
		}
	}
	if err := checkDurations(o); err != nil {
		return err
	}
	for field, n := range map[string]int{"width": o.Width, "max_unhealthy": o.MaxUnhealthy.N} {
		if n < 0 {
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
	return errors.Join(validate.Name("owner.cluster_id", o.Owner.Cluster), validate.Shard("owner.shard", o.Owner.Shard))
}

// checkDurations refuses what would have the shard look at everything without a pause, or
// never.
func checkDurations(o *Options) error {
	return errors.Join(
		o.tuning().check(),
		validate.Setting("full_pass", o.FullPass, longestInterval),
		validate.Setting("snapshots", o.Snapshots, longestInterval),
		validate.Setting("consistency_window", o.ConsistencyWindow, time.Hour),
	)
}

// longestInterval bounds what happens again and again.
const longestInterval = 7 * 24 * time.Hour

func (o *Options) tuning() Tuning {
	return Tuning{HealthInterval: o.HealthInterval, DrainTimeout: o.DrainTimeout, GC: o.GC}
}

func (t Tuning) check() error {
	return errors.Join(
		validate.Setting("health_interval", t.HealthInterval, longestInterval),
		validate.Setting("drain_timeout", t.DrainTimeout, 3650*24*time.Hour),
		validate.Setting("gc.interval", t.GC.Interval, longestInterval),
		validate.Setting("gc.registration_timeout", t.GC.RegistrationTimeout, 3650*24*time.Hour),
	)
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
	if o.Parked == nil {
		o.Parked = func(nstance.InstanceID) {}
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

// withDefaults returns a copy of g without zero values.
func (g GC) withDefaults() GC {
	return GC{orElse(g.Interval, 2*time.Minute), orElse(g.RegistrationTimeout, 5*time.Minute)}
}

func orElse[T time.Duration | int](v, fallback T) T {
	if v > 0 {
		return v
	}
	return fallback
}

// policyFor returns the health policy for agents that report every interval.
func policyFor(interval time.Duration) health.Policy {
	return health.Policy{Interval: interval, Jitter: interval / 10, Missed: 3}
}

// ownerOf returns the marks that the machine of m carries.
func (o *Options) ownerOf(m *member) nstance.Owner {
	owner := o.Owner
	owner.Tenant = m.rec.Tenant
	return owner
}

// Tune changes settings from now on, and plans every group: another rate may permit
// more creates. When agents are to report more often than before, each has a whole
// interval before it counts as silent; change the agents first. Fails with Invalid, and
// changes nothing then, when a setting is wrong. It does no I/O and may be called
// concurrently.
func (r *Admin) Tune(t Tuning) error {
	if err := t.check(); err != nil {
		return err
	}
	if err := r.provider.Tune(t.Provider); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.health.Interval
	r.opts.DrainTimeout = orElse(t.DrainTimeout, defaultDrainTimeout)
	r.opts.MaxUnhealthy, r.opts.GC = cmp.Or(t.MaxUnhealthy, defaultMaxUnhealthy), t.GC.withDefaults()
	r.orphans.SetRule(r.orphanRule())
	r.health = policyFor(orElse(t.HealthInterval, health.DefaultInterval))
	r.silence = silence.Cache{}
	if r.health.Interval < was {
		now := r.opts.Now()
		for _, m := range r.members {
			m.healthTrack.RestartGrace(now)
		}
	}
	for key := range r.groups {
		r.queue.Add(key, false)
	}
	close(r.tuned)
	r.tuned = make(chan struct{})
	return nil
}
