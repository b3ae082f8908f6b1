package qmp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/qmp"
)

const greeting = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}`

// A monitor is the other end, which says what the test wants.
type monitor struct {
	*testing.T
	conn net.Conn
	in   *bufio.Scanner
}

// dial connects to a monitor that a test plays over a real socket.
func dial(t *testing.T, play func(m *monitor)) net.Conn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	played := make(chan struct{})
	go func() {
		defer close(played)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		play(&monitor{t, conn, bufio.NewScanner(conn)})
	}()
	conn, err := net.Dial("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = conn.Close()
		_ = l.Close()
		<-played
	})
	return conn
}

func (m *monitor) reply(format string, args ...any) { fmt.Fprintf(m.conn, format+"\n", args...) }

type command struct {
	Execute   string          `json:"execute"`
	Arguments json.RawMessage `json:"arguments"`
	ID        uint64          `json:"id"`
}

// nextCommand returns the next command; an empty one when the client is gone.
func (m *monitor) nextCommand() (c command) {
	if m.in.Scan() {
		_ = json.Unmarshal(m.in.Bytes(), &c)
	}
	return c
}

// open greets and grants capabilities.
func (m *monitor) open() {
	m.reply(greeting)
	c := m.nextCommand()
	if c.Execute != "qmp_capabilities" {
		m.reply(`{"id": %d, "error": {"class": "CommandNotFound", "desc": "Expecting capabilities negotiation with 'qmp_capabilities'"}}`, c.ID)
		return
	}
	m.reply(`{"return": {}, "id": %d}`, c.ID)
}

func client(t *testing.T, conn net.Conn, onEvent func(qmp.Event)) *qmp.Client {
	t.Helper()
	c, err := qmp.New(t.Context(), conn, onEvent)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestNew(t *testing.T) {
	t.Run("does not wait for ever where another client is served", func(t *testing.T) {
		conn := dial(t, func(m *monitor) { m.nextCommand() })
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := qmp.New(ctx, conn, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("nor where nothing is read", func(t *testing.T) {
		here, there := net.Pipe() // without a buffer
		defer there.Close()
		go fmt.Fprintln(there, greeting) // ends when it is read
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := qmp.New(ctx, here, nil)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})
	t.Run("fails when the monitor ends", func(t *testing.T) {
		_, err := qmp.New(t.Context(), dial(t, func(*monitor) {}), nil)
		require.ErrorIs(t, err, net.ErrClosed)
	})
	t.Run("fails for what is no monitor", func(t *testing.T) {
		_, err := qmp.New(t.Context(), dial(t, func(m *monitor) { m.reply("220 mail.example ESMTP") }), nil)
		require.ErrorContains(t, err, "no JSON")
	})
}

func TestExecute(t *testing.T) {
	t.Run("finds its reply between events", func(t *testing.T) {
		events := make(chan qmp.Event, 2)
		c := client(t, dial(t, func(m *monitor) {
			m.open()
			q := m.nextCommand()
			m.reply(`{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "POWERDOWN"}`)
			m.reply(`{"return": {"status": "running", "running": true}, "id": %d}`, q.ID)
			m.reply(`{"event": "SHUTDOWN", "data": {"guest": false, "reason": "host-qmp-quit"}}`)
		}), func(e qmp.Event) { events <- e })
		var status struct{ Status string }
		require.NoError(t, c.Execute(t.Context(), "query-status", nil, &status))
		require.Equal(t, "running", status.Status)
		require.Equal(t, "POWERDOWN", (<-events).Name)
		require.Equal(t, "host-qmp-quit", (<-events).Reason())
		<-c.Done()
	})
	t.Run("takes a long reply", func(t *testing.T) {
		long := strings.Repeat("x", 512<<10)
		c := client(t, dial(t, func(m *monitor) {
			m.open()
			m.reply(`{"return": %q, "id": %d}`, long, m.nextCommand().ID)
		}), nil)
		var got string
		require.NoError(t, c.Execute(t.Context(), "query-devices", nil, &got))
		require.Equal(t, long, got)
	})
	t.Run("sends arguments, and returns a refusal", func(t *testing.T) {
		got := make(chan command, 1)
		c := client(t, dial(t, func(m *monitor) {
			m.open()
			q := m.nextCommand()
			got <- q
			m.reply(`{"id": %d, "error": {"class": "GenericError", "desc": "unknown migration protocol: file:x"}}`, q.ID)
		}), nil)
		err := c.Execute(t.Context(), "migrate", map[string]string{"uri": "file:x"}, nil)
		var refused *qmp.Error
		require.ErrorAs(t, err, &refused)
		require.Equal(t, &qmp.Error{Command: "migrate", Class: "GenericError", Desc: "unknown migration protocol: file:x"}, refused)
		require.JSONEq(t, `{"uri": "file:x"}`, string((<-got).Arguments))
	})
	t.Run("does not take a late reply for its own", func(t *testing.T) {
		late := make(chan struct{})
		c := client(t, dial(t, func(m *monitor) {
			m.open()
			first := m.nextCommand()
			<-late
			second := m.nextCommand()
			m.reply(`{"return": {"status": "first"}, "id": %d}`, first.ID)
			m.reply(`{"return": {"status": "second"}, "id": %d}`, second.ID)
		}), nil)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, c.Execute(ctx, "query-status", nil, nil), context.DeadlineExceeded)
		close(late)
		var status struct{ Status string }
		require.NoError(t, c.Execute(t.Context(), "query-status", nil, &status))
		require.Equal(t, "second", status.Status)
	})
	t.Run("fails when the monitor ends, and after", func(t *testing.T) {
		c := client(t, dial(t, func(m *monitor) { m.open(); m.nextCommand() }), nil)
		for range 2 {
			require.ErrorContains(t, c.Execute(t.Context(), "quit", nil, nil), "quit: ")
		}
		<-c.Done()
	})
}
