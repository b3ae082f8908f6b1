package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain/hook"
	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/internal/version"
	"github.com/nstance-go/nstance/internal/wire"
	"golang.org/x/sync/errgroup"
)

// An Agent connects one machine to its shard's server. Make it with New. Its methods may
// be called concurrently; Run is called once.
type Agent struct {
	o               *Options
	certs           *registrant
	mail            *mailbox
	drains          *drainer
	files           *fileWorker
	sessionProgress progress
	watchProgress   progress
	metadata        metadataProblem
	machine         *machineName
	notifySystemd   func(state string) // nil: not run by systemd
	collector       *health.Collector
	started         time.Time

	mu         sync.Mutex // guards the fields below, which Status returns
	registered bool
	connected  bool
	lastError  error

	noticesError error  // of the file of notices
	foreign      string // the identity of another instance that was set aside; empty: none was
}

// New returns an agent, or every mistake in the options: Invalid errors, each
// named after its environment variable, joined into one.
func New(o *Options) (*Agent, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	drain := hookFunc(o.Drain)
	if drain == nil && len(o.DrainHook) > 0 {
		h, err := hook.New(o.DrainHook, &hook.Options{Log: o.Log})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", envDrainHook, err)
		}
		drain = h.Run
	}
	o.Log = o.Log.With("instance_id", o.InstanceID) // after hook.New, whose logs have the ID already
	collector, err := health.NewCollector(&health.CollectorOptions{Probes: o.Probes, Log: o.Log})
	if err != nil {
		return nil, fmt.Errorf("health collector: %w", err)
	}
	dial := o.Dial
	if dial == nil {
		dial = dialAny
	}
	a := &Agent{o: o, mail: newMailbox(o.Now), collector: collector, machine: newMachineName()}
	a.notifySystemd = notifySocket(o.NotifySocket)
	a.certs = &registrant{id: o.InstanceID, identityDir: identityDir{dir: o.IdentityDir, userData: o.UserDataDir, mode: o.IdentityMode}, dial: dial}
	a.drains = newDrainer(drain, a.mail.result, o.Log)
	a.files = newFileWorker(o, a.certs.identityDir.record)
	return a, nil
}

// Run registers if necessary, keeps a session with a server, and watches for
// notices, until ctx ends and no drain hook runs any more: a machine that is shut down
// because it is reclaimed stops its agent first, and the hook has until its deadline. A
// hook that is still to run for a notice runs then. Then it closes the session, waits for everything that
// it started, and returns nil. It is called once. Every failure is retried.
func (a *Agent) Run(ctx context.Context) error {
	a.started = time.Now()
	ctx, stop := a.untilDrained(ctx)
	defer stop()
	a.mail.end()
	if err := a.claimIdentity(); err != nil {
		a.o.Log.Error("identity directory not usable yet", "code", nstance.CodeOf(err), "err", err)
	}
	a.restoreNotices()
	g, ctx := errgroup.WithContext(ctx)
	if a.o.HealthAddr != "" {
		g.Go(func() error { a.serveHealth(ctx); return nil })
	}
	g.Go(func() error { return a.collector.Run(ctx) })
	g.Go(func() error { return a.drains.Run(ctx) })
	g.Go(func() error { return a.files.Run(ctx) })
	g.Go(func() error { return a.watch(ctx) })
	g.Go(func() error { a.keepNotices(ctx); return nil })
	if a.drains.hook != nil {
		g.Go(func() error { a.watchUnacknowledged(ctx); return nil })
	}
	g.Go(func() error { return a.connect(ctx) })
	n := &notifier{send: a.notifySystemd, watchdog: a.o.Watchdog, alive: a.alive}
	g.Go(func() error { return n.Run(ctx) })
	return g.Wait()
}

