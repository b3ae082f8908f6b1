package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/machines"
)

// A fakeMonitor answers commands in a bubble, as QEMU does.
type fakeMonitor struct {
	answer func(command string) string // in place of {}; empty: {}
	asked  []string
}

// machineOf returns a machine that hibernates, or with restore was woken, with this monitor.
func machineOf(t *testing.T, q *fakeMonitor, restore bool) *machine {
	t.Helper()
	c := &Cloud{log: slog.New(slog.DiscardHandler), machines: machines.New[*machine](machines.Options{})}
	m := &machine{Part: &machines.Part{Dir: t.TempDir()}, c: c, parked: true, process: &process{done: make(chan struct{})}}
	m.ctx, m.stop = context.WithCancel(t.Context())
	t.Cleanup(m.stop)
	m.View.Status = nstance.StatusStopping
	require.NoError(t, os.WriteFile(filepath.Join(m.Dir, memoryFile), nil, 0o600))
	near, far := net.Pipe()
	go q.serve(far)
	p := m.process
	t.Cleanup(func() { _ = p.monitor.Close() })
	require.NoError(t, p.attach(m.ctx, near, restore, m.Dir))
	return m
}

func (q *fakeMonitor) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintln(conn, `{"QMP": {}}`)
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		var c struct {
			Execute string `json:"execute"`
			ID      int    `json:"id"`
		}
		_ = json.Unmarshal(lines.Bytes(), &c)
		answer := "{}"
		if text := q.answer(c.Execute); text != "" {
			answer = text
		}
		q.asked = append(q.asked, c.Execute)
		_, _ = fmt.Fprintf(conn, `{"return": %s, "id": %d}`+"\n", answer, c.ID)
	}
}

// TestHibernationThatTakesLong: a migration that is given up is ended before the guest goes on.
// While it may go on, nothing is known of the machine.
func TestHibernationThatTakesLong(t *testing.T) {
	for name, c := range map[string]struct {
		cancelled string // what the migration becomes a second after it is cancelled
		status    nstance.MachineStatus
		last      string // command
	}{
		"cancelled":            {"cancelled", nstance.StatusRunning, "cont"},
		"failed":               {"failed", nstance.StatusRunning, "cont"},
		"completed meanwhile":  {"completed", nstance.StatusRunning, "cont"},
		"cannot be cancelled":  {"cancelling", nstance.StatusUnknown, "query-migrate"},
		"cancelled for nought": {"active", nstance.StatusUnknown, "query-migrate"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var cancelledAt time.Time
				q := &fakeMonitor{}
				q.answer = func(command string) string {
					switch command {
					case "migrate_cancel":
						cancelledAt = time.Now()
					case "query-migrate":
						if !cancelledAt.IsZero() && time.Since(cancelledAt) >= time.Second {
							return fmt.Sprintf(`{"status": %q}`, c.cancelled)
						}
						return `{"status": "active"}`
					}
					return ""
				}
				m := machineOf(t, q, false)
				m.hibernate()
				require.Equal(t, c.status, m.View.Status)
				require.Equal(t, c.last, q.asked[len(q.asked)-1])
				require.Contains(t, q.asked, "migrate_cancel")
				if c.status == nstance.StatusRunning {
					require.NoFileExists(t, filepath.Join(m.Dir, memoryFile))
					require.ErrorContains(t, m.refused, "runs on")
				} else {
					require.FileExists(t, filepath.Join(m.Dir, memoryFile))
				}
			})
		})
	}
}

// TestWakingThatTakesLong: reading a machine's memory may take as long as writing it, after QEMU
// has greeted.
func TestWakingThatTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		m := machineOf(t, &fakeMonitor{answer: func(command string) string {
			switch {
			case command != "query-status":
				return ""
			case time.Since(began) < hibernateLimit:
				return `{"status": "inmigrate"}`
			}
			return `{"status": "paused"}`
		}}, true)
		require.NoFileExists(t, filepath.Join(m.Dir, memoryFile))
	})
}
