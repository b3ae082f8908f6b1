package registration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
)

// A Keyring keeps the keys of a process as the vault has them. Its users hold
// Keys and see every change; [Keyring.Refresh] brings one about, at intervals,
// and [Keyring.Rotate] is how it comes into the world. It is safe for concurrent
// use.
type Keyring struct {
	vault Vault
	now   func() time.Time
	keys  *Keys
	turn  chan struct{} // holds a token while somebody reads or changes the vault

	known  map[object]material // under turn: what has been loaded
	seen   atomic.Pointer[Catalogue]
	lookAt atomic.Pointer[time.Time] // when the vault was last read
	turns  atomic.Uint64             // how often the keys have changed
}

// An object is one generation of a key set.
type object struct {
	set        string
	generation int
}

// material is the key itself: of an authority or of nonces.
type material struct {
	authority *signer
	nonce     *NonceKey
}

func (m material) entry(generation int) KeyEntry {
	if m.nonce != nil {
		return KeyEntry{Generation: generation, ID: m.nonce.id}
	}
	return KeyEntry{Generation: generation, ID: m.authority.id(), NotAfter: m.authority.cert.NotAfter.UTC()}
}

// OpenKeyring returns the cluster's keys, making those that do not exist, as
// Bootstrap does.
func OpenKeyring(ctx context.Context, v Vault, now func() time.Time) (*Keyring, error) {
	r := &Keyring{vault: v, now: now, turn: make(chan struct{}, 1), known: map[object]material{}}
	at := now()
	c, err := ensureCatalogue(ctx, v, at)
	if err != nil {
		return nil, err
	}
	loaded, err := r.load(ctx, c)
	if err != nil {
		return nil, err
	}
	r.keys = &Keys{Identity: &Authority{name: Identity}, Workload: &Authority{name: Workload}, Nonces: &NonceKeys{}}
	r.use(c, loaded, at)
	if r.keys.Installation, err = ensureInstallation(ctx, v); err != nil {
		return nil, err
	}
	return r, nil
}

// Keys returns the keys, the same ones at every call.
func (r *Keyring) Keys() *Keys { return r.keys }

// Set returns the keys of one set as last read, from the oldest to the newest.
func (r *Keyring) Set(name string) KeySet { return r.seen.Load().Sets[name].clone() }

// ReadAt returns when the vault was last read.
func (r *Keyring) ReadAt() time.Time { return *r.lookAt.Load() }

// Changes returns how often the keys have changed, by whatever call.
func (r *Keyring) Changes() uint64 { return r.turns.Load() }

// Refresh reads the catalogue, which is one small object, and if it has changed
// the keys that are new. It reports whether anything changed. After an error the
// keys are what they were.
func (r *Keyring) Refresh(ctx context.Context) (changed bool, err error) {
	if err := r.take(ctx); err != nil {
		return false, err
	}
	defer r.give()
	at := r.now()
	c, err := r.vault.Catalogue(ctx)
	if err != nil {
		return false, err
	}
	return r.adopt(ctx, c, at)
}

// adopt puts the keys of a catalogue to use.
func (r *Keyring) adopt(ctx context.Context, c Catalogue, at time.Time) (changed bool, err error) {
	if reflect.DeepEqual(c, *r.seen.Load()) {
		r.lookAt.Store(&at)
		return false, nil
	}
	loaded, err := r.load(ctx, c)
	if err != nil {
		return false, err
	}
	r.use(c, loaded, at)
	return true, nil
}

func (r *Keyring) take(ctx context.Context) error {
	select {
	case r.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "wait for the catalogue of keys: %w", ctx.Err())
	}
}

func (r *Keyring) give() { <-r.turn }

// load returns the keys that a catalogue names. It reads only what it has not
// read before: a key never changes.
func (r *Keyring) load(ctx context.Context, c Catalogue) (map[object]material, error) {
	loaded := map[object]material{}
	for _, name := range sets {
		s, ok := c.Sets[name]
		if !ok {
			return nil, nstance.Errorf(nstance.Invalid, "the catalogue of keys does not name the %s keys any more: restore it from a backup", name)
		}
		if err := s.validate(name); err != nil {
			return nil, err
		}
		for _, k := range s.Keys {
			m, err := r.material(ctx, name, k)
			if err != nil {
				return nil, err
			}
			loaded[object{name, k.Generation}] = m
		}
	}
	return loaded, nil
}

func (r *Keyring) material(ctx context.Context, set string, k KeyEntry) (material, error) {
	at := object{set, k.Generation}
	m, ok := r.known[at]
	if !ok {
		var err error
		if m, err = loadMaterial(ctx, r.vault, set, k.Generation); err != nil {
			return m, err
		}
	}
	if id := m.entry(k.Generation).ID; id != k.ID {
		return m, nstance.Errorf(nstance.Invalid, "%s is key %s, the catalogue says %s", keyObject(set, k.Generation), id, clip(k.ID))
	}
	r.known[at] = m
	return m, nil
}

// use makes loaded, which c names, the keys of this process.
func (r *Keyring) use(c Catalogue, loaded map[object]material, at time.Time) {
	for name, a := range map[string]*Authority{Identity: r.keys.Identity, Workload: r.keys.Workload} {
		var current *signer
		var trusted []*signer
		for _, k := range c.Sets[name].Keys {
			m := loaded[object{name, k.Generation}]
			if trusted = append(trusted, m.authority); k.Phase == PhaseCurrent {
				current = m.authority
			}
		}
		a.now.Store(newSigners(current, trusted))
	}
	var nonces []*NonceKey
	for _, k := range c.Sets[Nonces].Keys {
		if key := loaded[object{Nonces, k.Generation}].nonce; k.Phase == PhaseCurrent {
			nonces = append([]*NonceKey{key}, nonces...)
		} else {
			nonces = append(nonces, key)
		}
	}
	r.keys.Nonces.now.Store(&nonces)
	maps.DeleteFunc(r.known, func(o object, _ material) bool { _, ok := loaded[o]; return !ok })
	r.seen.Store(&c)
	r.turns.Add(1)
	r.lookAt.Store(&at)
}

// loadMaterial reads one generation of a set.
func loadMaterial(ctx context.Context, v Vault, set string, generation int) (material, error) {
	keyName := keyObject(set, generation)
	keyPEM, err := v.Get(ctx, keyName)
	if err != nil {
		return material{}, absent(keyName, err)
	}
	if set == Nonces {
		key, err := LoadNonceKey(keyPEM)
		if err != nil {
			return material{}, fmt.Errorf("%s: %w", keyName, err)
		}
		return material{nonce: key}, nil
	}
	certName := certObject(set, generation)
	certPEM, err := v.Get(ctx, certName)
	if err != nil {
		return material{}, absent(certName, err)
	}
	name, one, err := loadSigner(certPEM, keyPEM)
	switch {
	case err != nil:
		return material{}, fmt.Errorf("%s and %s: %w", certName, keyName, err)
	case name != set:
		return material{}, nstance.Errorf(nstance.Invalid, "%s is of the %s authority", certName, name)
	}
	return material{authority: one}, nil
}

// absent makes it an error for a person that an object is missing which the
// catalogue names, or which has just been written.
func absent(name string, err error) error {
	if errors.Is(err, nstance.NotFound) {
		return nstance.Errorf(nstance.Invalid, "%s is missing: restore it from a backup", name)
	}
	return fmt.Errorf("%s: %w", name, err)
}
