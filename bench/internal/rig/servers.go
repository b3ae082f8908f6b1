package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// limit is how long a server may take for a start or a change of the leader.
const limit = time.Minute

// A ServerProcess is nstance-server as a process: the program that runs, called with run.
type ServerProcess struct {
	Ended chan struct{} // closed when it has ended

	addr  string // of its status page
	cmd   *exec.Cmd
	leash io.Closer
}

// StartServer starts a server over a directory of storage, and returns when it answers. Its
// data and its configuration are in dir; the configuration has it answer HTTP at addr.
func StartServer(ctx context.Context, addr, dir string, configuration []byte, storage string) (*ServerProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "config.jsonc")
	if err := os.WriteFile(conf, configuration, 0o600); err != nil {
		return nil, err
	}
	s := &ServerProcess{addr: addr, Ended: make(chan struct{})}
	s.cmd = exec.Command(self, "run", "--config", conf, "--storage", "file://"+storage, "--data", filepath.Join(dir, "data"), "--key-provider", "none", "--log-level", "error", "--tethered")
	s.cmd.Stderr = os.Stderr
	if s.leash, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // Stop waits for it
		_ = s.cmd.Wait() // the process was signalled: its status does not matter
		close(s.Ended)
	}()
	return s, Await(ctx, "a server does not start", func() bool { return s.Says(ctx, "/healthz") })
}

// PID returns the ID of the process.
func (s *ServerProcess) PID() int { return s.cmd.Process.Pid }

// Signal sends a signal to the process.
func (s *ServerProcess) Signal(sig os.Signal) error { return s.cmd.Process.Signal(sig) }

// Stop ends the process.
func (s *ServerProcess) Stop() {
	_ = s.leash.Close() // at which it stops
	<-s.Ended
}

// Says reports whether a page is there.
func (s *ServerProcess) Says(ctx context.Context, path string) bool {
	_, err := s.Page(ctx, path)
	return err == nil
}

// Page returns a page of the HTTP port.
func (s *ServerProcess) Page(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := pages.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", path, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

var pages = &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}} // and no proxy

// Await repeats done until it returns true. It fails with the complaint after a minute.
func Await(ctx context.Context, complaint string, done func() bool) error {
	return AwaitFor(ctx, 2*time.Millisecond, limit, complaint, done)
}

// AwaitFor is Await with another limit, and another time between two questions.
func AwaitFor(ctx context.Context, every, limit time.Duration, complaint string, done func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New(complaint))
	defer cancel()
	for !done() {
		if err := Pause(ctx, every); err != nil {
			return err
		}
	}
	return nil
}

// Pause waits.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
