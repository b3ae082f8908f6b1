package agents

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server/internal/ports"
)

// Bounds on one agent, over all its sessions, and on one session.
const (
	// maxOutbox is how many messages may wait for an agent. An agent that does not
	// read them is disconnected; when it comes back it is sent what still counts.
	maxOutbox = 64
	// An agent that sends more messages than this is read no faster.
	messagesPerSecond = 50
	messageBurst      = 100
	// maxDrainMessage is how many bytes are kept of what a hook said.
	maxDrainMessage = 256
	// closeGrace is how long a session goes on that the server ends.
	closeGrace = ports.CloseGrace
	// sendTimeout is how long an agent may leave half of the outbox unread.
	sendTimeout = ports.SendTimeout
)

// A session is one connected agent. It holds no truth: any failure discards it
// whole. Messages go out through a queue that a goroutine empties only while there
// is something in it, so that an idle agent costs no goroutine for it.
type session struct {
	agents          *Agents
	identity        nstance.Identity
	id              nstance.InstanceID
	group           nstance.GroupKey
	stream          grpc.BidiStreamingServer[apiv1.ConnectRequest, apiv1.ConnectResponse]
	ctx             context.Context
	cancel          context.CancelCauseFunc
	closeConnection func()      // ends Recv and Send, which nothing else can
	keepConnection  func() bool // closeConnection is not called any more when ctx ends
	stopExpiry      func()      // the certificate's end does not end the session any more
	wg              sync.WaitGroup
	limiter         *rate.Limiter // of all sessions of the agent
	lastNumber      uint64        // highest message number handled
	reportInterval  time.Duration
	source          netip.Addr
	rivalry         rivalry // guarded by the lock of sessions
	notices         *noticeDedup
	noticeRefused   bool        // an alarm was raised; only the goroutine that reads uses it
	slept           atomic.Bool // its certificate is outlived, also once the machine sleeps again
	renewNow        sync.Once   // asks to renew that

	mu       sync.Mutex
	outbox   []*apiv1.ConnectResponse
	sending  bool
	emptied  chan struct{} // closed when the outbox is empty; nil: no waiter
	endTimer *time.Timer   // will cancel
	files    sessionFiles

	metadataError string    // of the last report; empty: the agent can read its metadata service
	metadataSince time.Time // since then it cannot
	software      string    // version of its program, by the last report; empty: none came, or it does not say

	ackedRevision uint64 // of notices
}

// ErrDeleted is why an instance that is being deleted is not served any more.
var ErrDeleted error = &nstance.Error{Code: nstance.NotFound, Msg: "the instance is being deleted"}

// Reasons for the end of a session.
var (
	errReplaced error = &nstance.Error{Code: nstance.Conflict, Msg: "the agent opened a newer session"}
	errParked   error = &nstance.Error{Code: nstance.Unavailable, Msg: "the machine is stopped"}
	errAsleep   error = &nstance.Error{Code: nstance.Unavailable, Msg: "the machine is parked, or about to be: connect once it has been woken"}
	errSlow     error = &nstance.Error{Code: nstance.Unavailable, Msg: "the agent does not read its messages"}
	errInterval error = &nstance.Error{Code: nstance.Unavailable, Msg: "the report interval has changed: reconnect"}
)

func newSession(a *Agents, identity nstance.Identity, id nstance.InstanceID, group nstance.GroupKey, stream grpc.BidiStreamingServer[apiv1.ConnectRequest, apiv1.ConnectResponse]) *session {
	s := &session{
		agents: a, identity: identity, id: id, group: group, stream: stream, source: ports.SourceOf(stream.Context()),
		closeConnection: ports.CloseConnection(stream.Context()), notices: a.notices.of(id),
		limiter: a.messages.Of(string(id), time.Now()), reportInterval: a.Config().Shard.HealthInterval,
	}
	s.ctx, s.cancel = context.WithCancelCause(stream.Context())
	return s
}

// welcome sends the first message, before other messages can be queued.
func (s *session) welcome() {
	runtime, _ := s.agents.shard.Runtime(s.id) // without a hash when it fails
	s.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Welcome{Welcome: &apiv1.Welcome{
		ReportInterval: durationpb.New(s.reportInterval),
		RuntimeHash:    runtime.Hash, ServerVersion: s.agents.Version,
	}}})
}

// catchUp sends what the agent may have missed of its drain and its certificate.
func (s *session) catchUp() {
	s.askRenewal()
	s.sendDrain()
}

