package sim

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

const (
	shard    = nstance.ShardID("s1")
	badImage = "bad"
)

var (
	owner = nstance.Owner{Installation: "i1", Cluster: "c1", Shard: shard}
	web   = nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "web"}
)

// Config says what to play. Zero fields mean the defaults.
type Config struct {
	Seed    uint64
	Servers int           // 3
	Size    int           // of the group at the start; 10
	Faults  time.Duration // how long faults go on, in virtual time; 1 h
	Settle  time.Duration // how long everything is left alone afterwards; 1 h
}

// Result is what came of a run.
type Result struct {
	Seed       uint64
	Events     int
	Virtual    time.Duration
	Violations []Violation
	Journal    []string // the last events
}

// World is one run.
type World struct {
	cfg    Config
	rng    *rand.Rand
	began  time.Time
	store  storage.Store
	cloud  truthCloud
	check  *checker
	hang   atomic.Bool // drain hooks do not end
	agents sync.WaitGroup
	lives  int

	mu        sync.Mutex
	processes []*process
	group     nstance.Group
	sizes     []sized // recent wishes, for what may be under way
	mute      map[nstance.InstanceID]bool
	noticed   map[nstance.InstanceID]bool
	withdrawn map[nstance.InstanceID]bool
	down      map[nstance.InstanceID]bool // did not run at some time, as the cloud may have said
	stops     map[nstance.InstanceID]context.CancelFunc
}

type sized struct {
	at   time.Time
	room int // size and surge
}

// truthCloud is the cloud with a look at the truth.
type truthCloud struct{ *simcloud.Cloud }

// Truth returns a machine as it is at this moment, or NotFound.
func (c truthCloud) Truth(id nstance.InstanceID) (nstance.Machine, error) {
	for _, m := range c.Machines() {
		if m.ID == id {
			return m, nil
		}
	}
	return nstance.Machine{}, nstance.NotFound
}

// Run plays one seed. It must be called inside a testing/synctest bubble.
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
	w := newWorld(cfg)
	for i := range cfg.Servers {
		w.processes = append(w.processes, w.start(string(rune('a'+i))))
	}
	w.pass(2 * time.Minute)
	d := &driver{World: w}
	for time.Since(w.began) < cfg.Faults {
		w.pass(time.Duration(1+w.rng.IntN(40)) * time.Second)
		d.act()
		w.check.oneLeader()
	}
	d.heal()
	w.pass(cfg.Settle)
	w.check.settled(w.wanted().Size)
	res := Result{Seed: cfg.Seed, Events: w.check.events, Virtual: time.Since(w.began), Violations: w.check.violations, Journal: w.check.journal}
	w.close()
	return res
}

func newWorld(cfg Config) *World {
	w := &World{
		cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 1)), began: time.Now(), store: storage.NewMemory(),
		mute: map[nstance.InstanceID]bool{}, noticed: map[nstance.InstanceID]bool{}, withdrawn: map[nstance.InstanceID]bool{},
		down: map[nstance.InstanceID]bool{}, stops: map[nstance.InstanceID]context.CancelFunc{},
	}
	w.check = newChecker(w)
	w.want(func(g *nstance.Group) {
		*g = nstance.Group{
			Key: web, Size: cfg.Size, DrainTimeout: 3 * time.Minute,
			Rollout: nstance.Rollout{MaxSurge: nstance.Count{N: w.rng.IntN(3)}, HaltAfter: 2},
			Definition: nstance.Definition{
				Kind: "web", Arch: nstance.AMD64, InstanceTypes: []string{"small"}, Market: nstance.Market{Type: nstance.Spot},
				UserData: nstance.UserData{Content: "v0"}, LaunchTimeout: 5 * time.Minute, RegistrationTimeout: 3 * time.Minute,
			},
		}
	})
	w.cloud = truthCloud{simcloud.New(&simcloud.Options{
		Seed: cfg.Seed, Latency: simcloud.Between(10*time.Millisecond, 200*time.Millisecond),
		Boot: simcloud.Between(5*time.Second, 40*time.Second), Shutdown: simcloud.Between(time.Second, 20*time.Second),
		Lag: simcloud.Between(0, 10*time.Second), OnStart: w.booted, OnStop: w.stopped,
	})}
	return w
}

func (w *World) booted(m nstance.Machine, spec nstance.MachineSpec) {
	ctx, cancel := context.WithCancel(context.Background())
	w.mu.Lock()
	w.stops[m.ID] = cancel
	w.mu.Unlock()
	a := &agent{w: w, id: m.ID, spec: spec, owed: map[string]bool{}, drained: map[uint64]bool{}}
	w.agents.Go(func() { a.run(ctx) })
}

func (w *World) stopped(m nstance.Machine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down[m.ID] = true
	w.stops[m.ID]()
}

// close ends everything, so that the bubble can end.
func (w *World) close() {
	for _, p := range w.all() {
		p.crash()
	}
	w.cloud.Close()
	w.agents.Wait()
}

// pass lets virtual time go by.
func (w *World) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (w *World) all() []*process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*process(nil), w.processes...)
}

// leader returns the server that agents find, if there is one.
func (w *World) leader() (*reconcile.Reconciler, *drain.Coordinator) {
	for _, p := range w.all() {
		if r, d := p.leading(); r != nil {
			return r, d
		}
	}
	return nil, nil
}

// want changes what is wanted, and tells whoever leads.
func (w *World) want(change func(*nstance.Group)) {
	w.mu.Lock()
	change(&w.group)
	w.sizes = append(w.sizes, sized{time.Now(), w.group.Size + max(1, w.group.Rollout.MaxSurge.Of(w.group.Size))})
	g := w.group
	w.mu.Unlock()
	if r, _ := w.leader(); r != nil {
		r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
	}
}

func (w *World) wanted() nstance.Group {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.group
}

// roomiest is the largest number of members that any wish of the last minutes
// permitted: a create may have been decided under an earlier one.
func (w *World) roomiest() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	most := 0
	for i, s := range w.sizes {
		if i == len(w.sizes)-1 || time.Since(w.sizes[i+1].at) < 5*time.Minute {
			most = max(most, s.room)
		}
	}
	return most
}

func (w *World) has(set map[nstance.InstanceID]bool, id nstance.InstanceID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return set[id]
}

func (w *World) put(set map[nstance.InstanceID]bool, id nstance.InstanceID, v bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	set[id] = v
}

func (w *World) isMute(id nstance.InstanceID) bool       { return w.has(w.mute, id) }
func (w *World) isNoticed(id nstance.InstanceID) bool    { return w.has(w.noticed, id) }
func (w *World) wasWithdrawn(id nstance.InstanceID) bool { return w.has(w.withdrawn, id) }
func (w *World) wasDown(id nstance.InstanceID) bool      { return w.has(w.down, id) }
