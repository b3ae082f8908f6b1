package reconcile

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

// forgetNoticeAfter is how long after its deadline a notice is kept for a machine
// that runs, as the provider says.
const forgetNoticeAfter = 10 * time.Minute

// maxNotices is how many notices one instance may have at once: a stolen identity
// can have its own instance replaced, but not fill the memory.
const maxNotices = 16

// Observe records a fact and returns at once. Facts about instances that
// the shard does not know are dropped: they are sent again.
func (r *Reconciler) Observe(f nstance.Fact) {
	if d, ok := f.(nstance.Desired); ok {
		r.recordDesired(r.desire(d))
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	switch f := f.(type) {
	case nstance.Removed:
		if g := r.groups[f.Key]; g != nil {
			r.setRemoving(g, true)
			r.queue.add(g.key, false)
		}
	case nstance.Balancing:
		r.balance.Configure(f.LoadBalancers)
	case nstance.Registered:
		r.withMember(f.ID, func(m *member) { r.handleRegistered(m, now) })
	case nstance.Connected:
		r.withMember(f.ID, func(m *member) { m.connected, m.streamBrokenAt = true, time.Time{}; m.healthTrack.Connected(now) })
	case nstance.Disconnected:
		r.withMember(f.ID, func(m *member) { r.handleDisconnected(m, f.Clean, now) })
	case nstance.Reported:
		r.withMember(f.Report.InstanceID, func(m *member) { r.handleReport(m, f.Report, now) })
	case nstance.FilesReported:
		r.withMember(f.ID, func(m *member) { m.updateFiles(f) })
	case nstance.Noticed:
		r.withMember(f.ID, func(m *member) { r.handleNotice(m, f.Notice, f.Ack) })
	case nstance.Drained:
		r.withMember(f.Ack.Instance, func(m *member) { r.handleDrained(m, f.Ack) })
	case nstance.ExecutorsChanged:
		r.executorsChanged(f.Tenant)
	case nstance.MachineSeen:
		r.handleMachine(f.Machine, now)
	case nstance.MachineMissing:
		r.withMember(f.ID, func(m *member) { r.handleMissing(m, f.Cause, now) })
	}
}

// recordDesired records whether desired groups were refused: what Observe cannot
// return is an alarm, and needs attention until others are accepted.
func (r *Reconciler) recordDesired(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusedGroups = err
	if err == nil {
		return
	}
	r.log.Error("desired groups refused", "err", err)
	r.opts.Journal(nstance.Event{
		Type: nstance.EventAlarm, Time: r.opts.Now().UTC(), Reason: "desired groups are refused, the former ones stay", Code: nstance.CodeOf(err), Error: err.Error(),
	})
}

func (r *Reconciler) withMember(id nstance.InstanceID, do func(*member)) {
	if m := r.members[id]; m != nil {
		do(m)
	}
}

func (r *Reconciler) handleRegistered(m *member, now time.Time) {
	rec, ok := r.storedRecord(m.id)
	if !ok || rec.RegisteredAt.IsZero() {
		m.unrecordedRegistration = true
		r.publish(m, nstance.Event{Type: nstance.EventAlarm, Reason: "it has registered, and its record does not say so: RegisteredAt must be durable first"})
		return
	}
	m.unrecordedRegistration = false
	first := !m.registered()
	m.rec = rec
	if rec.Deleting != nil && m.step != stepDelete { // by a former leader's late write
		r.trustRecord(m)
		r.queue.add(m.group.key, true)
	}
	if first && m.registered() {
		m.healthTrack.Registered(now)
		r.publish(m, nstance.Event{Type: nstance.EventRegistered})
		r.queue.add(m.group.key, false)
	}
}

func (r *Reconciler) handleDisconnected(m *member, clean bool, now time.Time) {
	m.connected = false
	if !clean {
		m.streamBrokenAt, m.queriesAfterBreak = now, 0
	}
	m.healthTrack.Disconnected(now, clean)
	r.queue.add(m.group.key, !clean)
}

// handleReport is the hot path: most reports are only stored.
func (r *Reconciler) handleReport(m *member, rep nstance.Report, now time.Time) {
	first := m.reportAt.IsZero()
	m.report, m.reportAt, m.graceUntil = rep, now, time.Time{}
	m.healthTrack.Reported(now)
	for _, n := range rep.Notices {
		r.handleNotice(m, n, nil)
	}
	switch good := rep.ProbesPassed() && m.registered(); {
	case good && m.healthySince.IsZero():
		m.healthySince = now
		r.rebalance(m.group)
		r.queue.add(m.group.key, false)
	case !good && !m.healthySince.IsZero():
		m.healthySince = time.Time{}
		r.queue.add(m.group.key, false)
	case first:
		r.queue.add(m.group.key, false)
	}
}

// updateFiles brings the last report up to date: the next one may be a minute away.
func (m *member) updateFiles(f nstance.FilesReported) {
	m.report.ConfigHash = cmp.Or(f.ConfigHash, m.report.ConfigHash)
	m.report.Files, m.report.FilesError = f.Files, f.Error
}

// handleNotice records a standing or withdrawn notice. It is acknowledged once its
// consequence is durable.
func (r *Reconciler) handleNotice(m *member, n nstance.Notice, ack func()) {
	known := findNotice(m.notices, n.EventID)
	switch {
	case n.Cancelled:
		r.withdrawNotice(m, known)
		if m.withdrawalIgnored() || !r.consequenceDurable(m, n.EventID) {
			call(ack)
		} else {
			m.addPendingAck(withdrawal+n.EventID, ack)
		}
		return
	case !n.Kind.Dooms():
		if ack != nil { // those in reports are repeats
			r.publish(m, nstance.Event{Type: nstance.EventNoticeIgnored, Reason: "kind " + string(n.Kind) + " dooms nothing", Notice: &n})
		}
		call(ack)
		return
	case slices.Contains(m.droppedNotices, n.EventID):
		call(ack)
		return
	case known < 0 && len(m.notices) >= maxNotices:
		r.publish(m, nstance.Event{Type: nstance.EventNoticeIgnored, Reason: "too many standing notices", Notice: &n})
		call(ack)
		return
	case known < 0:
		if n.Kind == nstance.Reclaim {
			r.admission.Reclaimed(capacityShape(m.rec.Shape), r.opts.Now())
		}
		r.receiveNotice(m, &n)
		m.notices = append(m.notices, n)
		e := nstance.Event{Type: nstance.EventNoticeReceived, Notice: &n}
		switch {
		case r.freezeOf(m.group) != nil:
			e.Reason = "frozen: it is recorded, and acted on after the thaw"
		case r.preserved(m, r.opts.Now()):
			e.Reason = "preserved: it is recorded, and acted on when that ends"
		}
		r.publish(m, e)
	case n.Tightens(m.notices[known]):
		m.notices[known].Deadline = n.Deadline
		r.receiveNotice(m, &m.notices[known])
	case r.consequenceDurable(m, n.EventID):
		call(ack)
		return
	}
	m.addPendingAck(n.EventID, ack)
	r.queue.add(m.group.key, true)
}

// receiveNotice sets when a notice was received and when it ends. The provider is
// asked at once about a machine whose deadline has passed: it may be gone.
func (r *Reconciler) receiveNotice(m *member, n *nstance.Notice) {
	n.ReceivedAt = r.opts.Now().UTC().Round(0)
	if !n.Deadline.IsZero() {
		m.endNotice(n.EventID, n.Deadline.Sub(n.ReceivedAt), r.clock.Elapsed())
	}
	if !n.Deadline.IsZero() && !n.Deadline.After(n.ReceivedAt) {
		r.questions.add(m.id)
	}
}

// withdrawal is the prefix of pending acknowledgements for the end of a notice.
const withdrawal = "withdrawn "

// addPendingAck keeps an acknowledgement until what it confirms is durable.
func (m *member) addPendingAck(what string, ack func()) {
	if ack == nil {
		return
	}
	if m.pendingAcks == nil {
		m.pendingAcks = map[string][]func(){}
	}
	owed := m.pendingAcks[what]
	m.pendingAcks[what] = append(owed[max(0, len(owed)-maxNotices+1):], ack)
}

// withdrawalIgnored reports whether a withdrawal comes too late: the deletion is
// durable, or a notice for the instance was already withdrawn once.
func (m *member) withdrawalIgnored() bool { return m.rec.Deleting != nil || m.rec.Reclaims > 1 }

// withdrawNotice drops a notice, unless one was withdrawn for the instance before: its
// second reclaim is final.
func (r *Reconciler) withdrawNotice(m *member, known int) {
	if known < 0 || m.withdrawalIgnored() {
		return
	}
	for _, ack := range m.pendingAcks[m.notices[known].EventID] {
		call(ack) // nothing is owed for it any more
	}
	delete(m.pendingAcks, m.notices[known].EventID)
	delete(m.noticeEnds, m.notices[known].EventID)
	m.notices = append(m.notices[:known:known], m.notices[known+1:]...)
	r.queue.add(m.group.key, true)
}

// consequenceDurable reports whether the notice's consequence is durable.
func (r *Reconciler) consequenceDurable(m *member, eventID string) bool {
	if m.rec.Deleting != nil {
		return true
	}
	recorded := findNotice(m.rec.Notices, eventID) >= 0
	if m.rec.Drain == nil || recorded && m.preserve != nil { // where nothing follows yet it is enough that the next leader will know
		return recorded
	}
	for _, c := range m.rec.Drain.Causes {
		if c.EventID == eventID {
			return true
		}
	}
	return false
}

// sendSettledAcks acknowledges each notice whose consequence is durable, and each
// withdrawal after which none is, or that is ignored.
func (r *Reconciler) sendSettledAcks(m *member) {
	for what, acks := range m.pendingAcks {
		id, ends := strings.CutPrefix(what, withdrawal)
		if r.consequenceDurable(m, id) != ends || ends && m.withdrawalIgnored() {
			delete(m.pendingAcks, what)
			for _, ack := range acks {
				call(ack)
			}
		}
	}
}

func (r *Reconciler) handleDrained(m *member, a nstance.Ack) {
	if m.drain == nil || m.drain.Generation != a.Generation || m.state != nstance.Draining || m.drainEnded {
		return
	}
	e := nstance.Event{Type: nstance.EventDrainAcknowledged, Reason: string(a.Outcome), Drain: m.drain}
	if a.Outcome == nstance.OutcomeFailed {
		e.Error = a.Message
	}
	r.publish(m, e)
	if a.Outcome == nstance.OutcomeDrained || a.Delete {
		m.drainEnded = true
		r.queue.add(m.group.key, true)
	}
}

// handleMachine records the provider's answer about a machine to a call that was sent
// then, and reports whether it is a member's. Listings handle all others.
func (r *Reconciler) handleMachine(mach nstance.Machine, asked time.Time) bool {
	m := r.members[mach.ID]
	if m == nil {
		return false
	}
	if r.checkMarks(m, mach) != nil || m.answerOutdated(asked) {
		return true
	}
	now := r.opts.Now()
	m.missingSince = time.Time{}
	r.observeMachine(m, mach, now)
	m.healthTrack.Answered(asked, mach.Status)
	if mach.Status == nstance.StatusRunning && len(m.notices) > 0 && r.clockRight() {
		m.dropExpiredNotices(now, r.clock.Elapsed())
	}
	r.queue.add(m.group.key, m.gone)
	return true
}

// recordMachine records that m's machine exists, and publishes that once.
func (r *Reconciler) recordMachine(m *member, now time.Time) {
	if m.machineKnown() {
		return
	}
	m.machineSince = now
	if !m.registered() && m.rec.Deleting == nil {
		r.publish(m, nstance.Event{Type: nstance.EventCreated, Replaces: m.replaces})
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

// handleMissing records a definite NotFound as the answer to a call that was sent
// now. With a cause it proves that the machine is gone. Without one, a second NotFound
// must follow, a consistency window later.
func (r *Reconciler) handleMissing(m *member, cause nstance.LossCause, now time.Time) {
	if m.answerOutdated(now) {
		return
	}
	young := (cause == "" || relaunched(m.rec)) && !m.registered() && now.Before(r.absentFrom(m))
	if !m.machineKnown() && !m.registered() || m.gone || young {
		return
	}
	if m.missingSince.IsZero() {
		m.missingSince = now
	}
	switch {
	case r.retryLostLaunch(m, cause, now):
	case cause != "" || now.Sub(m.missingSince) >= r.opts.ConsistencyWindow:
		m.healthTrack.Answered(now, nstance.StatusDeleting)
		r.markGone(m, "the provider does not know it", cause, now)
	}
	r.queue.add(m.group.key, true)
}

// ownerOf returns the marks that the machine of m carries.
func (o *Options) ownerOf(m *member) nstance.Owner {
	owner := o.Owner
	owner.Tenant = m.rec.Tenant
	return owner
}

func findNotice(notices []nstance.Notice, eventID string) int {
	for i, n := range notices {
		if n.EventID == eventID {
			return i
		}
	}
	return -1
}

// dropExpiredNotices drops the notices that the cloud did not act on. The agent may
// go on reporting them: they stay dropped. Elapsed time decides: a recorded deadline
// may be by the wrong clock of a former leader, so it counts as not earlier than the
// moment when this term first reads it.
func (m *member) dropExpiredNotices(now time.Time, elapsed time.Duration) {
	var kept []nstance.Notice
	for _, n := range m.notices {
		if _, known := m.noticeEnds[n.EventID]; !known && !n.Deadline.IsZero() {
			m.endNotice(n.EventID, latest(n.Deadline, now).Sub(now), elapsed)
		}
		if n.Deadline.IsZero() || elapsed < m.noticeEnds[n.EventID] {
			kept = append(kept, n)
			continue
		}
		m.droppedNotices = append(m.droppedNotices[max(0, len(m.droppedNotices)-maxNotices+1):], n.EventID)
		delete(m.noticeEnds, n.EventID)
	}
	m.notices = kept
}

// endNotice records when, in elapsed time, a notice with so much time left is
// dropped if the machine still runs.
func (m *member) endNotice(eventID string, left, elapsed time.Duration) {
	if m.noticeEnds == nil {
		m.noticeEnds = map[string]time.Duration{}
	}
	m.noticeEnds[eventID] = elapsed + left + forgetNoticeAfter
}

func call(f func()) {
	if f != nil {
		f()
	}
}
