package ports

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"
)

// The pause after a failed Accept doubles from first to last.
const (
	firstAcceptPause = 5 * time.Millisecond
	lastAcceptPause  = time.Second
)

// Patient returns a listener that goes on after any error of Accept. gRPC and
// net/http take some errors for fatal and give up the port, although they pass:
// no buffers (ENOBUFS), no memory, a packet filter's refusal (EPERM).
func Patient(lis net.Listener, log *slog.Logger) net.Listener {
	return &patient{Listener: lis, log: log, closed: make(chan struct{})}
}

type patient struct {
	net.Listener
	log    *slog.Logger
	once   sync.Once
	closed chan struct{}
}

// Accept fails only when the listener was closed.
func (p *patient) Accept() (net.Conn, error) {
	for pause := firstAcceptPause; ; pause = min(2*pause, lastAcceptPause) {
		conn, err := p.Listener.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return conn, err
		}
		p.log.Warn("accept failed, retrying", "addr", p.Addr().String(), "err", err)
		if !p.wait(pause) {
			return nil, net.ErrClosed
		}
	}
}

// wait returns false when the listener is closed first.
func (p *patient) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.closed:
		return false
	}
}

// Close implements net.Listener.
func (p *patient) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.Listener.Close()
}
