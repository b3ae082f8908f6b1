package ports

import (
	"container/list"
	"context"
	"net"
	"time"

	"github.com/nstance-go/nstance"
)

// Bounds on the bytes of requests that are not complete, as they come over the wire. A
// request counts from its headers until its message has arrived, and for requestBytes
// in any case. Memory is a few times as much where the bytes come one by one.
const (
	requestBytes   = 6 << 10
	handshakeBytes = 16 << 10 // read before a handshake is complete
	freeBytes      = 8 << 10  // of a stream that do not count: pings come between its messages
	callBytes      = 16 << 10 // what a registration, or another call, takes in general

	connectionBytes          = 2 << 20
	anonymousConnectionBytes = 64 << 10
	clientBytes              = 4 << 20
	sourceBytes              = 1 << 20
	partyBytes               = 8 << 20 // of one tenant
	anonymousBytes           = 4 << 20 // of all anonymous clients
	allBytes                 = 32 << 20

	// requestTimeout is how long a client may take to send a request.
	requestTimeout = 10 * time.Second
)

// A request is one whose message has not arrived, or a stream on which another message
// may arrive at any time.
type request struct {
	conn  *gatedConn
	from  int64         // bytes of the connection that were read before
	open  bool          // a stream: the first freeBytes do not count
	in    *list.Element // among the connection's; nil: complete. The gate's lock guards it
	timer *time.Timer   // ends the request
	left  func() bool   // stops what completes it when its stream ends
}

type requestKey struct{}

// Refusal returns why the identity of the connection below ctx is not in use any more;
// nil: it is in use, or was not checked.
func Refusal(ctx context.Context) error {
	c, ok := connectionOf(ctx)
	if !ok || c.gated == nil {
		return nil
	}
	c.gated.gate.mu.Lock()
	defer c.gated.gate.mu.Unlock()
	return c.gated.refused
}

// Begin begins a request on the connection below ctx, before any of it is read. The
// request ends after requestTimeout unless Received is called before. Begin never
// blocks. Fails with Throttled where the client has too many requests that are not
// complete.
func Begin(ctx context.Context) (context.Context, error) {
	c, ok := connectionOf(ctx)
	if !ok || c.gated == nil {
		return ctx, nil // not behind a gate
	}
	r := &request{conn: c.gated}
	if err := c.gated.gate.begin(r); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, requestKey{}, r))
	r.timer = time.AfterFunc(requestTimeout, func() { cancel(errUnsent) })
	r.left = context.AfterFunc(ctx, func() { r.timer.Stop(); r.complete() })
	return ctx, nil
}

var errUnsent error = nstance.Errorf(nstance.Unavailable, "the request was not sent within %v", requestTimeout)

// Received says that the message of the request that ctx belongs to has arrived.
func Received(ctx context.Context) {
	if r, ok := ctx.Value(requestKey{}).(*request); ok {
		r.left()
		r.timer.Stop()
		r.complete()
	}
}

// Await says that another message may arrive on the stream that ctx belongs to, at any
// time. Its bytes count until arrived is called.
func Await(ctx context.Context) (arrived func()) {
	c, ok := connectionOf(ctx)
	if !ok || c.gated == nil {
		return func() {}
	}
	r := &request{conn: c.gated, open: true}
	_ = c.gated.gate.begin(r) // fails for a connection that ends
	return r.complete
}

// Drop closes the connection below ctx at once. It never blocks.
func Drop(ctx context.Context) {
	if c, ok := connectionOf(ctx); ok && c.gated != nil {
		_ = c.gated.Close()
	}
}

// begin counts a request.
func (g *Gate) begin(r *request) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := r.conn
	if c.closed {
		return nstance.Errorf(nstance.Unavailable, "the connection was closed")
	}
	if !r.open && !g.makeRoom(c) {
		return &nstance.Error{Code: nstance.Throttled, Msg: "too many requests are being sent that are not complete", Remedy: "send fewer at once, and complete them"}
	}
	r.from, r.in = c.read, c.requests.PushBack(r)
	if !r.open {
		c.unary++
	}
	g.addHeld(c, 0)
	return nil
}

