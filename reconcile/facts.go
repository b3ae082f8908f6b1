package reconcile

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

// forgetNoticeAfter is how long past its deadline a notice stands against a
// machine that the provider definitely says is running.
const forgetNoticeAfter = 10 * time.Minute

// maxNotices is how many notices may stand against one instance at once: a
// stolen identity can doom its own instance, but not fill the memory.
const maxNotices = 16

// Observe takes note of a fact and returns at once. Facts about instances that
// the shard does not know are dropped: whoever brings them brings them again.
func (r *Reconciler) Observe(f nstance.Fact) {
	if d, ok := f.(nstance.Desired); ok {
		if err := r.desire(d); err != nil {
			r.log.Error("desired groups refused", "err", err)
		}
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
		r.withMember(f.ID, func(m *member) { r.registered(m, now) })
	case nstance.Connected:
		r.withMember(f.ID, func(m *member) { m.connected, m.brokeAt = true, time.Time{}; m.track.Connected(now) })
	case nstance.Disconnected:
		r.withMember(f.ID, func(m *member) { r.disconnected(m, f.Clean, now) })
	case nstance.Reported:
		r.withMember(f.Report.InstanceID, func(m *member) { r.reported(m, f.Report, now) })
	case nstance.FilesReported:
		r.withMember(f.ID, func(m *member) { m.filed(f) })
	case nstance.Noticed:
		r.withMember(f.ID, func(m *member) { r.noticed(m, f.Notice, f.Ack) })
	case nstance.Drained:
		r.withMember(f.Ack.Instance, func(m *member) { r.drained(m, f.Ack) })
	case nstance.ExecutorsChanged:
		r.executorsChanged(f.Tenant)
	case nstance.MachineSeen:
		r.seen(f.Machine, now)
	case nstance.MachineMissing:
		r.withMember(f.ID, func(m *member) { r.missing(m, f.Cause, now) })
	}
}

func (r *Reconciler) withMember(id nstance.InstanceID, do func(*member)) {
	if m := r.members[id]; m != nil {
		do(m)
	}
}

func (r *Reconciler) registered(m *member, now time.Time) {
	rec, ok := r.records.Get(m.id)
	if !ok {
		return
	}
	first := !m.registered()
	m.rec = rec
	if rec.Deleting != nil && m.step != stepDelete { // by a former leader's late write
		r.believe(m)
		r.queue.add(m.group.key, true)
	}
	if first && m.registered() {
		m.track.Registered(now)
		r.say(m, nstance.Event{Type: nstance.EventRegistered})
		r.queue.add(m.group.key, false)
	}
}

func (r *Reconciler) disconnected(m *member, clean bool, now time.Time) {
	m.connected = false
	if !clean {
		m.brokeAt, m.looks = now, 0
	}
	m.track.Disconnected(now, clean)
	r.queue.add(m.group.key, !clean)
}

// reported is the hot path: in the ordinary case it stores and returns.
func (r *Reconciler) reported(m *member, rep nstance.Report, now time.Time) {
	first := m.reportAt.IsZero()
	m.report, m.reportAt, m.graceUntil = rep, now, time.Time{}
	m.track.Reported(now)
	for _, n := range rep.Notices {
		r.noticed(m, n, nil)
	}
	switch good := rep.ProbesPassed() && m.registered(); {
	case good && m.goodSince.IsZero():
		m.goodSince = now
		r.rebalance(m.group)
		r.queue.add(m.group.key, false)
	case !good && !m.goodSince.IsZero():
		m.goodSince = time.Time{}
		r.queue.add(m.group.key, false)
	case first:
		r.queue.add(m.group.key, false)
	}
}

// filed brings the last report up to date: the next one may be a minute away.
func (m *member) filed(f nstance.FilesReported) {
	m.report.ConfigHash = cmp.Or(f.ConfigHash, m.report.ConfigHash)
	m.report.Files, m.report.FilesError = f.Files, f.Error
}

// noticed records a standing or withdrawn notice. The acknowledgement is owed
// until the consequence is durable.
func (r *Reconciler) noticed(m *member, n nstance.Notice, ack func()) {
	known := findNotice(m.notices, n.EventID)
	switch {
	case n.Cancelled:
		r.withdrawn(m, known)
		if m.final() || !r.consequent(m, n.EventID) {
			call(ack)
		} else {
			m.owe(withdrawal+n.EventID, ack)
		}
		return
	case !n.Kind.Dooms():
		if ack != nil { // those in reports are repeats
			r.say(m, nstance.Event{Type: nstance.EventNoticeIgnored, Reason: "kind " + string(n.Kind) + " dooms nothing", Notice: &n})
		}
		call(ack)
		return
	case slices.Contains(m.stale, n.EventID):
		call(ack)
		return
	case known < 0 && len(m.notices) >= maxNotices:
		r.say(m, nstance.Event{Type: nstance.EventNoticeIgnored, Reason: "too many standing notices", Notice: &n})
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
		r.say(m, e)
	case n.Tightens(m.notices[known]):
		m.notices[known].Deadline = n.Deadline
		r.receiveNotice(m, &m.notices[known])
	case r.consequent(m, n.EventID):
		call(ack)
		return
	}
	m.owe(n.EventID, ack)
	r.queue.add(m.group.key, true)
}

// receiveNotice dates a notice. The provider is asked at once about a machine
// whose deadline is past: it may be gone.
func (r *Reconciler) receiveNotice(m *member, n *nstance.Notice) {
	n.ReceivedAt = r.opts.Now().UTC().Round(0)
	if !n.Deadline.IsZero() {
		m.endNotice(n.EventID, n.Deadline.Sub(n.ReceivedAt), r.clock.elapsed())
	}
	if !n.Deadline.IsZero() && !n.Deadline.After(n.ReceivedAt) {
		r.asks.add(m.id)
	}
}

