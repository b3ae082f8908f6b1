package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/internal/version"
	"github.com/nstance-go/nstance/internal/webhook"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server/internal/acknowledgements"
	"github.com/nstance-go/nstance/server/internal/address"
	"github.com/nstance-go/nstance/server/internal/agents"
	"github.com/nstance-go/nstance/server/internal/configuration"
	"github.com/nstance-go/nstance/server/internal/garbage"
	"github.com/nstance-go/nstance/server/internal/groups"
	"github.com/nstance-go/nstance/server/internal/operators"
	"github.com/nstance-go/nstance/server/internal/registrar"
	"github.com/nstance-go/nstance/storage/lease"
)

// A term is everything that acts while this server leads. Losing the lease
// cancels its context, and with it everything below.
type term struct {
	server           *Server
	granted          *lease.Term
	conf             *config.Config // at the beginning; groups and tuner follow reloads
	log              *slog.Logger
	began            time.Time
	drains           *drain.Coordinator
	reconciler       fleet
	registrar        verifyingRegistrar
	groups           *groups.Groups
	agents           *agents.Agents
	config           *configuration.Term
	tuner            *tuner
	poolRates        atomic.Pointer[pageRates] // for the status page; nil: not read yet
	records          *registrar.Records
	collector        *garbage.Collector
	ledger           *ledger.Writer
	stories          *ledger.Stories
	audit            *audit
	webhooks         *webhook.Sender
	operators        *operators.Term
	acknowledgements *acknowledgements.Book
	address          *address.Keeper // nil: the shard has no movable address
	quit             chan error      // why this server should stop leading
	done             chan struct{}   // closed when run has returned
	exposures        *registrar.Exposures
	events           *eventLimits
	certsRead        string // retired workload key whose certificates were read from the log
}

// A fleet is a reconciler with all that this server asks of it.
type fleet struct {
	*reconcile.Admin
	loop.Internals
}

// A verifyingRegistrar also says whether a certificate is still in use.
type verifyingRegistrar interface {
	nstance.Registrar
	Verify(ctx context.Context, id nstance.Identity) (promote bool, err error)
}

