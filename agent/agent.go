package agent

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain/hook"
	"github.com/nstance-go/nstance/health"
	"golang.org/x/sync/errgroup"
)

// An Agent speaks for one machine. Make it with New.
type Agent struct {
	o       *Options
	certs   *registrant
	mail    *mailbox
	drains  *drainer
	files   *filer
	pulse   pulse              // of connect and the session
	notices pulse              // of watch and the detector
	notify  func(state string) // tells systemd; nil: there is none
	vitals  *health.Collector
	started time.Time

	mu         sync.Mutex // guards what follows, which Status returns
	registered bool
	connected  bool
	trouble    error
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
	o.Log = o.Log.With("instance_id", o.InstanceID) // the hook says so itself
	vitals, err := health.NewCollector(&health.CollectorOptions{Probes: o.Probes, Log: o.Log})
	if err != nil {
		return nil, fmt.Errorf("health collector: %w", err)
	}
	dial := o.Dial
	if dial == nil {
		dial = dialAny
	}
	a := &Agent{o: o, mail: newMailbox(o.Now), vitals: vitals}
	a.notify = notifySocket(o.NotifySocket)
	a.certs = &registrant{id: o.InstanceID, vault: vault{dir: o.IdentityDir, mode: o.IdentityMode}, dial: dial}
	a.drains = newDrainer(drain, a.mail.result, o.Log)
	a.files = newFiler(o, a.certs.vault.record)
	return a, nil
}

// Run registers where that is necessary, keeps a session with a server, and
// watches for notices, until ctx ends; then it says goodbye, waits for all that
// it started, and returns nil. It is called once. It returns an error only for
// what no patience mends: a health address that cannot be listened on.
func (a *Agent) Run(ctx context.Context) error {
	a.started = time.Now()
	if err := a.certs.vault.repair(); err != nil {
		a.o.Log.Warn("permission bits not repaired", "code", nstance.CodeOf(err), "err", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	if a.o.HealthAddr != "" {
		ln, err := listen(ctx, a.o.HealthAddr)
		if err != nil {
			return err
		}
		g.Go(func() error { return serve(ctx, ln, handler(a.Status)) })
	}
	g.Go(func() error { return a.vitals.Run(ctx) })
	g.Go(func() error { return a.drains.Run(ctx) })
	g.Go(func() error { return a.files.Run(ctx) })
	g.Go(func() error { return a.watch(ctx) })
	g.Go(func() error { a.mail.guard(ctx, a.drainAlone); return nil })
	g.Go(func() error { return a.connect(ctx) })
	n := &notifier{say: a.notify, watchdog: a.o.Watchdog, alive: a.alive}
	g.Go(func() error { return n.Run(ctx) })
	return g.Wait()
}

// Status returns how the agent is. It may be called concurrently, before,
// during and after Run.
func (a *Agent) Status() Status {
	s := Status{Notices: []nstance.Notice{}}
	a.mail.do(func(o *outbox) {
		s.LastReport = o.lastReport.UTC()
		s.Notices = append(s.Notices, o.standing()...)
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	s.Registered, s.Connected = a.registered, a.connected
	if a.trouble != nil {
		s.Error = a.trouble.Error()
	}
	return s
}

func (a *Agent) set(registered, connected bool, trouble error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.registered, a.connected, a.trouble = registered, connected, trouble
}

// report says how the machine is. Its notices are added when it is sent.
func (a *Agent) report(ctx context.Context) nstance.Report {
	r := nstance.Report{
		Version: nstance.ReportVersion, InstanceID: a.o.InstanceID,
		Probes: a.vitals.Probes(ctx), OneMinute: a.vitals.Usage(),
		ConfigHash: clean(a.certs.vault.configHash()), CanDrain: a.drains.hook != nil,
		Files: a.files.store.Status(), FilesError: clean(a.files.store.Trouble()),
	}
	for i := range r.Probes {
		r.Probes[i].Message = clean(r.Probes[i].Message)
	}
	r.Timestamp, r.UptimeSeconds = time.Now().UTC(), time.Since(a.started).Seconds()
	return r
}

// clean makes text fit for the wire, which takes valid UTF-8 only: one probe's
// odd output must not end every session.
func clean(s string) string { return strings.ToValidUTF8(s[:min(len(s), 256)], "") }
