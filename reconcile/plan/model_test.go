package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// The model is a group in virtual time, with everything around Plan reduced to its
// effect: machines that boot or fail, silent agents, reclaims and their withdrawals,
// configuration changes, leader changes. Every plan is checked against the promises in
// promises_test.go; when the troubles stop, the group must converge to its desired
// state.

// dice is the source of a history's choices.
type dice interface {
	N(n int) int // in [0,n)
	More() bool
}

type world struct {
	dice dice
	now  time.Time
	next time.Time // next plan time, as named by the last plan
	view plan.View

	machines       []*machine
	made           int             // machines ever requested
	broken         map[string]bool // definitions whose machines never become ready
	flaw           map[string]int  // their failure mode
	hashes         int
	misses         int // failed creations since one became ready
	desiredChanges int // counts changes that may make a desired member surplus
	eligible       time.Duration
	forced         time.Duration
	launch         time.Duration
	quiet          bool
	partial        bool // the last decision was not executed in full

	undefined bool // the definition is missing at present

	verbose bool
	log     []string
	events  int
	plans   int
	fail    string
}

// machine is a member as the loop sees it, and its true state.
type machine struct {
	plan.Member
	machineAt, registerAt, wellAt, hearAt time.Time
	muteSince, reclaimAt, ackAt, goneAt   time.Time
	goodSince                             time.Time // true state, whatever the leader has seen
	probesFail, hidden, everReady         bool
	surge                                 bool // created by P5
	leftBefore, replacedBefore            bool // in this term
	desiredChanges                        int  // of the world at its creation
}

const seeds = 200 // histories of the model

const (
	bootTime            = 40 * time.Second
	reportInterval      = time.Minute
	registrationTimeout = 5 * time.Minute
)

func newPlanWorld(dice dice) *world {
	w := &world{dice: dice, now: noon, broken: map[string]bool{}, flaw: map[string]int{}, launch: 15 * time.Minute}
	w.view.Group = nstance.Group{Size: w.someSize(), DrainTimeout: 5 * time.Minute}
	w.view.Group.Rollout = nstance.Rollout{MaxSurge: nstance.Count{N: dice.N(4)}, HaltAfter: dice.N(4)}
	w.view.Group.Rollout.MinReady = []time.Duration{0, 0, 30 * time.Second, 10 * time.Minute}[dice.N(4)]
	if dice.N(4) == 0 {
		w.eligible, w.forced = 40*time.Minute, 90*time.Minute
	}
	w.someMarket()
	w.template(true)
	for range w.view.Group.Size {
		if dice.N(4) > 0 {
			w.add(w.view.Hash, plan.ReasonSize).Market = w.market(plan.Action{})
		}
	}
	for range dice.N(3) {
		w.add(w.view.Hash, plan.ReasonOnDemand).OnDemand = true
	}
	for _, m := range w.machines { // they have existed for a while
		m.machineAt, m.registerAt, m.wellAt = w.now, w.now, w.now
	}
	return w
}

func (w *world) logf(format string, args ...any) {
	if !w.verbose {
		return
	}
	w.log = append(w.log, w.now.Sub(noon).String()+" "+fmt.Sprintf(format, args...))
}

func (w *world) failf(format string, args ...any) {
	if w.fail == "" {
		w.fail = fmt.Sprintf(format, args...)
		w.logf("BROKEN: %s", w.fail)
		for _, m := range w.machines {
			w.logf("  %s", w.describe(m))
		}
	}
}

func (w *world) someSize() int {
	if w.dice.N(10) == 0 {
		return 10 + w.dice.N(6)
	}
	return w.dice.N(7)
}

// describe formats the relevant state of a machine.
func (w *world) describe(m *machine) string {
	at := func(name string, t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return " " + name + " " + t.Sub(w.now).String()
	}
	return fmt.Sprintf("%s %s %s %s serving=%v ready=%v silent=%v unhealthy=%v gone=%v hidden=%v on-demand=%v notices=%d%s%s%s%s%s%s%s", m.ID, m.State, m.Reason, m.Hash,
		w.serving(m), w.knownReady(&m.Member), m.Silent, m.Unhealthy, m.Gone, m.hidden, m.OnDemand, len(m.Notices),
		at("registered", m.RegisteredAt), at("good", m.GoodSince), at("truly", m.goodSince), at("grace", m.GraceUntil),
		at("launch", m.LaunchBy), at("mute", m.muteSince), at("eligible", m.EligibleAt))
}

func (w *world) between(lo, hi time.Duration) time.Duration {
	return lo + (hi-lo)*time.Duration(w.dice.N(64))/64
}

