package ports

import (
	"container/list"
	"context"
)

// Bounds on the bytes of answers that clients have not read: gRPC keeps them in memory
// until the client's window permits to write them.
const (
	clientAnswerBytes = 8 << 20
	partyAnswerBytes  = 16 << 20
	allAnswerBytes    = 32 << 20
)

// Answered counts an answer of so many bytes as unread until as much has been written to
// the connection below ctx. Where more than a bound was unread before, the connection is
// closed that holds the most of it: one answer may have any size. It never blocks.
func Answered(ctx context.Context, bytes int) {
	if c, ok := connectionOf(ctx); ok && c.gated != nil {
		c.gated.gate.answered(c.gated, int64(bytes))
	}
}

func (g *Gate) answered(c *gatedConn, bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !c.closed {
		switch {
		case c.client.unread > clientAnswerBytes:
			g.displace(leastRead(&c.client.conns))
		case c.party.unread > partyAnswerBytes:
			g.displace(leastRead(&c.party.conns))
		case g.unread > allAnswerBytes:
			g.displace(leastRead(&g.leastReadParty().conns))
		default:
			g.addUnread(c, bytes)
			c.answers.Store(true)
			return
		}
	}
}

// addUnread needs the lock.
func (g *Gate) addUnread(c *gatedConn, bytes int64) {
	c.unread += bytes
	c.client.unread += bytes
	c.party.unread += bytes
	g.unread += bytes
}

// Write implements net.Conn.
func (c *gatedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if !c.answers.Load() {
		return n, err
	}
	g := c.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	g.addUnread(c, -min(c.unread, int64(n)))
	c.answers.Store(c.unread > 0)
	return n, err
}

// leastRead returns the connection with the most unread bytes; of equal ones the oldest.
func leastRead(conns *list.List) *list.Element {
	return largest(conns, func(c *gatedConn) int64 { return c.unread })
}

// leastReadParty needs the lock.
func (g *Gate) leastReadParty() *party {
	return g.largestParty(func(p *party) int64 { return p.unread })
}
