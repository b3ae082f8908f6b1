//go:build unix

package local_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/program"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
)

var modes = []nstance.ParkMode{nstance.ParkStopped, nstance.ParkHibernated}

func newParkable(mode nstance.ParkMode) nstance.MachineSpec {
	s := newSpec()
	s.Market, s.Park = nstance.OnDemand, mode
	return s
}

// writesPIDs is a machine that appends its process and a child to a file at each start,
// and ignores SIGTERM. It starts nothing after that: a shell waits for vfork in state D.
var writesPIDs = shell(`trap "" TERM; sleep 1000 & echo $$ $! >> pids; read line <&3`)

// startedPIDs returns the processes of the machine's nth start.
func startedPIDs(t *testing.T, dir string, id nstance.InstanceID, n int) (pids [2]int) {
	t.Helper()
	require.Eventually(t, func() bool {
		files, err := filepath.Glob(filepath.Join(dir, "*", string(id), "pids"))
		if err != nil || len(files) != 1 {
			return false
		}
		b, err := os.ReadFile(files[0])
		lines := strings.Split(string(b), "\n")
		if err != nil || len(lines) <= n {
			return false
		}
		_, err = fmt.Sscan(lines[n-1], &pids[0], &pids[1])
		return err == nil && len(lines) == n+1
	}, soon, 5*time.Millisecond, "start %d was never written", n)
	return pids
}

// requireEnded requires that a process is gone.
func requireEnded(t *testing.T, pids [2]int) {
	t.Helper()
	for _, pid := range pids {
		require.Eventually(t, func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH || state(pid) == "Z" }, soon, 5*time.Millisecond, "process %d is there", pid)
	}
}

// requireState requires that both processes get to a state of proc(5), where there is one.
func requireState(t *testing.T, want string, pids [2]int) {
	t.Helper()
	if runtime.GOOS != "linux" {
		return
	}
	for _, pid := range pids {
		require.Eventually(t, func() bool { return state(pid) == want }, soon, 5*time.Millisecond, "process %d was never in state %s, now %q", pid, want, state(pid))
	}
}

func state(pid int) string { return stateIn(filepath.Join("/proc", strconv.Itoa(pid), "stat")) }

// stateIn returns the state in a file of a process or thread.
func stateIn(file string) string {
	b, err := os.ReadFile(file)
	_, after, ok := strings.Cut(string(b), ") ")
	if err != nil || !ok {
		return ""
	}
	return after[:1]
}

func park(t *testing.T, c *local.Cloud, m nstance.Machine, mode nstance.ParkMode) {
	t.Helper()
	require.NoError(t, c.Park(t.Context(), m, mode))
	becomes(t, c, m.ID, nstance.StatusStopped)
}

func TestPark(t *testing.T) {
	t.Run("is an ability of cloud and remote, with the modes of the kind", func(t *testing.T) {
		c := open(t, local.Options{Command: idle})
		remote, _ := serve(t, c)
		for _, p := range []nstance.Provider{c, remote} {
			require.Equal(t, modes, provider.AbilitiesOf(p).Parking.ParkModes())
		}
		require.Equal(t, modes, local.Kind("true").Park)
	})
	t.Run("a stopped machine has no process, and starts again in its folder", func(t *testing.T) {
		dir := t.TempDir()
		c := open(t, local.Options{Command: writesPIDs, Dir: dir, Grace: 20 * time.Millisecond})
		m := create(t, c, newParkable(nstance.ParkStopped))
		first := startedPIDs(t, dir, m.ID, 1)
		park(t, c, m, nstance.ParkStopped)
		requireEnded(t, first)
		require.NoError(t, c.Wake(t.Context(), m))
		becomes(t, c, m.ID, nstance.StatusRunning)
		require.NotEqual(t, first, startedPIDs(t, dir, m.ID, 2))
	})
	t.Run("a stopped machine ends by SIGTERM, if it listens", func(t *testing.T) {
		var out output
		c := open(t, local.Options{Command: tool(t, "agent"), Stderr: &out, Grace: time.Hour})
		s := newParkable(nstance.ParkStopped)
		s.UserData = []byte(`{"env": {"GREETING": "hello"}}`)
		m := create(t, c, s)
		out.shows(t, "booted with hello")
		park(t, c, m, nstance.ParkStopped)
		require.NoError(t, c.Wake(t.Context(), m))
		require.Eventually(t, func() bool { return strings.Count(out.String(), "booted with hello") == 2 }, soon, 5*time.Millisecond)
	})
	t.Run("a hibernated machine's processes are suspended, and go on", func(t *testing.T) {
		dir := t.TempDir()
		c := open(t, local.Options{Command: writesPIDs, Dir: dir, Grace: 20 * time.Millisecond})
		m := create(t, c, newParkable(nstance.ParkHibernated))
		pids := startedPIDs(t, dir, m.ID, 1)
		for range 2 {
			park(t, c, m, nstance.ParkHibernated)
			requireState(t, "T", pids)
			becomes(t, c, m.ID, nstance.StatusStopped)
			require.NoError(t, c.Wake(t.Context(), m))
			becomes(t, c, m.ID, nstance.StatusRunning)
			requireState(t, "S", pids)
		}
		require.Equal(t, pids, startedPIDs(t, dir, m.ID, 1))
	})
	t.Run("a parked machine is deleted at once, with its folder", func(t *testing.T) {
		for _, mode := range modes {
			dir := t.TempDir()
			c := open(t, local.Options{Command: shell(`sleep 1000 & echo $$ $! >> pids; read line <&3`), Dir: dir, Grace: time.Hour})
			m := create(t, c, newParkable(mode))
			pids := startedPIDs(t, dir, m.ID, 1)
			park(t, c, m, mode)
			require.NoError(t, c.Delete(t.Context(), m))
			becomes(t, c, m.ID, "gone")
			requireEnded(t, pids)
			left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
			require.NoError(t, err)
			require.Empty(t, left)
		}
	})
	t.Run("close ends hibernated machines", func(t *testing.T) {
		dir := t.TempDir()
		c := open(t, local.Options{Command: writesPIDs, Dir: dir, Grace: time.Hour})
		m := create(t, c, newParkable(nstance.ParkHibernated))
		pids := startedPIDs(t, dir, m.ID, 1)
		park(t, c, m, nstance.ParkHibernated)
		require.NoError(t, c.Close())
		requireEnded(t, pids)
	})
}

