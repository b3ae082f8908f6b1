package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// lastWords is how long output is awaited from processes that outlive their
// parent and hold its output open.
const lastWords = 100 * time.Millisecond

// runCommand runs a program and returns nil if it exits with status zero. When
// ctx ends it is killed; when runCommand returns, so is all of its process group.
func runCommand(ctx context.Context, command []string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	out := &tail{limit: maxMessage / 2}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = lastWords
	ownGroup(cmd)
	cmd.Cancel = func() error { return killGroup(cmd) }
	if err := cmd.Start(); err != nil {
		return err
	}
	err := cmd.Wait()
	_ = killGroup(cmd) // what it left behind; most often nothing
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	return fmt.Errorf("%w: %s", err, out)
}

// A tail keeps the end of what is written to it.
type tail struct {
	limit int // in bytes; zero means maxMessage
	buf   []byte
}

// Write never fails. A command's output has one writer at a time.
func (t *tail) Write(p []byte) (int, error) {
	keep := t.limit
	if keep == 0 {
		keep = maxMessage
	}
	t.buf = append(t.buf, p[max(0, len(p)-keep):]...)
	if over := len(t.buf) - keep; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// String returns the end as text, without a character cut in two, other bytes
// that are no UTF-8, or space around it.
func (t *tail) String() string {
	return string(bytes.TrimSpace(bytes.ToValidUTF8(t.buf, nil)))
}
