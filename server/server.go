// Package server composes a shard server: it takes the lease, and during that term it
// runs the reconciler, registers agents and operators, serves the agents' sessions and
// the operators' API. Its rooms are the packages below server/internal: each takes the
// few functions that it needs, and knows neither another room nor the server.
//
// The methods of a [Server] may be called concurrently; Run is called once.
package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/bounded"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/manager"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/server/internal/agents"
	"github.com/nstance-go/nstance/server/internal/configuration"
	"github.com/nstance-go/nstance/server/internal/groups"
	"github.com/nstance-go/nstance/server/internal/keys"
	"github.com/nstance-go/nstance/server/internal/metrics"
	"github.com/nstance-go/nstance/server/internal/operators"
	"github.com/nstance-go/nstance/server/internal/peers"
	"github.com/nstance-go/nstance/server/internal/ports"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
	"github.com/nstance-go/nstance/storage/secret"
)

// Options configure a Server beside its required parts. They are a value: New copies it,
// and later changes, concurrent or not, have no effect.
type Options struct {
	Secrets *secret.Box          // seals private keys in storage; nil: they are stored as they are, which only a private directory justifies
	Events  journal.Journal      // keeps the events that the API shows; Run runs it, its owner closes it afterwards. Nil: the latest, in memory
	Journal func(nstance.Event)  // also receives every event, at times concurrently; must not block
	Shared  bool                 // has a port for other servers of the shard, so that they need not poll the lease
	Elector lease.Elector        // instead of the shard's lease, in which a server takes part by default
	Reread  time.Duration        // between two looks at the configuration while leading, jittered; 5 min
	Traces  trace.TracerProvider // receives spans of requests, storage and provider; nil: there are none
	Now     func() time.Time     // nil: time.Now
	Log     *slog.Logger         // nil: discarded
	LogLost func() int64         // how many lines Log has dropped so far, for metrics; called concurrently, must not block; nil: none

	// Kinds are the kinds of provider that shard.provider.kind may name, among
	// them that of the provider which New is given: what is known of each offline
	// is checked and used. None: any name will do, and what only a provider
	// understands is not checked before it is used.
	Kinds provider.Kinds

	// SecretSource is where secrets for files come from, where
	// shard.secrets.source says another place than storage.
	SecretSource secret.Source

	// KeyInterval is between two looks whether the cluster's keys have changed,
	// jittered; 1 min, which is the longest.
	KeyInterval time.Duration

	// Where this server listens, and where others reach it, as far as that
	// differs from what the configuration says: empty fields are as there. The
	// HTTP port is not advertised.
	Bind      Addresses
	Advertise Addresses
	Host      string // name or address of what is not advertised; empty: the one bound to, or this machine's

	// InterruptThroughMetadata has every Interrupt publish its notice on the
	// machine's own metadata service, as if the request asked for that.
	InterruptThroughMetadata bool

	// Announce publishes a reclaim on a machine's own metadata service, where the
	// provider itself cannot. Nil: only such a provider can.
	Announce func(id nstance.InstanceID, action string, after time.Duration) error

	intervals intervals
}

// intervals are how often a term looks at what no event announces. Zero fields
// mean the defaults; only tests have others.
type intervals struct {
	filePass       time.Duration
	collectorCheck time.Duration // 0: as package garbage has it
	ledgerLinger   time.Duration // 0: as package ledger has it
	drillCheck     time.Duration // between two looks at which drills are due
	firstRates     time.Duration // until a new leader reads interruption rates: taking over goes first
	campaign       time.Duration // between two attempts to lead, or to read what a leader must know

	filePassed func() // called after each pass over files; nil: nothing
}

func (i *intervals) fill() {
	for _, d := range []struct {
		is     *time.Duration
		orElse time.Duration
	}{{&i.filePass, agents.DefaultFilePass}, {&i.campaign, time.Second}, {&i.firstRates, 5 * time.Second}, {&i.drillCheck, time.Minute}} {
		if *d.is <= 0 {
			*d.is = d.orElse
		}
	}
	if i.filePassed == nil {
		i.filePassed = func() {}
	}
}

