package dev

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/reconcile"
)

// eventKilled reports each kill of scenario kill: of an instance, or of the server in
// its reason.
const eventKilled nstance.EventType = "killed"

// A killRun counts what scenario kill does.
type killRun struct {
	began   bool
	kills   int // of servers and of machines
	servers int // of servers
	release int // the latest of the template
}

const (
	spread    = 3               // the group has up to so many members more than asked for
	callLimit = 3 * time.Second // for an administrator's call
)

// meanPause is the mean time between two kills: enough for a server to lead and act.
func (o *Options) meanPause() time.Duration { return 3*o.ElectionTTL/2 + 250*time.Millisecond }

// kill kills servers and machines at random instants while the group changes, and checks
// that the group is full afterwards, with nothing lost or made twice.
func (p *play) kill(ctx context.Context) error {
	p.failoverState.fresh = anyNumber
	p.killRun = killRun{began: true, release: 1}
	if _, err := p.full(ctx); err != nil {
		return err
	}
	if err := p.killUnderLoad(ctx); err != nil {
		return err
	}
	err := p.recover(ctx)
	if err != nil {
		stage := p.stage
		_ = p.audit(ctx) // for the summary: the first error is returned
		p.stage = stage
		return err
	}
	return p.audit(ctx)
}

// killUnderLoad kills servers and machines while the group changes.
func (p *play) killUnderLoad(ctx context.Context) error {
	p.stage = "kill"
	busy, over := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { p.generateLoad(busy, rand.New(rand.NewPCG(p.o.Seed, 1))) })
	err := p.killRepeatedly(ctx, rand.New(rand.NewPCG(p.o.Seed, 2)))
	over()
	wg.Wait()
	return err
}

// killRepeatedly kills Options.Count times, and returns when all servers are started
// again.
func (p *play) killRepeatedly(ctx context.Context, rng *rand.Rand) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for p.killRun.kills < p.o.Count {
		if !sleep.For(ctx, time.Duration(rng.Int64N(int64(2*p.o.meanPause())))) {
			return context.Cause(ctx)
		}
		if rng.IntN(3) == 0 {
			p.killMachine(ctx, rng)
			continue
		}
		down := time.Duration(rng.Int64N(int64(2 * p.o.ElectionTTL)))
		s := p.runningServer(ctx, rng.IntN(4) > 0, rng.IntN(2))
		if s == nil {
			continue // both are down
		}
		if err := s.kill(); err != nil {
			return err
		}
		p.killRun.servers++
		p.publishKill(nstance.Event{Type: eventKilled, Reason: "server " + s.name})
		wg.Go(func() {
			if !sleep.For(ctx, down) {
				return
			}
			if err := p.pair.start(s); err != nil {
				p.pair.end(err)
			}
		})
	}
	return nil
}

func (p *play) publishKill(e nstance.Event) {
	p.killRun.kills++
	p.story.tell(e)
}

// runningServer returns a running server, the leader if that is asked for and known,
// or nil.
func (p *play) runningServer(ctx context.Context, leader bool, n int) *process {
	var live []*process
	for _, s := range p.pair.servers {
		if !s.lives() {
			continue
		}
		if leader && reaches(ctx, s.addrs.HTTP, "/readyz") {
			return s
		}
		live = append(live, s)
	}
	if len(live) == 0 {
		return nil
	}
	return live[n%len(live)]
}

// killMachine kills the process of a machine, if there is one.
func (p *play) killMachine(ctx context.Context, rng *rand.Rand) {
	id, ok := p.anyMachine(ctx, rng)
	if ok && p.cloud.crash(id) == nil { // else it has just ended
		p.publishKill(nstance.Event{Type: eventKilled, Tenant: nstance.DefaultTenant, Group: groupID, Instance: id})
	}
}

