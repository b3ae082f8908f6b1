package sim

import (
	"context"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

const shard = nstance.ShardID("s1")

var owner = nstance.Owner{Installation: "i1", Cluster: "c1", Shard: shard}

// Config configures a run. Zero fields mean the defaults.
type Config struct {
	Seed    uint64
	Servers int           // 3
	Size    int           // initial size of the first group; 10
	Faults  time.Duration // virtual time with faults; 1 h
	Settle  time.Duration // virtual time without faults at the end; 1 h
	NoDrill bool          // end after the settling, without the drills

	Trace io.Writer // gets every event, write and call with its virtual time; nil: none
	Idle  func()    // called once a virtual minute, while nothing in the bubble can run; nil: not called
}

// Result is the outcome of a run.
type Result struct {
	Seed       uint64
	Events     int
	Virtual    time.Duration
	Violations []Violation
	Journal    []string // the last events
	Faults     []string // the schedule of the seed

	// Fired counts what happened, by names such as those of Rules.
	Fired map[string]int
}

// World is one run.
type World struct {
	cfg       Config
	rng       *rand.Rand
	began     time.Time
	idled     time.Time // when cfg.Idle was last called
	store     *witness
	cloud     truthCloud
	dated     bool // storage dates its answers
	storage   wall // storage's wall clock
	check     *checker
	hang      atomic.Int32  // drain hooks hang while it is positive
	unwell    atomic.Bool   // machines that register are never well
	loss      atomic.Uint64 // share of messages between agents and servers that are lost, in thousandths
	reading   atomic.Int64  // nanoseconds until a new leader has read which definitions are in effect
	agents    sync.WaitGroup
	operators []*operator // one per tenant

	mu               sync.Mutex
	lives            int
	walls            map[string]*wall // of servers, by name
	boots            uint64
	nextWithoutAgent int        // next machines whose agent never starts
	processes        []*process // one per server; replaced, never changed
	crashedProcesses []*process // crashed, with goroutines left
	groups           map[nstance.GroupKey]*groupState
	keys             []nstance.GroupKey // of the groups, in order of creation
	orders           map[nstance.InstanceID]*order
	stray            nstance.InstanceID // the latest machine created without a record
	mute             map[nstance.InstanceID]bool
	noticed          map[nstance.InstanceID]bool
	partitioned      map[nstance.InstanceID]int // partitioned from the servers, counted
	stops            map[nstance.InstanceID]context.CancelFunc
	serials          map[nstance.InstanceID]int // of the certificates that agents have
}

// truthCloud is the cloud with access to its true state.
type truthCloud struct{ *simcloud.Cloud }

// Truth returns the current state of a machine, or NotFound.
func (c truthCloud) Truth(id nstance.InstanceID) (nstance.Machine, error) {
	for _, m := range c.Machines() {
		if m.ID == id {
			return m, nil
		}
	}
	return nstance.Machine{}, nstance.NotFound
}

// running returns the machines that run now.
func (c truthCloud) running() map[nstance.InstanceID]bool {
	out := map[nstance.InstanceID]bool{}
	for _, m := range c.Machines() {
		if m.Status == nstance.StatusRunning {
			out[m.ID] = true
		}
	}
	return out
}

// Run runs one seed. It must be called inside a testing/synctest bubble.
func Run(cfg Config) Result {
	if cfg.Servers == 0 {
		cfg.Servers = 3
	}
	if cfg.Size == 0 {
		cfg.Size = 10
	}
	if cfg.Faults == 0 {
		cfg.Faults = time.Hour
	}
	if cfg.Settle == 0 {
		cfg.Settle = time.Hour
	}
	if cfg.Trace == nil {
		cfg.Trace = io.Discard
	}
	if cfg.Idle == nil {
		cfg.Idle = func() {}
	}
	w := newWorld(cfg)
	ctx, stop := context.WithCancel(context.Background())
	go w.check.watchTerms(ctx)
	var beside sync.WaitGroup
	for _, o := range w.operators {
		beside.Go(func() { o.run(ctx) })
	}
	for i := range cfg.Servers {
		p := w.start(string(rune('a' + i)))
		w.mu.Lock()
		w.processes = append(slices.Clone(w.processes), p)
		w.mu.Unlock()
	}
	w.pass(2 * time.Minute)
	d := newDriver(w)
	d.play()
	d.heal()
	d.advanceAttended(cfg.Settle)
	d.awaitSpot(webToo)
	w.check.checkSettled()
	if !cfg.NoDrill {
		d.drill()
	}
	stop()
	beside.Wait()
	res := w.check.result()
	res.Faults = d.faults
	w.close()
	return res
}

func newWorld(cfg Config) *World {
	w := &World{
		cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 1)), began: time.Now(),
		mute: map[nstance.InstanceID]bool{}, noticed: map[nstance.InstanceID]bool{}, partitioned: map[nstance.InstanceID]int{},
		stops: map[nstance.InstanceID]context.CancelFunc{}, walls: map[string]*wall{}, serials: map[nstance.InstanceID]int{},
		dated:  rand.New(rand.NewPCG(cfg.Seed, 8)).IntN(3) > 0,
		groups: map[nstance.GroupKey]*groupState{}, orders: map[nstance.InstanceID]*order{},
	}
	w.check, w.store = newChecker(w), newWitness(w)
	w.reading.Store(int64(time.Second))
	for _, key := range []nstance.GroupKey{web, webToo, pooled} {
		surge := w.rng.IntN(3)
		w.setGroup(key, func(g *nstance.Group) { *g = w.newGroup(key, surge) })
	}
	w.cloud = truthCloud{simcloud.New(&simcloud.Options{
		Seed: cfg.Seed, ByToken: cfg.Seed%2 == 1, Latency: simcloud.Delay{Min: 10 * time.Millisecond, Max: 200 * time.Millisecond},
		Boot: simcloud.Delay{Min: 5 * time.Second, Max: 40 * time.Second}, Shutdown: simcloud.Delay{Min: time.Second, Max: 20 * time.Second},
		Park: simcloud.Delay{Min: time.Second, Max: 10 * time.Second}, Wake: simcloud.Delay{Min: time.Second, Max: 8 * time.Second},
		Lag: simcloud.Delay{Min: 0, Max: 10 * time.Second}, Throttle: map[simcloud.Op]simcloud.Bucket{simcloud.OpAny: {PerSecond: float64(cfg.Size + side), Burst: 4 * (cfg.Size + side)}},
		OnStart: w.booted, OnStop: w.stopped,
	})}
	for _, lb := range balancers {
		w.cloud.SetBalancer(lb.ID, true)
	}
	for i, tenant := range tenants {
		w.operators = append(w.operators, newOperator(w, tenant, uint64(i)))
	}
	return w
}

