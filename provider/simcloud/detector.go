package simcloud

import (
	"context"
	"iter"

	"github.com/nstance-go/nstance"
)

// Detector returns the spot detector of an agent on machine id. The machine need
// not exist yet. A detector may be used concurrently.
func (c *Cloud) Detector(id nstance.InstanceID) nstance.SpotDetector {
	return detector{&c.fleet, id}
}

type detector struct {
	fleet *fleet
	id    nstance.InstanceID
}

// Interruptible implements [nstance.SpotDetector]. Fails with Unavailable while
// the machine does not exist.
func (d detector) Interruptible(ctx context.Context) (bool, error) {
	if ctx.Err() != nil {
		return false, nstance.Errorf(nstance.Unavailable, "no answer: %w", ctx.Err())
	}
	d.fleet.mu.Lock()
	defer d.fleet.mu.Unlock()
	m := d.fleet.machines[d.id]
	if m == nil {
		return false, nstance.Errorf(nstance.Unavailable, "no machine %s", d.id)
	}
	return m.view.Market == nstance.Spot, nil
}

// Watch implements [nstance.SpotDetector], without a poll interval: a notice is
// seen at the moment of its announcement. Those from before the watch began are
// yielded in their last form.
func (d detector) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return func(yield func(nstance.Notice, error) bool) {
		m := d.find()
		if m == nil {
			if yield(nstance.Notice{}, nstance.Errorf(nstance.Unavailable, "no machine %s", d.id)) {
				<-ctx.Done()
			}
			return
		}
		for seen := 0; ctx.Err() == nil; {
			fresh, total, news := d.newNotices(m, seen)
			for _, n := range fresh {
				n.DetectedAt = d.fleet.o.Now().UTC()
				if !yield(n, nil) {
					return
				}
			}
			seen = total
			select {
			case <-ctx.Done():
			case <-news:
			}
		}
	}
}

func (d detector) find() *machine {
	d.fleet.mu.Lock()
	defer d.fleet.mu.Unlock()
	return d.fleet.machines[d.id]
}

// newNotices returns the notices after the first seen ones; in the first call only
// the last one, unless it was cancelled.
func (d detector) newNotices(m *machine, seen int) (fresh []nstance.Notice, total int, news <-chan struct{}) {
	d.fleet.mu.Lock()
	defer d.fleet.mu.Unlock()
	total = len(m.notices)
	fresh = m.notices[seen:total:total]
	if seen == 0 && total > 0 {
		fresh = m.notices[total-1 : total : total]
		if fresh[0].Cancelled {
			fresh = nil
		}
	}
	return fresh, total, m.news
}
