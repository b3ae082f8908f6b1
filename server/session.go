package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server/internal/ports"
)

// Bounds on one session.
const (
	// maxOutbox is how many messages may wait for an agent. One that does not
	// read them is disconnected; it comes back and hears what still matters.
	maxOutbox = 64
	// patience is how long an agent may leave half of that unread.
	patience = 10 * time.Second
	// An agent that sends more messages than this is read no faster.
	messagesPerSecond = 50
	messagesAtOnce    = 100
	// closeGrace is how long a session goes on that the server wants to end.
	closeGrace = ports.CloseGrace
)

// A session is one connected agent. It holds no truth: any failure discards it
// whole. Messages go out through a queue that a goroutine drains only while
// there is something in it, so that an idle agent costs no goroutine for it.
type session struct {
	id     nstance.InstanceID
	group  nstance.GroupKey
	term   *term
	stream grpc.BidiStreamingServer[apiv1.ConnectRequest, apiv1.ConnectResponse]
	ctx    context.Context
	cancel context.CancelCauseFunc
	hangUp func() // ends Recv and Send, which nothing else can
	wg     sync.WaitGroup
	pace   *rate.Limiter
	last   uint64        // highest message number taken
	rhythm time.Duration // between reports, as it was told
	source netip.Addr
	rivals rivalry // guarded by the lock of sessions
	claims *claims // of the instance

	mu      sync.Mutex
	outbox  []*apiv1.ConnectResponse
	sending bool
	read    chan struct{} // closed when the outbox is empty; nil while nobody waits
	ending  *time.Timer   // will cancel
	files   sessionFiles
}

// errReplaced ends a session whose agent has opened another.
var errReplaced error = &nstance.Error{Code: nstance.Conflict, Msg: "the agent opened a newer session"}

// errDeleted ends the session of a deleted instance.
var errDeleted error = &nstance.Error{Code: nstance.NotFound, Msg: "the instance is being deleted"}

// errSlow ends a session whose agent does not read.
var errSlow error = &nstance.Error{Code: nstance.Unavailable, Msg: "the agent does not read its messages"}

// errRhythm ends a session whose agent was told to report at other intervals than
// it should now: it hears the new one when it comes back.
var errRhythm error = &nstance.Error{Code: nstance.Unavailable, Msg: "reports are wanted at other intervals: come back"}

// errTermEnded ends the sessions of a server that leads no more.
var errTermEnded error = &nstance.Error{Code: nstance.Unavailable, Msg: "this server does not lead its shard any more"}

// Connect serves one agent's stream until either side ends it.
func (a agentService) Connect(stream grpc.BidiStreamingServer[apiv1.ConnectRequest, apiv1.ConnectResponse]) error {
	c := callerOf(stream.Context())
	id, err := nstance.ParseInstanceID(c.Subject)
	if err != nil {
		return err
	}
	rec, _ := c.term.reconciler.Records().Get(id) // of one that is gone serve says so
	s := &session{
		id: id, group: rec.Key(), source: ports.SourceOf(stream.Context()), claims: c.term.claims.of(id), term: c.term, stream: stream, hangUp: ports.CloseConnection(stream.Context()),
		pace: rate.NewLimiter(messagesPerSecond, messagesAtOnce),
	}
	s.ctx, s.cancel = context.WithCancelCause(stream.Context())
	defer s.cancel(nil)
	keep := context.AfterFunc(s.ctx, func() {
		if stream.Context().Err() == nil { // else the stream has ended by itself, and its status is on its way
			s.hangUp()
		}
	})
	defer c.term.server.expiry.On(c.Identity, s.finish)()
	s.claims.begin()
	s.welcome()
	if err = c.term.sessions.begin(s); err == nil {
		c.term.tuner.begun(s)
		var clean bool
		clean, err = s.serve()
		c.term.sessions.end(s, clean)
	}
	s.endFiles()
	keep() // whatever ended the session, its status must still get out
	s.close(err)
	return err
}

// welcome is the first message, said before anybody can find the session.
func (s *session) welcome() {
	s.rhythm = s.term.server.config().Shard.HealthInterval
	s.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Welcome{Welcome: &apiv1.Welcome{
		ReportInterval: durationpb.New(s.rhythm),
		RuntimeHash:    s.term.runtimeHash(s.id), ServerVersion: Version,
	}}})
}

// catchUp tells the agent how its drain stands, and its certificate.
func (s *session) catchUp() {
	s.askRenewal()
	if d, ok := s.term.drainFor(s.id); ok {
		s.command(d)
	} else if v, err := s.term.reconciler.Instance(s.id); err == nil && v.Record.Drain == nil && v.Record.Generation > 0 {
		s.cancelDrain(v.Record.Generation) // it may have been cancelled while the agent was away
	}
}