// anyMachine returns a machine that is there.
func (p *play) anyMachine(ctx context.Context, rng *rand.Rand) (nstance.InstanceID, bool) {
	machines, err := p.list(ctx)
	machines = slices.DeleteFunc(machines, func(m nstance.Machine) bool { return m.Status.Dead() })
	if err != nil || len(machines) == 0 {
		return "", false
	}
	return machines[rng.IntN(len(machines))].ID, true
}

// generateLoad keeps the group busy until ctx ends: its size changes, members are
// taken back, the template changes. What fails because no server leads is
// left undone.
func (p *play) generateLoad(ctx context.Context, rng *rand.Rand) {
	for sleep.For(ctx, 100*time.Millisecond+time.Duration(rng.Int64N(int64(time.Second)))) {
		switch rng.IntN(4) {
		case 0, 1:
			_ = p.resize(ctx, p.o.size()-1+rng.IntN(spread+2))
		case 2:
			if id, ok := p.anyMachine(ctx, rng); ok && p.cloud.interrupt([]nstance.InstanceID{id}) == nil {
				p.story.tell(nstance.Event{Type: eventtype.NoticePublished, Tenant: nstance.DefaultTenant, Group: groupID, Instance: id})
			}
		case 3:
			_ = p.releaseNext(ctx)
		}
	}
}

// releaseNext changes the template.
func (p *play) releaseNext(ctx context.Context) error {
	p.killRun.release++
	for _, s := range p.pair.servers {
		if err := s.configure(p.o, p.cloud, p.killRun.release); err != nil {
			return err
		}
	}
	for _, s := range p.pair.servers {
		s.reload(ctx)
	}
	return nil
}

// scale changes the size of the group, as an administrator would, and remembers
// it.
func (p *play) scale(ctx context.Context, size int) error {
	p.stage = "scale"
	err := p.resize(ctx, size)
	if err == nil {
		p.size = size
	}
	return err
}

func (p *play) resize(ctx context.Context, size int) error {
	var said bytes.Buffer
	args := []string{
		"group", "scale", string(groupID), strconv.Itoa(size),
		"--identity", p.home.identityDir(), "--yes", "--timeout", callLimit.String(),
	}
	if code := admin.Main(ctx, nil, args, &bytes.Buffer{}, &said, &said, func(string) string { return "" }); code != 0 {
		return nstance.Errorf(nstance.Internal, "nstance-admin group scale: %s", bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// recover waits until both servers are there, asks for a size and a release for
// the last time, and waits until that is all there is.
func (p *play) recover(ctx context.Context) error {
	back := func(ctx context.Context) error {
		if !p.pair.settled(ctx) {
			return nstance.Errorf(nstance.Unavailable, "not both servers are back")
		}
		return nil
	}
	if err := p.poll(ctx, "servers_back", back); err != nil {
		return err
	}
	if err := p.releaseNext(ctx); err != nil {
		return err
	}
	if err := p.poll(ctx, "scale", func(ctx context.Context) error { return p.scale(ctx, p.o.size()+1) }); err != nil {
		return err
	}
	return p.poll(ctx, "group_full", func(ctx context.Context) error {
		if err := back(ctx); err != nil { // with so short a term another may lead by now
			return err
		}
		if err := p.settled(ctx); err != nil {
			return err
		}
		return p.hasNoProblems(ctx)
	})
}

// hasNoProblems returns what the leader reports as a problem: a journal that did
// not survive would be one.
func (p *play) hasNoProblems(ctx context.Context) error {
	s, err := p.status(ctx)
	for _, a := range s.Attention {
		if reconcile.AttentionKind(a.Kind) != attention.Alarm {
			return nstance.Errorf(nstance.Conflict, "the server needs attention: %s %s", a.Kind, a.Why)
		}
	}
	return err
}

// summarize adds the counts.
func (s *killRun) summarize(o *Options, sum *Summary) {
	if s.began {
		sum.Seed, sum.Kills, sum.ServerKills = &o.Seed, &s.kills, &s.servers
	}
}