// withdrawal marks the acknowledgements that are owed for the end of a notice.
const withdrawal = "withdrawn "

// owe keeps an acknowledgement until what it stands for is durable.
func (m *member) owe(what string, ack func()) {
	if ack == nil {
		return
	}
	if m.acks == nil {
		m.acks = map[string][]func(){}
	}
	owed := m.acks[what]
	m.acks[what] = append(owed[max(0, len(owed)-maxNotices+1):], ack)
}

// final reports whether a withdrawal changes nothing any more: the deletion is
// marked, or the instance has cried wolf before.
func (m *member) final() bool { return m.rec.Deleting != nil || m.rec.Reclaims > 1 }

// withdrawn drops a notice, unless the instance has cried wolf before: its
// second reclaim is final.
func (r *Reconciler) withdrawn(m *member, known int) {
	if known < 0 || m.final() {
		return
	}
	for _, ack := range m.acks[m.notices[known].EventID] {
		call(ack) // nothing is owed for it any more
	}
	delete(m.acks, m.notices[known].EventID)
	delete(m.noticeEnds, m.notices[known].EventID)
	m.notices = append(m.notices[:known:known], m.notices[known+1:]...)
	r.queue.add(m.group.key, true)
}

// consequent reports whether the notice's consequence is durable.
func (r *Reconciler) consequent(m *member, eventID string) bool {
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

// settleAcks acknowledges every notice whose consequence has become durable, and
// every withdrawal that has none any more, or will have none.
func (r *Reconciler) settleAcks(m *member) {
	for what, acks := range m.acks {
		id, ends := strings.CutPrefix(what, withdrawal)
		if r.consequent(m, id) != ends || ends && m.final() {
			delete(m.acks, what)
			for _, ack := range acks {
				call(ack)
			}
		}
	}
}

func (r *Reconciler) drained(m *member, a nstance.Ack) {
	if m.drain == nil || m.drain.Generation != a.Generation || m.state != nstance.Draining {
		return
	}
	e := nstance.Event{Type: nstance.EventDrainAcknowledged, Reason: string(a.Outcome), Drain: m.drain}
	if a.Outcome == nstance.OutcomeFailed {
		e.Error = a.Message
	}
	r.say(m, e)
	if a.Outcome == nstance.OutcomeDrained || a.Delete {
		m.drainOver = true
		r.queue.add(m.group.key, true)
	}
}

// seen takes the provider's answer about a machine to a question asked then, and
// reports whether that is a member's. What is not is looked at where everything
// is listed.
func (r *Reconciler) seen(mach nstance.Machine, asked time.Time) bool {
	m := r.members[mach.ID]
	if m == nil {
		return false
	}
	if r.checkMarks(m, mach) != nil || m.overtaken(asked) {
		return true
	}
	now := r.opts.Now()
	m.absent = time.Time{}
	r.observeMachine(m, mach, now)
	m.track.Answered(asked, mach.Status)
	if mach.Status == nstance.StatusRunning && len(m.notices) > 0 && r.clockRight() {
		m.dropStale(now, r.clock.elapsed())
	}
	r.queue.add(m.group.key, m.gone)
	return true
}

// knowMachine notes that m's machine exists, and says so the first time that
// this is news.
func (r *Reconciler) knowMachine(m *member, now time.Time) {
	if m.hasMach {
		return
	}
	m.hasMach, m.machSince = true, now
	if !m.registered() && m.rec.Deleting == nil {
		r.say(m, nstance.Event{Type: nstance.EventCreated, Replaces: m.replaces})
	}
}

// overtaken reports whether a later question about m has been answered than the
// one asked then. If not, it counts as the latest.
func (m *member) overtaken(asked time.Time) bool {
	if asked.Before(m.answeredAt) {
		return true
	}
	m.answeredAt = asked
	m.looked(asked)
	return false
}

// missing takes the provider's definite NotFound to a question asked at now. A
// machine of which the provider still says why it is gone was known to it. Any
// other is gone only when a second answer, a consistency window later, says the
// same.
func (r *Reconciler) missing(m *member, cause nstance.LossCause, now time.Time) {
	if m.overtaken(now) {
		return
	}
	young := (cause == "" || relaunched(m.rec)) && !m.registered() && now.Before(r.absentFrom(m))
	if !m.hasMach && !m.registered() || m.gone || young {
		return
	}
	if m.absent.IsZero() {
		m.absent = now
	}
	switch {
	case r.relaunch(m, cause, now):
	case cause != "" || now.Sub(m.absent) >= r.opts.ConsistencyWindow:
		m.track.Answered(now, nstance.StatusDeleting)
		r.lose(m, "the provider does not know it", cause, now)
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

// dropStale forgets the notices that the cloud did not follow up. The agent may
// go on seeing them; they do not come back. How long they stand goes by elapsed
// time: a deadline on record may be by the wrong clock of a former leader, so it
// does not count as earlier than when this term first looks at it.
func (m *member) dropStale(now time.Time, elapsed time.Duration) {
	var kept []nstance.Notice
	for _, n := range m.notices {
		if _, known := m.noticeEnds[n.EventID]; !known && !n.Deadline.IsZero() {
			m.endNotice(n.EventID, latest(n.Deadline, now).Sub(now), elapsed)
		}
		if n.Deadline.IsZero() || elapsed < m.noticeEnds[n.EventID] {
			kept = append(kept, n)
			continue
		}
		m.stale = append(m.stale[max(0, len(m.stale)-maxNotices+1):], n.EventID)
		delete(m.noticeEnds, n.EventID)
	}
	m.notices = kept
}

// endNotice records until when, in elapsed time, a notice with so much time left
// stands against a machine that runs.
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