// untilDrained returns a context that ends some time after ctx: when no drain is under way,
// and none is due for a notice that dooms the machine.
func (a *Agent) untilDrained(ctx context.Context) (context.Context, context.CancelFunc) {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() { // ends with either context
		defer stop()
		select {
		case <-ctx.Done():
		case <-work.Done():
			return
		}
		if a.drains.hook != nil && !a.drains.busy() {
			a.drainBeforeStop(work)
		}
		for a.drains.busy() {
			a.o.Log.Info("stopping when the drain hook has ended")
			select {
			case <-a.drains.changed:
			case <-work.Done():
				return
			}
		}
	}()
	return work, stop
}

// commandGrace is how long an agent that is stopped waits for the command of a server that
// has acknowledged a notice: its drain is under way already.
const commandGrace = 2 * time.Second

// noticeGrace is how long an agent with a drain hook that is stopped waits for a notice: a
// cloud may shut the machine down at the moment of its notice.
const noticeGrace = time.Second

// drainBeforeStop starts the hook for a notice that dooms the machine and that no connected
// server knows of; it waits a moment for one. Where a server does, it gives it a moment for
// its command.
func (a *Agent) drainBeforeStop(ctx context.Context) {
	doomed, known := a.drainDoomed()
	for late := time.After(noticeGrace); !doomed; doomed, known = a.drainDoomed() {
		select {
		case <-a.mail.observed:
			continue
		case <-late:
		case <-ctx.Done():
		}
		return
	}
	grace := time.NewTimer(commandGrace)
	defer grace.Stop()
	for ; known && !a.drains.busy(); _, known = a.drainDoomed() {
		select {
		case <-a.drains.changed: // something has changed
		case <-grace.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// drainDoomed starts the hook for each notice that dooms the machine and that no drain answers,
// unless a connected server knows of it: known. Doomed reports whether there is any.
func (a *Agent) drainDoomed() (doomed, known bool) {
	answered := a.drains.answeredNotices()
	var due []dueNotice
	a.mail.do(func(o *outbox) {
		now := a.mail.now()
		for _, s := range o.notices {
			doomed = doomed || s.dooms()
			switch {
			case !s.dooms() || slices.Contains(answered, s.EventID):
			case s.everAcked && o.offlineSince.IsZero():
				known = true
			default:
				due = append(due, s.due(now))
			}
		}
	})
	for _, n := range due {
		a.drainWithoutServer(n)
	}
	return doomed, known
}

// Status returns the agent's present status. It may be called concurrently,
// before, during and after Run.
func (a *Agent) Status() Status {
	s := Status{Notices: []nstance.Notice{}}
	a.mail.do(func(o *outbox) {
		s.LastReport = o.lastReport.UTC()
		s.Notices = append(s.Notices, o.standing()...)
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	s.MetadataError = a.metadata.text()
	s.Registered, s.Connected, s.ForeignIdentity = a.registered, a.connected, a.foreign
	if a.lastError != nil {
		s.Error = a.lastError.Error()
	}
	if a.noticesError != nil {
		s.NoticesError = a.noticesError.Error()
	}
	return s
}

func (a *Agent) setStatus(registered, connected bool, lastError error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.registered, a.connected, a.lastError = registered, connected, lastError
}

// report returns a health report. Its notices are added when it is sent.
func (a *Agent) report(ctx context.Context) nstance.Report {
	r := nstance.Report{
		Version: wire.ReportVersion, Software: version.Software, InstanceID: a.o.InstanceID,
		Probes: a.collector.Probes(ctx), OneMinute: a.collector.Usage(),
		ConfigHash: wire.Text(a.certs.identityDir.configHash()), CanDrain: a.drains.hook != nil,
		Files: a.files.store.Status(), FilesError: wire.Text(a.files.store.LastError()),
		MetadataError: a.metadata.text(),
	}
	for i := range r.Probes {
		r.Probes[i].Message = wire.Text(r.Probes[i].Message)
	}
	r.Timestamp, r.UptimeSeconds = time.Now().UTC(), time.Since(a.started).Seconds()
	return r
}