// template changes the desired definition.
func (w *world) template(good bool) {
	w.hashes++
	w.view.Hash = fmt.Sprintf("v1:%d", w.hashes)
	w.broken[w.view.Hash] = !good
	w.flaw[w.view.Hash] = w.dice.N(4)
	w.view.History.Failures = 0
	w.desiredChanges++
}

// add creates a machine and decides its future.
func (w *world) add(hash string, reason plan.Reason) *machine {
	w.made++
	m := &machine{desiredChanges: w.desiredChanges}
	m.ID = nstance.InstanceID(fmt.Sprintf("i%d", w.made))
	m.Reason, m.Hash, m.CreatedAt, m.State = reason, hash, w.now, nstance.Pending
	m.machineAt = w.now.Add(w.between(0, 3*time.Second))
	m.registerAt = m.machineAt.Add(w.between(bootTime/4, bootTime))
	m.wellAt = m.registerAt.Add(w.between(0, 20*time.Second))
	if w.broken[hash] {
		switch w.flaw[hash] {
		case 0:
			m.registerAt, m.wellAt = time.Time{}, time.Time{}
		case 1:
			m.wellAt = time.Time{}
		case 2: // fails at its start
			m.registerAt, m.wellAt, m.reclaimAt = time.Time{}, time.Time{}, m.machineAt.Add(time.Second)
		}
	}
	m.RegisterBy = w.now.Add(registrationTimeout)
	if w.launch > 0 {
		m.LaunchBy = w.now.Add(w.launch)
	}
	if w.eligible > 0 && !w.quiet {
		m.EligibleAt, m.ExpireAt = w.now.Add(w.eligible+w.between(0, 10*time.Minute)), w.now.Add(w.forced+w.between(0, 10*time.Minute))
	}
	w.machines = append(w.machines, m)
	return m
}

// settle applies everything that is due.
func (w *world) settle() {
	w.machines = slices.DeleteFunc(w.machines, func(m *machine) bool { return m.State == nstance.Deleting && w.due(m.goneAt) })
	for _, m := range w.machines {
		w.live(m)
	}
}

func (w *world) due(t time.Time) bool { return !t.IsZero() && !w.now.Before(t) }

func (w *world) live(m *machine) {
	if w.due(m.machineAt) && !m.HasMachine {
		m.HasMachine = true
		if m.State == nstance.Pending {
			m.State = nstance.Booting
		}
	}
	if w.due(m.reclaimAt) {
		m.Gone = true
	}
	if m.Gone {
		m.goodSince = time.Time{}
		return
	}
	if w.due(m.registerAt) && m.RegisteredAt.IsZero() && m.State != nstance.Deleting {
		m.RegisteredAt = w.now
	}
	if m.RegisteredAt.IsZero() {
		return
	}
	if !m.muteSince.IsZero() {
		m.Silent = w.due(m.muteSince.Add(reportInterval))
		m.Unhealthy = w.due(m.muteSince.Add(3 * reportInterval))
		return
	}
	m.Silent, m.Unhealthy = false, false
	well := w.due(m.wellAt) && !m.probesFail
	m.goodSince = readySince(m.goodSince, well, w.now)
	if m.hearAt.IsZero() || w.due(m.hearAt) {
		m.GraceUntil = time.Time{}
		m.GoodSince = readySince(m.GoodSince, well, w.now)
	}
	if w.knownReady(&m.Member) && !m.everReady {
		m.everReady, m.LaunchBy = true, time.Time{}
		if m.Hash == w.view.Hash {
			w.misses, w.view.History.Failures, w.view.History.BackoffUntil = 0, 0, time.Time{}
		}
	}
	if w.due(m.ackAt) {
		m.DrainOver = true
	}
}

func readySince(since time.Time, well bool, now time.Time) time.Time {
	switch {
	case !well:
		return time.Time{}
	case since.IsZero():
		return now
	}
	return since
}

// knownReady reports whether a leader can see that a member is ready.
func (w *world) knownReady(m *plan.Member) bool {
	return !m.RegisteredAt.IsZero() && !m.Silent && !m.Unhealthy && w.due(m.GoodSince) &&
		w.due(m.GoodSince.Add(w.view.Group.Rollout.MinReady))
}

// serving is the true readiness.
func (w *world) serving(m *machine) bool {
	return !m.Gone && w.due(m.goodSince) && w.due(m.goodSince.Add(w.view.Group.Rollout.MinReady))
}