// serve reads until the stream ends, and reports whether the agent said goodbye.
func (s *session) serve() (clean bool, err error) {
	if !s.term.live(s.id) { // marked after its certificate was checked, before the session could be found
		return false, errDeleted
	}
	s.catchUp()
	for {
		s.waitForAgent()
		m, err := s.stream.Recv()
		switch {
		case s.ctx.Err() != nil:
			return clean, context.Cause(s.ctx)
		case errors.Is(err, io.EOF):
			return clean, nil
		case err != nil:
			return clean, err
		}
		clean = s.take(m) || clean
	}
}

// waitForAgent keeps the pace that an agent may have, and lets it read what it
// was sent before it is heard again.
func (s *session) waitForAgent() {
	_ = s.pace.Wait(s.ctx) // fails only when the session is over
	s.mu.Lock()
	if len(s.outbox) <= maxOutbox/2 {
		s.mu.Unlock()
		return
	}
	if s.read == nil {
		s.read = make(chan struct{})
	}
	read := s.read
	s.mu.Unlock()
	slow := time.NewTimer(patience)
	defer slow.Stop()
	select {
	case <-read:
	case <-s.ctx.Done():
	case <-slow.C:
		s.cancel(errSlow)
	}
}

// take handles one message and reports whether it was the goodbye. Numbers
// that do not grow are replays: they refresh nothing, and no acknowledgement
// may claim that they did. An agent that repeats itself uses a new number.
func (s *session) take(m *apiv1.ConnectRequest) (goodbye bool) {
	n := m.GetNumber()
	if n <= s.last {
		return false
	}
	s.last = n
	switch {
	case m.GetReport() != nil:
		s.report(wire.ReportReceived(s.id, n, m.GetReport(), s.now()))
		s.acknowledge(n)
	case m.GetFilesWanted() != nil:
		s.filesWanted(m.GetFilesWanted())
	case m.GetFileKeys() != nil:
		s.fileKeys(m.GetFileKeys())
	case m.GetFilesApplied() != nil:
		s.filesApplied(m.GetFilesApplied())
	case m.GetNotice() != nil:
		s.notice(n, wire.NoticeReceived(m.GetNotice(), s.now()))
	case m.GetDrainResult() != nil:
		s.drainResult(m.GetDrainResult())
		s.acknowledge(n)
	case m.GetGoodbye() != nil:
		return true
	}
	return false
}

// drainResult takes the outcome of the agent's own hook. One for a drain that
// is over, or not the agent's, is dropped.
func (s *session) drainResult(r *apiv1.DrainResult) {
	err := s.term.drains.Acknowledge(s.ctx, nstance.Ack{
		Instance: s.id, Generation: r.GetGeneration(), By: nstance.ExecutorAgent,
		Outcome: nstance.Outcome(r.GetOutcome()), Message: r.GetMessage(),
	})
	if err != nil {
		s.term.log.Warn("drain result dropped", "instance_id", s.id, "code", nstance.CodeOf(err), "err", err)
	}
}

func (s *session) acknowledge(n uint64) {
	s.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Acknowledgement{
		Acknowledgement: &apiv1.Acknowledgement{Number: n},
	}})
}

func (s *session) command(d nstance.Drain) {
	reason := ""
	if len(d.Causes) > 0 {
		reason = string(d.Causes[0].Kind)
	}
	s.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Drain{Drain: &apiv1.DrainCommand{
		Generation: d.Generation, Deadline: wire.Time(d.Deadline), Reason: reason,
	}}})
}

// send queues a message. It never blocks and may be called concurrently.
func (s *session) send(m *apiv1.ConnectResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(m)
}

// put is send for those who have the lock.
func (s *session) put(m *apiv1.ConnectResponse) {
	if s.ctx.Err() != nil {
		return
	}
	if len(s.outbox) >= maxOutbox {
		s.cancel(errSlow)
		return
	}
	s.outbox = append(s.outbox, m)
	s.startSending()
}

// startSending needs the lock.
func (s *session) startSending() {
	if !s.sending && s.ctx.Err() == nil {
		s.sending = true
		s.wg.Go(s.flush)
	}
}

// finish ends the session soon. What is queued, and what is acknowledged in the
// meantime, still gets out, and an agent that was asked to go away can say
// goodbye. It never blocks and may be called concurrently.
func (s *session) finish(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending == nil && s.ctx.Err() == nil {
		s.ending = time.AfterFunc(closeGrace, func() { s.cancel(cause) })
	}
}

// close ends the session and waits for its goroutine.
func (s *session) close(cause error) {
	s.mu.Lock()
	s.cancel(cause) // under the lock: nothing begins to be sent after it
	if s.ending != nil {
		s.ending.Stop()
	}
	s.mu.Unlock()
	defer time.AfterFunc(closeGrace, s.hangUp).Stop() // for an agent that does not read
	s.wg.Wait()
}