func (w *World) booted(m nstance.Machine, spec nstance.MachineSpec) {
	ctx, cancel := context.WithCancel(context.Background())
	w.check.checkOneMachine(m)
	w.mu.Lock()
	w.stops[m.ID] = cancel
	w.boots++
	a := newAgent(w, m, spec, w.boots)
	if w.nextWithoutAgent > 0 {
		w.nextWithoutAgent--
		w.mute[m.ID] = true
	}
	w.mu.Unlock()
	w.agents.Go(func() { a.run(ctx) })
}

func (w *World) stopped(m nstance.Machine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stops[m.ID]()
}

// close ends all goroutines of the bubble.
func (w *World) close() {
	for _, p := range w.allProcesses() {
		p.crash()
		<-p.done
	}
	w.cloud.Close()
	w.agents.Wait()
}

// sleep advances virtual time for one of several goroutines.
func (w *World) sleep(d time.Duration) { <-time.After(d) }

// pass advances virtual time. Only the driver calls it.
func (w *World) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		<-time.After(min(time.Until(end), time.Minute))
		synctest.Wait()
		if time.Since(w.idled) >= time.Minute {
			w.idled = time.Now()
			w.cfg.Idle()
		}
	}
}

func (w *World) all() []*process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.processes
}

// allProcesses returns every process with goroutines left.
func (w *World) allProcesses() []*process {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.crashedProcesses = slices.DeleteFunc(w.crashedProcesses, (*process).isOver)
	return slices.Concat(w.processes, w.crashedProcesses)
}

// leader returns the server that agents reach, if there is one.
func (w *World) leader() (*reconcile.Reconciler, *drain.Coordinator) {
	for _, p := range w.all() {
		if r, d := p.leading(); r != nil {
			return r, d
		}
	}
	return nil, nil
}

// messageLoss is the share of messages that are lost.
func (w *World) messageLoss() float64 { return float64(w.loss.Load()) / 1000 }

func (w *World) has(set map[nstance.InstanceID]bool, id nstance.InstanceID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return set[id]
}

func (w *World) put(set map[nstance.InstanceID]bool, id nstance.InstanceID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	set[id] = true
}

func (w *World) isMute(id nstance.InstanceID) bool    { return w.has(w.mute, id) }
func (w *World) isNoticed(id nstance.InstanceID) bool { return w.has(w.noticed, id) }

// isPartitioned reports whether an agent is partitioned from the servers.
func (w *World) isPartitioned(id nstance.InstanceID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.partitioned[id] > 0
}

// partition partitions agents, or undoes that.
func (w *World) partition(by int, ids ...nstance.InstanceID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		w.partitioned[id] += by
	}
}
