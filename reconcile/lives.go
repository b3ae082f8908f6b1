package reconcile

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/records"
)

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
	state, by := m.life, r.replacementOf(m)
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

// replacementOf returns the latest member that was made for the loss of m.
func (s *shard) replacementOf(m *member) (id nstance.InstanceID) {
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
