package admin

import (
	"context"
	"fmt"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
)

// A Resealing is what cluster rotate encryption prints.
type Resealing struct {
	Sealed  []string  `json:"sealed"`  // anew, with the first key
	Current int       `json:"current"` // sealed with that before
	Skipped []Skipped `json:"skipped"` // cannot be opened, and left as they are
	DryRun  bool      `json:"dry_run"`
}

// A Skipped is a secret that was left alone.
type Skipped struct {
	Name  string `json:"name"`
	Error string `json:"error"`
}

// reseal is cluster rotate encryption.
func (o *rotation) reseal(ctx context.Context) error {
	if o.step != "" || o.watch || o.force {
		return nstance.FieldError("--step", "leave out --step, --watch and --force", "the encryption key has no steps")
	}
	box, err := o.store.box()
	if err != nil {
		return err
	}
	if box == nil {
		return nstance.FieldError("--key-provider", "use env or file", "there is no key to seal with")
	}
	store, err := o.store.openTo(ctx, !o.dryRun)
	if err != nil {
		return err
	}
	r := Resealing{Sealed: []string{}, Skipped: []Skipped{}, DryRun: o.dryRun}
	err = o.r.stderr.slow("sealing secrets again", func() error { return r.run(ctx, store, box, o.r.stderr) })
	if perr := o.out.print(r, func(t *table) { writeResealing(t, r) }); err == nil {
		err = perr
	}
	if err == nil && len(r.Skipped) > 0 {
		err = fault(nstance.Denied, nil, "pass the keys that they were sealed with, too, or restore them from a backup",
			fmt.Sprintf("%d secrets were not sealed again", len(r.Skipped)))
	}
	return err
}

func (r *Resealing) run(ctx context.Context, store storage.Store, box *secret.Box, progress *console) error {
	return vault.Reseal(ctx, store, box, r.DryRun, func(s vault.Sealing) {
		switch {
		case s.Err != nil:
			r.Skipped = append(r.Skipped, Skipped{s.Name, s.Err.Error()})
		case s.Stale:
			r.Sealed = append(r.Sealed, s.Name)
		default:
			r.Current++
		}
		if n := len(r.Sealed) + r.Current + len(r.Skipped); n%100 == 0 {
			progress.note("%d secrets so far ...", n)
		}
	})
}

func writeResealing(t *table, r Resealing) {
	verb := "sealed again"
	if r.DryRun {
		verb = "would be sealed again"
	}
	for _, name := range r.Sealed {
		t.say("%s: %s", name, verb)
	}
	for _, s := range r.Skipped {
		t.say("%s: skipped: %s", s.Name, s.Error)
	}
	t.say("%d %s, %d have the first key already, %d skipped", len(r.Sealed), verb, r.Current, len(r.Skipped))
}
