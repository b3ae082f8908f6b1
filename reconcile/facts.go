package reconcile

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile/internal/notices"
)

func (s *shard) handleRegistered(m *member, now time.Time) {
	rec, ok := s.storedRecord(m.id)
	if !ok || rec.RegisteredAt.IsZero() {
		m.unrecordedRegistration = true
		s.publish(m, nstance.Event{Type: nstance.EventAlarm, Reason: "it has registered, and its record does not say so: RegisteredAt must be durable first"})
		return
	}
	m.unrecordedRegistration = false
	first := !m.registered()
	m.rec = rec
	if rec.Deleting != nil && m.step != stepDelete { // by a former leader's late write
		s.trustRecord(m)
		s.queue.Add(m.group.key, true)
	}
	if first && m.registered() {
		m.healthTrack.Registered(now)
		s.publish(m, nstance.Event{Type: nstance.EventRegistered})
		s.planForRoutine(m.group)
	}
}

func (s *shard) handleConnected(m *member, now time.Time) {
	s.planReturn(m, now)
	m.connected, m.heard, m.streamBrokenAt = true, true, time.Time{}
	m.healthTrack.Connected(now)
}

// planReturn has the group of m planned if an agent is back that was gone: it may drain
// again. It comes before that is recorded.
func (s *shard) planReturn(m *member, now time.Time) {
	if m.state == nstance.Draining && s.agentGone(m, now) {
		s.queue.Add(m.group.key, false)
	}
}

func (s *shard) handleDisconnected(m *member, clean bool, now time.Time) {
	m.connected, m.heard = false, false
	if !clean {
		m.streamBrokenAt, m.queriesAfterBreak = now, 0
	}
	m.healthTrack.Disconnected(now, clean)
	s.queue.Add(m.group.key, !clean)
}

// handleReport is the hot path: most reports are only stored.
func (s *shard) handleReport(m *member, rep nstance.Report, now time.Time) {
	if m.parkedOrMoving() && m.rec.Standby.Mode != nstance.ParkRunning {
		if m.state != nstance.Waking {
			s.questions.Add(m.id) // another program or person may have started it
			return
		}
		s.awoke(m, now)
	}
	s.planReturn(m, now)
	first := m.reportAt.IsZero()
	m.report, m.reportAt, m.heard, m.graceUntil = rep, now, true, time.Time{}
	m.healthTrack.Reported(now)
	switch good := probesPassed(rep) && m.registered(); {
	case good && m.healthySince.IsZero():
		m.healthySince = now
		s.rebalance(m.group)
		s.planForRoutine(m.group)
	case !good && !m.healthySince.IsZero():
		m.healthySince = time.Time{}
		s.queue.Add(m.group.key, false)
	case first:
		s.planForRoutine(m.group)
	}
}

// updateFiles brings the last report up to date: the next one may be a minute away.
func (m *member) updateFiles(f nstance.FilesReported) {
	m.report.ConfigHash = cmp.Or(f.ConfigHash, m.report.ConfigHash)
	m.report.Files, m.report.FilesError = f.Files, f.Error
}

func (s *shard) handleDrained(m *member, a nstance.Ack) {
	if m.drain == nil || m.drain.Generation != a.Generation || m.state != nstance.Draining || m.drainEnded {
		return
	}
	if a.Outcome == nstance.OutcomeBlocked {
		m.drainBlocked = clip.Words(a.Message)
		s.queue.Add(m.group.key, false)
		return
	}
	e := nstance.Event{Type: nstance.EventDrainAcknowledged, Reason: string(a.Outcome), Drain: m.drain}
	if a.Outcome == nstance.OutcomeFailed {
		e.Error, m.drainBlocked = a.Message, "its executor gave up"+withMessage(clip.Words(a.Message))
		s.queue.Add(m.group.key, false)
	}
	s.publish(m, e)
	m.lastAck = &records.DrainEnd{At: s.opts.Now().UTC(), By: a.By, Outcome: a.Outcome, Message: a.Message}
	if m.loneDrain != nil && a.By == nstance.ExecutorAgent {
		m.lastAck.Message = withoutServer(a.Message)
	}
	if a.Outcome == nstance.OutcomeDrained || a.Delete {
		m.drainEnded = true
		s.queue.Add(m.group.key, true)
	}
}

