package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nstance-go/nstance/bench/internal/rig"
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

// A pair is two servers of one shard.
type pair struct {
	dir     string
	ttl     time.Duration
	servers [2]*rig.ServerProcess
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
	return rig.Await(ctx, "no server leads", func() bool {
		for i, s := range p.servers {
			if s.Says(ctx, "/readyz") {
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
	if err := rig.Pause(ctx, p.ttl/3+rand.N(p.ttl/3)); err != nil { // somewhere between two renewals
		return 0, err
	}
	began := time.Now()
	if err := old.Signal(signal); err != nil {
		return 0, err
	}
	err := rig.Await(ctx, "the other one does not lead", func() bool { return other.Says(ctx, "/readyz") })
	took := time.Since(began)
	<-old.Ended
	if err != nil {
		return 0, err
	}
	err = p.start(ctx, p.leader)
	p.leader = 1 - p.leader
	return took, err
}

// start starts a server and returns when it is there.
func (p *pair) start(ctx context.Context, i int) (err error) {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(20_000+rand.IntN(10_000))) // not among those that the system gives out
	p.servers[i], err = rig.StartServer(ctx, addr, filepath.Join(p.dir, strconv.Itoa(i)), fmt.Appendf(nil, configuration, addr, p.ttl), filepath.Join(p.dir, "storage"))
	return err
}

// close ends everything.
func (p *pair) close() {
	for _, s := range p.servers {
		if s != nil {
			s.Stop()
		}
	}
	_ = os.RemoveAll(p.dir) // a temporary directory
}
