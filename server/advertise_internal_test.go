package server

import (
	"testing"

	"github.com/stretchr/testify/require"
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
