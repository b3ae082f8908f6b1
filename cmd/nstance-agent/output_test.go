//go:build unix

package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/freeport"
)

// asProgram makes this test binary the program.
const asProgram = "NSTANCE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main() // exits
	}
	os.Exit(m.Run())
}

// TestReaderOfLog: a reader of standard error that hangs or has gone stops nothing, not even
// the end of the program.
func TestReaderOfLog(t *testing.T) {
	for name, prepare := range map[string]func(r, w *os.File){
		"hangs": func(_, w *os.File) {
			require.NoError(t, w.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
			_, err := io.Copy(w, zeros{})
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		},
		"has gone": func(r, _ *os.File) { require.NoError(t, r.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			r, w, err := os.Pipe()
			require.NoError(t, err)
			t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
			prepare(r, w)
			health, err := freeport.Address()
			require.NoError(t, err)
			program(t, health, w)
			requireServed(t, health)
		})
	}
}

// program starts the agent, which ends by itself when the test does.
func program(t *testing.T, health string, stderr *os.File) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, "--health-addr", health, "--debug")
	cmd.Env = append(os.Environ(), asProgram+"=1")
	for name, value := range complete(t) {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stderr = stderr
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		defer cmd.Process.Kill()
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(time.Minute):
			require.FailNow(t, "it does not end")
		}
	})
}

// requireServed requires that the agent says how it is: not registered.
func requireServed(t *testing.T, health string) {
	t.Helper()
	require.Eventually(t, func() bool {
		resp, err := http.Get("http://" + health + "/healthz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return err == nil && resp.StatusCode == http.StatusServiceUnavailable && len(text) > 0
	}, time.Minute, 10*time.Millisecond)
}

// TestHealthAddressInUse: an agent that another program keeps from its health address works,
// and answers there once it is free.
func TestHealthAddressInUse(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	program(t, other.Addr().String(), w)
	lines := bufio.NewScanner(r)
	for lines.Scan() && !strings.Contains(lines.Text(), "NSTANCE_HEALTH_ADDR") {
	}
	require.NoError(t, lines.Err())
	go io.Copy(io.Discard, r)
	require.NoError(t, other.Close())
	requireServed(t, other.Addr().String())
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
