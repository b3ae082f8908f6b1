// Package agents serves the agents of a shard during one term: their sessions,
// their notices and reports, the drains that they carry out, and the files of their
// machines.
package agents

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/buckets"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/files"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/wire"
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
	Epoch   uint64
	Check   func() error // fails when the term has ended
	Began   time.Time    // of the term
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
	// MayPrune fails when the term has ended or the clock is not trusted; nil: Check.
	MayPrune func() error
}

// Agents are the connected agents of one term.
type Agents struct {
	Options
	shard    shard
	drains   *drain.Coordinator
	sessions *sessions
	notices  noticeBook
	files    *fileKeeper

	messages   *buckets.Buckets // received, by instance
	signatures *buckets.Buckets // of certificates for files, by instance

	watchProblem watchProblem
}

// New returns the agents of one term. Sessions begin at once, all else with Run.
func New(store storage.Store, r shard, drains *drain.Coordinator, opts Options) *Agents {
	if opts.MayPrune == nil {
		opts.MayPrune = opts.Check
	}
	a := &Agents{Options: opts, shard: r, drains: drains, sessions: newSessions(r.Observe)}
	a.sessions.contested = opts.Contested
	a.messages = buckets.New(messagesPerSecond, messageBurst)
	a.signatures = buckets.New(signaturesPerMinute/60.0, signatureBurst)
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
// ends it. Nearly all of the time it waits for a message, once for each agent: what the
// frames of open and end need is not kept meanwhile.
func (a *Agents) Connect(identity *nstance.Identity, stream grpc.BidiStreamingServer[apiv1.ConnectRequest, apiv1.ConnectResponse]) error {
	s, err := a.open(identity, stream)
	if err != nil {
		return err
	}
	defer s.cancel(nil)
	defer s.stopExpiry()
	s.welcome()
	if err = a.sessions.begin(s); err == nil {
		if s.reportInterval != a.Config().Shard.HealthInterval { // changed since welcome
			s.goAway(errInterval)
		}
		var clean bool
		clean, err = s.serve()
		a.sessions.end(s, clean)
	}
	s.end(err)
	return err
}

// open returns the session of an agent that may have one.
func (a *Agents) open(identity *nstance.Identity, stream grpc.BidiStreamingServer[apiv1.ConnectRequest, apiv1.ConnectResponse]) (*session, error) {
	id, err := nstance.ParseInstanceID(identity.Subject)
	if err != nil {
		return nil, err
	}
	if err := a.checkNamed(stream.Context(), id); err != nil {
		return nil, err
	}
	if err := a.admit(id); err != nil { // before it replaces the machine's own session
		return nil, err
	}
	var group nstance.GroupKey
	if rec := a.shard.Records().Peek(id); rec != nil { // serve refuses an instance without record
		group = rec.Key()
	}
	s := newSession(a, *identity, id, group, stream)
	s.keepConnection = context.AfterFunc(s.ctx, func() {
		if stream.Context().Err() == nil { // else the stream has ended by itself, and its status is on its way
			s.closeConnection()
		}
	})
	s.stopExpiry = a.Expiry.On(s.identity, s.finish)
	return s, nil
}

// checkNamed refuses a session whose agent runs on another instance than its certificate is
// for, or on another machine than the instance has: one that was made from an image of an
// enrolled machine, perhaps with its user data. Only the metadata service of the shard's own
// cloud names machines as the records do.
func (a *Agents) checkNamed(ctx context.Context, id nstance.InstanceID) error {
	for _, named := range metadata.ValueFromIncomingContext(ctx, wire.SessionInstance) {
		if named != string(id) {
			return a.refuseClone(id, "the agent of "+printable(named))
		}
	}
	rec := a.shard.Records().Peek(id)
	for _, named := range metadata.ValueFromIncomingContext(ctx, wire.SessionMachine) {
		kind, name, _ := strings.Cut(named, "/")
		if kind == a.Config().Shard.Provider.Kind && rec != nil && rec.ProviderID != "" && !strings.EqualFold(path.Base(name), path.Base(rec.ProviderID)) {
			return a.refuseClone(id, "machine "+printable(name)+" of the cloud, which is not "+rec.ProviderID)
		}
	}
	return nil
}

func printable(named string) string { return wire.Printable(clip.Text(named, 128)) }

// refuseClone refuses a session with the identity of an instance from another machine.
func (a *Agents) refuseClone(id nstance.InstanceID, from string) error {
	rec, _ := a.shard.Records().Get(id)
	key := rec.Key()
	a.Journal(nstance.Event{
		Type: nstance.EventAlarm, Time: a.Now().UTC(), Instance: id, Tenant: key.Tenant, Group: key.Group,
		Reason: "refused a session with the identity of " + string(id) + " from " + from +
			": its machine was made from an image of an enrolled one. Remove the identity directory before making an image",
	})
	return &nstance.Error{
		Code: nstance.Denied, Msg: "the certificate is for " + string(id) + ", the session comes from " + from,
		Remedy: "remove the identity directory before making an image of a machine, and give each machine its own user data",
	}
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
		s.finish(ErrDeleted)
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

// LastExpiry returns when the last certificate for a file expires that a workload key has
// signed, or after if none expires later.
func (a *Agents) LastExpiry(ctx context.Context, keyID string, after time.Time) (time.Time, error) {
	return a.files.certs.lastExpiry(ctx, keyID, after)
}

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

// InUse fails with NotFound for an instance that does not exist or is being deleted, and with
// Unavailable for one whose record cannot be read.
func InUse(all *records.Records, id nstance.InstanceID) error {
	rec := all.Peek(id)
	switch {
	case rec == nil && !errors.Is(all.Missing(id), nstance.NotFound):
		return all.Missing(id)
	case rec == nil || rec.Deleting != nil:
		return ErrDeleted
	}
	return nil
}

// admit fails as InUse does, and with Unavailable while its machine is to sleep: a copy of
// its disk must not pass for it, and its own agent, slow to stop, may ask again.
func (a *Agents) admit(id nstance.InstanceID) error {
	all := a.shard.Records()
	if err := InUse(all, id); err != nil {
		return err
	}
	if rec := all.Peek(id); rec != nil && rec.MachineAsleep() {
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
	switch e.Type {
	case nstance.DrainSynced: // drains that were cancelled meanwhile are not in the snapshot
		for _, s := range a.sessions.all() {
			s.sendDrain()
		}
	case nstance.DrainRequested, nstance.DrainTightened, nstance.DrainReassigned, nstance.DrainCancelled:
		if s := a.sessions.get(e.Drain.Instance); s != nil && e.Drain.Executor == nstance.ExecutorAgent {
			s.sendDrain()
		}
	case nstance.DrainSnapshot, nstance.DrainAcknowledged, nstance.DrainEnded:
	}
}
