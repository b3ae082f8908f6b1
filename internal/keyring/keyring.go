package keyring

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// A Keyring keeps the keys of a process equal to those in the vault. Users hold
// its Keys, which change in place: [Keyring.Refresh] reads the vault and is called
// periodically, [Keyring.Rotate] changes the vault. It is safe for concurrent use.
type Keyring struct {
	vault Vault
	now   func() time.Time
	keys  *Keys

	vaultLock chan struct{} // a mutex that can be awaited with a context; guards loaded
	loaded    map[object]material

	catalogue atomic.Pointer[Catalogue] // as last read
	readAt    atomic.Pointer[time.Time]
	changes   atomic.Uint64
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

// OpenKeyring returns the cluster's keys and creates those that do not exist, as
// Bootstrap does.
func OpenKeyring(ctx context.Context, v Vault, now func() time.Time) (*Keyring, error) {
	r := &Keyring{vault: v, now: now, vaultLock: make(chan struct{}, 1), loaded: map[object]material{}}
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

// Cluster returns the cluster that the keys belong to, as last read; empty: the vault does
// not say yet.
func (r *Keyring) Cluster() nstance.ClusterID { return r.catalogue.Load().Cluster }

// Claim says in the vault which cluster the keys belong to, and where they are, unless it
// does; location empty: not known. It fails with Invalid when they belong to another cluster,
// and when they are a copy.
func (r *Keyring) Claim(ctx context.Context, id nstance.ClusterID, location string) error {
	if err := r.lockVault(ctx); err != nil {
		return err
	}
	defer r.unlockVault()
	if c := r.catalogue.Load(); c.Cluster == "" || c.Location == "" && location != "" {
		at := r.now()
		c, err := r.vault.UpdateCatalogue(ctx, func(c *Catalogue) error {
			c.Cluster, c.Location = cmp.Or(c.Cluster, id), cmp.Or(c.Location, location)
			return nil
		})
		if err != nil {
			return err
		}
		if _, err := r.adopt(ctx, c, at); err != nil {
			return err
		}
	}
	return errors.Join(r.Check(id), r.checkLocation(location))
}

// checkLocation fails with Invalid when the vault says that it is elsewhere.
func (r *Keyring) checkLocation(location string) error {
	was := r.catalogue.Load().Location
	if location == "" || was == location {
		return nil
	}
	return nstance.FieldError("storage", "use the original; where this one is to replace it, stop every server of the original, then nstance-admin restore --in-place",
		"is a copy: it was %s and is now %s. Servers of both would delete each other's machines", was, location)
}

// Check fails with Invalid when the vault says that its keys belong to another cluster.
func (r *Keyring) Check(id nstance.ClusterID) error {
	if is := r.Cluster(); is != "" && is != id {
		return nstance.FieldError("cluster.id", "correct it, or use another storage: clusters do not share one", "this storage is of cluster %s, not of %.64s", is, id)
	}
	return nil
}

// Keys returns the keys, the same pointer at every call.
func (r *Keyring) Keys() *Keys { return r.keys }

// Set returns the keys of one set as last read, from the oldest to the newest.
func (r *Keyring) Set(name string) KeySet { return r.catalogue.Load().Sets[name].clone() }

// ReadAt returns when the vault was last read.
func (r *Keyring) ReadAt() time.Time { return *r.readAt.Load() }

// Changes returns how often the keys have changed.
func (r *Keyring) Changes() uint64 { return r.changes.Load() }

// Refresh reads the catalogue, which is one small object, and the new keys if it
// has changed. It reports whether anything changed. After an error the keys are
// unchanged.
func (r *Keyring) Refresh(ctx context.Context) (changed bool, err error) {
	if err := r.lockVault(ctx); err != nil {
		return false, err
	}
	defer r.unlockVault()
	at := r.now()
	c, err := r.vault.Catalogue(ctx)
	if err != nil {
		return false, err
	}
	return r.adopt(ctx, c, at)
}

// adopt puts the keys of a catalogue into use.
func (r *Keyring) adopt(ctx context.Context, c Catalogue, at time.Time) (changed bool, err error) {
	if reflect.DeepEqual(c, *r.catalogue.Load()) {
		r.readAt.Store(&at)
		return false, nil
	}
	loaded, err := r.load(ctx, c)
	if err != nil {
		return false, err
	}
	r.use(c, loaded, at)
	return true, nil
}

func (r *Keyring) lockVault(ctx context.Context) error {
	select {
	case r.vaultLock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "wait for the catalogue of keys: %w", ctx.Err())
	}
}

func (r *Keyring) unlockVault() { <-r.vaultLock }

// load returns the keys that a catalogue names. It reads each key only once,
// because a key never changes.
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
	m, ok := r.loaded[at]
	if !ok {
		var err error
		if m, err = loadMaterial(ctx, r.vault, set, k.Generation); err != nil {
			return m, err
		}
	}
	if id := m.entry(k.Generation).ID; id != k.ID {
		return m, nstance.Errorf(nstance.Invalid, "%s is key %s, the catalogue says %s", keyObject(set, k.Generation), id, clip.Quote(k.ID))
	}
	r.loaded[at] = m
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
		a.signers.Store(newSigners(current, trusted))
	}
	var nonces []*NonceKey
	for _, k := range c.Sets[Nonces].Keys {
		if key := loaded[object{Nonces, k.Generation}].nonce; k.Phase == PhaseCurrent {
			nonces = append([]*NonceKey{key}, nonces...)
		} else {
			nonces = append(nonces, key)
		}
	}
	r.keys.Nonces.keys.Store(&nonces)
	maps.DeleteFunc(r.loaded, func(o object, _ material) bool { _, ok := loaded[o]; return !ok })
	r.catalogue.Store(&c)
	r.changes.Add(1)
	r.readAt.Store(&at)
}

// loadMaterial reads one generation of a set.
func loadMaterial(ctx context.Context, v Vault, set string, generation int) (material, error) {
	keyName := keyObject(set, generation)
	keyPEM, err := v.Get(ctx, keyName)
	if err != nil {
		return material{}, missingObject(keyName, err)
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
		return material{}, missingObject(certName, err)
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

// missingObject turns NotFound into Invalid: the catalogue names the object, or it
// has just been written, so an operator must restore it.
func missingObject(name string, err error) error {
	if errors.Is(err, nstance.NotFound) {
		return nstance.Errorf(nstance.Invalid, "%s is missing: restore it from a backup", name)
	}
	return fmt.Errorf("%s: %w", name, err)
}
