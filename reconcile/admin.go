package reconcile

import (
	"context"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/loop"
)

// An Admin is a Reconciler together with what its operators ask of it: pauses and
// freezes, rollbacks, orphans, previews of changes, settings that change while it runs,
// and what needs attention. A server shows these through its API; a program that only
// keeps groups at their size needs none of them. Its methods may be called concurrently.
type Admin struct{ *Reconciler }

// Admin returns r with the methods for operators. It does no work, and all Admins of r
// are the same.
func (r *Reconciler) Admin() *Admin { return &Admin{r} }

// Internals returns what the server of this module asks beside. Its type is internal, and no
// version promises anything of it.
func (r *Admin) Internals() loop.Internals { return r.internals() }

// internals implements loop.Internals.
type internals struct{ *Reconciler }

func (r *Reconciler) internals() internals { return internals{r} }

// change changes what is durable on request, under the lock, and returns once that and all
// earlier changes are durable.
func (r *Reconciler) change(ctx context.Context, do func() error) error {
	r.mu.Lock()
	err := errUnread
	if r.loaded {
		err = do()
	}
	edit := r.saver.Edits()
	r.mu.Unlock()
	if err != nil {
		return err
	}
	return r.saver.Await(ctx, edit)
}

// changeGroup is change for one group. Without an event nothing has changed.
func (r *Reconciler) changeGroup(ctx context.Context, key nstance.GroupKey, change func(*group) (nstance.Event, error)) error {
	return r.change(ctx, func() error {
		g := r.groups[key]
		if g == nil {
			return errNoGroup(key)
		}
		e, err := change(g)
		if err == nil && e.Type != "" {
			r.publishGroup(g, e)
			r.saver.Changed()
			r.queue.Add(key, true)
		}
		return err
	})
}

func errNoGroup(key nstance.GroupKey) error {
	return nstance.Errorf(nstance.NotFound, "no group %s", key)
}

// await blocks until done, which is called under the lock, or ctx ends.
func (r *Reconciler) await(ctx context.Context, done func() bool) error {
	for {
		r.mu.Lock()
		ok, changed := done(), r.changed
		r.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return nstance.Errorf(nstance.Unavailable, "not durable yet: %w", ctx.Err())
		case <-r.over:
			return nstance.Errorf(nstance.Unavailable, "not durable: this term is over")
		case <-changed:
		}
	}
}
