//go:build unix

package command_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/command"
)

func run(ctx context.Context, t *testing.T, script string) error {
	t.Helper()
	return command.Command{Argv: []string{"/bin/sh", "-c", script}, Dir: t.TempDir(), MaxOutput: 16}.Run(ctx)
}

func TestRun(t *testing.T) {
	t.Run("exit status zero is fine", func(t *testing.T) {
		require.NoError(t, run(t.Context(), t, "echo hello"))
	})
	t.Run("any other is not, and the end of the output says why", func(t *testing.T) {
		err := run(t.Context(), t, "echo xxxxxxxxxxxxxxxxxxxxxxxxxxxx; echo the end >&2; exit 3")
		require.ErrorContains(t, err, "exit status 3")
		require.ErrorContains(t, err, "the end")
		require.Less(t, len(err.Error()), 40)
	})
	t.Run("without a shell nothing is expanded", func(t *testing.T) {
		err := command.Command{Argv: []string{"/bin/sh", "-c", `test "$1" = '$HOME;'`, "x", "$HOME;"}, MaxOutput: 16}.Run(t.Context())
		require.NoError(t, err)
	})
	t.Run("a program that is not there is an error", func(t *testing.T) {
		require.Error(t, command.Command{Argv: []string{"/no/such/program"}}.Run(t.Context()))
	})
	t.Run("nor is one that is none tried again", func(t *testing.T) {
		garbage := filepath.Join(t.TempDir(), "garbage")
		require.NoError(t, os.WriteFile(garbage, []byte{0, 1, 2}, 0o700))
		for _, path := range []string{garbage, t.TempDir(), "/no/such/program"} {
			var unstarted *command.NotStarted
			require.ErrorAs(t, command.Command{Argv: []string{path}}.Run(t.Context()), &unstarted)
		}
	})
	t.Run("what it leaves behind is killed, and its output is not waited for", func(t *testing.T) {
		pid := filepath.Join(t.TempDir(), "pid")
		require.NoError(t, run(t.Context(), t, "sleep 300 & echo $! > "+pid))
		text, err := os.ReadFile(pid)
		require.NoError(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return gone(n) }, time.Minute, time.Millisecond)
	})
	t.Run("when the time is up all of its group is killed", func(t *testing.T) {
		pid := filepath.Join(t.TempDir(), "pid")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- run(ctx, t, "sleep 300 & echo $! > "+pid+".new; mv "+pid+".new "+pid+"; wait") }()
		require.Eventually(t, func() bool { _, err := os.Stat(pid); return err == nil }, time.Minute, time.Millisecond)
		cancel()
		require.ErrorContains(t, <-ended, "killed")
		text, err := os.ReadFile(pid)
		require.NoError(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return gone(n) }, time.Minute, time.Millisecond)
	})
}

// gone reports whether a process has ended; one that has not been reaped yet
// counts.
func gone(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil && syscall.Kill(pid, 0) != nil || strings.Contains(string(stat), ") Z ")
}