// A Server is one shard server. New makes one, Run runs it. Its methods may be called
// concurrently; Run is called once.
type Server struct {
	opts      Options
	store     storage.Store
	dated     storage.Dated // what store knows of the time; nil: nothing
	location  string        // of storage; empty: not known
	provider  nstance.Provider
	log       *slog.Logger
	elector   lease.Elector
	telemetry telemetry
	events    journal.Journal
	alarms    alarms

	config  *configuration.Reloader
	own     *config.Config // as this process was started: where it listens, its provider, its election
	keys    *keys.Keys
	expiry  ports.Expiry
	gate    *ports.Gate // made when the ports are opened
	limits  *callerLimits
	ports   *listeners
	peers   *peers.Peers
	ran     atomic.Bool
	started chan struct{} // closed when the listeners are open

	operators *operators.Service

	mu        sync.Mutex
	termError error // why the last term could not begin, or ended

	term atomic.Pointer[term] // nil while this server does not lead
}

func (s *Server) checkArguments(source Source) error {
	return errors.Join(
		validate.Given("store", "give the store that keeps the shard's truth, storage.NewMemory() for a trial", s.store),
		validate.Given("provider", "give the provider of the shard's machines", s.provider),
		validate.Given("source", "give what reads the configuration, such as server.FileSource", source),
		validate.Setting("reread", s.opts.Reread, 24*time.Hour),
		validate.Setting("key_interval", s.opts.KeyInterval, time.Minute),
	)
}

// New returns a server for the shard that the configuration from source names,
// with its truth in store and its machines at p. It reads and validates the
// configuration; nothing else happens before Run. It fails with Invalid, naming the
// field, when an argument is nil or an option is negative.
func New(ctx context.Context, store storage.Store, p nstance.Provider, source Source, opts *Options) (*Server, error) {
	s := &Server{store: store, provider: p, started: make(chan struct{})}
	if opts != nil {
		s.opts = *opts
	}
	if err := s.checkArguments(source); err != nil {
		return nil, err
	}
	if s.opts.Now == nil {
		s.opts.Now = time.Now
	}
	s.opts.intervals.fill()
	s.log = s.opts.Log
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.opts.LogLost == nil {
		s.opts.LogLost = func() int64 { return 0 }
	}
	if s.opts.KeyInterval == 0 || s.opts.KeyInterval > keys.DefaultInterval {
		s.opts.KeyInterval = keys.DefaultInterval
	}
	s.limits = newCallerLimits()
	s.expiry = ports.Expiry{Now: s.opts.Now, Interval: s.opts.KeyInterval}
	s.dated, _ = store.(storage.Dated)
	s.location = storage.LocationOf(store)
	s.telemetry = telemetry{metrics.New(s.measure), s.opts.Traces}
	s.store = s.telemetry.store(bounded.Store(s.store))
	if s.opts.Reread == 0 {
		s.opts.Reread = 5 * time.Minute
	}
	if err := s.opts.Kinds.Validate(); err != nil {
		return nil, err
	}
	var err error
	s.config, err = configuration.Open(ctx, configuration.Options{
		Source: source.bounded(), Store: s.store, Kinds: s.opts.Kinds, Now: s.opts.Now, Log: s.log,
		CheckAbilities: func(c *config.Config) error { return groups.CheckAbilities(c, provider.AbilitiesOf(p)) },
	})
	if err != nil {
		return nil, err
	}
	s.own = s.config.InForce()
	if _, err := addressMover(p, s.own.Shard); err != nil {
		return nil, err
	}
	if from := s.own.Shard.Secrets.Source; from != config.StoreSecrets && s.opts.SecretSource == nil {
		return nil, nstance.FieldError(manager.Field, "use store:", "this server was started without a source of secrets beside storage")
	}
	if err := storage.Probe(ctx, s.store); err != nil {
		return nil, err
	}
	s.peers = s.newPeers()
	s.elector = s.opts.Elector
	if s.events = s.opts.Events; s.events == nil {
		s.events = journal.NewMemory(0)
	}
	return s, nil
}

// Run serves until ctx ends and returns nil then, also while it still starts, after
// everything it started has stopped. It returns early when the keys cannot be read or
// made, or a listener cannot be opened, and fails with Invalid when called again.
func (s *Server) Run(ctx context.Context) error {
	if s.ran.Swap(true) {
		return nstance.FieldError("run", "make another Server", "was called before")
	}
	if err := s.start(ctx); err != nil {
		if ctx.Err() != nil { // what it waited for says so in many ways
			return nil
		}
		return err
	}
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.events.Run(work); err != nil {
			s.log.Error("journal stopped, events are not stored any more", "err", err)
		}
	})
	wg.Go(func() { s.keys.Run(work) })
	wg.Go(s.ports.serve)
	s.campaign(ctx)
	s.ports.shutdown(s.config.InForce().Shard.ShutdownTimeout)
	stop()
	wg.Wait()
	return nil
}

