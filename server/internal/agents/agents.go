// Package agents serves the agents of a shard during one term: their sessions,
// their notices and reports, the drains that they carry out, and the files of their
// machines.
package agents

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/files"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/internal/ports"
	"github.com/nstance-go/nstance/storage"
)

// A shard is what is needed of the reconciler.
type shard interface {
	Observe(f nstance.Fact)
	Await(ctx context.Context) error
	Records() *records.Records
	Abilities() provider.Abilities
	Instance(id nstance.InstanceID) (reconcile.InstanceView, error)
	Runtime(id nstance.InstanceID) (loop.Runtime, error)
	RuntimeHashes() map[nstance.GroupKey]string
	FrozenGroups() map[nstance.GroupKey]bool
}

// Options configure Agents. All fields are required.
type Options struct {
	Owner   nstance.Owner
	Config  func() *config.Config // in force
	Check   func() error          // fails when the term has ended
	Began   time.Time             // of the term
	Now     func() time.Time
	Keys    *keyring.Keys
	Expiry  ports.Expiry
	Version string // of this server
	Log     *slog.Logger

	Secrets      files.Source        // of files
	Addresses    func() files.Server // for templates of files
	FilePass     time.Duration       // between two passes over files
	OnFilePassed func()              // called after each pass

	// Bound returns a context for one request to another party.
	Bound func(ctx context.Context) (context.Context, context.CancelFunc)
	// Journal receives events.
	Journal func(e nstance.Event)
	// Contested is called when two sources take over an agent's session from each
	// other.
	Contested func(id nstance.InstanceID, reason string)
}

// Agents are the connected agents of one term.
type Agents struct {
	Options
	shard    shard
	drains   *drain.Coordinator
	sessions *sessions
	notices  noticeBook
	files    *fileKeeper

	watchProblem watchProblem
}

// New returns the agents of one term. Sessions begin at once, all else with Run.
func New(store storage.Store, r shard, drains *drain.Coordinator, opts Options) *Agents {
	a := &Agents{Options: opts, shard: r, drains: drains, sessions: newSessions(r.Observe)}
	a.sessions.contested = opts.Contested
	a.files = newFileKeeper(a, store)
	return a
}

// Run keeps the files of machines, passes drains on to agents, and receives the
// notices of the provider until ctx ends.
func (a *Agents) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { a.files.run(ctx) })
	wg.Go(func() { a.relayDrains(ctx) })
	wg.Go(func() { a.watchProviderNotices(ctx) })
}

// Connect serves the stream of the agent with that certificate until either side
// ends it.
func (a *Agents) Connect(identity nstance.Identity, stream grpc.BidiStreamingServer[apiv1.ConnectRequest, apiv1.ConnectResponse]) error {
	id, err := nstance.ParseInstanceID(identity.Subject)
	if err != nil {
		return err
	}
	if err := a.admit(id); err != nil { // before it replaces the machine's own session
		return err
	}
	rec, _ := a.shard.Records().Get(id) // serve refuses an instance without record
	s := newSession(a, identity, id, rec.Key(), stream)
	defer s.cancel(nil)
	keep := context.AfterFunc(s.ctx, func() {
		if stream.Context().Err() == nil { // else the stream has ended by itself, and its status is on its way
			s.closeConnection()
		}
	})
	defer a.Expiry.On(identity, s.finish)()
	s.welcome()
	if err = a.sessions.begin(s); err == nil {
		if s.reportInterval != a.Config().Shard.HealthInterval { // changed since welcome
			s.goAway(errInterval)
		}
		var clean bool
		clean, err = s.serve()
		a.sessions.end(s, clean)
	}
	s.endFiles()
	keep() // the status of the session must still be sent
	s.close(err)
	return err
}

// Close ends every session for that reason, asks the agents to come back, and
// admits no more.
func (a *Agents) Close(reason error) { a.sessions.close(reason) }

// Count returns how many agents are connected.
func (a *Agents) Count() int { return a.sessions.count() }

// CountVisible returns how many agents are connected of tenants that sees reports.
func (a *Agents) CountVisible(sees func(nstance.TenantID) bool) int { return a.sessions.visible(sees) }

// EndSession ends the session of an instance whose deletion has begun, after it has
// released the machine to its cloud. It never blocks.
func (a *Agents) EndSession(id nstance.InstanceID) {
	if s := a.sessions.get(id); s != nil {
		s.release()
		s.finish(errDeleted)
	}
}

