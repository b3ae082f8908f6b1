package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
)

// remove takes the next step of a deletion: the durable mark, withdrawal from load
// balancers, the provider's Delete until it answers NotFound, then the record. It
// returns errAgain until the record is gone.
func (r *Reconciler) remove(ctx context.Context, m *member) error {
	r.mu.Lock()
	r.deletionBegan(m)
	removed, unseen := m.removed, m.mayHaveMachine() && !m.registered()
	r.mu.Unlock()
	if removed {
		return r.deleteRecord(ctx, m)
	}
	if err := r.markDeleting(ctx, m); err != nil {
		return err
	}
	mach, err := r.machineOf(ctx, m)
	found := err == nil
	switch {
	case errors.Is(err, nstance.NotFound) && unseen: // a create that broke off may have left a part
		mach = nstance.Machine{ID: m.id, Owner: r.opts.ownerOf(m)}
	case errors.Is(err, nstance.NotFound):
		return r.forgetRecord(ctx, m)
	case err != nil:
		return err
	}
	if !r.balancersLeft(m) {
		return errAgain
	}
	if err := r.permit(m, stepDelete); err != nil {
		return err
	}
	err = r.provider.Delete(ctx, mach)
	switch {
	case err == nil:
		r.mu.Lock()
		r.deletionAccepted(m)
		m.deleteAccepted = found
		r.mu.Unlock()
		return errAccepted
	case errors.Is(err, nstance.NotFound):
		return r.forgetRecord(ctx, m)
	case errors.Is(err, nstance.Conflict):
		r.mu.Lock()
		defer r.mu.Unlock()
		r.alarmContested(m, nstance.Event{Code: nstance.Conflict, Error: err.Error(), Reason: "the machine to delete carries other marks; it was left alone"})
	}
	return err
}

// markDeleting makes the deletion durable and irrevocable. A record that was never
// written needs no mark.
func (r *Reconciler) markDeleting(ctx context.Context, m *member) error {
	rec, known := r.records.Get(m.id)
	r.mu.Lock()
	if !m.durable || known && rec.Deleting != nil {
		r.mu.Unlock()
		return nil
	}
	why, cut := nstance.Cause{Kind: nstance.CauseRequest}, m.drain != nil && !m.drainEnded && !m.gone
	if len(m.deleteCauses) > 0 {
		why = m.deleteCauses[0]
	}
	need, end, story, notices := m.basis(), m.endFacts(), m.story(), slices.Clone(m.notices)
	r.mu.Unlock()
	story.Drifted = r.driftedFields(ctx, m, m.deleteCauses)
	_, err := r.records.Update(ctx, m.id, func(rec *records.Instance) error {
		if !need.holds(rec) {
			return errOutdated
		}
		rec.Deleting = &records.Deletion{At: r.opts.Now().UTC(), Why: why}
		rec.CutShort = rec.CutShort || cut
		rec.End = end
		rec.KeepStory(story)
		if len(notices) > 0 {
			rec.StandingNotices(notices, r.opts.Now())
		}
		return nil
	})
	if errors.Is(err, nstance.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.publish(m, nstance.Event{Type: nstance.EventDeleteRequested, Reason: string(why.Kind) + withMessage(why.Message)})
	r.opts.Deleting(m.id)
	r.mu.Unlock()
	return r.opts.Drains.End(ctx, m.id)
}

// A basis is the condition of a deletion: that m was drained as recorded, or has never
// registered. Zero: unconditional.
type basis struct {
	drain        uint64 // generation
	unregistered bool
}

// basis returns the condition for the deletion of m. Nothing has to be drained
// where the machine is gone, on request, or where the group wants no drains.
func (m *member) basis() basis {
	switch {
	case m.gone, m.skipDrain, m.group.defined() && m.group.spec.DrainTimeout <= 0:
		return basis{}
	case m.drain != nil:
		return basis{drain: m.drain.Generation}
	}
	return basis{unregistered: !m.registered()}
}

// holds reports whether the condition still holds for a record. For one that is
// marked already it does.
func (b basis) holds(rec *records.Instance) bool {
	switch {
	case rec.Deleting != nil:
		return true
	case b.drain > 0:
		return rec.Drain != nil && rec.Drain.Generation == b.drain
	case b.unregistered:
		return rec.RegisteredAt.IsZero()
	}
	return true
}

// machineOf returns the machine to delete, which must carry m's marks.
func (r *Reconciler) machineOf(ctx context.Context, m *member) (nstance.Machine, error) {
	r.mu.Lock()
	mach, known := m.machine, m.machineKnown()
	r.mu.Unlock()
	if known {
		return mach, nil
	}
	mach, err := r.provider.Get(ctx, m.id)
	if err != nil {
		return mach, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkMarks(m, mach); err != nil {
		return mach, err
	}
	m.machine, m.machineSince = mach, r.opts.Now()
	return mach, nil
}

// forgetRecord deletes the record of m, for which the provider answered NotFound, once
// that proves that there is no machine: a machine that comes late is found by its
// record.
func (r *Reconciler) forgetRecord(ctx context.Context, m *member) error {
	r.mu.Lock()
	durable, early := m.durable, !m.deleteAccepted && r.opts.Now().Before(r.absenceProvenAt(m))
	m.removed = !early
	r.mu.Unlock()
	switch {
	case early:
		return errAgain
	case !durable:
		return nil
	}
	return r.deleteRecord(ctx, m)
}

// deleteRecord deletes the record of m, of which the provider has nothing left, once
// its life is on record.
func (r *Reconciler) deleteRecord(ctx context.Context, m *member) error {
	if !r.recordLife(m) {
		return errAgain
	}
	err := r.records.Delete(ctx, m.id)
	if errors.Is(err, nstance.NotFound) {
		return nil
	}
	return err
}

// balancersLeft reports whether m may be deleted as far as load balancers go: none
// sends traffic to it any more, or withdrawTimeout has passed.
func (r *Reconciler) balancersLeft(m *member) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	switch id := m.machine.ProviderID; {
	case m.gone || r.provider.Abilities().Balancers == nil:
	case id != "":
		names = r.balance.Attached(id, m.registered())
	case m.registered(): // the provider has not shown its machine in this term yet
		names = r.balance.Names()
		r.questions.Add(m.id)
	}
	now := r.opts.Now()
	switch {
	case m.withdrawalOver || len(names) == 0:
		m.withdrawalOver = true
		return true
	case m.withdrawBy.IsZero():
		m.withdrawBy = now.Add(r.withdrawalWait(m, now))
		r.rebalance(m.group)
		return false
	case now.Before(m.withdrawBy):
		return false
	}
	m.withdrawalOver = true
	r.publish(m, nstance.Event{Type: nstance.EventAlarm, Reason: fmt.Sprintf("deleted although it could not be withdrawn from %s within %s", strings.Join(names, ", "), withdrawTimeout)})
	r.balance.WithdrawDeleted(m.machine, names)
	return true
}

// withdrawalWait is withdrawTimeout, or where earlier terms have waited for that long, the
// time of one attempt: a deletion must end although every term is short.
func (s *shard) withdrawalWait(m *member, now time.Time) time.Duration {
	if d := m.rec.Deleting; d != nil && s.reached(d.At.Add(withdrawTimeout+clocksApart), now) {
		return firstLookUps
	}
	return withdrawTimeout
}

// withdrawTimeout is how long a deletion waits for load balancers to withdraw the
// machine, once nothing else delays it.
const withdrawTimeout = 30 * time.Second
