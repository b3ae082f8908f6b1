package ports

import (
	"container/list"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/fair"
)

// A Gate bounds the connections of all ports together, the bytes of requests that are
// not complete, and those of answers that are not read. A client is anonymous until it has shown a certificate that
// is in use. Anonymous connections are bounded per source address and in all, and end
// at a certain age; identified ones are bounded per client, whatever their address,
// because a whole fleet may share one.
//
// At a limit the oldest connection is closed, of anonymous ones only then one whose
// handshake the server has answered within a second: where many come at once such are the
// oldest, and have cost most. A handshake takes milliseconds, and
// connections that are held open are older, so clients with certificates connect
// even while others hold every anonymous connection, from the same address too. Where
// clients with certificates hold nearly all connections, the client with the most, in
// the tenant with the most, gives way.
type Gate struct {
	limits config.Connections
	log    *slog.Logger
	turns  *fair.Queue[string] // of handshakes, by source

	mu        sync.Mutex // guards what follows, and the fields of admitted connections
	open      int
	held      int64 // bytes of requests that are not complete
	unread    int64 // bytes of answers that were not written yet
	anonymous *party
	parties   map[string]*party // of identified clients
	displaced int               // since loggedAt
	loggedAt  time.Time
}

// A party is a set of clients that share one bound: the anonymous ones, those of one
// tenant, the administrators, the servers of the shard.
type party struct {
	name    string
	clients map[string]*holder // by source for anonymous clients
	conns   list.List          // of *gatedConn, oldest first
	held    int64
	unread  int64
}

// A holder is one client, or one source address of anonymous clients.
type holder struct {
	name   string
	conns  list.List // of *gatedConn, oldest first
	held   int64
	unread int64
}

// NewGate returns a gate with these limits.
func NewGate(limits config.Connections, log *slog.Logger) *Gate {
	return &Gate{limits: limits, log: log, turns: newTurns(), anonymous: newParty("anonymous"), parties: map[string]*party{}}
}

func newParty(name string) *party { return &party{name: name, clients: map[string]*holder{}} }

// Listener returns lis behind the gate. An anonymous connection through it ends
// after maxAge. While serves returns false, connections are closed before their handshake;
// nil: it always serves.
func (g *Gate) Listener(lis net.Listener, maxAge time.Duration, serves func() bool) net.Listener {
	return &gatedListener{lis, g, maxAge, serves}
}

type gatedListener struct {
	net.Listener
	gate   *Gate
	maxAge time.Duration
	serves func() bool
}

// Accept implements net.Listener. Connections beyond the limits are closed and
// skipped.
func (l *gatedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.serves == nil || l.serves() {
			if c := l.gate.admit(conn, l.maxAge); c != nil {
				return c, nil
			}
		}
		reset(conn)
	}
}

// reset closes a connection for which the kernel keeps nothing afterwards: thousands may
// come in a second.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // else it closes in order
	}
	_ = conn.Close()
}

// A gatedConn is a connection within the limits.
type gatedConn struct {
	net.Conn
	gate    *Gate
	answers atomic.Bool // some bytes of answers were not written yet

	// The gate's lock guards the rest.
	maxAge   time.Duration
	ageTimer *time.Timer // closes an anonymous connection
	party    *party
	client   *holder
	inParty  *list.Element
	inClient *list.Element
	identity nstance.Identity // zero: none was shown
	refused  error            // why the identity is not in use any more
	shaking  bool             // its handshake is not complete
	answered time.Time        // when the server first wrote; zero: it has not
	closed   bool
	read     int64     // bytes so far
	requests list.List // of *request, oldest first: those that are not complete
	unary    int       // of them, those that are no open streams
	held     int64     // bytes that they count for
	unread   int64     // bytes of answers that were not written yet
}

// Close implements net.Conn.
func (c *gatedConn) Close() error {
	c.gate.mu.Lock()
	c.gate.remove(c)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}

// handshake says that the handshake of c begins or is complete. A nil connection is not
// behind a gate.
func (c *gatedConn) handshake(begins bool) {
	if c == nil {
		return
	}
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	c.shaking = begins
}

// setAnswered says that the server has answered the client's first message.
func (c *gatedConn) setAnswered() {
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	c.answered = time.Now()
}

