package reconcile

import "github.com/nstance-go/nstance/internal/loop"

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
