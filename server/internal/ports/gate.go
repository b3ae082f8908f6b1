package ports

import (
	"container/list"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
)

// A Gate bounds the connections of all ports together. A client is anonymous
// until it has shown a certificate. Anonymous connections are bounded per source
// address and in all, and end at a certain age; identified ones are bounded per
// client, whatever their address, because a whole fleet may share one.
//
// At a limit the oldest connection is closed. A handshake takes milliseconds, and
// connections that are held open are older, so clients with certificates connect
// even while others hold every anonymous connection, from the same address too.
type Gate struct {
	limits config.Connections
	log    *slog.Logger

	mu        sync.Mutex // guards what follows, and the fields of admitted connections
	open      int
	anonymous list.List             // of *gatedConn, oldest first
	groups    map[string]*list.List // of *gatedConn, oldest first, by source or client
	displaced int                   // since loggedAt
	loggedAt  time.Time
}

// NewGate returns a gate with these limits.
func NewGate(limits config.Connections, log *slog.Logger) *Gate {
	return &Gate{limits: limits, log: log, groups: map[string]*list.List{}}
}

// Listener returns lis behind the gate. An anonymous connection through it ends
// after maxAge.
func (g *Gate) Listener(lis net.Listener, maxAge time.Duration) net.Listener {
	return &gatedListener{lis, g, maxAge}
}

type gatedListener struct {
	net.Listener
	gate   *Gate
	maxAge time.Duration
}

// Accept implements net.Listener. Connections beyond the limits are closed and
// skipped.
func (l *gatedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.gate.admit(conn, l.maxAge); c != nil {
			return c, nil
		}
		_ = conn.Close() // beyond the limits
	}
}

// A gatedConn is a connection within the limits.
type gatedConn struct {
	net.Conn
	gate *Gate
	born time.Time

	// The gate's lock guards the rest.
	maxAge      *time.Timer // closes an anonymous connection
	group       string
	inGroup     *list.Element
	inAnonymous *list.Element // nil: identified
	closed      bool
}

// Close implements net.Conn.
func (c *gatedConn) Close() error {
	c.gate.mu.Lock()
	c.gate.remove(c)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}

// admit returns nil where the connection is beyond the limits.
func (g *Gate) admit(conn net.Conn, maxAge time.Duration) *gatedConn {
	c := &gatedConn{Conn: conn, gate: g, born: time.Now(), group: sourceGroup(conn.RemoteAddr())}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.groupSize(c.group) >= g.limits.PerSource:
		g.displace(g.groups[c.group].Front())
	case g.anonymous.Len() >= g.limits.Anonymous:
		g.displace(g.anonymous.Front())
	case g.open >= g.limits.Max && g.anonymous.Len() > 0:
		g.displace(g.anonymous.Front())
	case g.open >= g.limits.Max:
		g.logDisplaced()
		return nil
	}
	g.open++
	c.inAnonymous = g.anonymous.PushBack(c)
	g.joinGroup(c)
	c.maxAge = time.AfterFunc(maxAge, func() { _ = c.Close() })
	return c
}

// identify counts c among the connections of id from now on.
func (c *gatedConn) identify(id nstance.Identity) {
	g := c.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.closed || c.inAnonymous == nil {
		return
	}
	c.maxAge.Stop()
	g.anonymous.Remove(c.inAnonymous)
	c.inAnonymous = nil
	g.leaveGroup(c)
	c.group = "client " + string(id.Role) + "/" + string(id.Tenant) + "/" + id.Subject
	if g.groupSize(c.group) >= g.limits.PerClient {
		g.displace(g.groups[c.group].Front())
	}
	g.joinGroup(c)
}

// groupSize needs the lock.
func (g *Gate) groupSize(group string) int {
	if all := g.groups[group]; all != nil {
		return all.Len()
	}
	return 0
}

// joinGroup needs the lock.
func (g *Gate) joinGroup(c *gatedConn) {
	all := g.groups[c.group]
	if all == nil {
		all = list.New()
		g.groups[c.group] = all
	}
	c.inGroup = all.PushBack(c)
}

// leaveGroup needs the lock.
func (g *Gate) leaveGroup(c *gatedConn) {
	all := g.groups[c.group]
	all.Remove(c.inGroup)
	if all.Len() == 0 {
		delete(g.groups, c.group)
	}
}

// remove needs the lock.
func (g *Gate) remove(c *gatedConn) {
	if c.closed {
		return
	}
	c.closed = true
	c.maxAge.Stop()
	g.leaveGroup(c)
	if c.inAnonymous != nil {
		g.anonymous.Remove(c.inAnonymous)
	}
	g.open--
}

// displace closes a connection to make room for another. It needs the lock.
func (g *Gate) displace(e *list.Element) {
	c, _ := e.Value.(*gatedConn)
	g.remove(c)
	_ = c.Conn.Close() // a socket's Close does not block
	g.logDisplaced()
}

// logDisplaced logs once a minute. It needs the lock.
func (g *Gate) logDisplaced() {
	g.displaced++
	if now := time.Now(); now.Sub(g.loggedAt) > time.Minute {
		g.log.Warn("connections closed or refused: limits of shard.connections reached",
			"connections", g.displaced, "open", g.open, "anonymous", g.anonymous.Len())
		g.displaced, g.loggedAt = 0, now
	}
}

// sourceGroup names the group of a source. IPv6 hosts count by their /64,
// since one host may use every address of it.
func sourceGroup(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return "source unknown"
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is6() {
		ip = netip.PrefixFrom(ip, 64).Masked().Addr()
	}
	return "source " + ip.String()
}
