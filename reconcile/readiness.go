package reconcile

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// A readiness says which members of a group have been ready, for the next leader: it shows
// them as ready until it hears of them. An instance's life costs no write more for it.
type readiness struct {
	Through time.Time            `json:"through"`          // those that had registered by then
	Except  []nstance.InstanceID `json:"except,omitempty"` // but these, sorted
}

// maxExcept is how many members a readiness leaves out. With more nothing is recorded.
const maxExcept = 64

func (r *readiness) equal(o *readiness) bool {
	if r == nil || o == nil {
		return r == o
	}
	return r.Through.Equal(o.Through) && slices.Equal(r.Except, o.Except)
}

// covers reports whether m has been ready.
func (r *readiness) covers(m *member) bool {
	return r != nil && !m.rec.RegisteredAt.After(r.Through) && !slices.Contains(r.Except, m.id)
}

// recordReady records which members of g have been ready.
func (s *shard) recordReady(g *group, now time.Time) {
	var is readiness
	for _, m := range g.members {
		if m.registered() && (m.wasReady || s.readyOnRecord(m, now)) {
			is.Through = latest(is.Through, m.rec.RegisteredAt)
		}
	}
	for _, m := range g.members {
		if m.registered() && !m.wasReady && !m.rec.RegisteredAt.After(is.Through) && !s.readyOnRecord(m, now) {
			is.Except = append(is.Except, m.id)
		}
	}
	slices.Sort(is.Except)
	if is.Through.IsZero() || len(is.Except) > maxExcept || is.equal(g.history.Ready) {
		return
	}
	g.history.Ready = &is
	s.saver.ChangedLater()
}

// readyOnRecord reports whether m was ready before this term: its group's state or its
// record says so, or it has outlived its launch timeout. One that was woken is ready when
// its agent reports.
func (s *shard) readyOnRecord(m *member, now time.Time) bool {
	return m.registered() && !m.wokenOrWaking() && (!m.rec.ReadyAt.IsZero() || m.group.history.Ready.covers(m) || s.launchOver(m, now))
}
