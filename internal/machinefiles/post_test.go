//go:build unix

package machinefiles_test

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/machinefiles"
	"github.com/nstance-go/nstance/internal/rules"
	"github.com/nstance-go/nstance/internal/test/busyprogram"
)

// withCommand lets a set run a script that leaves a line in the file runs.
func (b *testStore) withCommand(s machinefiles.Set, script string) machinefiles.Set {
	s.Command = []string{"/bin/sh", "-c", `echo "$(cat a)" >> ` + b.dir + `/runs; ` + script}
	return s
}

func (b *testStore) commandRuns() string {
	data, err := os.ReadFile(b.dir + "/runs")
	if err != nil {
		return ""
	}
	return string(data)
}

// TestPipeInPlaceOfFile: reading it would never end.
func TestPipeInPlaceOfFile(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1"})
	require.NoError(t, os.Remove(b.path("a")))
	require.NoError(t, syscall.Mkfifo(b.path("a"), 0o600))
	writer, err := os.OpenFile(b.path("a"), os.O_RDWR, 0)
	require.NoError(t, err)
	got := make(chan []nstance.FileStatus, 1)
	go func() { got <- b.store.Status() }()
	select {
	case status := <-got:
		require.Equal(t, []nstance.FileStatus{{Path: "a"}}, status)
	case <-time.After(10 * time.Second):
		t.Error("it is read")
	}
	require.NoError(t, writer.Close())
}

