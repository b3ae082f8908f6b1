package ledger

import (
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
)

// An Interruption is one notice about an instance and its outcome. Zero times are not
// known, or there was no such moment.
type Interruption struct {
	ID     nstance.InstanceID
	Tenant nstance.TenantID
	Group  nstance.GroupID
	Pool   Pool
	Notice nstance.Notice

	Replacement  nstance.InstanceID
	DrainStarted time.Time
	DrainEnded   time.Time
	DrainOutcome string // drained, failed, cut short, cancelled
	GoneAt       time.Time
	DeletedAt    time.Time
	Withdrawn    bool
	Ignored      string  // why it dooms nothing
	Outcome      Outcome // of the instance; empty: it has not ended, or for something else
}

// At is when the notice was received, or detected if that is not known.
func (i *Interruption) At() time.Time {
	if i.Notice.ReceivedAt.IsZero() {
		return i.Notice.DetectedAt
	}
	return i.Notice.ReceivedAt
}

// Interruptions returns the interruptions of an instance, which may live yet: then
// DeletedAt is zero.
func (l *Life) Interruptions() (all []Interruption) {
	for _, past := range l.Cancelled {
		for _, n := range past.Notices {
			i := l.interruption(n)
			i.Withdrawn = true
			if !past.Drain.StartedAt.IsZero() {
				i.DrainStarted, i.DrainEnded, i.DrainOutcome = past.Drain.StartedAt, past.EndedAt, "cancelled"
			}
			all = append(all, i)
		}
	}
	for _, n := range l.Notices {
		i := l.interruption(n)
		i.Replacement, i.GoneAt, i.DeletedAt = l.ReplacedBy, l.GoneAt, l.DeletedAt
		if !l.DeletedAt.IsZero() {
			i.Outcome = l.Outcome
		}
		if l.Drain != nil {
			i.DrainStarted = l.Drain.StartedAt
		}
		switch {
		case l.Drained != nil:
			i.DrainEnded, i.DrainOutcome = l.Drained.At, string(l.Drained.Outcome)
		case l.Outcome == CutShort:
			i.DrainEnded, i.DrainOutcome = l.DeleteAt, string(CutShort)
			if !l.GoneAt.IsZero() && l.GoneAt.Before(l.DeleteAt) {
				i.DrainEnded = l.GoneAt
			}
		}
		all = append(all, i)
	}
	return all
}

func (l *Life) interruption(n nstance.Notice) Interruption {
	return Interruption{ID: l.ID, Tenant: l.Tenant, Group: l.Group, Pool: l.Pool, Notice: n}
}

// Interruption returns an ignored notice as an interruption.
func (i *Ignored) Interruption() Interruption {
	n := i.Notice
	if n.ReceivedAt.IsZero() {
		n.ReceivedAt = i.At
	}
	return Interruption{ID: i.ID, Tenant: i.Tenant, Group: i.Group, Notice: n, Ignored: i.Reason}
}

// OpenAll returns the stories so far of instances that live.
func OpenAll(recs []records.Instance) []Life {
	open := make([]Life, len(recs))
	for i := range recs {
		open[i] = Open(recs[i], "")
	}
	return open
}

// Open returns the story so far of an instance that lives.
func Open(rec records.Instance, replacedBy nstance.InstanceID) Life {
	l := LifeOf(rec, replacedBy, time.Time{})
	l.Outcome = ""
	return l
}
