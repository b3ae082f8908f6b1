package health

import (
	"time"

	"github.com/nstance-go/nstance"
)

// DefaultInterval is the default interval between reports.
const DefaultInterval = 60 * time.Second

const defaultMissed = 3

// maxSetting keeps sums of settings within the range of a Duration.
const maxSetting = 365 * 24 * time.Hour

// A Policy says how long an agent may be silent. Zero fields mean the defaults;
// durations are at most a year, longer ones are cut.
type Policy struct {
	Interval time.Duration // between reports; zero or less means DefaultInterval
	Jitter   time.Duration // how late a report may be; zero means a tenth of Interval, negative none
	Missed   int           // reports in a row that make it unhealthy; zero or less means 3
}

func (p Policy) withDefaults() Policy {
	if p.Interval <= 0 {
		p.Interval = DefaultInterval
	}
	p.Interval = min(p.Interval, maxSetting)
	if p.Jitter == 0 {
		p.Jitter = p.Interval / 10
	}
	p.Jitter = min(max(0, p.Jitter), maxSetting)
	if p.Missed <= 0 {
		p.Missed = defaultMissed
	}
	return p
}

// A Verdict is the result of evaluating one instance.
type Verdict int

// The verdicts. None of them is based on an error: while the provider does not
// answer, the verdict stays AskProvider.
const (
	Waiting     Verdict = iota // no verdict yet: not registered, in its grace period, or disconnected for less than an interval
	Healthy                    // connected, and it has reported in time
	AskProvider                // the stream broke or a report is missing: ask the provider now, and again until it answers
	Silent                     // at least one report missed; the provider's answer is no reason to act
	Unhealthy                  // Policy.Missed reports missed, and the provider said after the silence began that the machine runs
	Gone                       // the provider said that the machine does not run
)

// String returns the verdict in lower case.
func (v Verdict) String() string {
	names := [...]string{"waiting", "healthy", "ask provider", "silent", "unhealthy", "gone"}
	if v < 0 || int(v) >= len(names) {
		return "invalid"
	}
	return names[v]
}

// A Track holds the reports, disconnects and provider answers of one instance.
// It is a value: copying it copies all of it. Its methods take constant time,
// allocate nothing and must not be called concurrently. Calls may come out of
// order: an older instant never overrides a later one. The zero Track is an
// instance that has not registered.
type Track struct {
	silentSince     time.Time // the latest report, or Begin
	lastReport      time.Time // zero: none since Begin
	disconnectedAt  time.Time // zero: connected
	statusAskedAt   time.Time
	status          nstance.MachineStatus
	cleanDisconnect bool
	registered      bool
}

// Begin returns the track of an instance that this server begins to watch: one
// just created, or every instance at the start of a term. Earlier reports do not
// count, and no report is missed until a whole interval and its jitter have
// passed.
func (p Policy) Begin(now time.Time, registered bool) Track {
	return Track{silentSince: now, registered: registered}
}

// Registered says that the instance has its certificate: from now on it is
// expected to report, and a missing first report is missed like any other.
// Repeated calls change nothing.
func (t *Track) Registered(now time.Time) {
	if !t.registered {
		t.registered = true
		t.silentSince = later(t.silentSince, now)
	}
}

// Reported says that a report arrived. The caller has checked its sequence
// number: an old or repeated report does not count.
func (t *Track) Reported(now time.Time) {
	t.Connected(now)
	t.silentSince = later(t.silentSince, now)
	t.lastReport = later(t.lastReport, now)
}

// Connected says that the agent's stream is up. It is not a report: an agent
// that comes back again and again without reporting is still silent.
func (t *Track) Connected(now time.Time) {
	t.Registered(now)
	if !now.Before(t.disconnectedAt) {
		t.disconnectedAt = time.Time{}
	}
}