// answerGrace is how long a client may take for the rest of its handshake and, to register, for a
// call, before its connection is one of those that give way first.
const answerGrace = time.Second

// oldest returns the anonymous connection of a list that gives way. It needs the lock.
func oldest(conns *list.List) *list.Element {
	now := time.Now()
	for e := conns.Front(); e != nil; e = e.Next() {
		if c, _ := e.Value.(*gatedConn); c.answered.IsZero() || now.Sub(c.answered) >= answerGrace {
			return e
		}
	}
	return conns.Front()
}

// admit returns nil where the connection is beyond the limits.
func (g *Gate) admit(conn net.Conn, maxAge time.Duration) *gatedConn {
	c := &gatedConn{Conn: conn, gate: g, maxAge: maxAge}
	source := sourceGroup(conn.RemoteAddr())
	g.mu.Lock()
	defer g.mu.Unlock()
	switch from := g.anonymous.clients[source]; {
	case from != nil && from.conns.Len() >= g.limits.PerSource:
		g.displace(oldest(&from.conns))
	case g.anonymous.conns.Len() >= g.limits.Anonymous, g.open >= g.limits.Max && g.anonymous.conns.Len() > 0:
		g.displace(oldest(&g.anonymous.conns))
	case g.open >= g.limits.Max:
		g.logDisplaced()
		return nil
	}
	g.open++
	g.join(c, g.anonymous, source)
	g.startAge(c)
	return c
}

// startAge ends c at a certain age. It needs the lock.
func (g *Gate) startAge(c *gatedConn) {
	c.ageTimer = time.AfterFunc(c.maxAge, func() { _ = c.Close() })
}

// identify counts c among the connections of id from now on. A certificate that is
// refused changes nothing: the client stays anonymous.
func (c *gatedConn) identify(id nstance.Identity, refused error) {
	g := c.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.closed || c.party != g.anonymous {
		return
	}
	c.identity, c.refused = id, refused
	if refused != nil {
		return
	}
	c.ageTimer.Stop()
	g.leave(c)
	p, name := g.partyOf(id), clientName(id)
	if same := p.clients[name]; same != nil && same.conns.Len() >= g.limits.PerClient {
		g.displace(same.conns.Front())
	}
	for g.open-1-g.anonymous.conns.Len() >= g.limits.Max-g.reserve() && g.displaceLargest() {
		continue
	}
	g.join(c, g.partyOf(id), name)
}

// reserve is how many connections clients with certificates leave to others: each
// begins without.
func (g *Gate) reserve() int { return min(g.limits.Anonymous, g.limits.Max/8) }

// displaceLargest closes the oldest connection of the client with the most, in the
// party with the most. It reports false where there is none. It needs the lock.
func (g *Gate) displaceLargest() bool {
	var most *party
	for _, p := range g.parties {
		if most == nil || p.conns.Len() > most.conns.Len() {
			most = p
		}
	}
	if most == nil {
		return false
	}
	var client *holder
	for _, h := range most.clients {
		if client == nil || h.conns.Len() > client.conns.Len() {
			client = h
		}
	}
	g.displace(client.conns.Front())
	return true
}

// partyOf needs the lock.
func (g *Gate) partyOf(id nstance.Identity) *party {
	name := "tenant " + string(id.Tenant)
	if id.Role == nstance.RoleAdmin || id.Role == nstance.RoleServer {
		name = "role " + string(id.Role)
	}
	p := g.parties[name]
	if p == nil {
		p = newParty(name)
		g.parties[name] = p
	}
	return p
}

func clientName(id nstance.Identity) string {
	return string(id.Role) + "/" + string(id.Tenant) + "/" + id.Subject
}

// join needs the lock.
func (g *Gate) join(c *gatedConn, p *party, client string) {
	h := p.clients[client]
	if h == nil {
		h = &holder{name: client}
		p.clients[client] = h
	}
	c.party, c.client = p, h
	c.inParty, c.inClient = p.conns.PushBack(c), h.conns.PushBack(c)
	p.held += c.held
	h.held += c.held
	p.unread += c.unread
	h.unread += c.unread
}

