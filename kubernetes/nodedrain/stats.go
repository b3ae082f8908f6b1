package nodedrain

import (
	"time"

	"github.com/nstance-go/nstance"
)

// Stats are figures of a Drainer, those of what has happened since it was made.
type Stats struct {
	Draining      int           // nodes that are being drained
	Refused       int           // of them: nodes with a pod whose eviction is refused
	PDBOverridden uint64        // pods that were deleted past their disruption budget
	BudgetWait    time.Duration // for how long nodes had a pod whose eviction was refused, all nodes added up
}

// Stats returns the figures as they are now.
func (d *Drainer) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stats
}

// count changes the figures.
func (d *Drainer) count(change func(*Stats)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.stats)
}

// countRefused counts the time for which evictions are refused, up to now.
func (w *worker) countRefused(refused bool) {
	now, before := time.Now(), w.refusedAt
	w.refusedAt = time.Time{}
	if refused {
		w.refusedAt = now
	}
	w.d.count(func(s *Stats) {
		if !before.IsZero() {
			s.BudgetWait += now.Sub(before)
			s.Refused--
		}
		if refused {
			s.Refused++
		}
	})
}

// Progress says what the drain of an instance waits for. Empty: it is not drained here.
func (d *Drainer) Progress(id nstance.InstanceID) string {
	d.mu.Lock()
	w := d.workers[id]
	d.mu.Unlock()
	if w == nil || !w.drains {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.remaining
}
