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

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

const (
	// welcomeTimeout bounds the time from dialling to the server's welcome.
	welcomeTimeout = 10 * time.Second
	// talkBeat is how often the loop of a session runs even when nothing happens,
	// and talkLimit how long one turn of it may take: a send waits for a server that
	// does not read, and no longer than keepalive lets a silent one live.
	talkBeat  = 5 * time.Second
	talkLimit = 30 * time.Second
	// goodbyeTimeout bounds the end of a session, goodbye and all.
	goodbyeTimeout = time.Second
	// maxHurry bounds the time that a server may give for renewing.
	maxHurry = time.Hour
)

// errRenewed ends a session whose certificate has a successor.
var errRenewed = errors.New("certificate renewed")

// A goAway ends a session because the server asked for it.
type goAway struct{ addrs []string }

func (*goAway) Error() string { return "server asked to go away" }

// A stream is one session with one server. It holds nothing worth keeping: any
// failure ends it whole, and the next one starts from the mailbox.
type stream struct {
	instance nstance.InstanceID
	conn     grpc.ClientConnInterface
	mail     *mailbox
	drains   *drainer
	files    *filer
	renew    func(ctx context.Context, conn grpc.ClientConnInterface) error
	pace     *renewalPace
	renewAt  time.Time                                // unless the server asks sooner
	report   func(ctx context.Context) nstance.Report // without notices; as soon as ctx ends with what is known
	interval time.Duration                            // between reports, unless the server says
	welcomed func()                                   // called once, when the server has accepted the agent
	pulse    *pulse
	log      *slog.Logger

	grpc    grpc.BidiStreamingClient[apiv1.ConnectRequest, apiv1.ConnectResponse]
	life    context.Context            // of the session
	answers chan *apiv1.ConnectRequest // of the filer
	hello   chan *apiv1.Welcome
	over    chan error    // why the session ends; the first reason counts
	closed  chan struct{} // nothing more will be received

	hurry chan time.Duration // the server wants the certificate renewed within that time
}

// run connects, talks until something ends the session, and returns what. It
// returns nil only when ctx ended and the server has been told.
func (s *stream) run(ctx context.Context) error {
	// The stream outlives ctx by the time that a goodbye takes.
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
	reports := make(chan nstance.Report)
	workers.Go(func() { s.compose(life, reports) })
	return s.talk(ctx, reports, func() { end(nil) })
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
	if s.grpc, err = apiv1.NewAgentServiceClient(s.conn).Connect(life); err != nil {
		keep()
		return wire.ErrorOf(err)
	}
	s.life, s.answers = life, make(chan *apiv1.ConnectRequest)
	s.hello, s.over, s.closed = make(chan *apiv1.Welcome, 1), make(chan error, 1), make(chan struct{})
	s.hurry = make(chan time.Duration, 1)
	workers.Go(s.receive)
	select {
	case err := <-s.over:
		keep()
		return err
	case w := <-s.hello:
		if !keep() {
			return ctx.Err()
		}
		s.greet(w)
		return nil
	}
}

func (s *stream) greet(w *apiv1.Welcome) {
	if d := w.GetReportInterval().AsDuration(); d >= minInterval {
		s.interval = d
	}
	s.mail.do((*outbox).begin)
	s.log.Info("connected", "server_version", w.GetServerVersion(), "report_interval", s.interval)
	s.welcomed()
}

// talk sends what there is to send, when it is due. Errors of sending are left
// to receive, which learns the reason.
func (s *stream) talk(ctx context.Context, reports <-chan nstance.Report, hangUp func()) error {
	resend := time.NewTimer(0)
	defer resend.Stop()
	beat := time.NewTicker(talkBeat)
	defer beat.Stop()
	for {
		s.pulse.beat(talkLimit)
		if wait := s.flush(); wait > 0 {
			resend.Reset(wait)
		} else {
			resend.Stop()
		}
		select {
		case <-ctx.Done():
			s.leave("the agent is shutting down", hangUp)
			return nil
		case err := <-s.over:
			if _, asked := errors.AsType[*goAway](err); asked || errors.Is(err, errRenewed) {
				s.leave(err.Error(), hangUp)
			}
			return err
		case r := <-reports:
			s.send(func(o *outbox) *apiv1.ConnectRequest { return o.sendReport(r, s.mail.now()) })
		case m := <-s.answers:
			s.send(func(o *outbox) *apiv1.ConnectRequest { return o.sendAnswer(m) })
		case <-s.mail.changed:
		case <-resend.C:
		case <-beat.C:
		}
	}
}

