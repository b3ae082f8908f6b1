package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

const (
	// welcomeTimeout bounds the time from dialling to the server's welcome.
	welcomeTimeout = 10 * time.Second
	// turnInterval is how often the loop of a session runs even when nothing
	// happens, and turnLimit how long one turn may take: a send blocks while the
	// server does not read, until keepalive ends the connection.
	turnInterval = 5 * time.Second
	turnLimit    = 30 * time.Second
	// closeGrace bounds the orderly end of a session.
	closeGrace = time.Second
	// maxRenewalWindow bounds the time that a server may give for renewing.
	maxRenewalWindow = time.Hour
)

// sleepCheck is how often it is checked whether the machine was asleep: five times a
// second costs an idle agent as much again as all else it does. shortestSleep is how far
// the clock must have advanced beyond that.
const (
	sleepCheck    = time.Second
	shortestSleep = 5 * time.Second
)

// errSlept ends a session whose connection the machine has slept over: the server has
// given it up, and this side would learn of that only when it sends.
var errSlept = errors.New("the machine was asleep")

// errRenewed ends a session whose certificate has a successor.
var errRenewed = errors.New("certificate renewed")

// A goAway ends a session because the server asked for it.
type goAway struct{ addrs []string }

func (*goAway) Error() string { return "server redirected the agent" }

// A stream is one session with one server. It holds no state to keep: any failure
// ends it, and the next one starts from the mailbox.
type stream struct {
	instance nstance.InstanceID
	machine  string // what the cloud calls it; empty: not known
	conn     grpc.ClientConnInterface
	mail     *mailbox
	drains   *drainer
	files    *fileWorker
	renew    func(ctx context.Context, conn grpc.ClientConnInterface) error
	renewals *renewalSchedule
	renewAt  time.Time                                // unless the server asks sooner
	report   func(ctx context.Context) nstance.Report // without notices; incomplete when ctx ends
	interval time.Duration                            // between reports, unless the server sets it
	welcomed func()                                   // called once, when the server has accepted the agent
	progress *progress
	log      *slog.Logger

	grpc      grpc.BidiStreamingClient[apiv1.ConnectRequest, apiv1.ConnectResponse]
	life      context.Context            // of the session
	answers   chan *apiv1.ConnectRequest // of the file worker
	welcome   chan *apiv1.Welcome
	endReason chan error    // the first one counts
	closed    chan struct{} // nothing more will be received

	renewWithin chan time.Duration // a request of the server
}

// run connects, serves the session until it ends, and returns the reason. It
// returns nil only when ctx ended and the server has been told so.
func (s *stream) run(ctx context.Context) error {
	// The stream outlives ctx by closeGrace, for the goodbye.
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	var workers sync.WaitGroup
	defer workers.Wait()
	defer end(nil)
	if err := s.connect(ctx, life, end, &workers); err != nil {
		if cause := context.Cause(life); cause != nil {
			return cause
		}
		return err
	}
	workers.Go(func() { s.keepCertificate(life) })
	workers.Go(func() { s.watchSleep(life) })
	reports := make(chan nstance.Report)
	workers.Go(func() { s.makeReports(life, reports) })
	return s.sendLoop(ctx, reports, func() { end(nil) })
}

// connect returns once the server has welcomed the agent. Until then the end of
// ctx is the end of the stream.
func (s *stream) connect(ctx, life context.Context, end context.CancelCauseFunc, workers *sync.WaitGroup) error {
	keep := context.AfterFunc(ctx, func() { end(ctx.Err()) })
	slow := time.AfterFunc(welcomeTimeout, func() {
		end(nstance.Errorf(nstance.Unavailable, "no welcome within %v", welcomeTimeout))
	})
	defer slow.Stop()
	var err error
	named := metadata.AppendToOutgoingContext(life, wire.SessionInstance, string(s.instance))
	if s.machine != "" {
		named = metadata.AppendToOutgoingContext(named, wire.SessionMachine, s.machine)
	}
	if s.grpc, err = apiv1.NewAgentServiceClient(s.conn).Connect(named); err != nil {
		keep()
		return wire.ErrorOf(err)
	}
	s.life, s.answers = life, make(chan *apiv1.ConnectRequest)
	s.welcome, s.endReason, s.closed = make(chan *apiv1.Welcome, 1), make(chan error, 1), make(chan struct{})
	s.renewWithin = make(chan time.Duration, 1)
	workers.Go(s.receive)
	select {
	case err := <-s.endReason:
		keep()
		return err
	case w := <-s.welcome:
		if !keep() {
			return ctx.Err()
		}
		s.handleWelcome(w)
		return nil
	}
}

