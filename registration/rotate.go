package registration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// maxTries bounds how often a step is taken anew because others took one
// meanwhile.
const maxTries = 5

// A Rotation is one step of a key set's rotation.
type Rotation struct {
	Set    string // Identity, Workload or Nonces
	Step   Step
	DryRun bool // say what the set would be, and change nothing
	// Free returns nil when nothing depends on a retired key any more, which
	// finish asks before that goes. Nil asks nobody: finish by force.
	Free func(ctx context.Context, retired KeyEntry) error
}

// errFaster says that somebody else took a step at the same time.
var errFaster = errors.New("others were faster")

// Rotate takes a step and returns the set as it is then. Repeating a step is
// harmless, whoever took it and wherever they died. It fails with Conflict when
// the step is not next, or must wait: its message says for what; with Invalid
// for a set or a step that does not exist.
//
// A key's objects are written before the catalogue names it, and destroyed after
// it does not any more.
func (r *Keyring) Rotate(ctx context.Context, o Rotation) (KeySet, error) {
	if !slices.Contains(sets, o.Set) {
		return KeySet{}, nstance.FieldError("name", "use identity, workload or nonce", "there are no %q keys", clip(o.Set))
	}
	if err := r.take(ctx); err != nil {
		return KeySet{}, err
	}
	defer r.give()
	for range maxTries {
		s, err := r.step(ctx, o)
		if !errors.Is(err, errFaster) {
			return s, err
		}
	}
	return KeySet{}, nstance.Errorf(nstance.Conflict, "%s of the %s keys: others have changed them %d times meanwhile", o.Step, o.Set, maxTries)
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
	if err != nil || o.DryRun {
		return next, err
	}
	if c, err = r.vault.UpdateCatalogue(ctx, replace(o.Set, c.Sets[o.Set], next)); err != nil {
		return KeySet{}, err
	}
	if _, err := r.adopt(ctx, c, at); err != nil {
		return KeySet{}, err
	}
	if err := r.destroy(ctx, o.Set); err != nil { // the step stands all the same, and the next one tries again
		return KeySet{}, fmt.Errorf("%s is done, but a private key has not been destroyed, repeat it: %w", o.Step, err)
	}
	return r.Set(o.Set), nil
}

// replace changes one set of a catalogue from old to next, unless somebody else
// has changed it.
func replace(name string, old, next KeySet) func(*Catalogue) error {
	return func(c *Catalogue) error {
		if !slices.Equal(c.Sets[name].Keys, old.Keys) || c.Sets[name].Last != old.Last {
			return errFaster
		}
		*c = c.with(name, next)
		return nil
	}
}

// next returns what a step makes of a set.
func (r *Keyring) next(ctx context.Context, s KeySet, o Rotation, now time.Time) (KeySet, error) {
	switch o.Step {
	case StepBegin:
		todo, err := s.mayBegin(o.Set)
		if !todo || err != nil {
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
	return s, nstance.FieldError("step", "use begin, activate, finish or abort", "there is no step %q", clip(string(o.Step)))
}

// begin makes the next generation. One that was made by somebody who died before
// the catalogue named it is taken.
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

// destroy destroys the private keys that are gone. Until all are, each step
// tries again.
func (r *Keyring) destroy(ctx context.Context, set string) error {
	gone := r.seen.Load().Sets[set].Gone
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

// UseUntil notes that something signed with a key is good until then, so that
// finish waits for it. Nothing is written if that is known, or the key is gone.
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
