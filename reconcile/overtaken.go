package reconcile

import (
	"fmt"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/history"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// overtaken returns the freeze of a shard with a machine that a later term has made and of
// which this leader's storage has no record; nil: there is none. Epochs only grow in one
// storage, so another server leads from a copy of it. Of two such leaders the one with the
// lower epoch stands still until the machine is gone, or an operator has adopted it. Reading
// the storage again does not help: this leader's term stands.
func (s *shard) overtaken() *history.Freeze {
	o, ok := s.orphans.Newer(s.opts.Epoch)
	if !ok {
		return nil
	}
	return &history.Freeze{Since: o.FirstListed, Reason: fmt.Sprintf(
		"machine %s (%s) was made by term %d, this is term %d: another server leads this shard from a copy of its storage", o.Machine.ProviderID, o.Machine.ID, o.Machine.Epoch, s.opts.Epoch)}
}

// publishOvertaken plans every group again when a copy of the storage begins to lead or ends.
func (s *shard) publishOvertaken(before *history.Freeze) {
	now := s.overtaken()
	if (before == nil) == (now == nil) {
		return
	}
	if now != nil {
		s.opts.Journal(nstance.Event{Time: s.opts.Now().UTC(), Type: nstance.EventAlarm, Reason: now.Reason})
	}
	for key := range s.groups {
		s.queue.Add(key, false)
	}
}

// forgetOrphan drops a machine that is gone, or has a record.
func (s *shard) forgetOrphan(id nstance.InstanceID) {
	before := s.overtaken()
	s.orphans.Forget(id)
	s.publishOvertaken(before)
}

func (s *shard) overtakenAttention() []Attention {
	f := s.overtaken()
	if f == nil {
		return nil
	}
	return []Attention{{
		Kind: AttentionKind(plan.HoldFrozen), Subject: "shard", Since: f.Since, Why: "nothing is created or deleted: " + f.Reason,
		Remedy: "stop the server that is not wanted; where this one stays, nstance-admin orphan adopt or delete ends it for each such machine",
	}}
}