// flush sends everything that is due and returns when something may be again
// (zero: not before something changes).
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

// leave says goodbye and waits, not for long, until the server has hung up.
func (s *stream) leave(reason string, hangUp func()) {
	defer time.AfterFunc(goodbyeTimeout, hangUp).Stop()
	s.send(func(o *outbox) *apiv1.ConnectRequest { return o.sendGoodbye(reason) })
	_ = s.grpc.CloseSend()
	<-s.closed
}

// compose puts a report together at once and then every interval. It is apart
// from talk because the first outcomes of probes take their time and a notice
// must not wait for them.
func (s *stream) compose(life context.Context, reports chan<- nstance.Report) {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-life.Done():
			return
		case <-next.C:
		}
		next.Reset(early(s.interval))
		select {
		case <-life.Done():
			return
		case reports <- s.reportSoon(life):
		}
	}
}

// reportSoon lets a report wait for what is still being found out, but not so
// long that the server would miss it.
func (s *stream) reportSoon(life context.Context) nstance.Report {
	soon, done := context.WithTimeout(life, s.interval/2)
	defer done()
	return s.report(soon)
}

// receive takes what the server says until the stream ends.
func (s *stream) receive() {
	defer close(s.closed)
	for {
		m, err := s.grpc.Recv()
		if err != nil {
			s.stop(receiveError(err))
			return
		}
		s.take(m)
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
	case s.over <- reason:
	default:
	}
}

// take acts on one message. A kind that this agent does not know comes from a
// newer server and is passed over.
func (s *stream) take(whole *apiv1.ConnectResponse) {
	switch m := whole.GetMessage().(type) {
	case *apiv1.ConnectResponse_Welcome:
		select {
		case s.hello <- m.Welcome:
		default: // the second one says nothing new
		}
	case *apiv1.ConnectResponse_Acknowledgement:
		s.mail.do(func(o *outbox) { o.ack(m.Acknowledgement.GetNumber()) })
	case *apiv1.ConnectResponse_Drain:
		s.drains.command(s.drain(m.Drain))
	case *apiv1.ConnectResponse_DrainCancel:
		s.drains.cancel(m.DrainCancel.GetGeneration())
	case *apiv1.ConnectResponse_Renewal:
		select {
		case s.hurry <- m.Renewal.GetWithin().AsDuration():
		default: // asked already
		}
	case *apiv1.ConnectResponse_GoAway:
		s.stop(&goAway{m.GoAway.GetAddresses()})
	case *apiv1.ConnectResponse_FilesBegin, *apiv1.ConnectResponse_FileChunk, *apiv1.ConnectResponse_FilesCommit, *apiv1.ConnectResponse_FileKeysRequest:
		s.files.hand(s.life, whole, s.answers)
	}
}

func (s *stream) drain(c *apiv1.DrainCommand) nstance.Drain {
	now := time.Now().UTC()
	return nstance.Drain{
		Instance: s.instance, Generation: c.GetGeneration(), StartedAt: now,
		Deadline: wire.DrainDeadline(c, now), Executor: nstance.ExecutorAgent,
		Causes: []nstance.Cause{{Kind: nstance.CauseKind(clean(c.GetReason()))}},
	}
}

// keepCertificate renews the certificate when it is time, or soon after the
// server has asked for it, however often that takes, and ends the session so
// that the next one shows the new certificate.
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
			s.log.Warn("certificate not renewed", "code", nstance.CodeOf(err), "err", err)
		}
		timer.Reset(s.pace.fail())
	}
}

// waitToRenew waits for the timer, which a request of the server brings forward
// to a random moment in the time it gives: all machines are asked at once. It
// returns false when the session is over.
func (s *stream) waitToRenew(life context.Context, timer *time.Timer) bool {
	hurry := s.hurry
	for {
		select {
		case <-life.Done():
			return false
		case within := <-hurry:
			hurry = nil // once is enough
			if soon := s.pace.hurried(time.Now().Add(rand.N(min(max(within, 1), maxHurry)))); soon.Before(s.renewAt) {
				timer.Reset(time.Until(soon))
			}
		case <-timer.C:
			return true
		}
	}
}