// makeRoom makes room for a request on c: connections that hold more give way to it. False:
// its client holds the most. It needs the lock.
func (g *Gate) makeRoom(c *gatedConn) bool {
	limit := g.limitsOf(c)
	if c.client.held+requestBytes > limit.client {
		return false
	}
	for {
		full := c.party
		if full.held+requestBytes <= limit.party {
			if g.held+requestBytes <= allBytes {
				return true
			}
			full = g.heaviestParty()
		}
		e := heaviest(full)
		if other, _ := e.Value.(*gatedConn); other.client == c.client {
			return false
		}
		g.displace(e)
	}
}

// complete counts a request no more.
func (r *request) complete() {
	g := r.conn.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.in == nil || r.conn.closed {
		return
	}
	r.conn.requests.Remove(r.in)
	r.in = nil
	if !r.open {
		r.conn.unary--
	}
	g.addHeld(r.conn, 0)
}

// byteLimits are those of one connection, of its client, and of the client's party.
type byteLimits struct{ connection, client, party int64 }

func (g *Gate) limitsOf(c *gatedConn) byteLimits {
	if c.party == g.anonymous {
		return byteLimits{anonymousConnectionBytes, sourceBytes, anonymousBytes}
	}
	return byteLimits{connectionBytes, clientBytes, partyBytes}
}

// addHeld counts n bytes that were read, and what the connection holds: all that was read
// since its oldest request began belongs to requests that are not complete. It needs the
// lock.
func (g *Gate) addHeld(c *gatedConn, n int) {
	c.read += int64(n)
	held := int64(0)
	if oldest := c.requests.Front(); oldest != nil {
		r, _ := oldest.Value.(*request)
		held = c.read - r.from
		if r.open {
			held = max(0, held-freeBytes)
		}
		held += requestBytes * int64(c.unary)
	}
	g.setHeld(c, held)
}

// setHeld needs the lock.
func (g *Gate) setHeld(c *gatedConn, held int64) {
	more := held - c.held
	c.held = held
	c.client.held += more
	c.party.held += more
	g.held += more
}

// Read implements net.Conn. What is read of requests that are not complete is bounded:
// beyond a bound connections that hold the most are closed.
func (c *gatedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.gate.count(c, n) {
		return 0, net.ErrClosed
	}
	return n, err
}

// count returns false where the connection was closed.
func (g *Gate) count(c *gatedConn, n int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.closed {
		return false
	}
	g.addHeld(c, n)
	limit := g.limitsOf(c)
	for !c.closed {
		switch {
		case c.held > limit.connection, c.shaking && c.read > handshakeBytes:
			g.displace(c.inParty)
		case c.client.held > limit.client:
			g.displace(heaviestOf(c.client))
		case c.party.held > limit.party:
			g.displace(heaviest(c.party))
		case g.held > allBytes:
			g.displace(heaviest(g.heaviestParty()))
		default:
			return true
		}
	}
	return false
}

// heaviest returns the connection of a party that gives way first: of the client that holds
// the most, or where none holds more than a call takes, the oldest. A client that sends one
// call is never worse off than those that hold many, and many clients that hold one call each
// do not keep out the next. The party must hold something.
func heaviest(p *party) *list.Element {
	var most *holder
	for _, h := range p.clients {
		if h.held > callBytes && (most == nil || h.held > most.held) {
			most = h
		}
	}
	if most != nil {
		return heaviestOf(most)
	}
	e := p.conns.Front()
	for c, _ := e.Value.(*gatedConn); c.held == 0; c, _ = e.Value.(*gatedConn) {
		e = e.Next()
	}
	return e
}

func heaviestOf(h *holder) *list.Element {
	return largest(&h.conns, func(c *gatedConn) int64 { return c.held })
}

// heaviestParty needs the lock.
func (g *Gate) heaviestParty() *party { return g.largestParty(func(p *party) int64 { return p.held }) }

// largest returns the connection with the most bytes; of equal ones the oldest.
func largest(conns *list.List, of func(*gatedConn) int64) *list.Element {
	most, bytes := conns.Front(), int64(-1)
	for e := conns.Front(); e != nil; e = e.Next() {
		if c, _ := e.Value.(*gatedConn); of(c) > bytes {
			most, bytes = c.inParty, of(c)
		}
	}
	return most
}

// largestParty returns the party with the most bytes. It needs the lock.
func (g *Gate) largestParty(of func(*party) int64) *party {
	most := g.anonymous
	for _, p := range g.parties {
		if of(p) > of(most) {
			most = p
		}
	}
	return most
}