func TestWakeDelay(t *testing.T) {
	for _, mode := range modes {
		t.Run("of a "+string(mode)+" machine", func(t *testing.T) {
			c := open(t, local.Options{Command: idle})
			s := newParkable(mode)
			s.Args = json.RawMessage(`{"wake_delay": "50ms"}`)
			m := create(t, c, s)
			park(t, c, m, mode)
			_, err := c.WakeTime(m.ID)
			require.ErrorIs(t, err, nstance.Conflict)
			start := time.Now()
			require.NoError(t, c.Wake(t.Context(), m))
			becomes(t, c, m.ID, nstance.StatusRunning)
			require.GreaterOrEqual(t, time.Since(start), 50*time.Millisecond)
			var took time.Duration
			require.Eventually(t, func() (ok bool) {
				var err error
				took, err = c.WakeTime(m.ID)
				return err == nil
			}, soon, time.Millisecond)
			require.GreaterOrEqual(t, took, 50*time.Millisecond)
			require.LessOrEqual(t, took, time.Since(start))
		})
		t.Run("of a "+string(mode)+" machine that is deleted meanwhile", func(t *testing.T) {
			c := open(t, local.Options{Command: idle, Grace: time.Hour})
			s := newParkable(mode)
			s.Args = json.RawMessage(`{"wake_delay": "1h"}`)
			m := create(t, c, s)
			park(t, c, m, mode)
			for range 2 {
				require.NoError(t, c.Wake(t.Context(), m))
				becomes(t, c, m.ID, nstance.StatusPending)
			}
			require.ErrorIs(t, c.Park(t.Context(), m, mode), nstance.Conflict)
			require.NoError(t, c.Delete(t.Context(), m))
			becomes(t, c, m.ID, "gone")
		})
	}
}

