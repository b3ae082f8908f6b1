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
	o     Options
	slots chan struct{} // nil: any number
	done  chan struct{} // closed by Close
	wake  chan struct{} // wakes the dispatcher for an earlier event
	wg    sync.WaitGroup

	mu             sync.Mutex
	closed         bool
	random         *rand.Rand
	seq            uint64
	machines       map[nstance.InstanceID]*machine // with ByToken the latest
	handles        map[string]*machine
	addresses      map[string]string // name of the machine that has each taken address
	order          []*machine        // by seq; may hold machines that are gone
	goneInOrder    int               // machines in order that are gone
	usedIDs        idHistory
	counts         map[Pool]int
	limits         map[Pool]int
	failing        []startFailure
	buckets        map[Op]*bucket
	faults         []*Fault
	calls          journal
	prices         map[Pool]float64
	images         []Image
	shifts         []nstance.ZoneShift        // nil: there was never one
	taken          map[string]int             // addresses, by subnet
	balancers      map[string]map[string]bool // members by provider ID, by load balancer
	deletedMembers []nstance.InstanceID
	notices        []nstance.MachineNotice // the latest
	noticeCount    int
	news           chan struct{} // closed and replaced with each
	events         eventQueue
	running        bool // the dispatcher
}

var _ nstance.Provider = (*Cloud)(nil)

// New returns a cloud without machines. Close it when done.
func New(o *Options) *Cloud {
	c := &Cloud{
		done:      make(chan struct{}),
		wake:      make(chan struct{}, 1),
		machines:  map[nstance.InstanceID]*machine{},
		handles:   map[string]*machine{},
		addresses: map[string]string{},
		counts:    map[Pool]int{},
		buckets:   map[Op]*bucket{},
		taken:     map[string]int{},
		news:      make(chan struct{}),
		balancers: map[string]map[string]bool{},
	}
	if o != nil {
		c.o = *o
	}
	if c.o.PageSize <= 0 {
		c.o.PageSize = defaultPage
	}
	if c.o.Log <= 0 {
		c.o.Log = defaultLog
	}
	if c.o.Now == nil {
		c.o.Now = time.Now
	}
	if c.o.Width > 0 {
		c.slots = make(chan struct{}, c.o.Width)
	}
	c.limits = map[Pool]int{}
	maps.Copy(c.limits, c.o.Limits)
	c.prices = map[Pool]float64{}
	maps.Copy(c.prices, c.o.Prices)
	c.images = slices.Clone(c.o.Images)
	for _, id := range c.o.Balancers {
		c.balancers[id] = map[string]bool{}
	}
	for op, b := range c.o.Throttle {
		c.buckets[op] = &bucket{Bucket: b, tokens: float64(b.Burst)}
	}
	c.random = rand.New(rand.NewPCG(c.o.Seed, 0))
	c.calls.max = c.o.Log
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
	for _, m := range slices.Clone(c.order) {
		if m.gone {
			continue
		}
		m.end(nstance.StatusDeleting)
		c.forget(m)
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

// sample needs c.mu.
func (c *Cloud) sample(d Delay) time.Duration {
	if d.Max <= d.Min {
		return d.Min
	}
	return d.Min + time.Duration(c.random.Int64N(int64(d.Max-d.Min)))
}