// leave needs the lock.
func (g *Gate) leave(c *gatedConn) {
	c.party.held -= c.held
	c.client.held -= c.held
	c.party.unread -= c.unread
	c.client.unread -= c.unread
	c.party.conns.Remove(c.inParty)
	c.client.conns.Remove(c.inClient)
	if c.client.conns.Len() == 0 {
		delete(c.party.clients, c.client.name)
	}
	if c.party.conns.Len() == 0 && c.party != g.anonymous {
		delete(g.parties, c.party.name)
	}
}

// remove needs the lock.
func (g *Gate) remove(c *gatedConn) {
	if c.closed {
		return
	}
	c.closed = true
	c.ageTimer.Stop()
	c.requests.Init()
	g.setHeld(c, 0)
	g.addUnread(c, -c.unread)
	g.leave(c)
	g.open--
}

// displace closes a connection to make room for another. It needs the lock.
func (g *Gate) displace(e *list.Element) {
	c, _ := e.Value.(*gatedConn)
	g.remove(c)
	_ = c.Conn.Close() // a socket's Close does not block
	g.logDisplaced()
}

// End ends the connections of a client whose identity is not in use any more, all
// that show this certificate, or for one without serial those of every certificate.
// Requests that begin before fail with the error why, and from now on the connections
// count as anonymous ones. It never blocks.
func (g *Gate) End(id nstance.Identity, why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.partyOf(id)
	h := p.clients[clientName(id)]
	if h == nil {
		if p.conns.Len() == 0 {
			delete(g.parties, p.name)
		}
		return
	}
	var all []*gatedConn
	for e := h.conns.Front(); e != nil; e = e.Next() {
		if c, _ := e.Value.(*gatedConn); id.Serial == "" || c.identity.Serial == id.Serial {
			all = append(all, c)
		}
	}
	for _, c := range all {
		c.refused = why
		g.leave(c)
		g.join(c, g.anonymous, sourceGroup(c.RemoteAddr()))
		c.maxAge = endGrace
		g.startAge(c)
	}
}

// endGrace is how long the connections of an identity last that is not in use any more:
// its streams are told why before.
const endGrace = 3 * CloseGrace

// Identities returns the identities with these roles that are connected, each once.
func (g *Gate) Identities(roles ...nstance.Role) []nstance.Identity {
	g.mu.Lock()
	defer g.mu.Unlock()
	seen := map[nstance.Identity]bool{}
	var all []nstance.Identity
	for _, p := range g.parties {
		for _, h := range p.clients {
			for e := h.conns.Front(); e != nil; e = e.Next() {
				c, _ := e.Value.(*gatedConn)
				if id := c.identity; !seen[id] && hasRole(id, roles) {
					seen[id] = true
					all = append(all, id)
				}
			}
		}
	}
	return all
}

func hasRole(id nstance.Identity, roles []nstance.Role) bool {
	for _, r := range roles {
		if id.Role == r {
			return true
		}
	}
	return false
}

// refused counts a connection for whose handshake there was no time.
func (g *Gate) refused() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.logDisplaced()
}

// logDisplaced logs once a minute. It needs the lock.
func (g *Gate) logDisplaced() {
	g.displaced++
	if now := time.Now(); now.Sub(g.loggedAt) > time.Minute {
		g.log.Warn("connections closed or refused: more at once than shard.connections permits, or than this server has processors for",
			"connections", g.displaced, "open", g.open, "anonymous", g.anonymous.conns.Len())
		g.displaced, g.loggedAt = 0, now
	}
}

// sourceGroup names the group of a source. IPv6 hosts count by their /64,
// since one host may use every address of it.
func sourceGroup(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return unknownSource
	}
	return groupOf(tcp.AddrPort().Addr())
}

// RequestSource names the group of the source of an HTTP request.
func RequestSource(r *http.Request) string {
	addr, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return unknownSource
	}
	return groupOf(addr.Addr())
}

const unknownSource = "source unknown"

func groupOf(ip netip.Addr) string {
	ip = ip.Unmap().WithZone("")
	if ip.Is6() {
		ip = netip.PrefixFrom(ip, 64).Masked().Addr()
	}
	return "source " + ip.String()
}