func TestParkingRefused(t *testing.T) {
	t.Run("without a mode, and in another mode", func(t *testing.T) {
		c := open(t, local.Options{Command: idle})
		m := create(t, c, newSpec())
		for _, mode := range append(modes, "") {
			require.ErrorIs(t, c.Park(t.Context(), m, mode), nstance.Invalid)
		}
		m = create(t, c, newParkable(nstance.ParkStopped))
		require.ErrorIs(t, c.Park(t.Context(), m, nstance.ParkHibernated), nstance.Invalid)
		becomes(t, c, m.ID, nstance.StatusRunning)
	})
	t.Run("before the machine has started", func(t *testing.T) {
		c := open(t, local.Options{Command: idle})
		s := newParkable(nstance.ParkStopped)
		s.Args = json.RawMessage(`{"boot_delay": "1h"}`)
		m := create(t, c, s)
		require.ErrorIs(t, c.Park(t.Context(), m, nstance.ParkStopped), nstance.Conflict)
		require.NoError(t, c.Wake(t.Context(), m))
	})
	t.Run("after the machine has ended by itself", func(t *testing.T) {
		c := open(t, local.Options{Command: shell("exit 0")})
		m := create(t, c, newParkable(nstance.ParkStopped))
		becomes(t, c, m.ID, nstance.StatusStopped)
		require.ErrorIs(t, c.Park(t.Context(), m, nstance.ParkStopped), nstance.Conflict)
		require.ErrorIs(t, c.Wake(t.Context(), m), nstance.Conflict)
	})
	t.Run("after a hibernated process was killed", func(t *testing.T) {
		dir := t.TempDir()
		c := open(t, local.Options{Command: writesPIDs, Dir: dir})
		m := create(t, c, newParkable(nstance.ParkHibernated))
		pids := startedPIDs(t, dir, m.ID, 1)
		park(t, c, m, nstance.ParkHibernated)
		require.ErrorIs(t, c.Kill(m.ID), nstance.Conflict, "it does not run")
		require.NoError(t, syscall.Kill(pids[0], syscall.SIGKILL))
		becomes(t, c, m.ID, nstance.StatusFailed)
		require.ErrorIs(t, c.Wake(t.Context(), m), nstance.Conflict)
		require.ErrorIs(t, c.Park(t.Context(), m, nstance.ParkHibernated), nstance.Conflict)
	})
	t.Run("a hibernated process that is killed while it wakes is not started anew", func(t *testing.T) {
		dir := t.TempDir()
		c := open(t, local.Options{Command: writesPIDs, Dir: dir, Grace: 20 * time.Millisecond})
		var machines []nstance.Machine
		var pids [][2]int
		for range 2 {
			s := newParkable(nstance.ParkHibernated)
			s.Args = json.RawMessage(`{"wake_delay": "50ms"}`)
			m := create(t, c, s)
			machines, pids = append(machines, m), append(pids, startedPIDs(t, dir, m.ID, 1))
			park(t, c, m, nstance.ParkHibernated)
		}
		require.NoError(t, c.Wake(t.Context(), machines[0]))
		require.NoError(t, syscall.Kill(pids[0][0], syscall.SIGKILL))
		becomes(t, c, machines[0].ID, nstance.StatusFailed)
		require.NoError(t, c.Wake(t.Context(), machines[1]))
		becomes(t, c, machines[1].ID, nstance.StatusRunning) // the first one's delay is over too
		becomes(t, c, machines[0].ID, nstance.StatusFailed)
		require.Equal(t, pids[0], startedPIDs(t, dir, machines[0].ID, 1))
	})
	t.Run("a wake while the machine stops", func(t *testing.T) {
		dir := t.TempDir()
		c := open(t, local.Options{Command: writesPIDs, Dir: dir, Grace: time.Hour})
		m := create(t, c, newParkable(nstance.ParkStopped))
		pids := startedPIDs(t, dir, m.ID, 1)
		for range 2 {
			require.NoError(t, c.Park(t.Context(), m, nstance.ParkStopped))
			becomes(t, c, m.ID, nstance.StatusStopping)
		}
		require.ErrorIs(t, c.Wake(t.Context(), m), nstance.Conflict)
		require.NoError(t, syscall.Kill(pids[0], syscall.SIGKILL))
		becomes(t, c, m.ID, nstance.StatusStopped)
	})
	t.Run("a wake without a program ends in a failed machine", func(t *testing.T) {
		script := filepath.Join(t.TempDir(), "machine")
		require.NoError(t, program.Write(script, []byte("#!/bin/sh\ncat <&3\n")))
		c := open(t, local.Options{Command: []string{script}})
		m := create(t, c, newParkable(nstance.ParkStopped))
		park(t, c, m, nstance.ParkStopped)
		require.NoError(t, os.Remove(script))
		require.NoError(t, c.Wake(t.Context(), m))
		becomes(t, c, m.ID, nstance.StatusFailed)
	})
	t.Run("by a served provider that is no parker", func(t *testing.T) {
		c := open(t, local.Options{Command: idle})
		remote, _ := serve(t, struct{ nstance.Provider }{c})
		m := create(t, c, newParkable(nstance.ParkStopped))
		require.ErrorIs(t, remote.Park(t.Context(), m, nstance.ParkStopped), nstance.Invalid)
		require.ErrorIs(t, remote.Wake(t.Context(), m), nstance.Invalid)
	})
}

func TestParkOverSocket(t *testing.T) {
	dir := t.TempDir()
	c := open(t, local.Options{Command: writesPIDs, Dir: dir})
	remote, _ := serve(t, c)
	m, err := remote.Create(t.Context(), newParkable(nstance.ParkHibernated))
	require.NoError(t, err)
	pids := startedPIDs(t, dir, m.ID, 1)
	require.ErrorIs(t, remote.Park(t.Context(), m, nstance.ParkStopped), nstance.Invalid)
	require.NoError(t, remote.Park(t.Context(), m, nstance.ParkHibernated))
	becomes(t, c, m.ID, nstance.StatusStopped)
	requireState(t, "T", pids)
	require.NoError(t, remote.Wake(t.Context(), m))
	becomes(t, c, m.ID, nstance.StatusRunning)
	requireState(t, "S", pids)
	require.NoError(t, remote.Delete(t.Context(), m))
	becomes(t, c, m.ID, "gone")
	require.ErrorIs(t, remote.Wake(t.Context(), m), nstance.NotFound)
}