// start opens what Run serves with, or nothing.
func (s *Server) start(ctx context.Context) error {
	err := s.openKeys(ctx)
	if err != nil {
		return err
	}
	s.operators = s.newOperators()
	if s.ports, err = s.listen(ctx); err != nil {
		return err
	}
	if s.elector == nil {
		if s.elector, err = s.elect(); err != nil {
			s.ports.close()
			return err
		}
	}
	close(s.started)
	return nil
}

// campaign leads whenever the lease is granted, until ctx ends.
func (s *Server) campaign(ctx context.Context) {
	failed := failedTerms{pause: s.opts.intervals.campaign}
	for ctx.Err() == nil {
		granted, err := s.elector.Campaign(ctx)
		began := time.Now()
		if err == nil {
			err = s.lead(ctx, granted)
		}
		s.mu.Lock()
		s.termError = err
		s.mu.Unlock()
		if err == nil {
			failed = failedTerms{pause: failed.pause}
			continue
		}
		if failed.add(err, granted != nil && time.Since(began) < failed.longestPause()) && (granted != nil || ctx.Err() == nil) {
			s.log.Warn("this server does not lead", "code", nstance.CodeOf(err), "err", err)
		}
		sleep.For(ctx, failed.wait(err))
	}
}

// failedTerms are terms that failed in a row. An error is logged when it is another one than
// the last.
type failedTerms struct {
	pause time.Duration // after a failure: each attempt writes to storage
	brief int           // terms in a row that ended as soon as they began
	shown string        // the error that was logged last
}

// add records a failure, and reports whether it is to be logged.
func (f *failedTerms) add(err error, brief bool) (isNew bool) {
	if f.brief++; !brief {
		f.brief = 0
	}
	isNew = f.shown != err.Error()
	f.shown = err.Error()
	return isNew
}

func (f *failedTerms) wait(err error) time.Duration {
	if errors.Is(err, nstance.Invalid) { // settings or credentials must change first
		return f.longestPause()
	}
	return sleep.Backoff(f.brief, f.pause, f.longestPause())
}

func (f *failedTerms) longestPause() time.Duration { return 10 * f.pause }

// lead runs one term. At its end, or when ctx ends, it releases the lease first:
// that ends everything that the term began, and no successor waits for it to stop.
func (s *Server) lead(ctx context.Context, granted *lease.Term) error {
	var t *term
	err := s.keys.EnsureFresh(granted.Context())
	if err == nil {
		t, err = s.newTerm(granted)
	}
	if err == nil {
		s.term.Store(t)
		over := make(chan error, 1)
		go func() { over <- t.run() }() // waited for below
		defer func() { <-t.done }()
		select {
		case <-ctx.Done():
		case <-granted.Context().Done():
		case err = <-over:
		case err = <-t.quit:
		}
		s.term.Store(nil)
		t.agents.Close(ports.ErrTermEnded)
	}
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(err, s.elector.Resign(release))
}

// Ready blocks until the listeners are open, or ctx ends.
func (s *Server) Ready(ctx context.Context) error {
	select {
	case <-s.started:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// standingBy is the error of a server that does not lead. It names the leader, if that
// is known.
func (s *Server) standingBy() error {
	e := &nstance.Error{Code: nstance.Unavailable, Msg: "this server does not lead its shard at present"}
	if e.Leader, e.LeaderRegistration = s.leaderAddresses(); e.Leader != "" {
		e.Remedy = "ask the leader, at " + e.Leader
	}
	return e
}

// leads reports whether leading returns a term.
func (s *Server) leads() bool {
	t := s.term.Load()
	return t != nil && t.reconciler.Loaded()
}

// leading returns the present term, or Unavailable.
func (s *Server) leading() (*term, error) {
	t := s.term.Load()
	switch {
	case t == nil:
		return nil, s.standingBy()
	case !t.reconciler.Loaded(): // an unknown instance is not known to be absent
		return nil, nstance.Errorf(nstance.Unavailable, "this server is still reading its shard")
	}
	return t, nil
}
