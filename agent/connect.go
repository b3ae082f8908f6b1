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

// attemptLimit bounds one attempt to register, recover or begin a session: later
// than that the watchdog restarts the agent. Each attempt has shorter timeouts.
const attemptLimit = time.Minute

// connect keeps a session going until ctx ends.
func (a *Agent) connect(ctx context.Context) error {
	registration := &route{addrs: a.o.RegistrationAddrs}
	sessions := &route{addrs: a.o.AgentAddrs}
	expired := false // a server has refused the certificate as expired
	for ctx.Err() == nil {
		a.sessionProgress.heartbeat(attemptLimit)
		id, err := a.identity()
		switch {
		case err != nil:
			a.register(ctx, registration, err)
		case expired || id.expired(time.Now()):
			if a.recover(ctx, registration, id) {
				sessions.shortenBackoff()
			}
			expired = false // after a failed recovery try a session again
		default:
			expired = isExpiredAlert(a.session(ctx, sessions, id))
			registration = &route{addrs: a.o.RegistrationAddrs}
		}
	}
	return nil
}

// identity returns the identity of this instance: one of another instance is set aside.
func (a *Agent) identity() (*identity, error) {
	if err := a.claimIdentity(); err != nil {
		return nil, nstance.Errorf(nstance.Internal, "%w", err) // whatever it is, there may be an identity
	}
	return a.certs.identityDir.load()
}

// register makes one attempt to register; missing says why there is no identity.
// If the directory cannot be read the agent does not register: the identity may
// be in it, and a nonce is valid for one key only.
func (a *Agent) register(ctx context.Context, r *route, missing error) {
	a.obtain(ctx, r, "registered", func(addr string) error {
		switch nstance.CodeOf(missing) {
		case nstance.NotFound, nstance.Invalid, nstance.Denied:
			return a.certs.register(ctx, addr, missing)
		}
		return missing
	})
}

// recover makes one attempt to renew an expired identity. The nonce is of no use
// here: the instance has been registered with it.
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
	if !a.sessionProgress.sleep(ctx, wait) {
		return false
	}
	a.sessionProgress.heartbeat(attemptLimit)
	err := attempt(addr)
	if err == nil {
		a.o.Log.Info(done, "addr", addr)
		return true
	}
	_, early := errors.AsType[*noUserData](err)
	r.recordFailure(0, refused(err) && !early)
	if early {
		r.shortenBackoff()
	}
	a.logFailure(ctx, "not "+done+", retrying", addr, err, false)
	return false
}

// session makes one attempt to hold a session, and returns the reason for its
// end.
func (a *Agent) session(ctx context.Context, r *route, id *identity) error {
	addr, wait := r.step()
	a.mu.Lock()
	a.registered = true
	a.mu.Unlock()
	if !a.sessionProgress.sleep(ctx, wait) {
		return nil
	}
	a.sessionProgress.heartbeat(attemptLimit)
	var began time.Time
	err := a.runSession(ctx, addr, id, func() {
		began = time.Now()
		a.setStatus(true, true, nil)
	})
	a.mail.end()
	a.setStatus(true, false, nil)
	duration := time.Duration(0)
	if !began.IsZero() {
		duration = time.Since(began)
	}
	switch away, asked := errors.AsType[*goAway](err); {
	case err == nil:
	case asked:
		r.redirect(away.addrs, duration)
	case errors.Is(err, errRenewed):
		a.o.Log.Info("certificate renewed")
		r.reconnectNow(addr)
	case errors.Is(err, errSlept):
		a.o.Log.Info("the machine was asleep, reconnecting", "addr", addr)
		r.reconnectNow(addr)
	default:
		r.recordFailure(duration, refused(err))
		a.logFailure(ctx, "session ended, reconnecting", addr, err, true)
	}
	return err
}

// runSession connects to addr and returns when the session ends.
func (a *Agent) runSession(ctx context.Context, addr string, id *identity, welcomed func()) error {
	machine := a.machine.wait(ctx)
	conn, err := a.certs.open(addr, id.tls())
	if err != nil {
		return err
	}
	defer conn.Close() // the session has ended: an error changes nothing
	s := &stream{
		instance: a.o.InstanceID, machine: machine, conn: conn, mail: a.mail, drains: a.drains, files: a.files,
		renew: a.certs.renew, renewals: &a.certs.renewals, renewAt: a.certs.renewals.due(id, time.Now()),
		report: a.report, interval: a.o.ReportInterval,
		welcomed: welcomed, progress: &a.sessionProgress, log: a.o.Log.With("addr", addr),
	}
	return s.run(ctx)
}

// logFailure logs an error and keeps it for Status.
func (a *Agent) logFailure(ctx context.Context, what, addr string, err error, registered bool) {
	if ctx.Err() != nil {
		return
	}
	a.o.Log.Warn(what, "addr", addr, "code", nstance.CodeOf(err), "err", err)
	a.setStatus(registered, false, err)
}

// refused reports whether a repeat is unlikely to succeed soon.
func refused(err error) bool {
	switch nstance.CodeOf(err) {
	case nstance.Denied, nstance.NotFound, nstance.Invalid, nstance.Conflict:
		return true
	}
	return false
}

// dialAny connects to any of the addresses of a name, in random order: a name may
// have the addresses of a leader and its standbys, and the leader may be at any
// of them.
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