// EndParked ends the session of an instance whose machine is stopped. The agent of a
// hibernated one finds the request to reconnect when it wakes, and does so without
// backoff. It never blocks.
func (a *Agents) EndParked(id nstance.InstanceID) {
	if s := a.sessions.get(id); s != nil {
		s.goAway(errParked)
	}
}

// Forget drops what is known of a deleted instance.
func (a *Agents) Forget(id nstance.InstanceID) { a.notices.forget(id) }

// KeysChanged ends the sessions with certificates whose authority is gone, and asks
// agents to renew certificates whose authority is being retired.
func (a *Agents) KeysChanged() {
	for _, s := range a.sessions.all() {
		if !a.Keys.Identity.Trusts(s.identity.Issuer) {
			s.finish(ports.ErrUntrusted)
			continue
		}
		s.askRenewal()
	}
}

// GroupsChanged has the files of groups looked at whose definition has changed. It
// never blocks.
func (a *Agents) GroupsChanged() { a.files.groupsChanged() }

// Thawed has the files of machines looked at that a freeze kept as they were: of one
// group, or of all for the zero key. It never blocks.
func (a *Agents) Thawed(key nstance.GroupKey) { a.files.thawed(key) }

// FileProblems returns what operators should see of files.
func (a *Agents) FileProblems() []string { return a.files.problems() }

// ReceiveNotice passes a notice on to the reconciler; ack is called once its
// consequence is durable.
func (a *Agents) ReceiveNotice(id nstance.InstanceID, n nstance.Notice, ack func()) {
	a.reportDetection(id, n)
	a.shard.Observe(nstance.Noticed{ID: id, Notice: n, Ack: ack})
}

// reportDetection enters a notice into the journal, unless its event is known.
func (a *Agents) reportDetection(id nstance.InstanceID, n nstance.Notice) {
	v, err := a.shard.Instance(id)
	known := slices.ContainsFunc(v.Notices, func(o nstance.Notice) bool { return o.EventID == n.EventID || notice.SameEvent(n, o) })
	if err == nil && !known && !n.Cancelled {
		a.Journal(nstance.Event{
			Type: eventtype.NoticeDetected, Time: a.Now().UTC(), Instance: id,
			Tenant: v.Group.Tenant, Group: v.Group.Group, Notice: &n,
		})
	}
}

// admit fails with NotFound unless the instance exists and is not being deleted, and with
// Unavailable while its machine is to sleep: a copy of its disk must not pass for it, and
// its own agent, slow to stop, may ask again.
func (a *Agents) admit(id nstance.InstanceID) error {
	switch rec, ok := a.shard.Records().Get(id); {
	case !ok || rec.Deleting != nil:
		return errDeleted
	case rec.MachineAsleep():
		return errAsleep
	}
	return nil
}

// drainOf returns the drain that the instance's own agent carries out.
func (a *Agents) drainOf(id nstance.InstanceID) (nstance.Drain, bool) {
	d, ok := a.drains.Of(id)
	return d, ok && d.Executor == nstance.ExecutorAgent
}

// relayDrains passes drains on to the agents that carry them out.
func (a *Agents) relayDrains(ctx context.Context) {
	for ctx.Err() == nil {
		for e, err := range a.drains.Watch(ctx, "", 0) {
			if err != nil {
				if !errors.Is(err, nstance.Unavailable) {
					a.Log.Error("drain commands cannot be relayed to agents", "err", err)
				}
				break // this watcher is behind: it begins again with a snapshot
			}
			a.relayDrain(e)
		}
	}
}

func (a *Agents) relayDrain(e nstance.DrainEvent) {
	s := a.sessions.get(e.Drain.Instance)
	switch {
	case s == nil:
		return
	case s.outlived(): // a session that its machine was woken in before it had stopped
		s.askRenewal()
		return
	case e.Drain.Executor != nstance.ExecutorAgent:
		return
	}
	switch e.Type {
	case nstance.DrainSnapshot, nstance.DrainRequested, nstance.DrainTightened, nstance.DrainReassigned:
		s.sendDrain(e.Drain)
	case nstance.DrainCancelled:
		s.cancelDrain(e.Drain.Generation)
	case nstance.DrainSynced, nstance.DrainAcknowledged, nstance.DrainEnded:
	}
}
