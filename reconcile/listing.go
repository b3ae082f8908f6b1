package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/nstance-go/nstance"
)

// listMachines is reconcileMachines, and returns its error.
func (r *Reconciler) listMachines(ctx context.Context) error {
	listed := map[nstance.InstanceID]bool{}
	var strangers []nstance.Machine
	began := r.opts.Now()
	for mach, err := range r.provider.List(ctx, r.opts.Owner) {
		if err != nil {
			r.log.Warn("machines not listed", "code", nstance.CodeOf(err), "err", err)
			return err
		}
		listed[mach.ID] = true
		if !r.handleListed(mach, began) {
			strangers = append(strangers, mach)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, m := range r.members {
		if !listed[id] && m.machineKnown() && m.machineSince.Before(began) || !listed[id] && m.registered() && m.rec.RegisteredAt.Before(began) {
			r.handleMissing(m, absence{}, began)
		}
	}
	r.recordOrphans(strangers, began)
	return nil
}

// reconcileMachines asks the provider for everything that is ours and handles the answer as
// facts. After an error nothing is known about what was not listed.
func (r *Reconciler) reconcileMachines(ctx context.Context) {
	_ = r.listMachines(ctx) // which has logged it; the next pass asks again
}

// askMachine asks the provider for one machine, and handles the answer as a fact.
func (r *Reconciler) askMachine(ctx context.Context, id nstance.InstanceID) error {
	asked := r.opts.Now()
	mach, err := r.provider.Get(ctx, id)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.handleMachine(mach, asked)
	case errors.Is(err, nstance.NotFound):
		r.withMember(id, func(m *member) { r.handleMissing(m, absenceOf(err), asked) })
	case ctx.Err() == nil:
		r.log.Warn("provider did not say how a machine is", "instance_id", id, "code", nstance.CodeOf(err), "err", err)
		return err
	}
	return nil
}

// handleListed handles a listed machine as a fact about its member, if it has one.
func (r *Reconciler) handleListed(mach nstance.Machine, asked time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.handleMachine(mach, asked)
}
