package reconcile

import (
	"github.com/nstance-go/nstance"
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
			r.mu.Lock()
			defer r.mu.Unlock()
			r.publishShard(nstance.Event{Type: nstance.EventAlarm, Reason: text})
		}
	}
	client, err := provider.New(p, &calls)
	if err != nil {
		return nil, err
	}
	shardRecords := records.New(store, o.Owner.Shard, &records.Options{Epoch: o.Epoch, Check: o.Check, Log: o.Log, Elapsed: o.Elapsed})
	r = &Reconciler{
		provider: client, records: shardRecords,
		states: records.NewDoc[shardState](store, layout.StateKey(o.Owner.Shard), &records.DocOptions{Epoch: o.Epoch, Check: o.Check}),
		events: feed.New[nstance.Event](eventBacklog), orphanLock: make(chan struct{}, 1), known: make(chan struct{}), over: make(chan struct{}),
		shard: newShard(o, client, shardRecords, newClock(&o, store)),
	}
	r.cloud = cloudfacts.New(client.Abilities(), cloudfacts.Options{
		Question: r.question, Now: o.Now, Log: o.Log,
		Addresses: r.recordAddresses, Zones: r.recordZones, Prices: r.recordPrices, Scores: r.recordScores, Shifts: r.recordShifts,
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