// upcoming returns the next change of the world without a plan.
func (w *world) upcoming() time.Time {
	var next time.Time
	for _, m := range w.machines {
		times := []time.Time{m.machineAt, m.registerAt, m.wellAt, m.hearAt, m.reclaimAt, m.ackAt, m.goneAt}
		if !m.muteSince.IsZero() {
			times = append(times, m.muteSince.Add(reportInterval), m.muteSince.Add(3*reportInterval))
		}
		if !m.goodSince.IsZero() {
			times = append(times, m.goodSince.Add(w.view.Group.Rollout.MinReady))
		}
		for _, t := range times {
			if t.After(w.now) && (next.IsZero() || t.Before(next)) {
				next = t
			}
		}
	}
	return next
}

// pass advances the clock by at most limit, and stops at the next event.
func (w *world) pass(limit time.Duration) bool {
	to := w.now.Add(limit)
	moved := false
	for _, t := range []time.Time{w.next, w.upcoming()} {
		if t.After(w.now) && t.Before(to) {
			to, moved = t, true
		}
	}
	w.checkNext(to)
	w.now = to
	return moved
}

// run advances the clock by limit and plans after each change.
func (w *world) run(limit time.Duration) {
	for end := w.now.Add(limit); w.now.Before(end) && w.fail == ""; {
		w.pass(end.Sub(w.now))
		w.plan()
	}
}

// plan plans until nothing is left to do at this instant.
func (w *world) plan() {
	w.settle()
	for range 12 {
		w.startReturnDelay()
		v := w.snapshot()
		d := plan.Plan(v, w.now)
		w.plans++
		w.next = d.Next
		w.check(v, d)
		if w.fail != "" || !w.apply(d) {
			return
		}
		w.settle()
	}
	w.failf("the plan does not converge at one instant")
}

// snapshot returns the view of the leader.
func (w *world) snapshot() plan.View {
	v := w.view
	if w.undefined {
		v.Hash = plan.UnknownHash
	}
	v.Members, v.Unreadable = nil, 0
	for _, m := range w.machines {
		if m.hidden {
			v.Unreadable++
			continue
		}
		m.Inherited = m.State.Leaving() && m.leftBefore || !m.State.Leaving() && m.replacedBefore
		v.Members = append(v.Members, m.Member)
	}
	return v
}

func (w *world) find(id nstance.InstanceID) *machine {
	i := slices.IndexFunc(w.machines, func(m *machine) bool { return m.ID == id })
	if i < 0 {
		return nil
	}
	return w.machines[i]
}

// apply executes a decision within the create budget, and reports whether anything
// changed.
func (w *world) apply(d plan.Decision) bool {
	changed := false
	counted := w.counted()
	w.partial = false
	for _, a := range createsApart(d.Actions) {
		m := w.find(a.ID)
		if a.Kind == plan.Delete && m.State == nstance.Deleting {
			continue
		}
		w.logf("%s %s %s%v", a.Kind, a.ID, a.Reason, a.Causes)
		changed = true
		if a.Failure {
			m.Answered = true
		}
		if a.Failure && m.Hash == w.view.Hash {
			w.countFailure(false)
		}
		switch a.Kind {
		case plan.Create:
			if !w.quiet && w.dice.N(8) == 0 {
				w.logf("budget used up")
				w.next, w.partial = w.now.Add(5*time.Second), true
				return false
			}
			w.create(a, counted >= w.size())
			counted++
		case plan.Delete:
			m.State, m.goneAt, m.ackAt = nstance.Deleting, w.now.Add(w.between(time.Second, time.Minute)), time.Time{}
			m.DeletedFor = a.Causes[0].Kind
		case plan.StartDrain, plan.Tighten:
			w.drain(m, a)
		case plan.CancelDrain:
			m.State, m.Drain, m.DrainOver, m.ackAt = nstance.Booting, nil, false, time.Time{}
			w.desiredChanges++ // a member that counts again may make another one surplus
		}
	}
	if d.Halt {
		w.view.History.HaltedHash = w.view.Hash
		w.desiredChanges++
		w.logf("halted")
	}
	w.recordLastGood()
	return changed
}

// createsApart returns actions with one for each create.
func createsApart(actions []plan.Action) (out []plan.Action) {
	for _, a := range actions {
		out = append(out, slices.Repeat([]plan.Action{a}, max(1, a.Count))...)
	}
	return out
}

func (w *world) drain(m *machine, a plan.Action) {
	if m.State != nstance.Draining && w.dice.N(3) > 0 {
		m.ackAt = w.now.Add(w.between(time.Second, 4*time.Minute))
	}
	m.State = nstance.Draining
	m.Drain = &nstance.Drain{StartedAt: w.now, Deadline: a.Deadline, Causes: a.Causes, Voluntary: a.Voluntary}
}

