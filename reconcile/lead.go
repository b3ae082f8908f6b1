package reconcile

import (
	"context"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

const (
	campaignRetry = time.Second      // after a campaign that failed
	resignTimeout = 10 * time.Second // for giving the lease back
)

// Lead has one process of several keep the groups of a shard: each calls it with the
// same store and owner. It campaigns for the shard's lease, runs a Reconciler for each
// term that it is granted, and campaigns again when the lease is lost. When ctx ends it
// gives the lease back and returns nil: another process then leads at once. After a
// crash that takes about 7 seconds, the lease's ttl and a read. A campaign that fails is
// repeated. The first process of a new shard leads at once.
//
// term, if it is not nil, is called at the beginning of each term with the Reconciler
// of that term, on a goroutine that Lead waits for; its ctx ends with the term. Epoch
// and Check of opts are set for each term. Drains must be nil: each term has a
// coordinator of its own, which Coordinator returns.
//
// It fails with Invalid as New does, before it campaigns, and when Run does.
func Lead(ctx context.Context, p nstance.Provider, store storage.Store, opts *Options, term func(ctx context.Context, r *Reconciler)) error {
	if opts != nil && opts.Drains != nil {
		return nstance.FieldError("drains", "leave it out, and use Coordinator", "one coordinator cannot serve several terms")
	}
	first, err := New(p, store, opts)
	if err != nil {
		return err
	}
	elector, err := lease.New(store, opts.Owner.Shard, first.leaseOptions())
	if err != nil {
		return err
	}
	if _, err := lease.Prepare(ctx, store, opts.Owner.Shard); err != nil { // then a first leader waits for a minute
		first.log.Warn("lease of a new shard not prepared", "code", nstance.CodeOf(err), "err", err)
	}
	for ctx.Err() == nil {
		granted, err := elector.Campaign(ctx)
		if err != nil {
			if sleep.For(ctx, campaignRetry) {
				first.log.Warn("campaign failed, is repeated", "code", nstance.CodeOf(err), "err", err)
			}
			continue
		}
		err = leadTerm(ctx, p, store, *opts, granted, term)
		resign(ctx, elector)
		if err != nil {
			return err
		}
	}
	return nil
}

// leadTerm works until the term or ctx ends.
func leadTerm(ctx context.Context, p nstance.Provider, store storage.Store, o Options, granted *lease.Term, term func(ctx context.Context, r *Reconciler)) error {
	work, stop := context.WithCancel(granted.Context())
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	o.Epoch, o.Check = granted.Epoch(), granted.Err
	if o.Elapsed == nil {
		o.Elapsed = lease.Elapsed()
	}
	r, err := New(p, store, &o)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	if term != nil {
		wg.Go(func() { term(work, r) })
	}
	defer stop()
	return r.Run(work)
}

// resign gives the lease back. A lease that cannot be given back runs out by itself.
func resign(ctx context.Context, elector lease.Elector) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignTimeout)
	defer cancel()
	_ = elector.Resign(ctx)
}

// leaseOptions returns those of Lead.
func (r *Reconciler) leaseOptions() *lease.Options {
	var o lease.Options
	if r.opts.Lease != nil {
		o = *r.opts.Lease
	}
	if o.Log == nil {
		o.Log = r.log
	}
	if o.Marks == nil {
		o.Marks = r.highestEpoch
	}
	return &o
}

// highestEpoch returns the highest epoch that a machine of the shard is marked with,
// for a store that has lost the lease.
func (r *Reconciler) highestEpoch(ctx context.Context) (top uint64, err error) {
	for m, err := range r.provider.List(ctx, r.opts.Owner) {
		if err != nil {
			return 0, err
		}
		top = max(top, m.Epoch)
	}
	return top, nil
}

// Coordinator returns the coordinator of r's drains; nil if Options.Drains is another
// implementation.
func (r *Reconciler) Coordinator() *drain.Coordinator {
	c, _ := r.opts.Drains.(*drain.Coordinator)
	return c
}
