package reconcile

import "github.com/nstance-go/nstance"

// timeLaunch records how long m, made in this term, took to become ready.
func (s *shard) timeLaunch(m *member) {
	if m.rec.CreatedEpoch == s.opts.Epoch && !m.healthySince.IsZero() {
		m.group.pace.Launched(m.healthySince.Sub(m.rec.CreatedAt))
	}
}

// timeDrain records how long the drain of m took, which is gone.
func (s *shard) timeDrain(m *member) {
	if m.drain != nil && !m.drain.StartedAt.IsZero() {
		m.group.pace.Drained(s.opts.Now().Sub(m.drain.StartedAt))
	}
}

// deletionBegan records that m is to be deleted after its drain.
func (s *shard) deletionBegan(m *member) {
	if m.deleteBegan == 0 && m.drain != nil && !m.gone {
		m.deleteBegan = s.clock.Elapsed()
	}
}

// deletionAccepted records that the provider has accepted it.
func (s *shard) deletionAccepted(m *member) {
	if m.deleteBegan > 0 && !m.deleteAccepted {
		m.group.pace.Deleted(s.clock.Elapsed() - m.deleteBegan)
	}
}

// prepareDrain sets what the leader knows about the end of the drain for a notice, when it
// receives it: later knowledge must not move a deadline.
func (m *member) prepareDrain(n *nstance.Notice) {
	n.Warning, n.Margin = 0, m.group.pace.Margin()
	if n.Kind == nstance.Reclaim && n.Deadline.IsZero() {
		n.Warning = m.machine.ReclaimWarning
	}
}