func (s *session) flush() {
	for {
		m := s.next()
		if m == nil {
			return
		}
		if d := m.GetDrain(); d != nil {
			wire.DrainLeft(d, s.now())
		}
		if err := s.stream.Send(m); err != nil {
			s.cancel(err)
		}
	}
}

// next returns the next message to send: files come when nothing else is to be
// said. Nil ends the flushing.
func (s *session) next() (m *apiv1.ConnectResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if over := s.ctx.Err() != nil; over || len(s.outbox) == 0 {
		s.outbox = nil
		if s.read != nil {
			close(s.read)
			s.read = nil
		}
		if t := s.files.transfer; t != nil && !over {
			var last bool
			m, last = t.next()
			s.filesSent(last)
			return m
		}
		s.sending = false
		return nil
	}
	m = s.outbox[0]
	s.outbox = s.outbox[1:]
	return m
}

// sessions are the connected agents of one term, one session each.
type sessions struct {
	observe func(nstance.Fact)
	// contested is called when two sources take an agent's session from each other; nil means no callback.
	contested func(id nstance.InstanceID, why string)
	order     sync.Mutex // held from a change until it was observed, so that the last fact is the present state
	mu        sync.Mutex // guards what follows; may be taken under the reconciler's lock
	byID      map[nstance.InstanceID]*session
	byGroup   map[nstance.GroupKey]map[nstance.InstanceID]*session
	closed    bool
}

func newSessions(observe func(nstance.Fact)) *sessions {
	return &sessions{observe: observe, byID: map[nstance.InstanceID]*session{}, byGroup: map[nstance.GroupKey]map[nstance.InstanceID]*session{}}
}

// add needs the lock.
func (l *sessions) add(s *session) {
	l.byID[s.id] = s
	if l.byGroup[s.group] == nil {
		l.byGroup[s.group] = map[nstance.InstanceID]*session{}
	}
	l.byGroup[s.group][s.id] = s
}

// remove needs the lock.
func (l *sessions) remove(s *session) {
	delete(l.byID, s.id)
	delete(l.byGroup[s.group], s.id)
	if len(l.byGroup[s.group]) == 0 {
		delete(l.byGroup, s.group)
	}
}

// begin makes s its agent's session; an older one ends.
func (l *sessions) begin(s *session) error {
	l.order.Lock()
	defer l.order.Unlock()
	l.mu.Lock()
	old, closed := l.byID[s.id], l.closed
	turns := s.succeeds(old, time.Now())
	if !closed {
		if old != nil {
			l.remove(old) // whose group was not known, if the record came later
		}
		l.add(s)
	}
	l.mu.Unlock()
	if closed {
		return errTermEnded
	}
	if old != nil {
		old.cancel(errReplaced)
	}
	if turns >= maxTurns && l.contested != nil {
		l.contested(s.id, fmt.Sprintf("sessions come from %s and %s in turns: two parties hold its key", old.source, s.source))
	}
	l.observe(nstance.Connected{ID: s.id})
	return nil
}

// end forgets s. A session that was replaced leaves without a trace.
func (l *sessions) end(s *session, clean bool) {
	l.order.Lock()
	defer l.order.Unlock()
	l.mu.Lock()
	current := l.byID[s.id] == s
	if current {
		l.remove(s)
	}
	l.mu.Unlock()
	if current {
		l.observe(nstance.Disconnected{ID: s.id, Clean: clean})
	}
}

func (l *sessions) get(id nstance.InstanceID) *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byID[id]
}

// all returns every session.
func (l *sessions) all() []*session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.byID))
}

// of returns the sessions of a group.
func (l *sessions) of(group nstance.GroupKey) []*session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.byGroup[group]))
}

func (l *sessions) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.byID)
}

// visible counts the sessions of tenants that are seen.
func (l *sessions) visible(sees func(nstance.TenantID) bool) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for group, all := range l.byGroup {
		if sees(group.Tenant) {
			n += len(all)
		}
	}
	return n
}

// close ends every session, after a word to come back elsewhere, and admits no
// more.
func (l *sessions) close(addresses []string) {
	l.mu.Lock()
	l.closed = true
	all := l.byID
	l.byID = map[nstance.InstanceID]*session{}
	clear(l.byGroup)
	l.mu.Unlock()
	for _, s := range all {
		s.goAway(errTermEnded, addresses...)
	}
}

// goAway asks the agent to come back, at one of the addresses if any, and ends
// the session soon.
func (s *session) goAway(cause error, addresses ...string) {
	s.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_GoAway{GoAway: &apiv1.GoAway{Addresses: addresses}}})
	s.finish(cause)
}

func (s *session) cancelDrain(generation uint64) {
	s.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_DrainCancel{DrainCancel: &apiv1.DrainCancel{Generation: generation}}})
}
