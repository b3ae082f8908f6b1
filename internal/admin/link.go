package admin

import (
	"context"
	"io"
	"time"
)

// A link is what commands hold that look again and again: a connection to the
// server that leads, made anew when it is lost, and when its certificate is due
// for renewal. One goroutine at a time may use it.
type link struct {
	r      *remote
	client *client   // nil: to be connected
	until  time.Time // when its certificate is due
	turn   [][]byte  // the certificate that the server asked to renew; nil: it did not
	back   backoff
}

// connect makes the connection, unless there is a good one. The identity is
// read again: another process may have renewed it.
func (l *link) connect(ctx context.Context) error {
	if l.due() {
		l.hangUp()
	}
	if l.client != nil {
		return nil
	}
	c, err := l.r.connectAsked(ctx, l.turn)
	if err != nil {
		return err
	}
	l.client, l.turn = c, nil
	if l.until, _, err = c.id.life(); err == nil && !l.r.p.now().Before(l.until) { // not renewed: try that now and then only
		l.until = l.r.p.now().Add(renewalPause)
	}
	return err
}

// due reports whether the connection should be made anew for a new certificate.
func (l *link) due() bool { return l.client != nil && !l.r.p.now().Before(l.until) }

// asked notes that the server wants the certificate renewed within that time.
func (l *link) asked(within time.Duration) {
	if l.turn != nil {
		return
	}
	l.turn = l.client.id.Chain
	if at := l.r.p.now().Add(turnAfter(within)); at.Before(l.until) {
		l.until = at
	}
}

// renewalPause is between two attempts to renew a certificate while a
// connection stands.
const renewalPause = time.Minute

func (l *link) hangUp() {
	if l.client != nil {
		l.client.close()
		l.client = nil
	}
}

// works notes that the server has answered everything: an outage is over.
func (l *link) works() { l.back = backoff{connected: true} }

// lost hangs up after a failure. It returns how long to wait before the next
// attempt, and false if that would be in vain.
func (l *link) lost(err error) (wait time.Duration, again bool) {
	l.hangUp()
	return l.back.next(err, l.r.p.now())
}

// silence keeps notes about the connection from standard error, where they
// would spoil a screen.
func (l *link) silence() {
	quiet, r := *l.r.p, *l.r
	quiet.stderr, r.p = &console{w: io.Discard}, &quiet
	l.r = &r
	l.hangUp() // it would still say things
}
