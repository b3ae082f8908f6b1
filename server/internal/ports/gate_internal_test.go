package ports

import (
	"fmt"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
)

func (g *gateway) from(ip string, maxAge time.Duration) *gatedConn {
	client, server := net.Pipe()
	g.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	return g.admit(&sourced{Conn: server, from: &net.TCPAddr{IP: net.ParseIP(ip)}}, maxAge)
}

func limited(t *testing.T, limits config.Connections) *gateway {
	return &gateway{t, NewGate(limits, slog.New(slog.DiscardHandler))}
}

// TestConnectionsGiveWay: at a limit the oldest connection of those that it is for is closed.
func TestConnectionsGiveWay(t *testing.T) {
	t.Run("of a source", func(t *testing.T) {
		g := limited(t, config.Connections{Max: 100, Anonymous: 100, PerSource: 2, PerClient: 2})
		first, second := g.from("2001:db8::1", time.Hour), g.from("2001:db8::2", time.Hour)
		other := g.from("2001:db8:0:1::1", time.Hour)
		require.False(t, first.closed)
		g.from("2001:db8::3", time.Hour)
		require.True(t, first.closed, "a host may use every address of its network")
		require.False(t, second.closed || other.closed)
	})
	t.Run("of a client", func(t *testing.T) {
		g := limited(t, config.Connections{Max: 100, Anonymous: 100, PerSource: 100, PerClient: 2})
		first, second := g.connect("a", "eve"), g.connect("a", "eve")
		require.False(t, first.closed)
		third := g.connect("a", "eve")
		require.True(t, first.closed)
		require.False(t, second.closed || third.closed)
	})
	t.Run("without certificate", func(t *testing.T) {
		g := limited(t, config.Connections{Max: 100, Anonymous: 2, PerSource: 100, PerClient: 100})
		first, second := g.from("10.0.0.1", time.Hour), g.from("10.0.0.2", time.Hour)
		g.from("10.0.0.3", time.Hour)
		require.True(t, first.closed)
		require.False(t, second.closed)
	})
	t.Run("first those that the server has not answered within a second", func(t *testing.T) {
		for name, limits := range map[string]config.Connections{
			"of a source": {Max: 100, Anonymous: 100, PerSource: 3, PerClient: 100},
			"of all":      {Max: 100, Anonymous: 3, PerSource: 100, PerClient: 100},
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := limited(t, limits)
					come := func() *gatedConn { return g.from("10.0.0.1", time.Hour) }
					first, second, waiting := come(), come(), come()
					first.setAnswered()
					second.setAnswered()
					third := come()
					require.True(t, waiting.closed)
					require.False(t, first.closed || second.closed)
					third.setAnswered()
					fourth := come()
					require.True(t, first.closed, "a newcomer is let in")
					<-time.After(answerGrace)
					come()
					require.True(t, second.closed, "it had its time")
					require.False(t, third.closed || fourth.closed)
				})
			})
		}
	})
	t.Run("of all, but for a reserve, the client with the most in the tenant with the most", func(t *testing.T) {
		g := limited(t, config.Connections{Max: 16, Anonymous: 16, PerSource: 100, PerClient: 100})
		require.Equal(t, 2, g.reserve())
		var eve []*gatedConn
		single := g.connect("a", "ann")
		for range 7 {
			eve = append(eve, g.connect("a", "eve"))
		}
		for i := range 6 {
			g.connect("b", fmt.Sprint(i))
		}
		require.False(t, eve[0].closed)
		g.connect("c", "joe")
		require.True(t, eve[0].closed)
		require.False(t, eve[1].closed || single.closed)
		require.Equal(t, 14, g.open)
	})
}

func isClosed(c *gatedConn) bool {
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	return c.closed
}

// TestEndOfAnIdentity: its connections count as anonymous ones, say why, and end soon; those
// of another certificate of the client stay.
func TestEndOfAnIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		join := func(serial string) *gatedConn {
			c := g.from("10.0.0.1", time.Hour)
			c.identify(nstance.Identity{Role: nstance.RoleOperator, Tenant: "a", Subject: "eve", Serial: serial}, nil)
			return c
		}
		first, second := join("1"), join("2")
		g.End(nstance.Identity{Role: nstance.RoleOperator, Tenant: "a", Subject: "eve", Serial: "1"}, nstance.Denied)
		require.Equal(t, []error{nstance.Denied, nil}, []error{first.refused, second.refused})
		require.Same(t, g.anonymous, first.party)
		<-time.After(endGrace - 1)
		synctest.Wait()
		require.False(t, isClosed(first))
		<-time.After(time.Second)
		synctest.Wait()
		require.True(t, isClosed(first))
		require.False(t, isClosed(second))
		g.End(nstance.Identity{Role: nstance.RoleOperator, Tenant: "a", Subject: "eve"}, nstance.Denied)
		<-time.After(2 * endGrace)
		synctest.Wait()
		require.True(t, isClosed(second))
		require.Empty(t, g.parties)
		g.End(nstance.Identity{Role: nstance.RoleOperator, Tenant: "none", Subject: "eve"}, nstance.Denied)
		require.Empty(t, g.parties, "names of strangers are not kept")
	})
}

// TestIdentifiedAfterItsEnd: a connection that was closed during its handshake is counted nowhere.
func TestIdentifiedAfterItsEnd(t *testing.T) {
	g := newGateway(t)
	c := g.from("10.0.0.1", time.Hour)
	require.NoError(t, c.Close())
	c.identify(nstance.Identity{Role: nstance.RoleAgent, Tenant: "a", Subject: "x"}, nil)
	require.Empty(t, g.parties)
	require.Zero(t, g.open)
}