func (s *stream) handleWelcome(w *apiv1.Welcome) {
	if d := w.GetReportInterval().AsDuration(); d >= minInterval {
		s.interval = d
	}
	s.mail.do((*outbox).begin)
	s.log.Info("connected", "server_version", w.GetServerVersion(), "report_interval", s.interval)
	s.welcomed()
}

// sendLoop sends messages when they are due. It ignores errors of sending: receive
// gets the reason.
func (s *stream) sendLoop(ctx context.Context, reports <-chan nstance.Report, hangUp func()) error {
	resend := time.NewTimer(0)
	defer resend.Stop()
	turns := time.NewTicker(turnInterval)
	defer turns.Stop()
	for {
		s.progress.heartbeat(turnLimit)
		if wait := s.flush(); wait > 0 {
			resend.Reset(wait)
		} else {
			resend.Stop()
		}
		select {
		case <-ctx.Done():
			s.flush()
			s.closeSession("the agent is shutting down", hangUp)
			return nil
		case err := <-s.endReason:
			if _, asked := errors.AsType[*goAway](err); asked || errors.Is(err, errRenewed) {
				s.closeSession(err.Error(), hangUp)
			}
			return err
		case r := <-reports:
			s.send(func(o *outbox) *apiv1.ConnectRequest { return o.sendReport(r, s.mail.now()) })
		case m := <-s.answers:
			s.send(func(o *outbox) *apiv1.ConnectRequest { return o.send(m) })
		case <-s.mail.changed:
		case <-resend.C:
		case <-turns.C:
		}
	}
}

// flush sends everything that is due and returns the time until the next message
// may be due (zero: when something changes).
func (s *stream) flush() (wait time.Duration) {
	for {
		var m *apiv1.ConnectRequest
		s.mail.do(func(o *outbox) { m, wait = o.next(s.mail.now()) })
		if m == nil {
			return wait
		}
		_ = s.grpc.Send(m)
	}
}

func (s *stream) send(next func(*outbox) *apiv1.ConnectRequest) {
	var m *apiv1.ConnectRequest
	s.mail.do(func(o *outbox) { m = next(o) })
	_ = s.grpc.Send(m)
}

// closeSession sends the goodbye and waits up to closeGrace for the server to
// close the stream.
func (s *stream) closeSession(reason string, hangUp func()) {
	defer time.AfterFunc(closeGrace, hangUp).Stop()
	s.send(func(o *outbox) *apiv1.ConnectRequest { return o.sendGoodbye(reason) })
	_ = s.grpc.CloseSend()
	<-s.closed
}

// watchSleep ends the session when the machine was asleep, or its clock was set ahead.
func (s *stream) watchSleep(life context.Context) {
	ticks := time.NewTicker(sleepCheck)
	defer ticks.Stop()
	for last := time.Now(); ; last = time.Now() {
		select {
		case <-life.Done():
			return
		case <-ticks.C:
		}
		if slept(last, time.Now()) {
			s.stop(errSlept)
			return
		}
	}
}

// slept reports whether the machine was asleep between two looks at the clock. The
// monotonic clock stands still meanwhile, unless only this process was stopped.
func slept(last, now time.Time) bool {
	return now.Round(0).Sub(last.Round(0)) > sleepCheck+shortestSleep
}

// makeReports makes a report at once and then every interval. It is separate from
// sendLoop because the first results of probes may take long, and a notice must
// not wait for them.
func (s *stream) makeReports(life context.Context, reports chan<- nstance.Report) {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-life.Done():
			return
		case <-next.C:
		}
		next.Reset(shortened(s.interval))
		select {
		case <-life.Done():
			return
		case reports <- s.makeReport(life):
		}
	}
}