func (w *world) create(a plan.Action, surge bool) {
	hash := w.view.Hash
	if a.LastGood {
		hash = w.view.History.LastGoodHash
	}
	m := w.add(hash, a.Reason)
	m.Market = w.market(a)
	m.surge = surge
	loss := w.find(a.Replaces)
	if loss != nil {
		loss.Answered = true
	}
	switch {
	case w.broken[hash] && w.flaw[hash] == 3:
		w.refuse(m, false)
	case !w.quiet && w.dice.N(10) == 0:
		capacity := w.dice.N(2) == 0
		w.refuse(m, capacity)
		if capacity && loss != nil {
			loss.Answered = false
		}
	}
}

// refuse removes a member whose create was definitely refused.
func (w *world) refuse(m *machine, capacity bool) {
	w.logf("create of %s refused", m.ID)
	w.machines = slices.DeleteFunc(w.machines, func(o *machine) bool { return o == m })
	w.countFailure(capacity)
}

func (w *world) countFailure(capacity bool) {
	w.misses++
	if !capacity {
		w.view.History.Failures++
	}
	w.view.History.BackoffUntil = w.now.Add(min(5*time.Second<<min(w.misses-1, 10), 5*time.Minute))
}

func (w *world) size() int {
	if w.view.Removing {
		return 0
	}
	return w.view.Group.Size
}

func (w *world) counted() int {
	n := 0
	for _, m := range w.machines {
		if !m.OnDemand && !m.hidden && !m.State.Leaving() {
			n++
		}
	}
	return n
}

// recordLastGood records the definition with which the whole group was ready.
func (w *world) recordLastGood() {
	w.recordFullSize()
	n := 0
	for _, m := range w.machines {
		if m.OnDemand || m.State.Leaving() {
			continue
		}
		if m.hidden || m.Hash != w.view.Hash || !w.knownReady(&m.Member) {
			return
		}
		n++
	}
	if n > 0 && n >= w.size() {
		w.view.History.LastGoodHash = w.view.Hash
	}
}

// recordFullSize records the size at which the whole group was ready.
func (w *world) recordFullSize() {
	ready := 0
	for _, m := range w.machines {
		if !m.OnDemand && !m.State.Leaving() && !m.hidden && w.knownReady(&m.Member) {
			ready++
		}
	}
	w.view.History.FullAt = min(w.view.History.FullAt, w.view.Group.Size)
	if ready >= w.view.Group.Size {
		w.view.History.FullAt = w.view.Group.Size
	}
}

// history runs one history to its end and returns its failure, or "".
func (w *world) history(troubles int) string {
	w.plan()
	for i := 0; i < troubles && w.plans < 4000 && w.fail == "" && w.dice.More(); i++ {
		w.trouble()
		w.plan()
	}
	if w.fail != "" {
		return w.fail
	}
	w.stopTroubles()
	before, had := w.made, len(w.machines)
	w.plan()
	w.run(8 * time.Hour)
	w.checkConverged(w.made-before, had)
	return w.fail
}

type random struct{ *rand.Rand }

func (random) More() bool    { return true }
func (r random) N(n int) int { return r.IntN(n) }
func newSeed(seed int) *world {
	return newPlanWorld(random{rand.New(rand.NewPCG(uint64(seed), 7))})
}

// TestModel runs many histories. A failure names its seed.
func TestModel(t *testing.T) {
	t.Parallel()
	for seed := range seeds {
		if newSeed(seed).history(60) == "" {
			continue
		}
		again := newSeed(seed)
		again.verbose = true
		why := again.history(60)
		require.Fail(t, why, "seed %d\n%s", seed, strings.Join(again.log[max(0, len(again.log)-60):], "\n"))
	}
}

// randomBytes takes a history's choices from the input of a fuzzer.
type randomBytes struct {
	data []byte
}

func (b *randomBytes) More() bool { return len(b.data) > 0 }

func (b *randomBytes) N(n int) int {
	if len(b.data) == 0 {
		return 0
	}
	c := int(b.data[0])
	b.data = b.data[1:]
	return c % n
}

func Fuzz(f *testing.F) {
	f.Add([]byte{})
	for seed := range 20 {
		r := rand.New(rand.NewPCG(uint64(seed), 11))
		data := make([]byte, 400)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		data = data[:min(len(data), 2000)]
		if newPlanWorld(&randomBytes{data}).history(200) == "" {
			return
		}
		again := newPlanWorld(&randomBytes{data})
		again.verbose = true
		why := again.history(200)
		t.Fatalf("%s\n%s", why, strings.Join(again.log, "\n"))
	})
}
