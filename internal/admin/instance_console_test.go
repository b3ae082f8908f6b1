package admin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	apiv1 "github.com/nstance-go/nstance/api/v1"
)

func TestInstanceConsole(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	r := w.run("instance", "console", string(webA))
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.out, "no output yet")
	w.mu.Lock()
	w.console = []byte("booting\r\n\x1b]0;owned\x07\tlogin: \xff\n")
	w.mu.Unlock()
	r = w.run("instance", "console", string(webA))
	require.Zero(t, r.code, r.errors)
	require.Equal(t, "booting\n]0;owned        login:\n", r.out, "a machine does not command the terminal")
	r = w.run("instance", "console", string(webA), "-o", "json")
	require.Zero(t, r.code, r.errors)
	require.Equal(t, w.console, message(t, r.out, &apiv1.GetConsoleOutputResponse{}).GetOutput(), "every byte, encoded")
	require.NotContains(t, r.out, "\x1b")
}
