package lease

import (
	"context"
	"errors"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/storage"
)

// A Sighting is a shard's lease as it was read once. It names the holder of the
// lease and does not prove that the holder leads: for that the lease must be seen
// to change within TTL.
type Sighting struct {
	Holder
	TTL     time.Duration   // after each change no other process leads for so long
	Version storage.Version // changes with each renewal; empty: there is no lease
}

// Look reads a shard's lease to show it. It takes no part in any election. No lease is the zero Sighting; one that cannot be read is
// Invalid. Fails otherwise like the storage.
func Look(ctx context.Context, s storage.Store, shard nstance.ShardID) (Sighting, error) {
	if err := shard.Validate("shard"); err != nil {
		return Sighting{}, err
	}
	obj, err := s.Get(ctx, layout.LeaseKey(shard))
	if errors.Is(err, nstance.NotFound) {
		return Sighting{}, nil
	}
	if err != nil {
		return Sighting{}, err
	}
	at, err := decode(obj)
	if err != nil {
		return Sighting{}, err
	}
	return Sighting{
		Holder: Holder{ID: at.Holder, Address: at.Address, Registration: at.Registration, Peer: at.Peer, Epoch: at.Epoch, Released: at.Released},
		TTL:    at.ttl(), Version: at.version,
	}, nil
}
