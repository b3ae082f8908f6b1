package registrar

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/registration"
)

// maxNamed is how many holders an error names.
const maxNamed = 3

// dependsOn reports whether an instance depends on a key of a set, and until when
// at most; zero: unknown.
func dependsOn(set string, k keyring.KeyEntry, rec records.Instance, now time.Time) (yes bool, until time.Time) {
	if rec.Deleting != nil {
		return false, time.Time{}
	}
	switch set {
	case keyring.Nonces:
		until = rec.RegisterBy()
		return rec.NonceKeyID == k.ID && now.Before(until), until
	case keyring.Identity:
		return dependsOnIdentity(k.ID, rec)
	}
	return false, time.Time{}
}

func dependsOnIdentity(id string, rec records.Instance) (yes bool, until time.Time) {
	if rec.Current == nil { // not registered: it trusts the authorities in its user data; or an adopted machine
		trustsAnother := slices.ContainsFunc(rec.Authorities, func(a string) bool { return a != id })
		return !trustsAnother || rec.Registered(), time.Time{}
	}
	for _, c := range []*records.KeyRecord{rec.Current, rec.Pending} {
		if c != nil && c.Issuer == id {
			yes, until = true, c.NotAfter
		}
	}
	return yes, until
}

// holders counts what depends on one key.
type holders struct {
	mu        sync.Mutex
	names     []string       // the first few
	places    map[string]int // count by shard, and of operators
	count     int
	lastUntil time.Time // when the last of those with a known end expires
	endless   bool      // some have no known end
}

func (h *holders) add(place, name string, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.places == nil {
		h.places = map[string]int{}
	}
	h.count++
	h.places[place]++
	if len(h.names) < maxNamed {
		h.names = append(h.names, name)
	}
	if until.IsZero() {
		h.endless = true
	} else if until.After(h.lastUntil) {
		h.lastUntil = until
	}
}

// err fails with Conflict while there are holders.
func (h *holders) err(set string, k keyring.KeyEntry) error {
	if h.count == 0 {
		return nil
	}
	var where []string
	for place, n := range h.places {
		where = append(where, fmt.Sprintf("%d in %s", n, place))
	}
	slices.Sort(where)
	remedy := "wait until they have renewed, delete those that will not, or finish with force"
	if set == keyring.Nonces && !h.endless {
		remedy = "wait until they have expired, at " + h.lastUntil.UTC().Format(time.RFC3339) + ", or finish with force"
	}
	return &nstance.Error{
		Code: nstance.Conflict, Field: "step", Remedy: remedy,
		Msg: fmt.Sprintf("%d still depend on %s key %s (%s), such as %s", h.count, set, k.ID, strings.Join(where, ", "), strings.Join(h.names, ", ")),
	}
}

// CountInstances counts the instances of this shard that depend on a key, from memory,
// and returns when the last of them expires by itself. known is false where that is
// unknown of some.
func (r *Records) CountInstances(set string, k keyring.KeyEntry) (n int, until time.Time, known bool) {
	h := &holders{}
	r.addInstances(set, k, h)
	return h.count, h.lastUntil, !h.endless
}

func (r *Records) addInstances(set string, k keyring.KeyEntry, h *holders) {
	now := r.Now()
	for _, rec := range r.shard.Records().All() {
		if rec.Pending != nil && r.Successors.Used(string(rec.ID), rec.Pending.Serial) {
			rec.Current, rec.Pending = rec.Pending, nil // not durable yet
		}
		if yes, until := dependsOn(set, k, rec, now); yes {
			h.add("shard "+string(r.Shard), string(rec.ID), until)
		}
	}
}

// Unused returns a function that fails with Conflict while anything in any shard
// depends on a retired key of the set. Records that cannot be read count.
func (r *Records) Unused(set string) func(context.Context, keyring.KeyEntry) error {
	return func(ctx context.Context, k keyring.KeyEntry) error {
		if set == keyring.Workload {
			return nil // the catalogue of keys says until when it is used
		}
		var h holders
		shards, err := records.Shards(ctx, r.store)
		if err != nil {
			return err
		}
		for _, shard := range shards {
			if shard != r.Shard {
				if err := r.addOtherShard(ctx, shard, set, k, &h); err != nil {
					return err
				}
			}
		}
		r.addInstances(set, k, &h)
		for _, p := range r.shard.Records().Problems() {
			h.add("shard "+string(r.Shard), "the unreadable "+p.Key, time.Time{})
		}
		if set == keyring.Identity {
			if err := r.addOperators(ctx, k, &h); err != nil {
				return err
			}
		}
		return h.err(set, k)
	}
}

// addOtherShard counts the instances of another shard, from storage.
func (r *Records) addOtherShard(ctx context.Context, shard nstance.ShardID, set string, k keyring.KeyEntry, h *holders) error {
	recs, problems, err := records.New(r.store, shard, nil).Load(ctx)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		if yes, until := dependsOn(set, k, rec, r.Now()); yes {
			h.add("shard "+string(shard), string(rec.ID), until)
		}
	}
	for _, p := range problems {
		h.add("shard "+string(shard), "the unreadable "+p.Key, time.Time{})
	}
	return nil
}

// addOperators counts operators and administrators with a valid certificate.
func (r *Records) addOperators(ctx context.Context, k keyring.KeyEntry, h *holders) error {
	now := r.Now()
	list, unreadable, err := r.Operators(ctx)
	if err != nil {
		return err
	}
	for key := range unreadable {
		h.add("operators", "the unreadable "+key, time.Time{})
	}
	for _, o := range list {
		for _, c := range []*registration.KeyRecord{o.Current, o.Pending} {
			if !o.Revoked && c != nil && now.Before(c.NotAfter) && c.Issuer == k.ID {
				h.add("operators", string(o.Tenant)+"/"+o.Name, c.NotAfter)
			}
		}
	}
	return nil
}
