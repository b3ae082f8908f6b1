// Package simcloud is a cloud in memory that behaves like real ones: calls take
// time and are throttled, capacity sells out, a new machine is not listed at
// once, machines boot, are reclaimed with notice and fail without, and answers
// are lost after their effect. It is meant for users' own tests and for
// simulations; it runs inside testing/synctest bubbles, where hours pass in
// milliseconds.
//
// A simulation attaches its agents with Options.OnStart and OnStop, and gives
// each one its machine's [Cloud.Detector]. Faults are chosen by call:
// [Cloud.Inject] fails the nth call of a kind, before or after its effect.
//
// Equal seeds give equal latencies and handles for equal sequences of calls.
//
// A [Cloud] is safe for concurrent use.
package simcloud

import (
	"cmp"
	"container/heap"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

// Options describe the cloud. Nil and zero fields mean one that answers at
// once, never refuses, and boots machines immediately.
type Options struct {
	Seed uint64 // of every random choice

	Latency  Delay // of one call, or of one page of a list; half passes before the effect, half after
	Boot     Delay // from create until the machine runs
	Shutdown Delay // from delete until the machine is gone
	Park     Delay // from Park until the machine is stopped
	Wake     Delay // from Wake until the machine runs
	Lag      Delay // after a create, how long Get and List do not show the machine

	Width    int // calls served at once; others wait. 0: any number
	PageSize int // machines a page of a list; 1000

	Limits   map[Pool]int  // capacity in machines, for all owners together; nil: unlimited. SetCapacity changes it
	Quota    int           // machines of the account at most; 0: any number
	Throttle map[Op]Bucket // by kind of call; OpAny is a bucket that all calls share

	// ByToken has machines known by their idempotency token, as on EC2, and not by their ID:
	// a create with another token makes another machine, though the ID is the same.
	ByToken bool

	// Zones maps subnets to zones, and refuses subnets that it does not name.
	// Nil: every subnet is permitted, all are in zone sim-a.
	Zones map[string]string

	// Console returns the console output of a machine. It must not call the cloud. Nil:
	// none has any.
	Console func(nstance.Machine) []byte

	// Addresses are those that can move between the machines that servers run
	// on. Nil: any can.
	Addresses []string

	// Subnets are the numbers of addresses in subnets. Other subnets have
	// unlimited addresses, and FreeAddresses does not return them.
	Subnets map[string]int

	// Types are the machine types and what they run. Nil: every type is
	// permitted, and runs everything.
	Types map[string][]nstance.Arch

	// Prices are what machines of a pool cost for an hour; the pool names all three
	// fields. SetPrice changes them.
	Prices map[Pool]float64

	// Scores are what ZoneScores answers. Nil: nothing is known.
	Scores map[string]int

	// Substitute maps the requested market to the actual one. Other markets are as
	// requested.
	Substitute map[nstance.MarketType]nstance.MarketType

	// ReclaimWarning is the ReclaimWarning of spot machines.
	ReclaimWarning time.Duration

	Images    []Image  // none: every image is permitted, but ResolveImage finds none. SetImages changes it
	Balancers []string // IDs of the load balancers. SetBalancer changes it

	// OnStart is called when a machine begins to run, OnStop when one that
	// began to run no longer does. They are called one after another, never
	// concurrently, in the order of events, and must not block; they may call
	// the cloud's methods except Close.
	OnStart func(nstance.Machine, nstance.MachineSpec)
	OnStop  func(nstance.Machine)

	Log int              // calls remembered for Calls; 10000
	Now func() time.Time // wall clock of notices and the call log; time.Now
}

const (
	defaultPage = 1000
	defaultLog  = 10000
)

// A Cloud is one account at one cloud. It is safe for concurrent use.
type Cloud struct {
	core
	calls
	capacity
	subnets
	images
	balancers
	prices
	noticeBoard
	fleet     fleet
	addresses map[string]string // name of the machine that has each taken address
}

// A core is what all parts of a cloud share: the lock, chance, and what happens later.
type core struct {
	o    Options
	done chan struct{} // closed by Close
	wake chan struct{} // wakes the dispatcher for an earlier event
	wg   sync.WaitGroup

	mu      sync.Mutex // guards all parts
	closed  bool
	random  *rand.Rand
	seq     uint64 // of the last machine or event
	events  eventQueue
	running bool // the dispatcher
}

var _ nstance.Provider = (*Cloud)(nil)

// New returns a cloud without machines. Close it when done.
func New(o *Options) *Cloud {
	c := &Cloud{core: core{done: make(chan struct{}), wake: make(chan struct{}, 1)}, addresses: map[string]string{}}
	k := &c.core
	if o != nil {
		k.o = *o
	}
	k.o.PageSize = cmp.Or(max(k.o.PageSize, 0), defaultPage)
	k.o.Log = cmp.Or(max(k.o.Log, 0), defaultLog)
	if k.o.Now == nil {
		k.o.Now = time.Now
	}
	k.random = rand.New(rand.NewPCG(k.o.Seed, 0))
	c.calls = calls{core: k, buckets: map[Op]*bucket{}, log: journal{max: k.o.Log}}
	if k.o.Width > 0 {
		c.slots = make(chan struct{}, k.o.Width)
	}
	for op, b := range k.o.Throttle {
		c.buckets[op] = &bucket{Bucket: b, tokens: float64(b.Burst)}
	}
	machines, handles := map[nstance.InstanceID]*machine{}, map[string]*machine{}
	c.capacity = capacity{core: k, counts: map[Pool]int{}, limits: map[Pool]int{}}
	maps.Copy(c.limits, k.o.Limits)
	c.subnets = subnets{core: k, calls: &c.calls, taken: map[string]int{}}
	c.images = images{core: k, calls: &c.calls, list: slices.Clone(k.o.Images)}
	c.balancers = balancers{core: k, calls: &c.calls, handles: handles, members: map[string]map[string]bool{}}
	for _, id := range k.o.Balancers {
		c.members[id] = map[string]bool{}
	}
	c.prices = prices{core: k, calls: &c.calls, byPool: map[Pool]float64{}}
	maps.Copy(c.byPool, k.o.Prices)
	c.noticeBoard = noticeBoard{core: k, machines: machines, news: make(chan struct{})}
	c.fleet = fleet{core: k, capacity: &c.capacity, subnets: &c.subnets, images: &c.images, balancers: &c.balancers, machines: machines, handles: handles}
	return c
}

// Close stops every machine, calls OnStop for those that ran, and waits for
// everything that the cloud started. Later calls are answered Unavailable. It
// may be called more than once, but not from OnStart or OnStop.
func (c *Cloud) Close() {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.done)
	}
	c.mu.Unlock()
	c.wg.Wait()
	for _, stop := range c.drainEvents() {
		stop()
	}
}

// drainEvents empties the cloud and returns the pending calls of OnStop.
func (c *Cloud) drainEvents() []func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var pending []func()
	for _, m := range slices.Clone(c.fleet.order) {
		if m.gone {
			continue
		}
		m.end(nstance.StatusDeleting)
		c.fleet.forget(m)
	}
	for len(c.events) > 0 { // those that end has just added, and older ones
		if e := heap.Pop(&c.events).(*event); e.last {
			if call := e.do(); call != nil {
				pending = append(pending, call)
			}
		}
	}
	return pending
}

// A Delay is a random duration from Min up to, but not including, Max; Min where Max
// is not longer.
type Delay struct{ Min, Max time.Duration }

// sample needs the lock.
func (c *core) sample(d Delay) time.Duration {
	if d.Max <= d.Min {
		return d.Min
	}
	return d.Min + time.Duration(c.random.Int64N(int64(d.Max-d.Min)))
}