// Disconnected says that the stream is down. Clean means that the agent closed
// it, so the provider is not asked at once; reports missed afterwards count.
func (t *Track) Disconnected(now time.Time, clean bool) {
	t.Registered(now)
	if now.Before(t.lastReport) {
		return // a newer stream has reported since
	}
	if t.disconnectedAt.IsZero() {
		t.disconnectedAt, t.cleanDisconnect = later(t.silentSince, now), clean
	}
	t.cleanDisconnect = t.cleanDisconnect && clean
}

// Answered says what the provider definitely answered to a question asked at
// the given time; an answer to an earlier question than the last one is
// ignored, and so is StatusUnknown. An error is not an answer. Proven absence
// (NotFound, twice, a consistency window apart) is passed on as
// nstance.StatusDeleting.
func (t *Track) Answered(asked time.Time, status nstance.MachineStatus) {
	if status == nstance.StatusUnknown || status == "" || asked.Before(t.statusAskedAt) {
		return
	}
	t.statusAskedAt, t.status = asked, status
}

// RestartGrace counts silence from now, with a whole interval and its jitter
// before a report is missed. It is for a server that was paused and may have
// missed reports. If the stream is down, the provider is asked again. Its answer
// that a machine does not run stays valid.
func (t *Track) RestartGrace(now time.Time) {
	t.silentSince = later(t.silentSince, now)
	if !t.disconnectedAt.IsZero() {
		t.disconnectedAt = later(t.disconnectedAt, now)
	}
}

// Misses returns how many reports in a row the instance has missed: none while
// it is not registered.
func (p Policy) Misses(t Track, now time.Time) int {
	n, _ := p.withDefaults().missed(t, now)
	return n
}

// Evaluate returns the verdict at now, and when time alone may change it: zero
// for never. While it is AskProvider the caller also evaluates after each answer.
func (p Policy) Evaluate(t Track, now time.Time) (v Verdict, next time.Time) {
	p = p.withDefaults()
	missed, next := p.missed(t, now)
	switch {
	case t.status.Dead() && t.lastReport.After(t.statusAskedAt):
		return AskProvider, next // a report from a machine that should not run
	case t.status.Dead():
		return Gone, time.Time{}
	case missed == 0:
		return t.withoutMisses(), next
	case missed >= p.Missed && t.runningSince(p.due(t, 1)):
		return Unhealthy, time.Time{}
	case t.statusAskedAt.Before(p.due(t, missed)):
		return AskProvider, next
	}
	return Silent, next
}

// withoutMisses returns the verdict about an instance that has missed no report.
func (t Track) withoutMisses() Verdict {
	switch {
	case !t.disconnectedAt.IsZero() && !t.cleanDisconnect && t.statusAskedAt.Before(t.disconnectedAt):
		return AskProvider
	case !t.disconnectedAt.IsZero() || t.lastReport.IsZero():
		return Waiting
	}
	return Healthy
}

// runningSince reports whether the provider said after the silence began that the
// machine runs. The silence began when the stream broke or the first report was
// missed, whichever came first.
func (t Track) runningSince(firstMiss time.Time) bool {
	began := firstMiss
	if !t.disconnectedAt.IsZero() && t.disconnectedAt.Before(began) {
		began = t.disconnectedAt
	}
	return t.status == nstance.StatusRunning && !t.statusAskedAt.Before(began)
}

// missed returns how many reports are overdue, and when the next one will be.
func (p Policy) missed(t Track, now time.Time) (n int, next time.Time) {
	if !t.registered {
		return 0, time.Time{}
	}
	silence := max(0, now.Sub(t.silentSince)) - p.Jitter
	if silence < p.Interval {
		return 0, p.due(t, 1)
	}
	return int(silence / p.Interval), now.Add(p.Interval - silence%p.Interval)
}

// due returns when the nth report after the latest is missed.
func (p Policy) due(t Track, n int) time.Time {
	return t.silentSince.Add(p.Jitter).Add(time.Duration(n) * p.Interval)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
