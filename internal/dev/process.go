package dev

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/server"
)

// A process is one server. It may be started again after it has ended.
type process struct {
	name  string
	at    site
	addrs server.Addresses
	conf  string   // file of its configuration
	args  []string // its command
	env   []string // its environment; nil: this process'

	mu  sync.Mutex
	now *life // the latest; nil until it has been started
}

// A life is a process from its start to its end.
type life struct {
	cmd   *exec.Cmd
	leash io.WriteCloser // its standard input, at whose end it stops
	ended chan struct{}  // closed when it has ended, and all it said was heard
	err   error          // how it ended

	expected sync.Once // done when its end is no news
}

// newProcess writes the configuration of a server.
func newProcess(w *shard, name string, at site) (*process, error) {
	s := &process{name: name, at: at, addrs: at.bind, conf: filepath.Join(w.home.dir, "server-"+name+".jsonc")}
	s.args = append(w.o.Server[:len(w.o.Server):len(w.o.Server)],
		"--config", s.conf, "--storage", w.depot.url, "--data", filepath.Join(w.home.dir, "server-"+name),
		"--print-events", "--tethered", "--key-provider")
	if w.depot.key == "" {
		s.args = append(s.args, "none")
	} else {
		s.args = append(s.args, "env", "--key-source", keyVariable)
		s.env = append(os.Environ(), keyVariable+"="+w.depot.key)
	}
	return s, s.configure(w.o, w.cloud, 1)
}

// configure writes the configuration with that release, whole or not at all.
func (s *process) configure(o *Options, c cloud, release int) error {
	text, err := configuration(o, c, s.at, release)
	if err != nil {
		return err
	}
	fresh := s.conf + ".new"
	if err = os.WriteFile(fresh, text, 0o600); err == nil {
		err = os.Rename(fresh, s.conf)
	}
	if err != nil {
		return nstance.Errorf(nstance.Denied, "%w", err)
	}
	return nil
}

// life returns the latest life, or nil.
func (s *process) life() *life {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// lives reports whether the process runs.
func (s *process) lives() bool {
	l := s.life()
	if l == nil {
		return false
	}
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}

// start starts the process. What it prints are events.
func (s *process) start(log io.Writer, tell func(nstance.Event)) (*life, error) {
	cmd := exec.Command(s.args[0], s.args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &lines{tell: tell}, log, s.env
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = apart() // Ctrl-C is this process' to handle
	leash, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "server %s: %w", s.name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = &life{cmd: cmd, leash: leash, ended: make(chan struct{})}
	return s.now, nil
}

// kill kills the process, as the kernel or a power cut would, and returns when
// it has ended.
func (s *process) kill() error {
	l := s.life()
	l.expected.Do(func() {})
	if err := l.cmd.Process.Kill(); err != nil {
		return nstance.Errorf(nstance.Internal, "kill server %s: %w", s.name, err)
	}
	<-l.ended
	return nil
}

// reload has the process read its configuration again, if it is there. One that
// is not yet, or not any more, reads it when it starts.
func (s *process) reload(ctx context.Context) {
	if s.lives() && reaches(ctx, s.addrs.HTTP, "/healthz") { // before, the signal would end it
		_ = s.life().cmd.Process.Signal(syscall.SIGHUP) // it may have ended just now
	}
}

// stopLimit is how long a server has to stop.
const stopLimit = 10 * time.Second

// stop ends the process politely, and else otherwise.
func (s *process) stop() {
	l := s.life()
	if l == nil {
		return
	}
	l.expected.Do(func() {})
	_ = l.leash.Close() // where signals are not to be had, that is enough
	_ = l.cmd.Process.Signal(syscall.SIGTERM)
	late := time.NewTimer(stopLimit)
	defer late.Stop()
	select {
	case <-l.ended:
	case <-late.C:
		_ = l.cmd.Process.Kill()
		<-l.ended
	}
}

// watch waits until the process has ended, and calls end if that was not requested.
func (l *life) watch(name string, end context.CancelCauseFunc) {
	l.err = l.cmd.Wait()
	close(l.ended)
	l.expected.Do(func() {
		end(nstance.Errorf(nstance.Internal, "server %s has ended: %v; servers.log says why", name, l.err))
	})
}

// lines takes events as a server prints them. What was cut off by its death is
// left out.
type lines struct {
	tell func(nstance.Event)
	rest []byte
}

// maxLine is the longest line that may be an event, in bytes.
const maxLine = 1 << 20

func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			break
		}
		l.rest = rest
		var e nstance.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return 0, fmt.Errorf("a server printed what is no event: %w", err)
		}
		l.tell(e)
	}
	if len(l.rest) > maxLine {
		return 0, fmt.Errorf("a server printed a line of more than %d bytes", maxLine)
	}
	return len(b), nil
}
