package admin

import (
	"context"
	"io"
	"time"
)

// A link is a connection to the leader for commands that poll. It reconnects when
// the connection is lost and when its certificate is due for renewal. One goroutine
// at a time may use it.
type link struct {
	r         *remote
	client    *client   // nil: to be connected
	renewAt   time.Time // when its certificate is due
	renewalOf [][]byte  // the certificate that the server asked to renew; nil: none
	backoff   backoff
}

// connect makes the connection, unless there is one. The identity is read again:
// another process may have renewed it.
func (l *link) connect(ctx context.Context) error {
	if l.renewalDue() {
		l.disconnect()
	}
	if l.client != nil {
		return nil
	}
	c, err := l.r.connectRenewed(ctx, l.renewalOf)
	if err != nil {
		return err
	}
	l.client, l.renewalOf = c, nil
	if l.renewAt, _, err = c.id.life(); err == nil && !time.Now().Before(l.renewAt) { // not renewed: retry that rarely
		l.renewAt = time.Now().Add(renewalPause)
	}
	return err
}

// renewalDue reports whether to reconnect for a new certificate.
func (l *link) renewalDue() bool { return l.client != nil && !time.Now().Before(l.renewAt) }

// requestRenewal records that the server asks for a renewal of the certificate within that
// time.
func (l *link) requestRenewal(within time.Duration) {
	if l.renewalOf != nil {
		return
	}
	l.renewalOf = l.client.id.Chain
	if at := time.Now().Add(renewalDelay(within)); at.Before(l.renewAt) {
		l.renewAt = at
	}
}

// renewalPause is the time between two attempts to renew the certificate of a
// connection.
const renewalPause = time.Minute

func (l *link) disconnect() {
	if l.client != nil {
		l.client.close()
		l.client = nil
	}
}

// recordSuccess ends an outage: the server has answered all requests.
func (l *link) recordSuccess() { l.backoff = backoff{connected: true} }

// connectionLost disconnects after a failure. It returns how long to wait before the
// next attempt, and false if a retry cannot help.
func (l *link) connectionLost(err error) (wait time.Duration, again bool) {
	l.disconnect()
	return l.backoff.next(err, time.Now())
}

// mute keeps messages about the connection away from standard error, where they
// would disturb a full-screen view.
func (l *link) mute() {
	r := *l.r
	r.stderr = &console{func() io.Writer { return io.Discard }}
	l.r = &r
	l.disconnect() // it still uses the old console
}