// sendDrain sends the drain that the agent carries out, or that there is none any more: it
// may have been cancelled while the agent was away. The lock keeps the last message the
// latest state.
func (s *session) sendDrain() {
	if s.outlived() { // the session with the renewed certificate catches up
		s.askRenewal()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d, ok := s.agents.drainOf(s.id); ok {
		s.queue(drainCommand(d))
	} else if ended := s.endedDrains(); ended > 0 {
		s.queue(drainCancel(ended))
	}
}

// endedDrains returns the generation up to which the drains of the instance have ended.
func (s *session) endedDrains() uint64 {
	switch rec := s.agents.shard.Records().Peek(s.id); {
	case rec == nil:
		return 0
	case rec.Drain != nil:
		return rec.Drain.Generation - 1
	default:
		return rec.Generation
	}
}

// serve reads until the stream ends, and reports whether the agent said goodbye.
func (s *session) serve() (clean bool, err error) {
	if err := s.agents.admit(s.id); err != nil { // deleted or parked since Connect, before EndSession or EndParked could find the session
		return false, err
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
		clean = s.handle(m) || clean
	}
}

// waitForAgent limits how fast the agent is read, and waits until it has read what
// it was sent.
func (s *session) waitForAgent() {
	_ = s.limiter.Wait(s.ctx) // fails only when the session has ended
	s.mu.Lock()
	if len(s.outbox) <= maxOutbox/2 {
		s.mu.Unlock()
		return
	}
	if s.emptied == nil {
		s.emptied = make(chan struct{})
	}
	emptied := s.emptied
	s.mu.Unlock()
	timeout := time.NewTimer(sendTimeout)
	defer timeout.Stop()
	select {
	case <-emptied:
	case <-s.ctx.Done():
	case <-timeout.C:
		s.cancel(errSlow)
	}
}

// handle handles one message and reports whether it was the goodbye. Numbers that
// do not grow are replays: they refresh nothing and are not acknowledged. An agent
// that repeats itself uses a new number.
func (s *session) handle(m *apiv1.ConnectRequest) (goodbye bool) {
	n := m.GetNumber()
	if n <= s.lastNumber {
		return false
	}
	s.lastNumber = n
	if s.outlived() {
		return s.handleOutlived(n, m)
	}
	switch {
	case m.GetReport() != nil:
		s.handleReport(n, m.GetReport())
	case m.GetFilesWanted() != nil:
		s.handleFilesWanted(m.GetFilesWanted())
	case m.GetFileKeys() != nil:
		s.handleFileKeys(m.GetFileKeys())
	case m.GetFilesApplied() != nil:
		s.handleFilesApplied(m.GetFilesApplied())
	case m.GetNotices() != nil:
		s.handleNotices(m.GetNotices())
	case m.GetDrainResult() != nil:
		s.handleDrainResult(m.GetDrainResult())
	case m.GetGoodbye() != nil:
		return true
	}
	return false
}

// handleOutlived handles a message under a certificate that is to be renewed first. A report
// is acknowledged and does not count. Notices and drain results are not: the agent repeats
// them in its next session. Files have to wait for that, too.
func (s *session) handleOutlived(number uint64, m *apiv1.ConnectRequest) (goodbye bool) {
	s.askRenewal()
	if m.GetReport() != nil {
		s.send(acknowledgement(&apiv1.Acknowledgement{Received: &apiv1.Acknowledgement_Report{Report: number}}))
	}
	return m.GetGoodbye() != nil
}

// handleDrainResult passes on the outcome of the agent's own hook and acknowledges
// it. The outcome of a drain that is over, or not the agent's, is dropped.
func (s *session) handleDrainResult(r *apiv1.DrainResult) {
	if r.GetGeneration() == 0 {
		s.handleLoneDrain(r)
		return
	}
	err := s.agents.drains.Acknowledge(s.ctx, nstance.Ack{
		Instance: s.id, Generation: r.GetGeneration(), By: nstance.ExecutorAgent,
		Outcome: nstance.Outcome(r.GetOutcome()), Message: r.GetMessage(),
	})
	if err != nil {
		s.agents.Log.Warn("drain result dropped", "instance_id", s.id, "code", nstance.CodeOf(err), "err", err)
	}
	s.send(acknowledgement(&apiv1.Acknowledgement{Received: &apiv1.Acknowledgement_DrainGeneration{DrainGeneration: r.GetGeneration()}}))
}

// handleLoneDrain passes on what the agent did without a command, and acknowledges it.
// It counts only for a notice that this instance sent.
func (s *session) handleLoneDrain(r *apiv1.DrainResult) {
	outcome, eventID := nstance.Outcome(r.GetOutcome()), wire.Printable(r.GetEventId())
	switch {
	case outcome != nstance.OutcomeDrained && outcome != nstance.OutcomeFailed, !s.notices.knows(eventID):
		s.agents.Log.Warn("result of a drain without a command dropped", "instance_id", s.id, "event_id", eventID, "outcome", wire.Printable(r.GetOutcome()))
	default:
		s.agents.shard.Observe(nstance.DrainedWithoutServer{
			ID: s.id, EventID: eventID, Outcome: outcome, Message: clip.Text(wire.Printable(r.GetMessage()), maxDrainMessage),
		})
	}
	s.send(acknowledgement(&apiv1.Acknowledgement{Received: &apiv1.Acknowledgement_DrainGeneration{}}))
}

func acknowledgement(a *apiv1.Acknowledgement) *apiv1.ConnectResponse {
	return &apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Acknowledgement{Acknowledgement: a}}
}