// handleLoneDrain records, once for each notice, that the agent emptied its machine
// without a command. The drain of the shard follows as for any notice: its executor
// acknowledges it, and the agent does so at once.
func (s *shard) handleLoneDrain(m *member, f nstance.DrainedWithoutServer) {
	eventID := m.FirstEventID(f.EventID)
	if m.loneDrain != nil && m.loneDrain.eventID == eventID || notices.Find(m.Standing, eventID) < 0 {
		return
	}
	m.loneDrain = &loneDrain{eventID, &records.DrainEnd{
		At: s.opts.Now().UTC(), By: nstance.ExecutorAgent, Outcome: f.Outcome, Message: withoutServer(f.Message),
	}}
	e := nstance.Event{Type: nstance.EventDrainedWithoutServer, Reason: string(f.Outcome) + ", for notice " + eventID}
	if f.Outcome == nstance.OutcomeFailed {
		e.Error = f.Message
	}
	s.publish(m, e)
}

// withoutServer marks what the record says of such a drain.
func withoutServer(message string) string {
	if message == "" {
		return string(nstance.EventDrainedWithoutServer)
	}
	return string(nstance.EventDrainedWithoutServer) + ": " + message
}

// handleMachine records the provider's answer about a machine to a call that was sent
// then, and reports whether it is a member's. Listings handle all others.
func (s *shard) handleMachine(mach nstance.Machine, asked time.Time) bool {
	m := s.members[mach.ID]
	if m == nil {
		return false
	}
	if s.checkMarks(m, mach) != nil || s.isTwin(m, mach) || m.answerOutdated(asked) {
		return true
	}
	now := s.opts.Now()
	m.missingSince = time.Time{}
	if m.leftToCreate(mach) {
		return true
	}
	s.observeMachine(m, mach, now)
	m.healthTrack.Answered(asked, m.machine.Status)
	if mach.Status == nstance.StatusRunning && len(m.Standing) > 0 && s.clockRight() {
		m.DropExpired(now, s.clock.Elapsed())
	}
	s.queue.Add(m.group.key, m.gone)
	return true
}

// recordMachine records that m's machine exists, and publishes that once, also of one
// whose agent has registered before the machine was known.
func (s *shard) recordMachine(m *member, now time.Time) {
	if m.machineKnown() {
		return
	}
	m.machineSince = now
	if (!m.registered() || m.rec.ProviderID == "") && m.rec.Deleting == nil {
		s.publish(m, nstance.Event{Type: nstance.EventCreated, Replaces: m.rec.Replaces})
	}
}

// answerOutdated reports whether a call about m that was sent later has been answered
// already. If not, the one that was sent then is recorded as the latest.
func (m *member) answerOutdated(asked time.Time) bool {
	if asked.Before(m.answeredAt) {
		return true
	}
	m.answeredAt = asked
	m.countQueriesAfterBreak(asked)
	return false
}

// An absence is a definite NotFound about a machine, or the answer that it does not run. The
// zero absence has no cause.
type absence struct {
	cause  nstance.LossCause
	answer string // of the provider; empty: it was not asked about this machine alone
	words  string // of the cloud, about the end of the machine; empty: none
}

func absenceOf(err error) absence {
	is := absence{cause: nstance.LossCauseOf(err), answer: clip.Words(err.Error())}
	if e, ok := errors.AsType[*nstance.Error](err); ok {
		is.words = clip.Words(e.Words)
	}
	return is
}

// certain reports whether the provider says how the machine ended, so that it is gone.
func (is absence) certain() bool { return is.cause != "" || is.words != "" }

// endOf returns what the provider says of a machine that it shows, and that does not run.
func endOf(mach nstance.Machine) absence {
	words := clip.Words(mach.CauseText)
	return absence{mach.Cause, words, words}
}

// explained returns the late refusal that the provider gave while it still showed the machine
// of m, if is says less; else is.
func (m *member) explained(is absence) absence {
	if end := endOf(m.machine); is.cause == "" && m.machine.Status.Dead() && m.lateRefusal(end) != nil {
		return end
	}
	return is
}

// handleMissing records a definite NotFound as the answer to a call that was sent
// now. With a cause, or the cloud's words, it proves that the machine is gone. Without, a second NotFound
// must follow, a consistency window later, and the agent must not show that it is there:
// a cloud may take longer than that to show a machine.
func (s *shard) handleMissing(m *member, is absence, now time.Time) {
	if m.answerOutdated(now) {
		return
	}
	young := (!is.certain() || relaunched(m.rec)) && !m.registered() && now.Before(s.absenceProvenAt(m))
	if !m.machineKnown() && !m.registered() || m.gone || young {
		return
	}
	if !is.certain() && s.agentShows(m, now) {
		m.missingSince = time.Time{}
		return
	}
	if m.missingSince.IsZero() {
		m.missingSince = now
	}
	proven := is.certain() || now.Sub(m.missingSince) >= s.opts.ConsistencyWindow
	is = m.explained(is)
	switch {
	case !proven, s.retryLostLaunch(m, is, now):
	default:
		m.recordMade()
		m.healthTrack.Answered(now, nstance.StatusDeleting)
		s.markGone(m, "the provider does not know it", is, now)
	}
	s.queue.Add(m.group.key, true)
}

