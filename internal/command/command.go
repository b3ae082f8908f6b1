// Package command runs programs that users name: without a shell, in a process
// group of their own that does not outlive the call, and with only the end of
// their output kept.
package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os/exec"
	"syscall"
	"time"

	"github.com/nstance-go/nstance/internal/sleep"
)

// The pause after the first attempt to start a program that failed, and the longest one.
const (
	startBackoff    = 100 * time.Millisecond
	maxStartBackoff = 2 * time.Second
)

// outputGrace is how long output is awaited from processes that outlive their
// parent and hold its output open.
const outputGrace = 200 * time.Millisecond

// A Command is a program with its arguments.
type Command struct {
	Argv      []string     // looked up in PATH when it runs; there is no shell in between
	Dir       string       // where it runs; empty: here
	Env       []string     // as key=value; nil: this process's own
	MaxOutput int          // bytes of output that an error may quote
	Log       *slog.Logger // for a warning that the program cannot be started yet; nil: none
}

// Run runs the program and waits until it exits or ctx ends; then it is killed,
// and in every case so is all of its process group. A program that cannot be started for a
// reason that may pass, such as a lack of processes or memory, is tried again until then. It
// returns nil for exit status zero, else what went wrong and the end of the output; a
// NotStarted error for a program that never ran.
func (c Command) Run(ctx context.Context) error {
	output, err := c.Output(ctx)
	_, unstarted := errors.AsType[*NotStarted](err)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && !unstarted:
		err = fmt.Errorf("killed: %w", context.Cause(ctx))
	}
	if output != "" {
		return fmt.Errorf("%w: %s", err, output)
	}
	return err
}

// Output is Run with the end of the output beside the error, and also when
// there is none.
func (c Command) Output(ctx context.Context) (output string, err error) {
	for attempt := 1; ; attempt++ {
		output, err = c.once(ctx)
		unstarted, ok := errors.AsType[*NotStarted](err)
		if !ok || !unstarted.passes() || ctx.Err() != nil {
			return output, err
		}
		if attempt == 1 && c.Log != nil {
			c.Log.Warn("a program cannot be started yet, retrying", "program", c.Argv[0], "err", err)
		}
		if !sleep.For(ctx, sleep.Jitter(sleep.Backoff(attempt, startBackoff, maxStartBackoff))) {
			return output, err
		}
	}
}

// once is Output with one attempt to start the program.
func (c Command) once(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	cmd.Dir, cmd.Env = c.Dir, c.Env
	out := &tail{limit: c.MaxOutput}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = outputGrace
	ownGroup(cmd)
	cmd.Cancel = func() error { return killGroup(cmd) }
	if err := cmd.Start(); err != nil {
		return "", &NotStarted{err}
	}
	err := cmd.Wait()
	_ = killGroup(cmd) // processes that it left behind
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it exited with status zero, only its output was still held open
	}
	return out.String(), err
}

// A NotStarted error says that a program has not run at all.
type NotStarted struct{ err error }

func (e *NotStarted) Error() string { return "not started: " + e.err.Error() }

// Unwrap returns the cause.
func (e *NotStarted) Unwrap() error { return e.err }

// passes reports whether the same program may start later: the machine is short of
// processes, memory or descriptors, for example. It cannot if it is missing, or is no
// program.
func (e *NotStarted) passes() bool {
	for _, definite := range []error{fs.ErrNotExist, fs.ErrPermission, exec.ErrNotFound, exec.ErrDot, syscall.ENOEXEC, syscall.ENOTDIR, syscall.EISDIR, syscall.E2BIG} {
		if errors.Is(e.err, definite) {
			return false
		}
	}
	return true
}

// End returns the end of a text, as Output does of a program.s output: limit
// bytes at most.
func End(text string, limit int) string {
	out := &tail{limit: limit}
	_, _ = out.Write([]byte(text))
	return out.String()
}

// A tail keeps the end of what is written to it.
type tail struct {
	limit int
	buf   []byte
}

// Write never fails. A command's output has one writer at a time.
func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p[max(0, len(p)-t.limit):]...)
	if over := len(t.buf) - t.limit; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// String returns the end as text, without a character cut in two, other bytes
// that are no UTF-8, or space around it.
func (t *tail) String() string { return string(bytes.TrimSpace(bytes.ToValidUTF8(t.buf, nil))) }
