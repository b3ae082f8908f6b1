package keyring

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// maxTries bounds how often a step is repeated after concurrent changes.
const maxTries = 5

// A Rotation is one step of a key set's rotation.
type Rotation struct {
	Set    string // Identity, Workload or Nonces
	Step   Step
	DryRun bool // return the resulting set without changing anything
	// Free is called before StepFinish destroys a retired key. It returns nil
	// when nothing depends on the key any more. Nil forces the step.
	Free func(ctx context.Context, retired KeyEntry) error
}

// errConcurrentChange means that the catalogue was changed at the same time.
var errConcurrentChange = errors.New("the catalogue was changed concurrently")

// Rotate performs a step and returns the resulting set, which has no keys if the step
// was not done: a key that could not be destroyed is an error of a step that was. Steps are idempotent, also
// after a crash of another process within the step. It fails with Conflict when
// the step is not the next one or must wait, with the reason; with Invalid for a
// set or a step that does not exist.
//
// A key's objects are written before the catalogue names it, and destroyed after
// it has been removed from the catalogue.
func (r *Keyring) Rotate(ctx context.Context, o Rotation) (KeySet, error) {
	if !slices.Contains(sets, o.Set) {
		return KeySet{}, nstance.FieldError("name", "use identity, workload or nonce", "there are no %q keys", clip.Quote(o.Set))
	}
	if err := r.lockVault(ctx); err != nil {
		return KeySet{}, err
	}
	defer r.unlockVault()
	for range maxTries {
		s, err := r.step(ctx, o)
		if !errors.Is(err, errConcurrentChange) {
			return s, err
		}
	}
	return KeySet{}, nstance.Errorf(nstance.Conflict, "%s of the %s keys: they were changed concurrently %d times, repeat it", o.Step, o.Set, maxTries)
}

func (r *Keyring) step(ctx context.Context, o Rotation) (KeySet, error) {
	at := r.now()
	c, err := r.vault.Catalogue(ctx)
	if err != nil {
		return KeySet{}, err
	}
	if _, err := r.adopt(ctx, c, at); err != nil {
		return KeySet{}, err
	}
	next, err := r.next(ctx, c.Sets[o.Set], o, at.UTC())
	switch {
	case err != nil:
		return KeySet{}, err
	case o.DryRun:
		return next, nil
	}
	if c, err = r.vault.UpdateCatalogue(ctx, replace(o.Set, c.Sets[o.Set], next)); err != nil {
		return KeySet{}, err
	}
	if _, err := r.adopt(ctx, c, at); err != nil {
		return KeySet{}, err
	}
	if err := r.destroy(ctx, o.Set); err != nil { // the step is done; the next one repeats the destruction
		return r.Set(o.Set), fmt.Errorf("%s is done, but a private key has not been destroyed, repeat the step: %w", o.Step, err)
	}
	return r.Set(o.Set), nil
}

// replace changes one set of a catalogue from old to next, unless it has been
// changed concurrently.
func replace(name string, old, next KeySet) func(*Catalogue) error {
	return func(c *Catalogue) error {
		if !slices.Equal(c.Sets[name].Keys, old.Keys) || c.Sets[name].Last != old.Last {
			return errConcurrentChange
		}
		*c = c.with(name, next)
		return nil
	}
}

// next returns the set after a step.
func (r *Keyring) next(ctx context.Context, s KeySet, o Rotation, now time.Time) (KeySet, error) {
	switch o.Step {
	case StepBegin:
		todo, err := s.mayBegin(o.Set)
		if !todo {
			return s, err
		}
		return r.begin(ctx, s, o, now)
	case StepActivate:
		return s.activated(o.Set, now)
	case StepFinish:
		return s.finished(ctx, o, now)
	case StepAbort:
		return s.aborted(o.Set)
	}
	return s, nstance.FieldError("step", "use begin, activate, finish or abort", "there is no step %q", clip.Quote(string(o.Step)))
}

// begin creates the next generation. It uses objects that a crashed process
// created before the catalogue named them.
func (r *Keyring) begin(ctx context.Context, s KeySet, o Rotation, now time.Time) (KeySet, error) {
	generation := s.Last + 1
	if o.DryRun {
		return s.begun(KeyEntry{Generation: generation}, now), nil
	}
	if err := ensureKey(ctx, r.vault, o.Set, generation, now); err != nil {
		return s, err
	}
	m, err := loadMaterial(ctx, r.vault, o.Set, generation)
	if err != nil {
		return s, err
	}
	return s.begun(m.entry(generation), now), nil
}

// finished removes the retired key, once nothing depends on it.
func (s KeySet) finished(ctx context.Context, o Rotation, now time.Time) (KeySet, error) {
	k, ok, err := s.retirable(o.Set, now)
	if !ok {
		return s, err
	}
	if o.Free != nil {
		if err != nil {
			return s, err
		}
		if err := o.Free(ctx, k); err != nil {
			return s, err
		}
	}
	return s.without(PhaseRetired), nil
}

// destroy destroys the private keys of removed generations. Each step repeats it
// until all are destroyed.
func (r *Keyring) destroy(ctx context.Context, set string) error {
	gone := r.catalogue.Load().Sets[set].Gone
	if len(gone) == 0 {
		return nil
	}
	for _, generation := range gone {
		if err := r.vault.Destroy(ctx, keyObject(set, generation)); err != nil {
			return fmt.Errorf("%s: %w", keyObject(set, generation), err)
		}
	}
	at := r.now()
	c, err := r.vault.UpdateCatalogue(ctx, func(c *Catalogue) error {
		s := c.Sets[set].clone()
		s.Gone = slices.DeleteFunc(s.Gone, func(g int) bool { return slices.Contains(gone, g) })
		if len(s.Gone) == 0 {
			s.Gone = nil
		}
		*c = c.with(set, s)
		return nil
	})
	if err != nil {
		return err
	}
	_, err = r.adopt(ctx, c, at)
	return err
}

// UseUntil records that something signed with a key is valid until then, so that
// StepFinish waits for it. Nothing changes if a later time is recorded already, or
// the key has been removed.
func (r *Keyring) UseUntil(ctx context.Context, set, id string, until time.Time) error {
	until = until.UTC().Truncate(time.Second)
	_, err := r.vault.UpdateCatalogue(ctx, func(c *Catalogue) error {
		s := c.Sets[set].clone()
		for i, k := range s.Keys {
			if k.ID == id && k.UsedUntil.Before(until) {
				s.Keys[i].UsedUntil = until
			}
		}
		*c = c.with(set, s)
		return nil
	})
	return err
}