// observeMachine records the provider's answer about the machine of m.
func (s *shard) observeMachine(m *member, mach nstance.Machine, now time.Time) {
	if !mach.Status.Known() {
		if m.unknownStatus != mach.Status {
			s.publish(m, nstance.Event{Type: nstance.EventAlarm, Code: nstance.Invalid,
				Reason: fmt.Sprintf("the provider says %q of its machine, which is no status of package nstance: it counts as unknown", clip.Quote(string(mach.Status)))})
		}
		m.unknownStatus, mach.Status = mach.Status, nstance.StatusUnknown
	}
	m.machine = mach
	m.observeStart(now)
	s.places.MachineIn(m.rec.Shape.Subnet, mach.Zone)
	s.recordMachine(m, now)
	s.compareMarket(m)
	if s.observeSleep(m, mach.Status, now) {
		return
	}
	ending := mach.Status == nstance.StatusStopping || mach.Status == nstance.StatusDeleting
	switch is := endOf(mach); {
	case ending && s.launchRetryable(m, is, now): // once nothing is left of it
	case machineLost(mach.Status) && s.launchRetryable(m, is, now):
		m.recordFailedLaunch(is)
	case machineLost(mach.Status):
		s.markGone(m, "the provider says "+string(mach.Status), is, now)
	case m.gone:
		m.loss = loss{}
	}
}

// markGone records that the machine of m is gone, and what that says about its shape.
func (s *shard) markGone(m *member, why string, is absence, now time.Time) {
	if m.gone {
		return
	}
	cause := is.cause
	m.loss = loss{gone: true, cause: cause, words: is.answer, explained: is.words != "", taken: m.taken || takenByCloud(m, cause), at: now}
	s.rebalance(m.group)
	if m.state == nstance.Deleting {
		return
	}
	if cause != "" {
		why += ": " + string(cause)
	}
	e := nstance.Event{Type: nstance.EventMachineGone, Reason: why, Error: is.answer}
	if len(m.Standing) > 0 {
		n := m.Standing[0]
		e.Notice = &n // it was announced
	}
	s.publish(m, e)
	if refusal := m.lateRefusal(is); refusal != nil {
		s.publish(m, nstance.Event{Type: nstance.EventCreateFailed, Code: nstance.CodeOf(refusal), Error: clip.Words(refusal.Error())})
	}
	s.rememberLoss(m, now)
	if notice.TakenBack(cause, m.market(), s.served(m)) && !reclaimNoticed(m.Standing) {
		s.recordReclaim(m, now)
	}
}

// takenByCloud reports whether a machine that is gone for cause was taken from m, whatever
// it was made from. Only a word of the cloud that says so shows that: a cause, or a notice.
func takenByCloud(m *member, cause nstance.LossCause) bool {
	switch cause {
	case nstance.LossReclaimed, nstance.LossCapacity, nstance.LossQuota, nstance.LossHost, nstance.LossThrottled, nstance.LossRequested:
		return true
	}
	return cause == "" && reclaimNoticed(m.Standing)
}

// served reports whether m was ready once, as far as is known: one that a former leader had
// registered may have been.
func (s *shard) served(m *member) bool {
	return m.wasReady || m.registered() && m.rec.RegisteredAt.Before(s.began)
}

// rememberLoss records what the end of a machine says about its shape. One that the provider
// accepted and ended before it was ready was refused late, if nothing says that it was taken.
func (s *shard) rememberLoss(m *member, now time.Time) {
	switch {
	case m.cause == nstance.LossThrottled:
		s.slowDown()
	case m.refusedLate() && s.served(m), m.cause == nstance.LossReclaimed && m.rehearsed(), m.cause == "" && !m.refusedLate():
	default:
		sent := m.createSent
		if sent.IsZero() {
			sent = m.rec.CreatedAt
		}
		s.places.MachineLost(m.request(), capacityShape(m.rec.Shape), m.zone(), m.cause, sent, m.words, now)
	}
}

// machineLost reports whether a machine in this status is lost.
func machineLost(s nstance.MachineStatus) bool { return s.Dead() }

// probesPassed reports whether every probe passed: true without probes.
func probesPassed(r nstance.Report) bool {
	return !slices.ContainsFunc(r.Probes, func(p nstance.ProbeResult) bool { return !p.OK })
}
