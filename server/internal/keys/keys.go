// Package keys follows the cluster's keys in storage, and makes the server's own
// certificate.
package keys

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/vault"
)

const (
	// certLife is how long the server's own certificate lives. It exists only in
	// memory and is made anew by each process.
	certLife = 24 * time.Hour
	// maxCertLife is how long one lives that was made when the clock had been set back.
	maxCertLife = 3 * certLife
	// DefaultInterval is how often every server, leader or not, reads the
	// cluster's keys: several times within keyring.Settle.
	DefaultInterval = time.Minute
	// readTimeout bounds one read.
	readTimeout = 10 * time.Second
)

// object is where the catalogue of keys is stored.
const object = layout.ClusterLeaseKey

// Options configure Keys. All fields are required.
type Options struct {
	Shard    nstance.ShardID
	Cluster  nstance.ClusterID
	Location string        // of storage; empty: not known
	Interval time.Duration // between two reads, jittered
	Now      func() time.Time
	Changed  func()                // called after the keys have changed
	Tend     func(context.Context) // called after each read
	Log      *slog.Logger
}

// Keys are the cluster's keys as this server knows them.
type Keys struct {
	*keyring.Keys
	Ring *keyring.Keyring

	opts    Options
	handled atomic.Uint64 // changes of the ring that Changed was called for

	mu         sync.Mutex // guards what follows: the server's own certificate
	cert       *tls.Certificate
	certIssuer string
	madeAt     time.Time
}

// Open reads the cluster's keys, or makes them. It fails with Invalid when they are those
// of another cluster, or a copy.
func Open(ctx context.Context, v *vault.Vault, opts Options) (*Keys, error) {
	ring, err := keyring.OpenKeyring(ctx, v, opts.Now)
	if err != nil {
		return nil, err
	}
	if err := ring.Claim(ctx, opts.Cluster, opts.Location); err != nil {
		return nil, err
	}
	k := &Keys{Keys: ring.Keys(), Ring: ring, opts: opts}
	k.handled.Store(ring.Changes())
	_, err = k.Certificate()
	return k, err
}

// Certificate returns the server's own certificate. It is made anew at two thirds
// of its life, when another key signs for servers, and when the clock was set back.
func (k *Keys) Certificate() (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, issuer := k.opts.Now(), k.Identity.ServerIssuer()
	age := now.Sub(k.madeAt)
	if k.cert != nil && k.certIssuer == issuer && age >= 0 && age < certLife*2/3 {
		return k.cert, nil
	}
	life := certLife
	if k.cert != nil && age < 0 { // the clock was wrong before, or is now: this one is good by both
		life = max(certLife, min(k.cert.Leaf.NotAfter.Sub(now), maxCertLife))
	}
	cert, err := k.Identity.Server(k.opts.Shard, k.opts.Cluster, life, now)
	if err != nil {
		return nil, err
	}
	k.cert, k.certIssuer, k.madeAt = cert, issuer, now
	return cert, nil
}

// Run follows the cluster's keys until ctx ends.
func (k *Keys) Run(ctx context.Context) {
	timer := time.NewTimer(k.opts.Interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if err := k.Refresh(ctx); err != nil && ctx.Err() == nil {
			k.opts.Log.Warn("keys cannot be read, using the loaded ones", "code", nstance.CodeOf(err), "err", err)
		}
		k.opts.Tend(ctx)
		timer.Reset(k.opts.Interval - rand.N(k.opts.Interval/10+1)) // servers that began together spread out
	}
}

// Refresh reads the keys once.
func (k *Keys) Refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	_, err := k.Ring.Refresh(ctx)
	k.HandleChanges()
	return err
}

// HandleChanges calls Changed if the keys have changed since it was last called.
func (k *Keys) HandleChanges() {
	if n := k.Ring.Changes(); k.handled.Swap(n) == n {
		return
	}
	k.opts.Log.Info("keys changed", "identity", k.Identity.Issuer(), "identity_trusted", len(k.Identity.Issuers()),
		"workload", k.Workload.Issuer(), "nonce", k.Nonces.KeyID())
	k.opts.Changed()
}

// EnsureFresh reads the keys if they are so old that a rotation may have been
// missed. They are normally read within the last minute.
func (k *Keys) EnsureFresh(ctx context.Context) error {
	if k.age() < keyring.Settle/2 {
		return nil
	}
	return k.Refresh(ctx)
}

func (k *Keys) age() time.Duration { return k.opts.Now().Sub(k.Ring.ReadAt()) }

// Problems returns what operators should see.
func (k *Keys) Problems() []string {
	if age := k.age(); age > keyring.Settle/2 {
		return []string{fmt.Sprintf("the cluster's keys, %s in storage, could not be read for %s: this server would miss a rotation",
			object, age.Truncate(time.Second))}
	}
	return nil
}

// Retired returns the key of a set that is being retired.
func (k *Keys) Retired(set string) (keyring.KeyEntry, bool) {
	for _, e := range k.Ring.Set(set).Keys {
		if e.Phase == keyring.PhaseRetired {
			return e, true
		}
	}
	return keyring.KeyEntry{}, false
}