func drainCommand(d nstance.Drain) *apiv1.ConnectResponse {
	return &apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Drain{Drain: &apiv1.DrainCommand{
		Generation: d.Generation, Deadline: wire.Time(d.Deadline), Causes: wire.Causes(d.Causes),
	}}}
}

func drainCancel(generation uint64) *apiv1.ConnectResponse {
	return &apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_DrainCancel{DrainCancel: &apiv1.DrainCancel{Generation: generation}}}
}

// askRenewal asks an agent to renew a certificate whose authority is being retired, and
// at once one that its machine slept with.
func (s *session) askRenewal() {
	switch {
	case s.outlived():
		s.renewNow.Do(func() { s.sendRenewal(0) })
	case s.identity.Issuer != s.agents.Keys.Identity.Issuer():
		s.sendRenewal(s.agents.RenewalSpread())
	}
}

func (s *session) sendRenewal(within time.Duration) {
	s.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Renewal{
		Renewal: &apiv1.RenewalRequest{Within: durationpb.New(within)},
	}})
}

// outlived reports whether the certificate of the session is one that the machine slept
// with: it may have been copied meanwhile, and proves nothing until it is renewed.
func (s *session) outlived() bool {
	if s.slept.Load() {
		return true
	}
	rec := s.agents.shard.Records().Peek(s.id)
	if rec == nil || !rec.Outlived(s.identity.Serial) {
		return false
	}
	s.slept.Store(true)
	return true
}

// goAway asks the agent to come back, and ends the session soon.
func (s *session) goAway(reason error) {
	s.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_GoAway{GoAway: &apiv1.GoAway{}}})
	s.finish(reason)
}

// send queues a message. It never blocks and may be called concurrently.
func (s *session) send(m *apiv1.ConnectResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue(m)
}

// queue is send for callers that hold the lock.
func (s *session) queue(m *apiv1.ConnectResponse) {
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

// finish ends the session after closeGrace: queued messages and acknowledgements
// are still sent, and the agent can say goodbye. It never blocks and may be called
// concurrently.
func (s *session) finish(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endTimer == nil && s.ctx.Err() == nil {
		s.endTimer = time.AfterFunc(closeGrace, func() { s.cancel(reason) })
	}
}

// end ends a session that is served no more.
func (s *session) end(reason error) {
	s.endFiles()
	s.keepConnection() // the status of the session must still be sent
	s.close(reason)
}

// close ends the session and waits for its goroutine.
func (s *session) close(reason error) {
	s.mu.Lock()
	s.cancel(reason) // under the lock: no goroutine starts after it
	if s.endTimer != nil {
		s.endTimer.Stop()
	}
	s.mu.Unlock()
	defer time.AfterFunc(closeGrace, s.closeConnection).Stop() // for an agent that does not read
	s.wg.Wait()
}

func (s *session) flush() {
	for {
		m := s.next()
		if m == nil {
			return
		}
		if d := m.GetDrain(); d != nil {
			wire.DrainLeft(d, s.agents.Now())
		}
		if err := s.stream.Send(m); err != nil {
			s.cancel(err)
		}
	}
}

// next returns the next message to send; pieces of files come after all others. Nil
// ends the flushing.
func (s *session) next() (m *apiv1.ConnectResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if over := s.ctx.Err() != nil; over || len(s.outbox) == 0 {
		s.outbox = nil
		if s.emptied != nil {
			close(s.emptied)
			s.emptied = nil
		}
		if t := s.files.transfer; t != nil && !over {
			var last bool
			m, last = t.next()
			s.pieceSent(last)
			return m
		}
		s.sending = false
		return nil
	}
	m = s.outbox[0]
	s.outbox = s.outbox[1:]
	return m
}
