package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// configuration is a shard without machines. %s: where the status page listens,
// and the ttl.
const configuration = `{
  "cluster": {"id": "bench"},
  "shard": {
    "id": "s1", "provider": {"kind": "sim"}, "election": {"ttl": "%[2]s"},
    "bind": {"http": "%[1]s", "registration": "127.0.0.1:0", "operator": "127.0.0.1:0", "agent": "127.0.0.1:0", "peer": "127.0.0.1:0"}
  },
  "templates": {"web": {"kind": "web", "arch": "amd64"}},
  "groups": {"default": {"web": {"template": "web", "size": 0}}}
}
`

// limit is how long anything may take.
const limit = time.Minute

// A pair is two servers of one shard.
type pair struct {
	dir     string
	ttl     time.Duration
	servers [2]*server
	leader  int
}

func newPair(ctx context.Context, ttl time.Duration) (_ *pair, err error) {
	p := &pair{ttl: ttl}
	if p.dir, err = os.MkdirTemp("", "nstance-failover-"); err != nil {
		return nil, err
	}
	for i := range p.servers {
		if err == nil {
			err = p.start(ctx, i)
		}
	}
	if err == nil {
		err = p.find(ctx)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// find finds out who leads.
func (p *pair) find(ctx context.Context) error {
	return wait(ctx, "no server leads", func() bool {
		for i, s := range p.servers {
			if s.says(ctx, "/readyz") {
				p.leader = i
				return true
			}
		}
		return false
	})
}

// change signals the leader, returns how long it took until the other one led,
// and starts another in its place.
func (p *pair) change(ctx context.Context, signal os.Signal) (time.Duration, error) {
	old, other := p.servers[p.leader], p.servers[1-p.leader]
	if err := settle(ctx, p.ttl/3+rand.N(p.ttl/3)); err != nil { // somewhere between two renewals
		return 0, err
	}
	began := time.Now()
	if err := old.cmd.Process.Signal(signal); err != nil {
		return 0, err
	}
	err := wait(ctx, "the other one does not lead", func() bool { return other.says(ctx, "/readyz") })
	took := time.Since(began)
	<-old.ended
	if err != nil {
		return 0, err
	}
	err = p.start(ctx, p.leader)
	p.leader = 1 - p.leader
	return took, err
}

// start starts a server and returns when it is there.
func (p *pair) start(ctx context.Context, i int) error {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(20_000+rand.IntN(10_000))) // not among those that the system gives out
	self, err := os.Executable()
	if err != nil {
		return err
	}
	conf := filepath.Join(p.dir, strconv.Itoa(i)+".jsonc")
	if err := os.WriteFile(conf, fmt.Appendf(nil, configuration, addr, p.ttl), 0o600); err != nil {
		return err
	}
	s := &server{addr: addr, ended: make(chan struct{})}
	s.cmd = exec.Command(self, "run", "--config", conf, "--storage", "file://"+filepath.Join(p.dir, "storage"),
		"--data", filepath.Join(p.dir, strconv.Itoa(i)), "--key-provider", "none", "--log-level", "error", "--tethered")
	s.cmd.Stderr = os.Stderr
	if s.leash, err = s.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	p.servers[i] = s
	go func() { // close waits for it
		_ = s.cmd.Wait() // the process was signalled: its status does not matter
		close(s.ended)
	}()
	return wait(ctx, "a server does not start", func() bool { return s.says(ctx, "/healthz") })
}

// close ends everything.
func (p *pair) close() {
	for _, s := range p.servers {
		if s != nil {
			_ = s.leash.Close() // at which it stops
			<-s.ended
		}
	}
	_ = os.RemoveAll(p.dir) // a temporary directory
}

// A server is one process.
type server struct {
	addr  string // of its status page
	cmd   *exec.Cmd
	leash io.Closer
	ended chan struct{}
}

// says reports whether a page is there.
func (s *server) says(ctx context.Context, path string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr+path, nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

var client = &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}} // and no proxy

// wait repeats done until it returns true.
func wait(ctx context.Context, complaint string, done func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New(complaint))
	defer cancel()
	for !done() {
		if err := settle(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func settle(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
