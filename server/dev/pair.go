package dev

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/server"
)

// A pair is two servers of one shard in processes of their own. They share the
// storage, and the cloud of this process: machines outlive them.
type pair struct {
	w       *shard
	gate    *gate
	socket  net.Listener // of the cloud
	log     *os.File
	servers [2]*process
	leader  int // of servers; known once one of them is ready

	wg     sync.WaitGroup
	finish context.CancelFunc // ends serving the cloud
}

// newPair makes everything and starts nothing.
func newPair(ctx context.Context, w *shard) (_ *pair, err error) {
	p := &pair{w: w, gate: newGate(w.cloud), finish: func() {}}
	if p.socket, err = local.Listen(ctx, w.home.socket()); err != nil {
		return nil, err
	}
	if p.log, err = os.OpenFile(w.home.serverLog(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return nil, errors.Join(nstance.Errorf(nstance.Denied, "%w", err), p.socket.Close())
	}
	at := site{endpoint: w.home.socket()}
	var addrs [2]server.Addresses
	for i := range addrs {
		if addrs[i], err = freeAddresses(ctx); err != nil {
			break
		}
		at.registration, at.agent = append(at.registration, addrs[i].Registration), append(at.agent, addrs[i].Agent)
	}
	addrs[0].HTTP = w.pageAddress(addrs[0].HTTP)
	for i, name := range []string{"a", "b"} {
		if err != nil {
			break
		}
		at.bind = addrs[i]
		p.servers[i], err = newProcess(w, name, at)
	}
	if err != nil {
		return nil, errors.Join(err, p.socket.Close(), p.log.Close())
	}
	return p, nil
}

// pageAddress is where the first server's status page listens: as asked for, or
// else at that free address.
func (w *shard) pageAddress(other string) string {
	if _, port, err := net.SplitHostPort(w.bind); err != nil || port == "0" {
		return other // the address must be known before the server is there
	}
	return w.bind
}

// freeAddresses returns loopback addresses that nobody listens on.
func freeAddresses(ctx context.Context) (a server.Addresses, err error) {
	for _, to := range []*string{&a.HTTP, &a.Registration, &a.Operator, &a.Agent} {
		if *to, err = free(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+rand.IntN(lastPort-firstPort)))); err != nil {
			return a, err
		}
	}
	return a, nil
}

// Ports of servers are below those that systems give out by themselves, so that
// nobody gets one between its choice and its use.
const (
	firstPort = 20_000
	lastPort  = 30_000
)

// serve starts both servers and returns once one leads and the other waits.
func (p *pair) serve(ctx, limited context.Context, end context.CancelCauseFunc) ([]server.Addresses, error) {
	open, finish := context.WithCancel(context.WithoutCancel(ctx)) // until the servers have ended
	p.finish = finish
	p.wg.Go(func() {
		if err := local.Serve(open, p.socket, p.gate); err != nil {
			end(err)
		}
	})
	var addrs []server.Addresses
	for _, s := range p.servers {
		if err := s.start(p.log, p.w.story.tell); err != nil {
			return nil, err
		}
		p.wg.Go(func() { s.watch(end) })
		addrs = append(addrs, s.addrs)
	}
	for !p.settled(limited) {
		if !pause(limited, again) {
			return nil, context.Cause(limited)
		}
	}
	return addrs, nil
}

// settled reports whether one server leads and the other is there.
func (p *pair) settled(ctx context.Context) bool {
	for i, s := range p.servers {
		if reaches(ctx, s.addrs.HTTP, "/readyz") && reaches(ctx, p.servers[1-i].addrs.HTTP, "/healthz") {
			p.leader, p.w.http = i, s.addrs.HTTP
			return true
		}
	}
	return false
}

// other is the server that waits.
func (p *pair) other() *process { return p.servers[1-p.leader] }

// kill kills the leader, as the kernel or a power cut would.
func (p *pair) kill() error {
	s := p.servers[p.leader]
	s.expected.Do(func() {})
	if err := s.cmd.Process.Kill(); err != nil {
		return nstance.Errorf(nstance.Internal, "kill the leader: %w", err)
	}
	<-s.ended
	p.leader = 1 - p.leader
	p.w.http = p.servers[p.leader].addrs.HTTP
	return nil
}

// close ends the servers, then the front of the cloud.
func (p *pair) close() {
	for _, s := range p.servers {
		p.wg.Go(s.stop)
	}
	for _, s := range p.servers {
		if s.cmd != nil {
			<-s.ended
		}
	}
	p.finish()
	_ = p.socket.Close() // for the case that it was never served
	p.wg.Wait()
	_ = p.log.Close() // nothing of worth is buffered
}

// A process is one server.
type process struct {
	name  string
	addrs server.Addresses
	args  []string
	cmd   *exec.Cmd      // nil until it has been started
	leash io.WriteCloser // its standard input, at whose end it stops
	ended chan struct{}  // closed when it has ended, and all it said was heard
	err   error          // how it ended

	expected sync.Once // done when its end is no news
}

// newProcess writes the configuration of a server.
func newProcess(w *shard, name string, at site) (*process, error) {
	text, err := configuration(w.o, at, 1)
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(w.home.dir, "server-"+name+".jsonc")
	if err := os.WriteFile(conf, text, 0o600); err != nil {
		return nil, nstance.Errorf(nstance.Denied, "%w", err)
	}
	store := url.URL{Scheme: "file", Path: filepath.ToSlash(w.home.storageDir())}
	return &process{
		name: name, addrs: at.bind, ended: make(chan struct{}),
		args: append(w.o.Server[:len(w.o.Server):len(w.o.Server)],
			"--config", conf, "--storage", store.String(), "--data", filepath.Join(w.home.dir, "server-"+name),
			"--key-provider", "none", "--print-events", "--tethered"),
	}, nil
}

// start starts the process. What it prints are events.
func (s *process) start(log io.Writer, tell func(nstance.Event)) error {
	cmd := exec.Command(s.args[0], s.args[1:]...)
	cmd.Stdout, cmd.Stderr = &lines{tell: tell}, log
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = apart() // Ctrl-C is this process' to handle
	leash, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nstance.Errorf(nstance.Invalid, "server %s: %w", s.name, err)
	}
	s.cmd, s.leash = cmd, leash
	return nil
}

// watch waits until the process has ended, and calls end if nobody wanted that.
func (s *process) watch(end context.CancelCauseFunc) {
	s.err = s.cmd.Wait()
	close(s.ended)
	s.expected.Do(func() {
		end(nstance.Errorf(nstance.Internal, "server %s has ended: %v; servers.log says why", s.name, s.err))
	})
}

// stopLimit is how long a server has to stop.
const stopLimit = 10 * time.Second

// stop ends the process politely, and else otherwise.
func (s *process) stop() {
	s.expected.Do(func() {})
	if s.cmd == nil {
		return
	}
	_ = s.leash.Close() // where signals are not to be had, that is enough
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	late := time.NewTimer(stopLimit)
	defer late.Stop()
	select {
	case <-s.ended:
	case <-late.C:
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
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
