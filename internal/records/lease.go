package records

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/storage"
)

// The limits of a lease's TTL. MaxLeaseTTL is also how long a missing lease must stay
// missing, since the TTL of its last holder is not known then.
const (
	MinLeaseTTL = time.Second
	MaxLeaseTTL = 60 * time.Second
)

// A Lease is lease/{shard}.json, as package lease writes it. It names the holder and
// does not prove that the holder leads: for that the lease must be seen to change
// within TTL. A Lease is never changed in place.
type Lease struct {
	Header
	Holder  string `json:"holder"` // random, new with every process
	Address string `json:"address,omitempty"`
	Peer    string `json:"peer,omitempty"`

	Registration string `json:"registration,omitempty"`
	TTLMillis    int64  `json:"ttl_ms"`
	Released     bool   `json:"released"` // by its holder; it may be taken at once

	Version storage.Version `json:"-"` // changes with each renewal; empty: there is no lease
	unknown Unknown
}

// TTL is how long the lease must stay unchanged before it may be taken. A
// missing TTL counts as the longest one, a TTL out of range as the nearest limit.
func (l *Lease) TTL() time.Duration {
	if l.Version == "" || l.TTLMillis <= 0 || l.TTLMillis > MaxLeaseTTL.Milliseconds() {
		return MaxLeaseTTL
	}
	return max(time.Duration(l.TTLMillis)*time.Millisecond, MinLeaseTTL)
}

// Next returns the lease that replaces l, with a write ID of its own.
func (l *Lease) Next(epoch uint64) Lease {
	next := *l
	next.Header, next.Version = NextHeader(l.Header, epoch), ""
	return next
}

// Encode returns what is written.
func (l *Lease) Encode() ([]byte, error) { return Encode(*l, l.unknown) }

// DecodeLease reads a lease. One that is damaged, or of another major format, is
// Invalid: it exists, and no server may take it.
func DecodeLease(obj storage.Object) (Lease, error) {
	l, unknown, err := Decode[Lease](obj.Key, obj.Data)
	l.Version, l.unknown = obj.Version, unknown
	return l, err
}

// ReadLease reads a shard's lease to show it, and takes no part in any election. No
// lease is the zero Lease; one that cannot be read is Invalid. Fails otherwise like
// the storage.
func ReadLease(ctx context.Context, s storage.Store, shard nstance.ShardID) (Lease, error) {
	if err := validate.Shard("shard", shard); err != nil {
		return Lease{}, err
	}
	obj, err := s.Get(ctx, layout.LeaseKey(shard))
	if errors.Is(err, nstance.NotFound) {
		return Lease{}, nil
	}
	if err != nil {
		return Lease{}, err
	}
	return DecodeLease(obj)
}

// Preparable reports whether a shard has never been led: it has neither a lease nor
// another document of a leader.
func Preparable(ctx context.Context, s storage.Store, shard nstance.ShardID) (bool, error) {
	if l, err := ReadLease(ctx, s, shard); err != nil || l.Version != "" {
		return false, err
	}
	return Untouched(ctx, s, shard)
}

// Untouched reports whether a shard has no document of a leader beside its lease:
// no record and no state, readable or not.
func Untouched(ctx context.Context, s storage.Store, shard nstance.ShardID) (bool, error) {
	for _, key := range layout.ShardKeys(shard) {
		if _, err := s.Get(ctx, key); !errors.Is(err, nstance.NotFound) {
			return false, err
		}
	}
	for entry, err := range s.List(ctx, layout.InstancePrefix(shard), "") {
		if err != nil || !strings.HasSuffix(entry.Key, "/") { // a console made a folder
			return false, err
		}
	}
	return true, nil
}
