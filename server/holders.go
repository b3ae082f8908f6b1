package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server/config"
	"github.com/nstance-go/nstance/storage"
)

// maxNamed is how many of many things an error names.
const maxNamed = 3

// leansOn reports whether an instance depends on a key that is being retired,
// and until when at most (zero: nobody knows).
func leansOn(set string, k registration.KeyEntry, rec storage.Instance, now time.Time) (yes bool, until time.Time) {
	if rec.Deleting != nil {
		return false, time.Time{}
	}
	switch set {
	case registration.Nonces:
		until = expiryOf(rec)
		return rec.NonceKeyID == k.ID && now.Before(until), until
	case registration.Identity:
		return leansOnIdentity(k.ID, rec)
	}
	return false, time.Time{}
}

func leansOnIdentity(id string, rec storage.Instance) (yes bool, until time.Time) {
	if rec.Current == nil { // it must still recognise its server by what its user data says, or is an adopted machine
		knowsAnother := slices.ContainsFunc(rec.Authorities, func(a string) bool { return a != id })
		return !knowsAnother || rec.Registered(), time.Time{}
	}
	for _, c := range []*storage.KeyRecord{rec.Current, rec.Pending} {
		if c != nil && c.Issuer == id {
			yes, until = true, c.NotAfter
		}
	}
	return yes, until
}

// A census counts what depends on one key.
type census struct {
	mu     sync.Mutex
	names  []string       // the first few
	shards map[string]int // how many, by where they are
	count  int
	until  time.Time // when the last of them expires by itself, as far as that is known
	open   bool      // of some it is not
}

func (c *census) add(where, name string, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shards == nil {
		c.shards = map[string]int{}
	}
	c.count++
	c.shards[where]++
	if len(c.names) < maxNamed {
		c.names = append(c.names, name)
	}
	if until.IsZero() {
		c.open = true
	} else if until.After(c.until) {
		c.until = until
	}
}

// err says who depends on the key, nil if nobody does.
func (c *census) err(set string, k registration.KeyEntry) error {
	if c.count == 0 {
		return nil
	}
	var where []string
	for shard, n := range c.shards {
		where = append(where, fmt.Sprintf("%d in %s", n, shard))
	}
	slices.Sort(where)
	remedy := "wait until they have renewed, delete those that will not, or finish with force"
	if set == registration.Nonces {
		remedy = "wait until they have expired, at " + c.until.UTC().Format(time.RFC3339) + ", or finish with force"
	}
	return &nstance.Error{
		Code: nstance.Conflict, Field: "step", Remedy: remedy,
		Msg: fmt.Sprintf("%d still depend on %s key %s (%s), such as %s", c.count, set, k.ID, strings.Join(where, ", "), strings.Join(c.names, ", ")),
	}
}

// instances counts those of the term's own shard, from memory.
func (t *term) instances(set string, k registration.KeyEntry, into *census) {
	now := t.server.opts.Now()
	for _, rec := range t.reconciler.Records().All() {
		if rec.Pending != nil && t.used.has(string(rec.ID), rec.Pending.Serial) {
			rec.Current, rec.Pending = rec.Pending, nil // in effect, if not on disk
		}
		if yes, until := leansOn(set, k, rec, now); yes {
			into.add("shard "+string(t.conf.Shard.ID), string(rec.ID), until)
		}
	}
}

// free returns nil when nothing in any shard depends on a retired key. What
// cannot be read may, and counts.
func (t *term) free(set string) func(context.Context, registration.KeyEntry) error {
	return func(ctx context.Context, k registration.KeyEntry) error {
		var c census
		if set == registration.Workload {
			return nil // until when it is used stands in the catalogue
		}
		shards, err := storage.Shards(ctx, t.server.store)
		if err != nil {
			return err
		}
		for _, shard := range shards {
			if shard != t.conf.Shard.ID {
				if err := t.foreign(ctx, shard, set, k, &c); err != nil {
					return err
				}
			}
		}
		t.instances(set, k, &c)
		for _, p := range t.reconciler.Records().Problems() {
			c.add("shard "+string(t.conf.Shard.ID), "the unreadable "+p.Key, time.Time{})
		}
		if set == registration.Identity {
			if err := t.operators(ctx, k, &c); err != nil {
				return err
			}
		}
		return c.err(set, k)
	}
}

// foreign counts the instances of another shard, as storage has them.
func (t *term) foreign(ctx context.Context, shard nstance.ShardID, set string, k registration.KeyEntry, into *census) error {
	recs, problems, err := storage.NewRecords(t.server.store, shard, nil).Load(ctx)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		if yes, until := leansOn(set, k, rec, t.server.opts.Now()); yes {
			into.add("shard "+string(shard), string(rec.ID), until)
		}
	}
	for _, p := range problems {
		into.add("shard "+string(shard), "the unreadable "+p.Key, time.Time{})
	}
	return nil
}

// operators counts operators and administrators whose certificate is good.
func (t *term) operators(ctx context.Context, k registration.KeyEntry, into *census) error {
	now := t.server.opts.Now()
	list, err := t.listOperators(ctx)
	if err != nil {
		return err
	}
	for _, o := range list {
		if o.err != nil {
			into.add("operators", "the unreadable "+o.key, time.Time{})
			continue
		}
		for _, c := range []*registration.KeyRecord{o.Current, o.Pending} {
			if !o.Revoked && c != nil && now.Before(c.NotAfter) && c.Issuer == k.ID {
				into.add("operators", string(o.Tenant)+"/"+o.Name, c.NotAfter)
			}
		}
	}
	return nil
}

// longestValidity is how long a certificate for a file may be valid.
func longestValidity(c *config.Config) (longest time.Duration) {
	for _, cert := range c.Certificates {
		longest = max(longest, cert.Validity)
	}
	return longest
}

// A listedOperator is an operator's record, or why it cannot be read.
type listedOperator struct {
	registration.OperatorRegistration
	key string
	err error
}

// latest returns the newest certificate of the operator.
func (o listedOperator) latest() *registration.KeyRecord {
	if o.Pending != nil {
		return o.Pending
	}
	return o.Current
}

// listOperators reads the records of all operators and administrators, in the
// order of their keys.
func (t *term) listOperators(ctx context.Context) ([]listedOperator, error) {
	var list []listedOperator
	for entry, err := range t.server.store.List(ctx, storage.OperatorPrefix, "") {
		if err != nil {
			return nil, err
		}
		list = append(list, listedOperator{key: entry.Key})
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
	for i := range list {
		g.Go(func() (err error) {
			list[i], err = t.readOperator(ctx, list[i].key)
			return err
		})
	}
	err := g.Wait()
	return slices.DeleteFunc(list, func(o listedOperator) bool { return o.key == "" }), err
}

// readsAtOnce is how many objects one call reads at a time.
const readsAtOnce = 16

// readOperator returns what stands under key. One that is gone meanwhile has no
// key; one that is damaged says so itself; any other error is the call's.
func (t *term) readOperator(ctx context.Context, key string) (listedOperator, error) {
	rec, err := storage.NewDoc[operatorRecord](t.server.store, key, nil).Load(ctx)
	switch {
	case errors.Is(err, nstance.Invalid):
		return listedOperator{key: key, err: err}, nil
	case err != nil:
		return listedOperator{}, err
	case rec.Operator == nil: // gone meanwhile
		return listedOperator{}, nil
	}
	t.used.promote(operatorKey(rec.Operator.Tenant, rec.Operator.Name), &rec.Operator.Succession)
	return listedOperator{OperatorRegistration: *rec.Operator, key: key}, nil
}