// makeReport waits for the first results of probes, but at most half an interval,
// so that the server does not miss the report.
func (s *stream) makeReport(life context.Context) nstance.Report {
	soon, done := context.WithTimeout(life, s.interval/2)
	defer done()
	return s.report(soon)
}

// receive handles the server's messages until the stream ends.
func (s *stream) receive() {
	defer close(s.closed)
	for {
		m, err := s.grpc.Recv()
		if err != nil {
			s.stop(receiveError(err))
			return
		}
		s.handleMessage(m)
	}
}

func receiveError(err error) error {
	if errors.Is(err, io.EOF) {
		return nstance.Errorf(nstance.Unavailable, "server ended the session")
	}
	return wire.ErrorOf(err)
}

// stop ends the session with a reason, unless there is one already.
func (s *stream) stop(reason error) {
	select {
	case s.endReason <- reason:
	default:
	}
}

// handleMessage handles one message. An unknown kind comes from a newer server and
// is ignored.
func (s *stream) handleMessage(whole *apiv1.ConnectResponse) {
	switch m := whole.GetMessage().(type) {
	case *apiv1.ConnectResponse_Welcome:
		select {
		case s.welcome <- m.Welcome:
		default: // only the first one counts
		}
	case *apiv1.ConnectResponse_Acknowledgement:
		s.mail.ack(m.Acknowledgement)
	case *apiv1.ConnectResponse_Drain:
		s.drains.command(s.drain(m.Drain))
	case *apiv1.ConnectResponse_DrainCancel:
		s.drains.cancel(m.DrainCancel.GetGeneration())
	case *apiv1.ConnectResponse_Renewal:
		select {
		case s.renewWithin <- m.Renewal.GetWithin().AsDuration():
		default: // a request is pending already
		}
	case *apiv1.ConnectResponse_Released:
		s.mail.release(m.Released.GetEventIds())
	case *apiv1.ConnectResponse_GoAway:
		s.stop(&goAway{m.GoAway.GetAddresses()})
	case *apiv1.ConnectResponse_FilesBegin, *apiv1.ConnectResponse_FileChunk, *apiv1.ConnectResponse_FilesCommit, *apiv1.ConnectResponse_FileKeysRequest:
		s.files.enqueue(s.life, whole, s.answers)
	}
}

func (s *stream) drain(c *apiv1.DrainCommand) nstance.Drain {
	now := time.Now().UTC()
	return nstance.Drain{
		Instance: s.instance, Generation: c.GetGeneration(), StartedAt: now,
		Deadline: wire.DrainDeadline(c, now), Executor: nstance.ExecutorAgent,
		Causes: wire.CausesOf(c.GetCauses()),
	}
}

// keepCertificate renews the certificate when it is due, or soon after a request
// of the server, and repeats failed attempts. Then it ends the session, so that
// the next one uses the new certificate.
func (s *stream) keepCertificate(life context.Context) {
	timer := time.NewTimer(time.Until(s.renewAt))
	defer timer.Stop()
	for s.waitToRenew(life, timer) {
		err := s.renew(life, s.conn)
		if err == nil {
			s.stop(errRenewed)
			return
		}
		if life.Err() == nil {
			s.log.Warn("certificate not renewed, retrying", "code", nstance.CodeOf(err), "err", err)
		}
		timer.Reset(s.renewals.recordFailure())
	}
}

// waitToRenew waits for the timer. A request of the server resets it to a random
// moment within the requested time, because the server asks all machines at once.
// It returns false when the session has ended.
func (s *stream) waitToRenew(life context.Context, timer *time.Timer) bool {
	requests := s.renewWithin
	for {
		select {
		case <-life.Done():
			return false
		case within := <-requests:
			requests = nil // only the first request counts
			if soon := s.renewals.requestedAt(time.Now().Add(rand.N(min(max(within, 1), maxRenewalWindow)))); soon.Before(s.renewAt) {
				timer.Reset(time.Until(soon))
			}
		case <-timer.C:
			return true
		}
	}
}