func (s *Server) newTerm(granted *lease.Term) (*term, error) {
	t := &term{
		server: s, granted: granted, log: s.log, began: s.opts.Now(),
		operators: s.operators.NewTerm(), quit: make(chan error, 1), done: make(chan struct{}),
	}
	t.ledger = ledger.NewWriter(s.store, s.own.Shard.ID, &ledger.WriterOptions{
		Check: granted.Err, FinalCheck: t.resigned, Now: s.opts.Now, Linger: s.opts.intervals.ledgerLinger, Log: t.log,
	})
	t.stories = ledger.NewStories(t.ledger)
	t.audit = newAudit(t.ledger, s.opts.Now)
	t.events = newEventLimits(granted.Context(), s.opts.Now, t.journal)
	t.webhooks = webhook.NewSender(&webhook.Options{
		Term:      webhook.Term{Cluster: s.own.Cluster.ID, Shard: s.own.Shard.ID, Epoch: granted.Epoch()},
		Endpoints: func() map[string]webhook.Endpoint { return s.config.InForce().Endpoints() },
		Pool:      t.poolOf,
		Secret:    secretSource(s).Get, Observe: s.telemetry.Webhook, Log: t.log, Now: s.opts.Now,
	})
	var err error
	t.config, err = s.config.Begin(granted.Context(), configuration.TermOptions{
		Epoch: granted.Epoch(), Check: granted.Err, Journal: t.journal, Reread: s.opts.Reread, Changed: func() { t.tuner.tune() },
	})
	if err != nil {
		return nil, err
	}
	t.conf = s.config.InForce()
	t.drains = drain.New(&drain.Options{Log: s.log})
	owner := nstance.Owner{Installation: s.keys.Installation, Cluster: t.conf.Cluster.ID, Shard: t.conf.Shard.ID}
	r, err := reconcile.New(s.provider, s.store, &reconcile.Options{
		Owner: owner, Epoch: granted.Epoch(), Check: granted.Err, Bootstrap: bootstrap{s, t},
		Subnets:           slices.Concat(slices.Collect(maps.Values(t.conf.Shard.SubnetPools))...),
		ConsistencyWindow: consistency(t.conf),
		GC:                reconcile.GC{Interval: t.conf.Shard.GC.Interval, RegistrationTimeout: t.conf.Shard.GC.RegistrationTimeout},
		Drains:            t.drains, Journal: t.journal, Changed: t.operators.GroupChanged, HealthInterval: t.conf.Shard.HealthInterval,
		Deleting: t.endDeleted, Deleted: t.forget, Parked: func(id nstance.InstanceID) { t.agents.EndParked(id) },
		DrainTimeout: t.conf.Shard.DefaultDrainTimeout, MaxUnhealthy: t.conf.Shard.Breaker.MaxUnhealthy,
		Provider: &provider.Options{
			MaxUserData: maxUserData(t.conf),
			Timeout:     t.conf.Shard.RequestTimeout, Rate: t.conf.Shard.CreateRate.PerSecond, Burst: t.conf.Shard.CreateRate.Burst, Log: s.log, Observe: s.telemetry.provider(),
		},
		Now: s.opts.Now, Elapsed: lease.Elapsed(), Dated: s.dated, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	admin := r.Admin()
	t.reconciler = fleet{admin, admin.Internals()}
	t.reconciler.OnEnd(t.stories.Ended)
	t.exposures = registrar.NewExposures(t.reconciler.Drain, t.alarm, s.opts.Now, t.log)
	t.tuner = newTuner(t)
	t.records = registrar.NewRecords(s.store, t.reconciler, registrar.Options{
		Shard: t.conf.Shard.ID, Epoch: granted.Epoch(), Check: granted.Err, Now: s.opts.Now, Log: t.log,
	})
	t.collector = garbage.New(s.store, garbage.Options{
		Check: granted.Err, ClockRight: t.reconciler.ClockRight, Now: s.opts.Now, SettingCheck: s.opts.intervals.collectorCheck, Log: t.log,
		Retention: func() time.Duration { return s.config.InForce().Shard.GC.Retention }, Contents: t.reconciler.Records().CollectGarbage,
		Ledger: t.pruneLedger,
		Kinds:  []garbage.Kind{{Prefix: layout.NonceKey(""), Ends: registrar.NonceEnds}, {Prefix: layout.OperatorPrefix, Ends: registrar.OperatorEnds}},
	})
	secrets := secretSource(s)
	t.groups = groups.New(s.store, t.reconciler, groups.Options{
		Shard: t.conf.Shard.ID, Config: s.config.InForce, Proposed: t.config.Proposed, Epoch: granted.Epoch(), Check: granted.Err, Now: s.opts.Now, Retry: s.opts.intervals.campaign, Log: t.log,
		Vault: vault.New(s.store, s.opts.Secrets), Secrets: secrets, Bound: t.bound, Journal: t.journal,
		Published: func() { t.agents.GroupsChanged() },
	})
	t.config.Groups = t.groups
	t.agents = agents.New(s.store, t.reconciler, t.drains, agents.Options{
		Owner: owner, Config: s.config.InForce, Epoch: granted.Epoch(), Check: granted.Err, Began: t.began, Now: s.opts.Now, Keys: s.keys.Keys, Expiry: s.expiry, Version: version.Software, Log: t.log,
		Secrets: secrets, Addresses: s.serverAddresses, FilePass: s.opts.intervals.filePass, OnFilePassed: s.opts.intervals.filePassed,
		Bound: t.bound, Journal: t.journal, Contested: t.exposures.Contested, MayPrune: t.mayPrune,
	})
	t.registrar, err = registration.New(registration.KeysOf(s.keys.Identity, s.keys.Nonces), t.records, &registration.Options{
		Cluster: t.conf.Cluster.ID, Shard: t.conf.Shard.ID, Alarm: t.exposures.Misused, Exposed: t.exposures.Superseded, Journal: t.alarm, Now: s.opts.Now, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	t.acknowledgements = acknowledgements.New(s.store, acknowledgements.Options{
		Shard: t.conf.Shard.ID, Epoch: granted.Epoch(), Check: granted.Err, Now: s.opts.Now, ClockRight: t.reconciler.ClockRight, List: t.allAttention, Log: t.log,
	})
	t.operators.TermOptions = operators.TermOptions{
		Lease: granted, Began: t.began, Reconciler: t.reconciler.Admin, Internals: t.reconciler.Internals, Drains: t.drains, Groups: t.groups, Agents: t.agents, Records: t.records,
		Configs: t.config, Log: t.log, Verify: t.registrar.Verify,
		Connected: func() []nstance.Identity { return s.gate.Identities(nstance.RoleOperator, nstance.RoleAdmin) }, End: s.endIdentity, Renew: t.registrar.Renew, Bound: t.bound, Journal: t.journal,
		Attention: t.attention, Acknowledgements: t.acknowledgements,
	}
	t.address, err = t.newAddressKeeper()
	return t, err
}

// resigned returns nil unless the lease was lost. What a term learned is still true
// after it was resigned.
func (t *term) resigned() error {
	if err := t.granted.Err(); !errors.Is(err, lease.ErrResigned) {
		return err
	}
	return nil
}

// consistency is how long the provider may not list a new machine: a minute where its
// kind does not say.
func consistency(conf *config.Config) time.Duration {
	if kind, ok := conf.Kind(); ok && kind.Consistency > 0 {
		return kind.Consistency
	}
	return time.Minute
}

// maxUserData is how much user data the provider takes, as provider.Options has
// it.
func maxUserData(conf *config.Config) int {
	kind, ok := conf.Kind()
	if ok && kind.MaxUserData == 0 {
		return math.MaxInt
	}
	return kind.MaxUserData
}

// run works until the term ends.
func (t *term) run() error {
	defer close(t.done)
	ctx, stop := context.WithCancel(t.granted.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	tried := make(chan struct{})
	wg.Go(func() { t.collector.Run(ctx) })
	wg.Go(func() { t.ledger.Run(ctx) })
	wg.Go(func() { t.webhooks.Run(ctx) })
	wg.Go(func() { t.sendStandingNotices(ctx) })
	wg.Go(func() { t.groups.Run(ctx, sync.OnceFunc(func() { close(tried) })) })
	wg.Go(func() { t.exposures.Run(ctx) })
	wg.Go(func() { t.agents.Run(ctx) })
	wg.Go(func() {
		if t.reconciler.Await(ctx) == nil {
			t.config.Run(ctx)
		}
	})
	wg.Go(func() { t.keepAddress(ctx) })
	wg.Go(func() { t.keepRates(ctx) })
	wg.Go(func() { t.runDrills(ctx) })
	wg.Go(func() { t.tuner.run(ctx) })
	wg.Go(func() { t.acknowledgements.Run(ctx) })
	<-tried
	return t.reconciler.Run(ctx)
}

// bound returns a context for one call: it ends with the term too, so that no
// call keeps a shutdown waiting.
func (t *term) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, t.server.config.InForce().Shard.RequestTimeout)
	stop := context.AfterFunc(t.granted.Context(), cancel)
	return ctx, func() { stop(); cancel() }
}

// work returns a context for a call that may write. It ends with the term, or after the
// time that a request may take, but not with the caller: what the call has begun is
// finished. A caller that has left by now has nothing begun.
func (t *term) work(caller context.Context) (context.Context, context.CancelFunc, error) {
	if err := caller.Err(); err != nil {
		return nil, nil, nstance.Errorf(nstance.Unavailable, "the caller has left: %w", err)
	}
	ctx, cancel := t.bound(context.WithoutCancel(caller))
	return ctx, cancel, nil
}

// poolOf returns what a machine is of, as far as it is known.
func (t *term) poolOf(id nstance.InstanceID) *webhook.Pool {
	v, err := t.reconciler.Instance(id)
	if err != nil {
		return nil // it has ended, or its record cannot be read
	}
	return &webhook.Pool{InstanceType: cmp.Or(v.Machine.InstanceType, v.InstanceType), Zone: v.Zone, Market: v.Market}
}

// journal receives every event, in order, mostly under the reconciler's lock: nothing
// that it calls blocks.
func (t *term) journal(e nstance.Event) {
	if !t.events.admit(e) {
		return
	}
	e.Reason, e.Error = clip.Line(e.Reason), clip.Line(e.Error) // of agents, clouds, hooks and tenants
	e.Seq = t.operators.Publish(e)
	t.server.events.Append(e)
	t.server.telemetry.Event(e)
	t.stories.Event(e)
	t.webhooks.Event(e)
	if t.server.opts.Journal != nil {
		t.server.opts.Journal(e)
	}
	if e.Type == nstance.EventAlarm {
		t.server.alarms.add(e)
	}
}

// pruneLedger deletes the days of the ledger that the configuration does not keep.
func (t *term) pruneLedger(ctx context.Context) (int, error) {
	set := t.server.config.InForce().Shard
	keep := ledger.Retention{Age: set.Ledger.Keep, Size: int64(set.Ledger.MaxMiB) << 20}
	return ledger.Prune(ctx, t.server.store, set.ID, keep, t.server.opts.Now(), t.mayPrune)
}

// mayPrune fails when the term has ended, or the clock by which something is old is not
// trusted any more. It is asked before each deletion.
func (t *term) mayPrune() error {
	if err := t.granted.Err(); err != nil {
		return err
	}
	if !t.reconciler.ClockRight() {
		return nstance.Errorf(nstance.Unavailable, "this server's clock cannot be trusted")
	}
	return nil
}

// endDeleted ends the session of an instance whose deletion has begun, and soon all its
// connections. It never blocks.
func (t *term) endDeleted(id nstance.InstanceID) {
	t.agents.EndSession(id)
	if rec, ok := t.reconciler.Records().Get(id); ok {
		t.server.endIdentity(nstance.Identity{Role: nstance.RoleAgent, Tenant: rec.Key().Tenant, Subject: string(id)}, agents.ErrDeleted)
	}
}

// forget drops what is kept about an instance whose record is gone.
func (t *term) forget(id nstance.InstanceID) {
	t.records.Successors.Forget(id)
	t.exposures.Forget(id)
	t.agents.Forget(id)
}

// alarm journals an event with the tenant and group of its instance. It is called
// outside every lock.
func (t *term) alarm(e nstance.Event) {
	if v, err := t.reconciler.Instance(e.Instance); err == nil {
		e.Tenant, e.Group = v.Group.Tenant, v.Group.Group
	}
	t.journal(e)
}
