package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/bench/internal/rig"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/test/freeport"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage"
)

// patience is how long the fleet may take for what it is told.
const patience = 20 * time.Minute

// How often is asked what costs little, and what costs a look at every machine.
const (
	often  = 10 * time.Millisecond
	seldom = time.Second
)

// A world is a shard with its machines.
type world struct {
	options
	dir       string
	sim       *simcloud.Cloud
	calls     net.Listener
	ca        []byte
	listeners map[string][]string // addresses by listener, one of each server
	servers   []*rig.ServerProcess
	leader    int
	programs  []*process
	fresh     chan nstance.MachineSpec
	working   sync.WaitGroup
	end       context.CancelFunc

	mu     sync.Mutex
	homes  map[nstance.InstanceID]*process
	failed []error
}

func newWorld(ctx context.Context, o options) (w *world, err error) {
	w = &world{
		options: o, listeners: map[string][]string{}, homes: map[nstance.InstanceID]*process{},
		fresh: make(chan nstance.MachineSpec, 2*(o.agents+o.reclaimed)),
	}
	ctx, w.end = context.WithCancel(ctx)
	if w.dir, err = os.MkdirTemp("", "nstance-fleet-"); err != nil {
		return w, err
	}
	w.sim = simcloud.New(&simcloud.Options{
		Latency: simcloud.Delay{Min: 50 * time.Millisecond}, Boot: simcloud.Delay{Min: time.Second},
		OnStart: func(_ nstance.Machine, spec nstance.MachineSpec) { w.fresh <- spec },
		OnStop:  w.stopped,
	})
	if w.calls, err = (&net.ListenConfig{}).Listen(ctx, "unix", filepath.Join(w.dir, "cloud")); err != nil {
		return w, err
	}
	w.working.Go(func() { w.fail(serveCloud(w.calls, w.sim)) })
	for range o.processes {
		p, err := startAgents(filepath.Join(w.dir, "agents"))
		if err != nil {
			return w, err
		}
		w.programs = append(w.programs, p)
	}
	for _, name := range []string{"http", "registration", "operator", "agent", "peer"} {
		for range 2 {
			addr, err := freeport.Address()
			if err != nil {
				return w, err
			}
			w.listeners[name] = append(w.listeners[name], addr)
		}
	}
	return w, nil
}

func (w *world) fail(err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = append(w.failed, err)
}

func (w *world) close() error {
	w.end()
	for _, s := range w.servers {
		if s != nil {
			s.Stop()
		}
	}
	w.mu.Lock()
	clear(w.homes) // machines that end from here on have no agent to tell
	w.mu.Unlock()
	for _, p := range w.programs {
		w.fail(p.stop())
	}
	if w.sim != nil {
		w.sim.Close()
	}
	if w.calls != nil {
		_ = w.calls.Close() // at which serveCloud ends
	}
	w.working.Wait()
	return errors.Join(append(w.failed, os.RemoveAll(w.dir))...)
}

// startServer starts a server in a place of the pair.
func (w *world) startServer(ctx context.Context, i int) (err error) {
	bind := map[string]string{}
	for name, addrs := range w.listeners {
		bind[name] = addrs[i]
	}
	conf, err := json.Marshal(map[string]any{
		"cluster": map[string]any{"id": rig.Cluster},
		"shard": map[string]any{
			"id": rig.Zone, "provider": map[string]any{"kind": "sim", "options": map[string]any{"socket": w.calls.Addr().String()}},
			"create_rate": map[string]any{"per_second": 10_000, "burst": 100_000}, "bind": bind,
		},
		"templates": map[string]any{"vm": map[string]any{
			"kind": "web", "arch": "amd64", "instance_type": "small", "market": map[string]any{"type": "spot"}, "userdata": map[string]any{"content": "{{.Nonce}}"},
		}},
		"groups": map[string]any{"default": map[string]any{"web": map[string]any{"template": "vm", "size": w.agents}}},
	})
	if err != nil {
		return err
	}
	s, err := rig.StartServer(ctx, bind["http"], filepath.Join(w.dir, strconv.Itoa(i)), conf, w.storage())
	if s != nil {
		w.servers[i] = s
	}
	return err
}

func (w *world) storage() string { return filepath.Join(w.dir, "storage") }

// up starts the servers, and waits until each machine is ready.
func (w *world) up(ctx context.Context, r *report) error {
	w.servers = make([]*rig.ServerProcess, 2)
	if err := w.startServer(ctx, 0); err != nil {
		return err
	}
	// a shard without a lease is led after the longest ttl
	if err := rig.AwaitFor(ctx, seldom, 2*records.MaxLeaseTTL, "no server leads", func() bool { return w.servers[0].Says(ctx, "/readyz") }); err != nil {
		return err
	}
	began := time.Now()
	store, err := storage.OpenDir(w.storage(), nil)
	if err != nil {
		return err
	}
	keys, err := keyring.Bootstrap(ctx, vault.New(store, nil), time.Now())
	if err != nil {
		return err
	}
	w.ca = keys.Identity.CertPEM()
	placing, stop := context.WithCancel(ctx)
	stopOthers := w.end
	w.end = func() { stop(); stopOthers() }
	w.working.Go(func() { w.place(placing) })
	if err := w.startServer(ctx, 1); err != nil {
		return err
	}
	err = rig.AwaitFor(ctx, seldom, patience, "machines are not ready", func() bool { return w.ready(ctx) == w.agents })
	r.UpSeconds = time.Since(began).Seconds()
	return err
}

