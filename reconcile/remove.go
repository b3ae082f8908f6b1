package reconcile

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/records"
)

// remove takes the next step of a deletion: the durable mark, withdrawal from load
// balancers, the provider's Delete until it answers NotFound, then the record. It
// returns errAgain until the record is gone.
//
//	a crash after                    leaves
//	the mark is written              a deleting member, for good: all below is repeated
//	the provider accepts Delete      the same: Delete is sent until it answers NotFound
//	the life is recorded             the same: it is recorded once more, under the same ID
func (r *Reconciler) remove(ctx context.Context, m *member) error {
	r.mu.Lock()
	if m.deleteBegan == 0 && m.drain != nil && !m.gone {
		m.deleteBegan = r.clock.Elapsed()
	}
	removed, made, later := m.removed, m.mayHaveMachine(), m.registered() && r.absenceEarly(m)
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
	case errors.Is(err, nstance.NotFound) && later:
		return errAgain
	case errors.Is(err, nstance.NotFound) && made: // a part of it may be left
		mach = r.unseen(m)
	case errors.Is(err, nstance.NotFound):
		return r.forgetRecord(ctx, m)
	case err != nil:
		return err
	}
	if found && !r.balancersLeft(m) {
		return errAgain
	}
	return r.deleteMachine(ctx, m, mach, found)
}

// deleteMachine sends Delete once. Known: the provider has shown the machine.
func (r *Reconciler) deleteMachine(ctx context.Context, m *member, mach nstance.Machine, known bool) error {
	if err := r.permit(m, stepDelete); err != nil {
		return err
	}
	err := r.provider.Delete(ctx, mach)
	switch {
	case err == nil:
		r.mu.Lock()
		if m.deleteBegan > 0 && !m.deleteAccepted {
			m.group.pace.Deleted(r.clock.Elapsed() - m.deleteBegan)
		}
		m.deleteAccepted = known
		r.mu.Unlock()
		return errAccepted
	case errors.Is(err, nstance.NotFound), errors.Is(err, nstance.Conflict) && !known && mach.ProviderID != "": // another machine has its ID there by now
		return r.forgetRecord(ctx, m)
	case errors.Is(err, nstance.Conflict):
		r.mu.Lock()
		defer r.mu.Unlock()
		r.alarmContested(m, nstance.Event{Code: nstance.Conflict, Error: err.Error(), Reason: "the machine to delete carries other marks; it was left alone"})
	}
	return err
}

// unseen returns what is on record of the machine of m, which the provider does not show. An
// instance on demand may have been asked for in another market before.
func (r *Reconciler) unseen(m *member) nstance.Machine {
	r.mu.Lock()
	defer r.mu.Unlock()
	mach := nstance.Machine{ID: m.id, Owner: r.opts.ownerOf(m), ProviderID: m.rec.ProviderID, Zone: m.rec.Zone, Market: m.rec.Shape.Market}
	if m.rec.OnDemand && m.definition().Market.Type == nstance.Spot {
		mach.Market = ""
	}
	return mach
}

// markDeleting makes the deletion durable and irrevocable. A record that was never
// written needs no mark.
func (r *Reconciler) markDeleting(ctx context.Context, m *member) error {
	rec, known := r.records.Get(m.id)
	r.mu.Lock()
	if !m.durable {
		r.mu.Unlock()
		return nil
	}
	if known && rec.Deleting != nil {
		r.mu.Unlock()
		return r.drains.End(ctx, m.id) // it may have failed
	}
	why, cut := nstance.Cause{Kind: nstance.CauseRequest}, m.drain != nil && !m.drainEnded && !m.gone
	if len(m.deleteCauses) > 0 {
		why = m.deleteCauses[0]
	}
	need, end, story, notices := m.basis(), m.endFacts(), m.story(), slices.Clone(m.Standing)
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
	return r.drains.End(ctx, m.id)
}

// A basis is the condition of a deletion: that m was drained as recorded, or has never
// registered, and that no request is on record to keep it which this leader does not know of.
type basis struct {
	gone         bool      // nothing is kept
	kept         time.Time // until when it was preserved; zero: it was not
	drain        uint64    // generation; 0: none is needed
	unregistered bool
}

// basis returns the condition for the deletion of m. Nothing has to be drained
// where the machine is gone, on request, or where the group wants no drains.
func (m *member) basis() basis {
	need := basis{gone: m.gone, kept: preservedUntil(&m.rec)}
	switch {
	case m.gone, m.skipDrain, m.group.defined() && m.group.spec.DrainTimeout <= 0:
	case m.drain != nil:
		need.drain = m.drain.Generation
	default:
		need.unregistered = !m.registered()
	}
	return need
}

