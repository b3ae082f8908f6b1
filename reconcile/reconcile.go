// Package reconcile keeps groups of machines at their size: observe, plan, act.
//
// [Plan] is the pure heart: one group's desired values, members and history
// in, actions out. The [Reconciler] around it owns the state of a shard in
// memory, takes note of facts, plans whichever group they touch, and carries
// the actions out: first durably in storage, then at the provider. It can be
// embedded in any program; it knows nothing of gRPC, SQL, clouds or Kubernetes.
//
// A Reconciler is safe for concurrent use; groups and views are values.
package reconcile

import (
	"sync"
	"sync/atomic"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/bounded"
	"github.com/nstance-go/nstance/internal/feed"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile/internal/balance"
	"github.com/nstance-go/nstance/reconcile/internal/cloudfacts"
	"github.com/nstance-go/nstance/reconcile/internal/orphans"
	"github.com/nstance-go/nstance/reconcile/internal/questions"
	"github.com/nstance-go/nstance/reconcile/internal/wallclock"
	"github.com/nstance-go/nstance/storage"
)

// A Reconciler works for one shard during one leadership term. Its own methods do the
// I/O and take the lock; what they find out they put into the shard, which decides. They
// may be called concurrently; Run is called once.
type Reconciler struct {
	provider *provider.Client
	records  *records.Records
	states   *records.Doc[shardState]
	drains   nstance.DrainCoordinator // whose calls end
	events   *feed.Feed[nstance.Event]

	orphanLock chan struct{}  // has room for one: whose turn it is to deal with orphans
	known      chan struct{}  // closed once members are known
	over       chan struct{}  // closed when Run has ended
	started    atomic.Bool    // Run was called
	lookUps    sync.WaitGroup // the first questions to the provider, which plans do not wait for

	mu sync.Mutex
	shard
}

var _ nstance.Reconciler = (*Reconciler)(nil)

func newClock(o *Options, store storage.Store) *wallclock.Clock {
	dated := o.Dated
	if dated == nil {
		dated, _ = store.(storage.Dated)
	}
	return wallclock.New(wallclock.Options{Wall: o.Now, Elapsed: o.Elapsed, Dated: dated})
}

// New returns a Reconciler for the shard named in opts.Owner, which keeps its
// truth in store and its machines at p. It fails with Invalid, naming the field, when
// p or store is nil, or when opts lack an owner or hold what makes no sense.
func New(p nstance.Provider, store storage.Store, opts *Options) (*Reconciler, error) {
	if err := checkOptions(store, opts); err != nil {
		return nil, err
	}
	o := withDefaults(opts)
	var r *Reconciler
	calls := provider.Options{}
	if o.Provider != nil {
		calls = *o.Provider
	}
	if calls.Alarm == nil {
		calls.Alarm = func(text string) {
			r.locked(func() { r.publishShard(nstance.Event{Type: nstance.EventAlarm, Reason: text}) })
		}
	}
	client, err := provider.New(p, &calls)
	if err != nil {
		return nil, err
	}
	clock := newClock(&o, store)
	store = bounded.Store(store)
	shardRecords := records.New(store, o.Owner.Shard, &records.Options{Epoch: o.Epoch, Check: o.Check, Log: o.Log, Elapsed: o.Elapsed})
	r = &Reconciler{
		provider: client, records: shardRecords, drains: bounded.Drains(o.Drains),
		states: records.NewDoc[shardState](store, layout.StateKey(o.Owner.Shard), &records.DocOptions{Epoch: o.Epoch, Check: o.Check}),
		events: feed.New[nstance.Event](eventBacklog), orphanLock: make(chan struct{}, 1), known: make(chan struct{}), over: make(chan struct{}),
		shard: newShard(o, client, shardRecords, clock),
	}
	r.cloud = cloudfacts.New(client.Abilities(), cloudfacts.Options{
		Question: r.question, Now: o.Now, Log: o.Log,
		Addresses: r.recordAddresses, Prices: r.recordPrices, Shifts: r.recordShifts,
		Zones:  func(zones map[string]string) { r.locked(func() { r.places.SetZones(zones) }) },
		Scores: func(types string, zones map[string]int) { r.locked(func() { r.places.SetScores(types, zones) }) },
	})
	r.questions = questions.New(questions.Calls{List: r.listMachines, Get: r.askMachine, Failed: r.planMembers})
	r.opts.Journal = func(e nstance.Event) {
		e.Seq = r.events.Publish(e)
		o.Journal(e)
	}
	r.orphans = orphans.New(r.orphanRule())
	r.balance = balance.New(balancedMembers{r}, balance.Options{Check: o.Check, Now: o.Now, Log: o.Log})
	r.balance.Configure(o.Balancers)
	return r, r.Desire(o.Groups)
}

// locked takes the lock for do.
func (r *Reconciler) locked(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}
