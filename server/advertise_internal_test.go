package server

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/server/internal/configuration"
)

func TestAdvertise(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ listen, leader, host, machine, want string }{
		{"10.0.0.5:8993", "", "", "10.9.9.9", "10.0.0.5:8993"},
		{"10.0.0.5:8993", "10.0.0.100", "", "10.9.9.9", "10.0.0.5:8993"},
		{"10.0.0.5:8993", "", "s1.example", "10.9.9.9", "s1.example:8993"},
		{"[::]:8993", "", "", "10.9.9.9", "10.9.9.9:8993"},
		{"[::]:8993", "", "s1.example", "10.9.9.9", "s1.example:8993"},
		{"0.0.0.0:8993", "10.0.0.100", "s1.example", "10.9.9.9", "10.0.0.100:8993"},
		{"[::]:8993", "", "", "", "[::]:8993"},
		{"", "10.0.0.100", "s1.example", "10.9.9.9", ""},
	} {
		require.Equal(t, c.want, reachable(c.listen, c.leader, c.host, c.machine), "%+v", c)
	}
	for address, want := range map[string]string{
		"10.0.0.100": "10.0.0.100", "10.0.0.100/32": "10.0.0.100", "fd00::1": "fd00::1", "eni-0a1b2c": "", "10.0.0.0/24": "", "": "",
	} {
		require.Equal(t, want, leaderHost(address), address)
	}
}

// openConfiguration returns a configuration that is in force.
func openConfiguration(t *testing.T, text string) *configuration.Reloader {
	t.Helper()
	conf, err := configuration.Open(t.Context(), configuration.Options{
		Source: func(context.Context) (string, []byte, error) { return "s1.jsonc", []byte(text), nil },
		Now:    time.Now, Log: slog.New(slog.DiscardHandler), CheckAbilities: func(*config.Config) error { return nil },
	})
	require.NoError(t, err)
	return conf
}

// A boundAddress is a listener of which only the address is known.
type boundAddress struct {
	net.Listener
	at string
}

func (b boundAddress) Addr() net.Addr { return b }
func (boundAddress) Network() string  { return "tcp" }
func (b boundAddress) String() string { return b.at }

// TestAdvertisedWithLeaderAddress: clients connect where the leader is, the other servers to this
// one; what is set goes first, in the options before the configuration.
func TestAdvertisedWithLeaderAddress(t *testing.T) {
	text := `{"cluster": {"id": "c1"}, "shard": {"id": "s1", "provider": {"kind": "sim"}, "leader_address": "10.0.0.100",
		"advertise": {"operator": "ops.example:1", "agent": "agents.example:1"}}}`
	s := &Server{config: openConfiguration(t, text), opts: Options{Advertise: Addresses{Agent: "own.example:2"}}}
	on := func(at string) port { return port{Listener: boundAddress{at: at}} }
	s.ports = &listeners{
		host: "10.9.9.9", web: boundAddress{at: "[::]:8990"},
		registration: on("[::]:8992"), operator: on("[::]:8993"), agent: on("[::]:8994"), peer: on("[::]:8995"),
	}
	require.Equal(t, Addresses{
		HTTP: "[::]:8990", Registration: "10.0.0.100:8992", Operator: "ops.example:1", Agent: "own.example:2", Peer: "10.9.9.9:8995",
	}, s.advertised())
}