func TestCommand(t *testing.T) {
	send := func(b *testStore, hash, a, script string) {
		_, err := b.send(b.withCommand(set(hash, tree{"a": a}), script), tree{"a": a})
		require.NoError(b, err)
	}
	t.Run("runs after a change, in the receive directory, and finds the new files", func(t *testing.T) {
		b := newTestStore(t)
		send(b, "h1", "1", `test "$NSTANCE_RECV_DIR" = "$(pwd)"`)
		require.Equal(t, []string{"h1"}, b.recordedHashes, "after the hash is recorded")
		require.Empty(t, b.commandRuns())
		require.NoError(t, b.store.Run(t.Context()))
		require.Equal(t, "1\n", b.commandRuns())
		require.NoError(t, b.store.Run(t.Context()))
		b.reopen()
		require.NoError(t, b.store.Run(t.Context()))
		require.Equal(t, "1\n", b.commandRuns(), "once")
	})
	t.Run("not without a change", func(t *testing.T) {
		b := newTestStore(t)
		send(b, "h1", "1", ":")
		require.NoError(t, b.store.Run(t.Context()))
		send(b, "h2", "1", ":")
		require.NoError(t, b.store.Run(t.Context()))
		require.Equal(t, "1\n", b.commandRuns())
		b.reopen()
		require.NoError(t, b.store.Run(t.Context()))
		require.Equal(t, "1\n", b.commandRuns())
		send(b, "h3", "1", "true")
		require.NoError(t, b.store.Run(t.Context()))
		require.Equal(t, "1\n1\n", b.commandRuns(), "another command is one")
		require.NoError(t, os.WriteFile(b.path("a"), []byte("changed"), 0o640))
		send(b, "h3", "1", "true")
		require.NoError(t, b.store.Run(t.Context()))
		require.Equal(t, "1\n1\n1\n", b.commandRuns(), "and so is what had to be put right")
		strict := b.withCommand(set("h4", tree{"a": "1"}), "true")
		strict.Files[0].Mode = 0o600
		_, err := b.send(strict, tree{"a": "1"})
		require.NoError(t, err)
		require.NoError(t, b.store.Run(t.Context()))
		require.Equal(t, "1\n1\n1\n1\n", b.commandRuns(), "and another mode")
	})
	t.Run("not for what the server could not make", func(t *testing.T) {
		b := newTestStore(t)
		require.NoError(t, os.Mkdir(b.o.Dir, 0o700))
		require.NoError(t, os.WriteFile(b.path("mine"), []byte("mine"), 0o600))
		failed := func(hash string, paths ...string) {
			s := b.withCommand(set(hash, tree{"a": "1"}), ":")
			for _, path := range paths {
				s.Files = append(s.Files, machinefiles.File{Path: path, Error: "no such secret"})
			}
			_, err := b.send(s, tree{"a": "1"})
			require.NoError(t, err)
			require.NoError(t, b.store.Run(t.Context()))
			require.Equal(t, "1\n", b.commandRuns())
		}
		failed("h1", "lacking", "mine")
		failed("h2", "lacking", "mine")
		failed("h3")
	})
	t.Run("no set without a command waits for one", func(t *testing.T) {
		b := newTestStore(t)
		b.apply("h1", tree{"a": "1"})
		pending := b.path(rules.ReservedFileDir, "v1", "pending")
		require.NoFileExists(t, pending)
		require.NoError(t, os.WriteFile(pending, nil, 0o600))
		b.reopen()
		require.NoError(t, b.store.Run(t.Context()))
	})
	t.Run("what changes while it runs has it run again", func(t *testing.T) {
		for name, change := range map[string]func(b *testStore){
			"the next set":       func(b *testStore) { send(b, "h2", "2", "true") },
			"the agent restarts": func(b *testStore) { require.NoError(b, b.store.Close()) },
		} {
			t.Run(name, func(t *testing.T) {
				b := newTestStore(t)
				fifo := b.dir + "/go on"
				require.NoError(t, syscall.Mkfifo(fifo, 0o600))
				send(b, "h1", "1", `read line < "`+fifo+`"`)
				ended := make(chan error, 1)
				go func() { ended <- b.store.Run(t.Context()) }()
				require.Eventually(t, func() bool { return b.commandRuns() != "" }, time.Minute, time.Millisecond)
				change(b)
				require.NoError(t, os.WriteFile(fifo, []byte("\n"), 0))
				require.NoError(t, <-ended)
				b.reopen()
				was, wantNow := b.commandRuns(), "2\n"
				if name == "the agent restarts" {
					wantNow = "1\n"
					go func() { ended <- os.WriteFile(fifo, []byte("\n"), 0) }()
				}
				require.NoError(t, b.store.Run(t.Context()))
				require.Equal(t, was+wantNow, b.commandRuns())
			})
		}
	})
	t.Run("its failure undoes nothing, and it runs again", func(t *testing.T) {
		b := newTestStore(t)
		send(b, "h1", "1", "echo no such service; exit 3")
		err := b.store.Run(t.Context())
		require.ErrorContains(t, err, "exit status 3: no such service")
		require.Contains(t, b.store.LastError(), "the files are in place, but /bin/sh: exit status 3: no such service")
		require.Equal(t, tree{"a": "1"}, b.tree())
		require.Equal(t, []string{"h1"}, b.recordedHashes)
		b.reopen()
		require.Error(t, b.store.Run(t.Context()), "when the agent starts")
		send(b, "h1", "1", "echo no such service; exit 3")
		require.Error(t, b.store.Run(t.Context()), "and with the next set, whatever is in it")
		require.Equal(t, "1\n1\n1\n", b.commandRuns())
		send(b, "h2", "1", ":")
		require.NoError(t, b.store.Run(t.Context()))
		require.Empty(t, b.store.LastError())
	})
	t.Run("one that cannot be started now runs as soon as it can", func(t *testing.T) {
		busy, done := busyprogram.New(t)
		b := newTestStore(t)
		withBusy := b.withCommand(set("h1", tree{"a": "1"}), ":")
		withBusy.Command[0] = busy
		_, err := b.send(withBusy, tree{"a": "1"})
		require.NoError(t, err)
		time.AfterFunc(300*time.Millisecond, done)
		require.NoError(t, b.store.Run(t.Context()))
		require.Equal(t, "1\n", b.commandRuns())
	})
	t.Run("it has a limited time", func(t *testing.T) {
		b := newTestStore(t)
		b.o.CommandTimeout = 50 * time.Millisecond
		b.reopen()
		send(b, "h1", "1", "sleep 300")
		require.ErrorContains(t, b.store.Run(t.Context()), "killed: it ran for 50ms")
	})
	t.Run("it ends with the agent, and runs again", func(t *testing.T) {
		b := newTestStore(t)
		send(b, "h1", "1", "sleep 300")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.store.Run(ctx) }()
		require.Eventually(t, func() bool { return b.commandRuns() != "" }, time.Minute, time.Millisecond)
		require.NotEmpty(t, b.store.Status(), "while it runs the files can be looked at")
		cancel()
		require.Error(t, <-ended)
	})
	t.Run("a crash before it had run leaves it to be run", func(t *testing.T) {
		b := newTestStore(t)
		crash, inUse := errors.New("crash"), false
		_, err := b.withFaults(func(op string) error {
			if inUse {
				return crash
			}
			inUse = op == "rename to "+rules.ReservedFileDir+"/current"
			return nil
		})
		require.NoError(t, err)
		_, err = b.send(b.withCommand(set("h1", tree{"a": "1"}), ":"), tree{"a": "1"})
		require.ErrorIs(t, err, crash)
		b.reopen()
		require.NoError(t, b.store.Run(t.Context()))
		require.Equal(t, "1\n", b.commandRuns())
	})
}