// holds reports whether the condition still holds for a record. For one that is
// marked already it does.
func (b basis) holds(rec *records.Instance) bool {
	switch {
	case rec.Deleting != nil:
		return true
	case !b.gone && !preservedUntil(rec).Equal(b.kept):
		return false
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
	if r.isTwin(m, mach) {
		return mach, nstance.Errorf(nstance.NotFound, "the provider shows another machine in place of that of %s", m.id)
	}
	m.machine, m.machineSince = mach, r.opts.Now()
	return mach, nil
}

// forgetRecord deletes the record of m, for which the provider answered NotFound, once
// that proves that there is no machine: a machine that comes late is found by its
// record.
func (r *Reconciler) forgetRecord(ctx context.Context, m *member) error {
	r.mu.Lock()
	durable, early := m.durable, r.absenceEarly(m)
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

// absenceEarly reports whether it is too early for NotFound to prove that there is no machine.
func (s *shard) absenceEarly(m *member) bool {
	return !m.deleteAccepted && s.opts.Now().Before(s.absenceProvenAt(m))
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

func (r internals) OnEnd(keep loop.LifeKeeper) { r.onEnd = keep }

// A lifeState says how far the life of an ended member has been recorded.
type lifeState int

const (
	lifeUnrecorded lifeState = iota
	lifePending              // passed to onEnd
	lifeRecorded
)

// recordLife passes m to onEnd, and reports whether its record may be deleted.
func (r *Reconciler) recordLife(m *member) bool {
	rec, known := r.records.Get(m.id)
	r.mu.Lock()
	if r.onEnd == nil || !known {
		r.mu.Unlock()
		return true
	}
	state, by := m.life, m.replacedBy()
	if state == lifeUnrecorded {
		m.life = lifePending
	}
	r.mu.Unlock()
	if state != lifeUnrecorded {
		return state == lifeRecorded
	}
	r.onEnd(rec, by, r.opts.Now().UTC(), func(err error) { r.lifeKept(m, err) })
	r.mu.Lock()
	defer r.mu.Unlock()
	return m.life == lifeRecorded
}

// lifeKept continues the deletion of m. After an error it is repeated with backoff.
func (r *Reconciler) lifeKept(m *member, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		m.life = lifeUnrecorded
		return
	}
	m.life = lifeRecorded
	if !m.running {
		m.retryDue = time.Time{}
	}
	r.queue.Add(m.group.key, false)
}

// replacedBy returns the latest member that was made for the loss of m.
func (m *member) replacedBy() (id nstance.InstanceID) {
	for _, o := range m.group.members {
		if o.rec.Replaces == m.id {
			id = max(id, o.id)
		}
	}
	return id
}

// story returns what is known of m that its record may not say yet.
func (m *member) story() records.Story {
	return records.Story{ReadyAt: m.readyAt, PricePerHour: m.price}
}

func (r internals) LivingRecords() []records.Instance {
	all := r.records.All()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range all {
		r.withMember(all[i].ID, func(m *member) { all[i].KeepStory(m.story()) })
	}
	return all
}

// endFacts returns what is known of m that its record does not say yet.
func (m *member) endFacts() *records.End {
	e := &records.End{LaunchedAt: m.machine.CreatedAt.UTC(), InstanceType: m.machine.InstanceType, Zone: m.machine.Zone, Market: m.machine.Market, Drained: m.lastAck}
	if e.Drained == nil && m.loneDrain != nil {
		e.Drained = m.loneDrain.end
	}
	if m.gone {
		e.GoneAt, e.Loss = m.at.UTC(), m.cause
	}
	return e
}

// maxDrifted is how many fields are recorded of those that drifted.
const maxDrifted = 16

// driftedFields returns the fields whose change m is replaced for; none if there are
// other causes, or its definition cannot be read.
func (r *Reconciler) driftedFields(ctx context.Context, m *member, causes []nstance.Cause) (paths []string) {
	if !includesCause(causes, nstance.CauseRollout) {
		return nil
	}
	changes, err := r.Admin().Drift(ctx, m.id)
	if err != nil {
		r.log.Debug("drifted fields not recorded", "instance_id", m.id, "code", nstance.CodeOf(err), "err", err)
	}
	for _, c := range changes {
		if c.Effect == EffectReplace && len(paths) < maxDrifted {
			paths = append(paths, c.Path)
		}
	}
	return paths
}
