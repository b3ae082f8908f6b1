package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/nstance-go/nstance"
)

// dialTimeout bounds one attempt to reach one address of a server.
const dialTimeout = 4 * time.Second

// attemptLimit bounds one attempt to register, recover or begin a session, as
// far as the watchdog is concerned. Each has shorter limits of its own.
const attemptLimit = time.Minute

// connect keeps a session going until ctx ends.
func (a *Agent) connect(ctx context.Context) error {
	registration := &route{addrs: a.o.RegistrationAddrs}
	sessions := &route{addrs: a.o.AgentAddrs}
	expired := false // in the server's eyes
	for ctx.Err() == nil {
		a.pulse.beat(attemptLimit)
		id, err := a.certs.vault.load()
		switch {
		case err != nil:
			a.register(ctx, registration, err)
		case expired || id.expired(time.Now()):
			if a.recover(ctx, registration, id) {
				sessions.shorten()
			}
			expired = false // if that was of no use, the server is asked again
		default:
			expired = calledExpired(a.session(ctx, sessions, id))
			registration = &route{addrs: a.o.RegistrationAddrs}
		}
	}
	return nil
}

// register makes one attempt, for want of an identity; missing says why there
// is none. A directory that cannot be read is no reason to register: the
// identity may well be in it, and a nonce is good for one key only.
func (a *Agent) register(ctx context.Context, r *route, missing error) {
	a.obtain(ctx, r, "registered", func(addr string) error {
		switch nstance.CodeOf(missing) {
		case nstance.NotFound, nstance.Invalid, nstance.Denied:
			return a.certs.register(ctx, addr, missing)
		}
		return missing
	})
}

// recover makes one attempt to have an expired identity succeeded. Its nonce
// would not help: the instance has been registered with it.
func (a *Agent) recover(ctx context.Context, r *route, id *identity) (done bool) {
	return a.obtain(ctx, r, "recovered", func(addr string) error {
		err := a.certs.recover(ctx, addr, id)
		if err != nil {
			return fmt.Errorf("recover from the certificate that ends at %v: %w", id.pair.Leaf.NotAfter, err)
		}
		return nil
	})
}

// obtain makes one attempt to obtain an identity at the route's next address.
func (a *Agent) obtain(ctx context.Context, r *route, done string, attempt func(addr string) error) bool {
	addr, wait := r.step()
	if !a.pulse.sleep(ctx, wait) {
		return false
	}
	a.pulse.beat(attemptLimit)
	err := attempt(addr)
	if err == nil {
		a.o.Log.Info(done, "addr", addr)
		return true
	}
	r.failed(0, refused(err))
	if _, early := errors.AsType[*noUserData](err); early {
		r.shorten()
	}
	a.lament(ctx, "not "+done, addr, err, false)
	return false
}

// session makes one attempt to hold a session, and returns when it is over and
// why.
func (a *Agent) session(ctx context.Context, r *route, id *identity) error {
	addr, wait := r.step()
	a.mu.Lock()
	a.registered = true
	a.mu.Unlock()
	if !a.pulse.sleep(ctx, wait) {
		return nil
	}
	a.pulse.beat(attemptLimit)
	var began time.Time
	err := a.hold(ctx, addr, id, func() {
		began = time.Now()
		a.set(true, true, nil)
	})
	a.set(true, false, nil)
	lived := time.Duration(0)
	if !began.IsZero() {
		lived = time.Since(began)
	}
	switch away, asked := errors.AsType[*goAway](err); {
	case err == nil:
	case asked:
		r.sent(away.addrs, lived)
	case errors.Is(err, errRenewed):
		a.o.Log.Info("certificate renewed")
		r.again(addr)
	default:
		r.failed(lived, refused(err))
		a.lament(ctx, "session ended", addr, err, true)
	}
	return err
}

// hold connects to addr and talks until the session ends.
func (a *Agent) hold(ctx context.Context, addr string, id *identity, welcomed func()) error {
	conn, err := a.certs.open(addr, id.tls())
	if err != nil {
		return err
	}
	defer conn.Close() // the session is over, well or not
	s := &stream{
		instance: a.o.InstanceID, conn: conn, mail: a.mail, drains: a.drains, files: a.files,
		renew: a.certs.renew, pace: &a.certs.pace, renewAt: a.certs.pace.due(id, time.Now()),
		report: a.report, interval: a.o.ReportInterval,
		welcomed: welcomed, pulse: &a.pulse, log: a.o.Log.With("addr", addr),
	}
	return s.run(ctx)
}

// lament notes what is wrong, for the log and for Status.
func (a *Agent) lament(ctx context.Context, what, addr string, err error, registered bool) {
	if ctx.Err() != nil {
		return
	}
	a.o.Log.Warn(what, "addr", addr, "code", nstance.CodeOf(err), "err", err)
	a.set(registered, false, err)
}

// refused reports whether waiting is unlikely to help.
func refused(err error) bool {
	switch nstance.CodeOf(err) {
	case nstance.Denied, nstance.NotFound, nstance.Invalid, nstance.Conflict:
		return true
	}
	return false
}

// sleep waits and reports whether ctx is still going.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// dialAny connects to any of the addresses behind a name, in random order: a
// name may stand for a leader and its standbys, and a client that always took
// the first would never find the leader behind the second.
func dialAny(ctx context.Context, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	found, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return nil, err
	}
	rand.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	for _, ip := range found {
		d := net.Dialer{Timeout: dialTimeout}
		conn, derr := d.DialContext(ctx, "tcp", net.JoinHostPort(ip, port))
		if derr == nil {
			return conn, nil
		}
		err = derr
	}
	return nil, err
}
