package reconcile

import (
	"cmp"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/records"
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
		s.queue.add(m.group.key, true)
	}
	if first && m.registered() {
		m.healthTrack.Registered(now)
		s.publish(m, nstance.Event{Type: nstance.EventRegistered})
		s.queue.add(m.group.key, false)
	}
}

func (s *shard) handleDisconnected(m *member, clean bool, now time.Time) {
	m.connected = false
	if !clean {
		m.streamBrokenAt, m.queriesAfterBreak = now, 0
	}
	m.healthTrack.Disconnected(now, clean)
	s.queue.add(m.group.key, !clean)
}

// handleReport is the hot path: most reports are only stored.
func (s *shard) handleReport(m *member, rep nstance.Report, now time.Time) {
	if m.asleep() && m.rec.Standby.Mode != nstance.ParkRunning {
		if m.state != nstance.Waking {
			s.questions.add(m.id) // another program or person may have started it
			return
		}
		s.awoke(m, now)
	}
	first := m.reportAt.IsZero()
	m.report, m.reportAt, m.graceUntil = rep, now, time.Time{}
	m.healthTrack.Reported(now)
	switch good := probesPassed(rep) && m.registered(); {
	case good && m.healthySince.IsZero():
		m.healthySince = now
		s.rebalance(m.group)
		s.queue.add(m.group.key, false)
	case !good && !m.healthySince.IsZero():
		m.healthySince = time.Time{}
		s.queue.add(m.group.key, false)
	case first:
		s.queue.add(m.group.key, false)
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
	e := nstance.Event{Type: nstance.EventDrainAcknowledged, Reason: string(a.Outcome), Drain: m.drain}
	if a.Outcome == nstance.OutcomeFailed {
		e.Error = a.Message
	}
	s.publish(m, e)
	m.lastAck = &records.DrainEnd{At: s.opts.Now().UTC(), By: a.By, Outcome: a.Outcome, Message: a.Message}
	if m.loneDrain != nil && a.By == nstance.ExecutorAgent {
		m.lastAck.Message = withoutServer(a.Message)
	}
	if a.Outcome == nstance.OutcomeDrained || a.Delete {
		m.drainEnded = true
		s.queue.add(m.group.key, true)
	}
}

// handleLoneDrain records, once for each notice, that the agent emptied its machine
// without a command. The drain of the shard follows as for any notice: its executor
// acknowledges it, and the agent does so at once.
func (s *shard) handleLoneDrain(m *member, f nstance.DrainedWithoutServer) {
	eventID := m.firstEventID(f.EventID)
	if m.loneDrain != nil && m.loneDrain.eventID == eventID || findNotice(m.notices, eventID) < 0 {
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
	if s.checkMarks(m, mach) != nil || m.answerOutdated(asked) {
		return true
	}
	now := s.opts.Now()
	m.missingSince = time.Time{}
	s.observeMachine(m, mach, now)
	m.healthTrack.Answered(asked, mach.Status)
	if mach.Status == nstance.StatusRunning && len(m.notices) > 0 && s.clockRight() {
		m.dropExpiredNotices(now, s.clock.Elapsed())
	}
	s.queue.add(m.group.key, m.gone)
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

// An absence is a definite NotFound about a machine. The zero absence has no cause.
type absence struct {
	cause  nstance.LossCause
	answer string // of the provider; empty: it was not asked about this machine alone
}

func absenceOf(err error) absence { return absence{nstance.LossCauseOf(err), err.Error()} }

// handleMissing records a definite NotFound as the answer to a call that was sent
// now. With a cause it proves that the machine is gone. Without one, a second NotFound
// must follow, a consistency window later.
func (s *shard) handleMissing(m *member, is absence, now time.Time) {
	if m.answerOutdated(now) {
		return
	}
	young := (is.cause == "" || relaunched(m.rec)) && !m.registered() && now.Before(s.absentFrom(m))
	if !m.machineKnown() && !m.registered() || m.gone || young {
		return
	}
	if m.missingSince.IsZero() {
		m.missingSince = now
	}
	switch {
	case s.retryLostLaunch(m, is, now):
	case is.cause != "" || now.Sub(m.missingSince) >= s.opts.ConsistencyWindow:
		m.healthTrack.Answered(now, nstance.StatusDeleting)
		s.markGone(m, "the provider does not know it", is.cause, now)
	}
	s.queue.add(m.group.key, true)
}

// observeMachine records the provider's answer about the machine of m.
func (s *shard) observeMachine(m *member, mach nstance.Machine, now time.Time) {
	m.machine = mach
	s.admission.MachineIn(m.rec.Shape.Subnet, mach.Zone)
	s.recordMachine(m, now)
	s.compareMarket(m)
	if s.observeSleep(m, mach.Status, now) {
		return
	}
	ending := mach.Status == nstance.StatusStopping || mach.Status == nstance.StatusDeleting
	switch {
	case ending && s.launchRetryable(m, mach.Cause, now): // once nothing is left of it
	case machineLost(mach.Status):
		s.markGone(m, "the provider says "+string(mach.Status), mach.Cause, now)
	case m.gone:
		m.loss = loss{}
	}
}

// markGone records that the machine of m is gone, and what that says about its shape.
func (s *shard) markGone(m *member, why string, cause nstance.LossCause, now time.Time) {
	if m.gone {
		return
	}
	m.loss = loss{gone: true, cause: cause, taken: m.taken || s.takenByCloud(m, cause), at: now}
	s.rebalance(m.group)
	if m.state == nstance.Deleting {
		return
	}
	if cause != "" {
		why += ": " + string(cause)
	}
	s.publish(m, nstance.Event{Type: nstance.EventMachineGone, Reason: why})
	s.rememberLoss(m, now)
	if notice.TakenBack(cause, m.market()) && !reclaimNoticed(m.notices) {
		s.recordReclaim(m, now)
	}
}

// takenByCloud reports whether a machine that is gone for cause was taken from
// m, whatever it was made from. Spot capacity that ends without a cause counts
// as reclaimed. Any other machine without a cause may have been powered off by
// its own image.
func (s *shard) takenByCloud(m *member, cause nstance.LossCause) bool {
	switch cause {
	case nstance.LossInvalid, nstance.LossGuest:
		return false
	case "":
		return m.market() == nstance.Spot
	}
	return true
}

// rememberLoss tells the admission queue what the end of a machine says about its
// shape.
func (s *shard) rememberLoss(m *member, now time.Time) {
	shape := capacityShape(m.rec.Shape)
	switch m.cause {
	case nstance.LossCapacity:
		s.admission.Lost(shape, now)
	case nstance.LossQuota:
		s.admission.LostQuota(shape, m.definition().Subnets, now)
	case nstance.LossReclaimed:
		s.admission.Reclaimed(shape, m.zone(), now)
	}
}

// machineLost reports whether a machine in this status is lost.
func machineLost(s nstance.MachineStatus) bool { return s.Dead() }

// retryLostLaunch asks again for such a machine, of which the provider has nothing left,
// and reports whether it does.
func (s *shard) retryLostLaunch(m *member, is absence, now time.Time) bool {
	if !s.launchRetryable(m, is.cause, now) {
		return false
	}
	code := nstance.Capacity
	if is.cause == nstance.LossQuota {
		code = nstance.Quota
	}
	m.answeredWith = nstance.Errorf(code, "the provider accepted the machine and could not start it: %s", cmp.Or(is.answer, string(is.cause)))
	s.admission.Explain(capacityShape(m.rec.Shape), m.answeredWith.Error(), now)
	s.publish(m, nstance.Event{Type: nstance.EventCreateFailed, Code: code, Error: m.answeredWith.Error(), Reason: "it is tried again"})
	m.loss = loss{cause: is.cause}
	s.rememberLoss(m, now)
	m.loss, m.machine, m.machineSince, m.missingSince = loss{}, nstance.Machine{}, time.Time{}, time.Time{}
	m.state = nstance.Provisioning
	m.owe(stepCreate)
	m.needsNewToken = true
	s.requestAnotherGrant(m)
	return true
}

// probesPassed reports whether every probe passed: true without probes.
func probesPassed(r nstance.Report) bool {
	return !slices.ContainsFunc(r.Probes, func(p nstance.ProbeResult) bool { return !p.OK })
}
