package attention

import (
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
)

// Bounds on acknowledgements.
const (
	Shortest = time.Minute         // what an acknowledgement stands for at least
	Longest  = 30 * 24 * time.Hour // and at most
	// sameEnd is how far the ends of two requests may be apart that are the same.
	sameEnd = time.Minute
	// maxNamed is how many subjects an error names.
	maxNamed = 5
)

// An Acknowledgement has the entries of one kind and subject not alert. It is stored as
// it is.
type Acknowledgement struct {
	Kind    reconcile.AttentionKind `json:"kind"`
	Subject string                  `json:"subject"`
	Entries int                     `json:"entries"` // that were acknowledged: no more than so many are at a time
	At      time.Time               `json:"at"`
	Until   time.Time               `json:"until"`
	By      string                  `json:"by"` // the identity that asked for it
	Reason  string                  `json:"reason,omitempty"`
}

// An Entry is one thing that needs attention, and who has acknowledged it.
type Entry struct {
	reconcile.Attention
	Acknowledged *Acknowledgement // nil: it is not
}

// Plain returns the list without marks.
func Plain(list []Entry) []reconcile.Attention {
	out := make([]reconcile.Attention, len(list))
	for i := range list {
		out[i] = list[i].Attention
	}
	return out
}

// Unacknowledged returns a list of which nothing is acknowledged.
func Unacknowledged(list []reconcile.Attention) []Entry {
	return Mark(list, nil, time.Time{})
}

// Mark marks what is acknowledged at a time, and lists it after the rest.
func Mark(list []reconcile.Attention, all []Acknowledgement, now time.Time) []Entry {
	var open, known []Entry
	by := make(map[int]*Acknowledgement, len(all))
	for i := range all {
		if a := &all[i]; a.Until.After(now) {
			for _, n := range a.covered(list) {
				by[n] = a
			}
		}
	}
	for n, e := range list {
		if a := by[n]; a != nil {
			known = append(known, Entry{e, a})
			continue
		}
		open = append(open, Entry{Attention: e})
	}
	return append(open, known...)
}

// covered returns the indices of the entries that are acknowledged: the oldest ones, and of
// alarms only those that were first raised by then.
func (a *Acknowledgement) covered(list []reconcile.Attention) []int {
	at := a.about(list)
	at = slices.DeleteFunc(at, func(n int) bool { return a.Kind == Alarm && list[n].Since.After(a.At) })
	slices.SortStableFunc(at, func(m, n int) int { return list[m].Since.Compare(list[n].Since) })
	return at[:max(0, min(a.Entries, len(at)))]
}

// about returns the indices of the entries of the kind and subject.
func (a *Acknowledgement) about(list []reconcile.Attention) (out []int) {
	for n := range list {
		if list[n].Kind == a.Kind && list[n].Subject == a.Subject {
			out = append(out, n)
		}
	}
	return out
}

// Same reports whether two are of one kind and subject.
func (a *Acknowledgement) Same(o Acknowledgement) bool {
	return a.Kind == o.Kind && a.Subject == o.Subject
}

// Check returns the acknowledgement that a request asks for: with its subject, if the list has
// only one of the kind, and the number of entries. Fails with Invalid for a duration out of
// bounds or several subjects, with NotFound when no entry has the kind and subject.
func Check(want Acknowledgement, list []reconcile.Attention) (Acknowledgement, error) {
	if want.Kind == "" {
		return want, nstance.FieldError("kind", "use a kind that nstance-admin attention list shows", "is missing")
	}
	if d := want.Until.Sub(want.At); d < Shortest || d > Longest {
		return want, nstance.FieldError("duration", "use 1m to 720h", "is %s", d)
	}
	var err error
	if want.Subject == "" {
		var subjects []string
		for _, e := range list {
			if e.Kind == want.Kind {
				subjects = append(subjects, e.Subject)
			}
		}
		want.Subject, err = OnlySubject(subjects)
	}
	if want.Entries = len(want.about(list)); err == nil && want.Entries == 0 {
		err = &nstance.Error{
			Code: nstance.NotFound, Msg: strings.TrimSpace("nothing needs attention of kind " + string(want.Kind) + " " + want.Subject),
			Remedy: "use a kind and subject that nstance-admin attention list shows",
		}
	}
	return want, err
}

// OnlySubject returns the subject that a request means which names none; empty: there is
// none. Fails with Invalid when there are several.
func OnlySubject(subjects []string) (string, error) {
	slices.Sort(subjects)
	switch subjects = slices.Compact(subjects); len(subjects) {
	case 0:
		return "", nil
	case 1:
		return subjects[0], nil
	}
	named := strings.Join(subjects[:min(maxNamed, len(subjects))], ", ")
	if len(subjects) > maxNamed {
		named += ", ..."
	}
	return "", nstance.FieldError("subject", "name one of: "+named, "is missing, and %d subjects have the kind", len(subjects))
}

// Repeats reports whether a stands already as want asks for it, and covers every entry.
func (a *Acknowledgement) Repeats(want Acknowledgement, list []reconcile.Attention) bool {
	return a.Reason == want.Reason && a.Until.Sub(want.Until).Abs() < sameEnd && len(a.covered(list)) == want.Entries
}