// place gives each machine that starts an agent.
func (w *world) place(ctx context.Context) {
	for n := 0; ; n++ {
		select {
		case spec := <-w.fresh:
			p := w.programs[n%len(w.programs)]
			w.mu.Lock()
			w.homes[spec.ID] = p
			w.mu.Unlock()
			w.fail(p.send(order{Start: &machine{
				ID: spec.ID, Number: n, Nonce: spec.UserData, CA: w.ca, Registration: w.listeners["registration"], Agent: w.listeners["agent"],
			}}))
		case <-ctx.Done():
			return
		}
	}
}

// stopped ends the agent of a machine that ended.
func (w *world) stopped(m nstance.Machine) {
	w.mu.Lock()
	p := w.homes[m.ID]
	delete(w.homes, m.ID)
	w.mu.Unlock()
	if p != nil {
		w.fail(p.send(order{End: m.ID}))
	}
}

// ready returns how many members the leader shows as ready.
func (w *world) ready(ctx context.Context) int {
	page, err := w.servers[w.leader].Page(ctx, "/metrics")
	if err != nil {
		return 0 // a busy server is asked again
	}
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "nstance_group_members{") && strings.Contains(line, `state="ready"`) {
			n, _ := strconv.Atoi(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]))
			return n
		}
	}
	return 0
}

// connected returns how many agents are connected.
func (w *world) connected() (sum int) {
	for _, p := range w.programs {
		n, err := p.connected()
		w.fail(err)
		sum += n
	}
	return sum
}

// idle measures for the first third of the time.
func (w *world) idle(ctx context.Context, r *report) error {
	pids := [][]int{{w.servers[0].PID()}, {w.servers[1].PID()}, {}}
	for _, p := range w.programs {
		pids[2] = append(pids[2], p.cmd.Process.Pid)
	}
	before, _, err := used(pids)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := rig.Pause(ctx, w.length/3); err != nil {
		return err
	}
	after, resident, err := used(pids)
	percent := func(i int) float64 { return 100 * (after[i] - before[i]).Seconds() / time.Since(began).Seconds() }
	mib := func(i int) float64 { return float64(resident[i]) / (1 << 20) }
	r.LeaderPercent, r.StandbyPercent, r.AgentsPercent = percent(0), percent(1), percent(2)
	r.LeaderMiB, r.StandbyMiB, r.AgentKiB = mib(0), mib(1), mib(2)*1024/float64(w.agents)
	return err
}

// used returns processor time and resident memory of groups of processes.
func used(groups [][]int) (times []time.Duration, resident []int, err error) {
	times, resident = make([]time.Duration, len(groups)), make([]int, len(groups))
	for i, pids := range groups {
		for _, pid := range pids {
			t, err := rig.ProcessorTime(pid)
			if err != nil {
				return nil, nil, err
			}
			bytes, err := rig.ResidentBytes(pid)
			if err != nil {
				return nil, nil, err
			}
			times[i] += t
			resident[i] += bytes
		}
	}
	return times, resident, nil
}

// reclaim takes machines back at once, and waits for a third of the time.
func (w *world) reclaim(ctx context.Context, r *report) error {
	doomed := map[*process][]nstance.InstanceID{}
	var all []nstance.InstanceID
	w.mu.Lock()
	for _, m := range w.sim.Machines()[:w.reclaimed] {
		doomed[w.homes[m.ID]] = append(doomed[w.homes[m.ID]], m.ID)
		all = append(all, m.ID)
	}
	w.mu.Unlock()
	before := w.sim.Count(simcloud.OpCreate)
	for p, ids := range doomed {
		if err := p.send(order{Notice: ids}); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := rig.AwaitFor(ctx, often, patience, "replacements are not asked for", func() bool { return w.sim.Count(simcloud.OpCreate) >= before+w.reclaimed }); err != nil {
		return err
	}
	r.LastCreateMS = float64(time.Since(began).Milliseconds())
	err := rig.AwaitFor(ctx, seldom, patience, "the fleet is not whole", func() bool {
		now := w.sim.Machines()
		return len(now) == w.agents && !slices.ContainsFunc(now, func(m nstance.Machine) bool { return slices.Contains(all, m.ID) }) &&
			w.ready(ctx) == w.agents
	})
	r.WholeSeconds = time.Since(began).Seconds()
	if err != nil {
		return err
	}
	return rig.Pause(ctx, w.length/3)
}

// failover kills the leader, and waits for a third of the time.
func (w *world) failover(ctx context.Context, r *report) error {
	began := time.Now()
	old := w.leader
	if err := w.servers[old].Signal(syscall.SIGKILL); err != nil {
		return err
	}
	w.leader = 1 - old
	if err := rig.Await(ctx, "the other server does not lead", func() bool { return w.servers[w.leader].Says(ctx, "/readyz") }); err != nil {
		return err
	}
	r.LeaderlessSeconds = time.Since(began).Seconds()
	if err := rig.AwaitFor(ctx, seldom, patience, "agents are not back", func() bool { return w.connected() == w.agents }); err != nil {
		return err
	}
	r.BackSeconds = time.Since(began).Seconds()
	resident, err := rig.ResidentBytes(w.servers[w.leader].PID())
	if err != nil {
		return err
	}
	r.PeakMiB = float64(resident) / (1 << 20)
	<-w.servers[old].Ended
	if err := w.startServer(ctx, old); err != nil {
		return err
	}
	return rig.Pause(ctx, w.length/3)
}

// last requires that every machine has its agent.
func (w *world) last(ctx context.Context, r *report) error {
	r.Made = w.sim.Count(simcloud.OpCreate)
	if n := len(w.sim.Machines()); n != w.agents {
		return fmt.Errorf("%d machines of %d", n, w.agents)
	}
	if n := w.connected(); n != w.agents {
		return fmt.Errorf("%d agents of %d are connected", n, w.agents)
	}
	if n := w.ready(ctx); n != w.agents {
		return fmt.Errorf("%d machines of %d are ready", n, w.agents)
	}
	return nil
}
