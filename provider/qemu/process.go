package qemu

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/qmp"
)

const (
	// monitorLimit is how long QEMU has to greet, on a busy host.
	monitorLimit = 30 * time.Second

	// quitLimit is how long QEMU has to end after quit.
	quitLimit = 5 * time.Second

	// outputLimit is how long output is awaited after QEMU has ended: a relay may
	// hold its standard error open.
	outputLimit = 500 * time.Millisecond
)

// A process is one run of QEMU. A nil process has ended.
type process struct {
	cmd     *exec.Cmd
	monitor *qmp.Client
	stderr  tail
	done    chan struct{}
	err     error // how it ended; to be read once done is closed

	mu       sync.Mutex
	shutdown string // reason of the SHUTDOWN event; empty: there was none
}

// start runs QEMU and waits until its monitor answers. With restore the machine
// goes on where it hibernated.
func (m *machine) start(restore bool) error {
	args, err := m.commandLine(restore)
	if err != nil {
		return err
	}
	p := &process{done: make(chan struct{})}
	p.cmd = exec.Command(m.c.qemu, args...)
	p.cmd.Dir = m.Dir
	p.cmd.Stdout, p.cmd.Stderr = m.console, &p.stderr
	p.cmd.WaitDelay = outputLimit
	p.cmd.SysProcAttr = diesWithThread()
	conn, end, err := connectedPair()
	if err != nil {
		return err
	}
	p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, end) // descriptor 3, see commandLine
	err = p.cmd.Start()
	_ = end.Close()
	if err != nil {
		_ = conn.Close()
		return err
	}
	m.process = p
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p.explain(p.attach(m.ctx, conn, restore, m.Dir))
}

// attach waits until the monitor at the other end of conn answers, and with restore
// until the machine goes on. Only the first has monitorLimit.
func (p *process) attach(ctx context.Context, conn net.Conn, restore bool, dir string) (err error) {
	greeting, cancel := context.WithTimeout(ctx, monitorLimit)
	defer cancel()
	p.monitor, err = qmp.New(greeting, conn, p.observe)
	if err == nil && restore {
		err = p.resume(ctx, dir)
	}
	return err
}

// explain returns what QEMU printed before it ended, if that is why err came.
func (p *process) explain(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	grace := time.NewTimer(quitLimit)
	defer grace.Stop()
	select {
	case <-p.done: // its monitor has ended, because it refused its arguments
	case <-grace.C:
		return err
	}
	if text := p.stderr.String(); text != "" {
		return errors.New(text)
	}
	return err
}

// observe handles the monitor's events.
func (p *process) observe(e qmp.Event) {
	if e.Name == "SHUTDOWN" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.shutdown = e.Reason()
	}
}

func (p *process) reason() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shutdown
}

// ended is closed when the process has ended; nil, which blocks, if there is
// none.
func (p *process) ended() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.done
}

// kill ends the process at once, and reports whether there was one.
func (p *process) kill() bool {
	return p != nil && p.cmd.Process.Kill() == nil
}

// wait waits until nothing of the process is left.
func (p *process) wait() {
	if p == nil {
		return
	}
	<-p.done
	if p.monitor != nil {
		_ = p.monitor.Close()
	}
}

// powerDown presses the power button and waits until the guest has shut down,
// for grace at most and not beyond ctx; then QEMU is made to quit. That the
// command succeeds says nothing about the guest: only the end of the process
// counts.
func (p *process) powerDown(ctx context.Context, grace time.Duration) {
	defer p.wait()
	pressed, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if p.monitor != nil && p.monitor.Execute(pressed, "system_powerdown", nil, nil) == nil {
		select {
		case <-p.done:
			return
		case <-pressed.Done():
		}
	}
	p.quit(ctx)
}

// quit ends QEMU, which flushes its disks first, or kills it.
func (p *process) quit(ctx context.Context) {
	defer p.wait()
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), quitLimit)
	defer cancel()
	if p.monitor != nil {
		_ = p.monitor.Execute(limited, "quit", nil, nil) // may end before it answers
		select {
		case <-p.done:
			return
		case <-limited.Done():
		}
	}
	p.kill()
}

// readLastEvents waits until the events that QEMU sent before it ended are handled: its end
// may be seen first. A program that it has started may hold its monitor open.
func (p *process) readLastEvents() {
	if p.monitor == nil {
		return
	}
	limit := time.NewTimer(outputLimit)
	defer limit.Stop()
	select {
	case <-p.monitor.Done():
	case <-limit.C:
	}
}

// outcome says what the end of the process means for the machine. Only the
// reason of the SHUTDOWN event tells who stopped it: QEMU exits with 0 for all
// of them (run-state.json in QEMU's sources, ShutdownCause).
func (p *process) outcome() (nstance.MachineStatus, nstance.LossCause) {
	p.readLastEvents()
	switch reason := p.reason(); {
	case reason == "guest-panic":
		return nstance.StatusFailed, nstance.LossGuest
	case strings.HasPrefix(reason, "guest-"):
		return nstance.StatusStopped, nstance.LossGuest
	default: // killed, by the kernel or by hand
		return nstance.StatusFailed, nstance.LossHost
	}
}

// startFailures tell what QEMU's messages mean. Everything else is wrong with
// what the machine was made from.
var startFailures = []struct {
	text  string // part of the message, in lower case
	cause nstance.LossCause
}{
	{"cannot allocate memory", nstance.LossCapacity},
	{"cannot set up guest memory", nstance.LossCapacity},
	{"no space left on device", nstance.LossCapacity},
	{"too many open files", nstance.LossQuota},
	{"resource temporarily unavailable", nstance.LossQuota},
	{"failed to initialize kvm", nstance.LossHost},
	{"could not access kvm", nstance.LossHost},
}

// startCause returns why a machine could not start.
func startCause(err error) nstance.LossCause {
	text := strings.ToLower(err.Error())
	for _, f := range startFailures {
		if strings.Contains(text, f.text) {
			return f.cause
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nstance.LossHost
	}
	return nstance.LossInvalid
}

// A tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

// maxTail is how much of a message is kept, in bytes.
const maxTail = 2 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b...)
	t.kept = t.kept[max(0, len(t.kept)-maxTail):]
	return len(b), nil
}

// String returns the last line that says something.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := bytes.TrimSpace(t.kept)
	if i := bytes.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	return string(text)
}
