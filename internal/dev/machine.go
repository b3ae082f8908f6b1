package dev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent"
	"github.com/nstance-go/nstance/internal/logqueue"
	"github.com/nstance-go/nstance/provider/local"
)

// pidFile is where, in its own folder, a machine says which process it is.
const pidFile = "machine.pid"

// logFile is where, in its own folder, a machine's agent logs, beside the log of
// all machines.
const logFile = "agent.log"

// folders are where a machine keeps things if its user data does not say: in
// its own folder, which it runs in. The agent's own defaults are for a machine
// that has a file system to itself.
var folders = map[string]string{
	"NSTANCE_IDENTITY_DIR": "identity", "NSTANCE_KEYS_DIR": "keys", "NSTANCE_RECV_DIR": "recv",
}

// Machine is what a machine of the local cloud runs: it boots as its user data
// says, and is an agent from then on. It returns nil when ctx ends or the cloud
// is no more. Fails with Invalid when this process is no machine.
func Machine(ctx context.Context) error {
	ctx, boot, err := local.Boot(ctx)
	if err != nil {
		return err
	}
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		return nstance.Errorf(nstance.Internal, "%w", err)
	}
	o, err := agent.FromEnv(func(name string) string { return cmp.Or(boot.Getenv(name), folders[name]) })
	if err != nil {
		return err
	}
	log, err := os.OpenFile(logFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nstance.Errorf(nstance.Internal, "%w", err)
	}
	defer log.Close() // each line is written at once
	all, lines := logqueue.Logger(os.Stderr, 256<<10, func(w io.Writer) slog.Handler {
		return slog.NewTextHandler(io.MultiWriter(log, w), nil)
	})
	defer lines.Close()
	o.Log = all
	a, err := agent.New(o)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// DemoWork is how long the demonstration drain takes where nothing else is said.
const DemoWork = 300 * time.Millisecond

// drainFile is where, in its machine's folder, each drain leaves a line when it
// begins.
const drainFile = "drains"

// DrainDemo is what a machine runs to empty itself. There is nothing on it, so
// it waits for a moment, as if there were, and says so.
func DrainDemo(ctx context.Context, work time.Duration, out io.Writer) error {
	if err := recordDrain(); err != nil {
		return nstance.Errorf(nstance.Internal, "%w", err)
	}
	select {
	case <-time.After(work):
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "stopped before the machine was empty")
	}
	_, err := fmt.Fprintf(out, "emptied %s because of %s, %s s before its deadline\n",
		os.Getenv("NSTANCE_INSTANCE_ID"), os.Getenv("NSTANCE_DRAIN_REASON"), os.Getenv("NSTANCE_DRAIN_SECONDS"))
	return err
}

func recordDrain() error {
	f, err := os.OpenFile(drainFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, os.Getpid())
	return errors.Join(err, f.Close())
}
