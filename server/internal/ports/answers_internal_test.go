package ports

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
)

// A gateway admits connections of operators.
type gateway struct {
	*testing.T
	*Gate
}

func newGateway(t *testing.T) *gateway {
	limits := config.Connections{Max: 1000, Anonymous: 1000, PerSource: 1000, PerClient: 1000}
	return &gateway{t, NewGate(limits, slog.New(slog.DiscardHandler))}
}

func (g *gateway) connect(tenant nstance.TenantID, subject string) *gatedConn {
	client, server := net.Pipe()
	c := g.admit(&sourced{Conn: server, from: one}, time.Hour)
	c.identify(nstance.Identity{Role: nstance.RoleOperator, Tenant: tenant, Subject: subject}, nil)
	g.Cleanup(func() { _ = client.Close(); _ = c.Close() })
	return c
}

// written is a connection whose client reads everything.
type written struct{ net.Conn }

func (written) Write(p []byte) (int, error) { return len(p), nil }
func (written) Close() error                { return nil }
func (written) RemoteAddr() net.Addr        { return one }

// TestUnreadAnswers: where a client, a tenant or all leave too much unread, the connection
// with the most gives way to the next answer.
func TestUnreadAnswers(t *testing.T) {
	const half = clientAnswerBytes / 2
	t.Run("of one client", func(t *testing.T) {
		g := newGateway(t)
		small, large := g.connect("a", "eve"), g.connect("a", "eve")
		g.answered(large, half+1)
		g.answered(small, half-1)
		g.answered(small, 1)
		require.False(t, small.closed || large.closed, "exactly the bound, and one answer beyond it")
		g.answered(small, 1)
		require.True(t, large.closed)
		require.False(t, small.closed)
		require.EqualValues(t, half+1, g.unread)
	})
	t.Run("of connections with as much the oldest", func(t *testing.T) {
		g := newGateway(t)
		old, young := g.connect("a", "eve"), g.connect("a", "eve")
		g.answered(old, half+1)
		g.answered(young, half+1)
		g.answered(young, 1)
		require.True(t, old.closed)
		require.False(t, young.closed)
	})
	t.Run("of one tenant", func(t *testing.T) {
		g := newGateway(t)
		ann, eve, joe := g.connect("a", "ann"), g.connect("a", "eve"), g.connect("a", "joe")
		g.answered(ann, clientAnswerBytes-1)
		g.answered(eve, clientAnswerBytes)
		g.answered(joe, 2)
		require.False(t, ann.closed || eve.closed)
		g.answered(joe, 1)
		require.True(t, eve.closed)
		require.False(t, ann.closed || joe.closed)
	})
	t.Run("of all", func(t *testing.T) {
		g := newGateway(t)
		var most *gatedConn
		for _, tenant := range []nstance.TenantID{"a", "b"} {
			for _, subject := range []string{"ann", "eve"} {
				most = g.connect(tenant, subject)
				g.answered(most, partyAnswerBytes/2-1)
			}
		}
		g.answered(most, 1)
		other := g.connect("c", "ann")
		g.answered(other, 4)
		g.answered(other, 1)
		require.True(t, most.closed, "the largest of the largest tenant")
		require.False(t, other.closed)
		require.Len(t, g.parties, 3)
	})
	t.Run("read in the meantime", func(t *testing.T) {
		g := newGateway(t)
		c := g.connect("a", "eve")
		c.Conn = written{}
		g.answered(c, 90)
		g.answered(g.connect("a", "eve"), 50)
		for _, left := range []int64{120, 100, 80, 60, 50, 50} {
			_, err := c.Write(make([]byte, 20))
			require.NoError(t, err)
			require.Equal(t, left, g.unread)
		}
		g.answered(c, 30)
		require.EqualValues(t, 80, g.unread)
		require.NoError(t, c.Close())
		require.EqualValues(t, 50, g.unread)
		require.EqualValues(t, 50, g.parties["tenant a"].unread)
	})
}

// TestUnreadAnswersMoveWithTheirConnection: an identity that is not in use any more counts
// for its former tenant no more.
func TestUnreadAnswersMoveWithTheirConnection(t *testing.T) {
	g := newGateway(t)
	c := g.connect("a", "eve")
	g.answered(c, 100)
	g.mu.Lock()
	g.setHeld(c, 7)
	g.mu.Unlock()
	former := c.party
	g.End(nstance.Identity{Role: nstance.RoleOperator, Tenant: "a", Subject: "eve"}, nstance.Denied)
	require.Equal(t, []int64{0, 0, 100, 7}, []int64{former.unread, former.held, g.anonymous.unread, g.anonymous.held})
	require.Equal(t, []int64{100, 7}, []int64{c.client.unread, c.client.held})
	require.NoError(t, c.Close())
	require.Equal(t, []int64{0, 0, 0, 0}, []int64{g.anonymous.unread, g.anonymous.held, g.unread, g.held})
}
