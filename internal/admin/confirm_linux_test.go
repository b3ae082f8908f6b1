package admin_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nstance-go/nstance/internal/admin"
)

// terminal opens a pseudo-terminal: what is written to the first is typed into
// the second. See pty(7) and ioctl_tty(2).
func terminal(t *testing.T) (keyboard, tty *os.File) {
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = keyboard.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tty.Close() })
	return keyboard, tty
}

func TestConfirmation(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	env := map[string]string{"NSTANCE_ADMIN_DIR": w.dir}
	for answer, done := range map[string]bool{"y\n": true, "YES\n": true, "\n": false, "n\n": false, "yesterday\n": false} {
		t.Run(strings.TrimSpace("answered "+answer), func(t *testing.T) {
			keyboard, tty := terminal(t)
			_, err := keyboard.WriteString(answer)
			require.NoError(t, err)
			r := run(t, tty, env, "instance", "delete", string(webA))
			require.Contains(t, r.errors, "Continue? [y/N]")
			if done {
				require.Zero(t, r.code, r.errors)
				require.NotEmpty(t, w.done())
				return
			}
			require.Equal(t, 1, r.code)
			require.Contains(t, r.errors, "cancelled, nothing was changed")
			require.Empty(t, w.done())
		})
	}
	t.Run("not asked with --yes", func(t *testing.T) {
		_, tty := terminal(t)
		r := run(t, tty, env, "instance", "delete", string(webA), "--yes")
		require.Zero(t, r.code, r.errors)
		require.NotContains(t, r.errors, "Continue?")
		w.done()
	})
	t.Run("required without a terminal", func(t *testing.T) {
		null, err := os.Open(os.DevNull)
		require.NoError(t, err)
		defer null.Close()
		r := run(t, null, env, "instance", "delete", string(webA))
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, "--yes")
		require.Empty(t, w.done())
	})
	t.Run("interrupted", func(t *testing.T) {
		keyboard, tty := terminal(t)
		ctx, cancel := context.WithCancel(t.Context())
		errs, code := &watched{}, make(chan int, 1)
		go func() { // waited for below
			code <- admin.Main(ctx, nil, []string{"instance", "delete", string(webA)}, tty, &bytes.Buffer{}, errs, func(k string) string { return env[k] })
		}()
		require.Eventually(t, func() bool { return strings.Contains(errs.String(), "[y/N]") }, time.Minute, time.Millisecond)
		cancel()
		require.Equal(t, 1, <-code)
		require.Contains(t, errs.String(), "interrupted, nothing was changed")
		require.Empty(t, w.done())
		_, err := keyboard.WriteString("\n") // lets the reader end before its file is closed
		require.NoError(t, err)
	})
}

// TestRenewalThatAnotherProcessDoesNotEnd: a command does not wait for it for ever.
func TestRenewalThatAnotherProcessDoesNotEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	old := w.ageing(17 * time.Hour)
	held, err := os.Create(filepath.Join(w.dir, "lock"))
	require.NoError(t, err)
	defer held.Close()
	require.NoError(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	r := w.run("status")
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.errors, "warning: certificate not renewed")
	require.Contains(t, r.errors, "another process is renewing it")
	require.Equal(t, old, w.saved())
}
