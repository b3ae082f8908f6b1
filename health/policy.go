package health

import (
	"time"

	"github.com/nstance-go/nstance"
)

// The defaults of a Policy.
const (
	DefaultInterval = 60 * time.Second
	DefaultMissed   = 3
)

// longest keeps sums of settings within what a Duration can hold.
const longest = 365 * 24 * time.Hour

// A Policy says how long an agent may be silent. Zero fields mean the defaults;
// a duration of more than a year is taken for a year.
type Policy struct {
	Interval time.Duration // between reports; zero or less means DefaultInterval
	Jitter   time.Duration // how late a report may be; zero means a tenth of Interval, negative none
	Missed   int           // reports in a row that make it unhealthy; zero or less means DefaultMissed
}

func (p Policy) normal() Policy {
	if p.Interval <= 0 {
		p.Interval = DefaultInterval
	}
	p.Interval = min(p.Interval, longest)
	if p.Jitter == 0 {
		p.Jitter = p.Interval / 10
	}
	p.Jitter = min(max(0, p.Jitter), longest)
	if p.Missed <= 0 {
		p.Missed = DefaultMissed
	}
	return p
}

// A Verdict is what the signs about one instance amount to.
type Verdict int

// The verdicts. None of them is drawn from an error: a provider that does not
// answer leaves the verdict at Ask.
const (
	Waiting   Verdict = iota // nothing to say yet: not registered, in grace, or out of touch for less than an interval
	Well                     // in touch, and it has reported in time
	Ask                      // something is odd: ask the provider now, and again until it answers
	Silent                   // at least one report missed; the provider has answered, and its answer is no reason to act
	Unhealthy                // Policy.Missed reports missed though the provider said, after the silence began, that it runs
	Gone                     // the provider said that it does not run
)

// String returns the verdict as one lower-case word.
func (v Verdict) String() string {
	names := [...]string{"waiting", "well", "ask", "silent", "unhealthy", "gone"}
	if v < 0 || int(v) >= len(names) {
		return "invalid"
	}
	return names[v]
}

// A Track is what is known about one instance's signs of life. It is a value:
// copying it copies all of it. Its methods take constant time, allocate nothing
// and must not be called concurrently. Instants may come out of order: an older
// one never undoes what a later one said. The zero Track is an instance that
// has not registered.
type Track struct {
	since      time.Time // silence is counted from here: the latest report, or the beginning
	reported   time.Time // the latest report since Begin
	lost       time.Time // when the stream broke, if it has not come back
	answered   time.Time // when the provider was asked for status
	status     nstance.MachineStatus
	clean      bool // the agent said goodbye before the stream broke
	registered bool
}

// Begin returns the track of an instance that this server begins to watch: one
// just created, or every one at the start of a term. Nothing from before counts,
// and no report is missed until a whole interval and its jitter have passed.
func (p Policy) Begin(now time.Time, registered bool) Track {
	return Track{since: now, registered: registered}
}

// Registered says that the instance has its certificate: from now on it is
// expected to report, and a first report that never comes is missed like any
// other. Again it changes nothing.
func (t *Track) Registered(now time.Time) {
	if !t.registered {
		t.registered = true
		t.since = later(t.since, now)
	}
}

// Reported says that a report arrived. The caller has checked that it is in
// order: an old or repeated one is no sign of life.
func (t *Track) Reported(now time.Time) {
	t.Connected(now)
	t.since = later(t.since, now)
	t.reported = later(t.reported, now)
}

// Connected says that the agent's stream is up. It is not a report: an agent
// that comes back again and again without reporting is still silent.
func (t *Track) Connected(now time.Time) {
	t.Registered(now)
	if !now.Before(t.lost) {
		t.lost = time.Time{}
	}
}

// Disconnected says that the stream is down. Clean means that the agent said
// goodbye, which is no alarm; what it does afterwards counts all the same.
func (t *Track) Disconnected(now time.Time, clean bool) {
	t.Registered(now)
	if now.Before(t.reported) {
		return // another stream has spoken since
	}
	if t.lost.IsZero() {
		t.lost, t.clean = later(t.since, now), clean
	}
	t.clean = t.clean && clean
}

// Answered says what the provider definitely answered to a question asked at
// the given time; an answer to an earlier question than the last one is
// ignored, and so is StatusUnknown. An error is not an answer. Proven absence
// (NotFound, twice, a consistency window apart) is passed on as
// nstance.StatusDeleting.
func (t *Track) Answered(asked time.Time, status nstance.MachineStatus) {
	if status == nstance.StatusUnknown || status == "" || asked.Before(t.answered) {
		return
	}
	t.answered, t.status = asked, status
}

// Regrace starts the count of silence again, with a whole interval and its
// jitter before a report is missed. It is for a server that did not run for a
// while: it cannot know what it did not hear. A stream that is down is asked
// about anew. What the provider said about machines that do not run stands.
func (t *Track) Regrace(now time.Time) {
	t.since = later(t.since, now)
	if !t.lost.IsZero() {
		t.lost = later(t.lost, now)
	}
}

// Misses returns how many reports in a row the instance has missed: none while
// it is not registered.
func (p Policy) Misses(t Track, now time.Time) int {
	n, _ := p.normal().missed(t, now)
	return n
}

// Judge returns the verdict at now, and when time alone may change it: zero for
// never. While it is Ask the caller also judges again after each answer.
func (p Policy) Judge(t Track, now time.Time) (v Verdict, next time.Time) {
	p = p.normal()
	missed, next := p.missed(t, now)
	switch {
	case t.status.Dead() && t.reported.After(t.answered):
		return Ask, next // a report from a machine that should not run: look again
	case t.status.Dead():
		return Gone, time.Time{}
	case missed == 0:
		return t.inTime(), next
	case missed >= p.Missed && t.runs(p.due(t, 1)):
		return Unhealthy, time.Time{}
	case t.answered.Before(p.due(t, missed)):
		return Ask, next
	}
	return Silent, next
}

// inTime returns the verdict about an instance that has missed nothing.
func (t Track) inTime() Verdict {
	switch {
	case !t.lost.IsZero() && !t.clean && t.answered.Before(t.lost):
		return Ask
	case !t.lost.IsZero() || t.reported.IsZero():
		return Waiting
	}
	return Well
}

// runs reports whether the provider said so after the silence began: when the
// stream broke or the first report was missed, whichever came first.
func (t Track) runs(firstMiss time.Time) bool {
	began := firstMiss
	if !t.lost.IsZero() && t.lost.Before(began) {
		began = t.lost
	}
	return t.status == nstance.StatusRunning && !t.answered.Before(began)
}

// missed returns how many reports are overdue, and when the next one will be.
func (p Policy) missed(t Track, now time.Time) (n int, next time.Time) {
	if !t.registered {
		return 0, time.Time{}
	}
	silence := max(0, now.Sub(t.since)) - p.Jitter
	if silence < p.Interval {
		return 0, p.due(t, 1)
	}
	return int(silence / p.Interval), now.Add(p.Interval - silence%p.Interval)
}

// due returns when the nth report after the latest is missed.
func (p Policy) due(t Track, n int) time.Time {
	return t.since.Add(p.Jitter).Add(time.Duration(n) * p.Interval)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
