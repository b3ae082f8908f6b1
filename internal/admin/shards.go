package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/storage"
)

const (
	leaseInterval = 200 * time.Millisecond // between two looks at a lease
	readsAtOnce   = 16                     // objects that one command reads at a time
)

// The states of a ShardLease.
const (
	leaseLed        = "led"        // it was seen to be renewed
	leaseHeld       = "held"       // not given back; not watched long enough to know whether it is renewed
	leaseSilent     = "silent"     // not renewed for its ttl: no server leads, except a single server that shares no lease
	leaseReleased   = "released"   // given back
	leaseMissing    = "missing"    // the shard has been led, or has records, and there is no lease
	leaseNew        = "new"        // no server has ever led
	leaseUnreadable = "unreadable" // no server can lead
)

// A ShardLease is a shard's lease as storage shows it.
type ShardLease struct {
	Shard      nstance.ShardID   `json:"shard"`
	Cluster    nstance.ClusterID `json:"cluster,omitempty"` // as its configuration in storage says
	State      string            `json:"state"`             // led, held, silent, released, missing, new or unreadable
	Epoch      uint64            `json:"epoch,omitempty"`
	Holder     string            `json:"holder,omitempty"`      // random, new with every process
	Address    string            `json:"address,omitempty"`     // operator API, if it tells
	TTLSeconds float64           `json:"ttl_seconds,omitempty"` // how long the lease lasts after each renewal
	Until      time.Time         `json:"until,omitzero"`        // state led: no other server leads before, by this machine's clock
	Error      string            `json:"error,omitempty"`       // why the lease cannot be read
}

// shardsIn returns the shards that have any object in a store.
func shardsIn(ctx context.Context, store storage.Store) ([]nstance.ShardID, error) {
	found := map[nstance.ShardID]bool{}
	for _, where := range []struct{ folder, ext string }{{"lease/", ".json"}, {"config/", ".jsonc"}, {"accepted/", ".json"}} {
		for e, err := range store.List(ctx, where.folder, "") {
			if err != nil {
				return nil, err
			}
			name, ok := strings.CutSuffix(strings.TrimPrefix(e.Key, where.folder), where.ext)
			if shard := nstance.ShardID(name); ok && validate.Shard("", shard) == nil {
				found[shard] = true
			}
		}
	}
	recorded, err := records.Shards(ctx, store)
	if err != nil {
		return nil, err
	}
	for _, shard := range recorded {
		if validate.Shard("", shard) == nil {
			found[shard] = true
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// configOf returns the configuration of a shard in storage: the accepted one or,
// before a server has led, the proposed one. It fails with NotFound when there is
// none, Invalid when it cannot be read.
func configOf(ctx context.Context, store storage.Store, shard nstance.ShardID) (*config.Config, error) {
	type accepted struct {
		records.Header
		Name string `json:"name"`
		Data []byte `json:"data"`
	}
	known, err := records.NewDoc[accepted](store, layout.AcceptedKey(shard), nil).Load(ctx)
	if err != nil {
		return nil, err
	}
	if len(known.Data) > 0 {
		return config.Parse(known.Name, known.Data)
	}
	obj, err := store.Get(ctx, layout.ConfigKey(shard))
	if err != nil {
		return nil, err
	}
	return config.Parse(obj.Key, obj.Data)
}

// A leaseWatch reads the leases of several shards until it is known of each whether
// it is renewed.
type leaseWatch struct {
	store  storage.Store
	now    func() time.Time
	limit  time.Duration // of the whole watch
	leases []*watchedLease
}

// A watchedLease is one of them.
type watchedLease struct {
	ShardLease
	first     records.Lease
	since     time.Time // when the current one was first read
	askedAt   time.Time // when it was last asked for
	undecided bool      // nothing is known yet
}

func (w *leaseWatch) run(ctx context.Context) error {
	began := w.now()
	for {
		if err := w.readUndecided(ctx); err != nil {
			return err
		}
		if !slices.ContainsFunc(w.leases, func(l *watchedLease) bool { return l.undecided }) || w.now().Sub(began) >= w.limit {
			return nil
		}
		sleep.For(ctx, leaseInterval)
		if ctx.Err() != nil {
			return nstance.Errorf(nstance.Unavailable, "interrupted: %w", ctx.Err())
		}
	}
}

// readUndecided reads every lease that is not decided yet.
func (w *leaseWatch) readUndecided(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
	for _, l := range w.leases {
		if l.undecided {
			g.Go(func() error { return w.read(ctx, l) })
		}
	}
	return g.Wait()
}

// read reads one lease. It was written before the answer and, if it has changed,
// after the last request.
func (w *leaseWatch) read(ctx context.Context, l *watchedLease) error {
	asked := w.now()
	s, err := records.ReadLease(ctx, w.store, l.Shard)
	switch {
	case nstance.CodeOf(err) == nstance.Invalid:
		l.State, l.Error, l.undecided = leaseUnreadable, err.Error(), false
		return nil
	case err != nil:
		return err
	}
	first := l.since.IsZero()
	if changed := first || s.Version != l.first.Version; changed {
		l.apply(s)
		if !first && l.undecided {
			l.State, l.Until, l.undecided = leaseLed, l.askedAt.Add(s.TTL()).UTC(), false
		}
		l.first, l.since = s, w.now()
	} else if w.now().Sub(l.since) > s.TTL() {
		l.State, l.undecided = leaseSilent, false
	}
	l.askedAt = asked
	return nil
}

// apply sets the state that one read shows.
func (l *watchedLease) apply(s records.Lease) {
	l.Epoch, l.Holder, l.Address = s.Epoch, s.Holder, s.Address
	switch {
	case s.Version == "" && l.State != leaseNew:
		l.State, l.undecided = leaseMissing, false
	case s.Version == "", s.Released && s.Epoch == 0: // as Prepare writes it
		l.State, l.undecided = leaseNew, false
	case s.Released:
		l.State, l.undecided = leaseReleased, false
	default:
		l.State, l.undecided, l.TTLSeconds = leaseHeld, true, s.TTL().Seconds()
	}
}

func writeShards(t *table, list []ShardLease) {
	t.row("SHARD", "LEASE", "LEADER", "EPOCH", "UNTIL AT LEAST")
	for _, s := range list {
		leader := s.Address
		if leader == "" && s.Holder != "" {
			leader = "a server without an advertised address"
		}
		epoch := ""
		if s.Epoch > 0 {
			epoch = fmt.Sprint(s.Epoch)
		}
		t.row(string(s.Shard), s.State, leader, epoch, stamp(s.Until))
	}
}
