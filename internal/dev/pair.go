package dev

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/server"
)

// A pair is two servers of one shard in processes of their own. They share the
// storage, and the cloud of this process: machines outlive them.
type pair struct {
	w       *shard
	log     *os.File
	servers [2]*process
	leader  int // of servers; known once one of them is ready

	release func() // the reserved ports

	wg     sync.WaitGroup
	finish context.CancelFunc      // ends serving the cloud
	end    context.CancelCauseFunc // is called when a server ends that should not
}

// newPair makes everything and starts nothing.
func newPair(ctx context.Context, w *shard) (_ *pair, err error) {
	p := &pair{w: w, finish: func() {}, end: func(error) {}, release: func() {}}
	if p.log, err = os.OpenFile(w.home.serverLog(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return nil, nstance.Errorf(nstance.Denied, "%w", err)
	}
	at := site{shared: true}
	var addrs [2]server.Addresses
	port, err := p.reservePorts(ctx)
	for i := range addrs {
		if err != nil {
			break
		}
		if addrs[i], port, err = freeAddresses(ctx, port); err != nil {
			break
		}
		at.registration, at.agent = append(at.registration, addrs[i].Registration), append(at.agent, addrs[i].Agent)
	}
	addrs[0].HTTP = w.pageAddress(addrs[0].HTTP)
	for i, name := range []string{"a", "b"} {
		if err != nil {
			break
		}
		at.bind, at.n = addrs[i], i
		p.servers[i], err = newProcess(w, name, at)
	}
	if err != nil {
		p.release()
		return nil, errors.Join(err, p.log.Close())
	}
	return p, nil
}

// reservePorts returns the first port of a block that no other pair of servers on this
// machine uses until release is called: the first port for UDP, to which nothing is sent,
// stands for the block.
func (p *pair) reservePorts(ctx context.Context) (first int, err error) {
	const blocks = (lastPort - firstPort) / portsPerPair
	for i := range blocks {
		first = firstPort + (os.Getpid()+i)%blocks*portsPerPair
		reservation, lerr := (&net.ListenConfig{}).ListenPacket(ctx, "udp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first)))
		if lerr == nil {
			p.release = func() { _ = reservation.Close() } // nothing was written
			return first, nil
		}
		err = lerr
	}
	return 0, nstance.Errorf(nstance.Unavailable, "no block of ports between %d and %d is free: %w", firstPort, lastPort, err)
}

// pageAddress is where the first server's status page listens: as asked for, or
// else at that free address.
func (w *shard) pageAddress(other string) string {
	if _, port, err := net.SplitHostPort(w.bind); err != nil || port == "0" {
		return other // the address must be known before the server is there
	}
	return w.bind
}

// freeAddresses returns unused loopback addresses with ports from first on, and the
// port after them.
func freeAddresses(ctx context.Context, first int) (a server.Addresses, next int, err error) {
	for _, to := range []*string{&a.HTTP, &a.Registration, &a.Operator, &a.Agent} {
		if *to, err = free(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(first))); err != nil {
			return a, first, err
		}
		_, port, _ := net.SplitHostPort(*to)
		if first, err = strconv.Atoi(port); err != nil {
			return a, first, err
		}
		first++
	}
	return a, first, nil
}

// Ports of servers are below those that systems give out by themselves: a port must stay
// free between its choice and its use.
const (
	firstPort    = 20_000
	lastPort     = 30_000
	portsPerPair = 20
)

// serve starts both servers and returns once one leads and the other waits.
func (p *pair) serve(ctx, limited context.Context, end context.CancelCauseFunc) ([]server.Addresses, error) {
	open, finish := context.WithCancel(context.WithoutCancel(ctx)) // until the servers have ended
	p.finish, p.end = finish, end
	p.wg.Go(func() {
		if err := p.w.cloud.serve(open); err != nil {
			end(err)
		}
	})
	var addrs []server.Addresses
	for _, s := range p.servers {
		if err := p.start(s); err != nil {
			return nil, err
		}
		addrs = append(addrs, s.addrs)
	}
	for !p.settled(limited) {
		if !sleep.For(limited, again) {
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

// start starts a server that does not run.
func (p *pair) start(s *process) error {
	l, err := s.start(p.log, p.w.story.tell)
	if err != nil {
		return err
	}
	p.wg.Go(func() { l.watch(s.name, p.end) })
	return nil
}

// killLeader kills the leader. The other one is taken for it from now on.
func (p *pair) killLeader() error {
	if err := p.servers[p.leader].kill(); err != nil {
		return err
	}
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
		if l := s.life(); l != nil {
			<-l.ended
		}
	}
	p.finish()
	p.wg.Wait()
	p.release()
	_ = p.log.Close() // nothing of worth is buffered
}
