package plan_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// ruleCase changes a group and gives the expected plan.
type ruleCase struct {
	name    string
	members string
	change  []change
	want    string
	holds   []string
}

func runCases(t *testing.T, cases []ruleCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := plan.Plan(newView(t, c.members, c.change...), noon)
			require.Equal(t, c.want, steps(d))
			require.Equal(t, c.holds, holdKinds(d))
		})
	}
}

func changes(c ...change) []change { return c }

// TestShrinkEvensPlaces: surplus leaves the most crowded place of a group's spread, unless
// another member is worth less.
func TestShrinkEvensPlaces(t *testing.T) {
	in := func(places string) change {
		return func(v *plan.View) {
			v.Group.Spread = nstance.Spread{By: nstance.SpreadPool, MaxShare: nstance.Count{N: 50, Percent: true}}
			for i, place := range places {
				v.Members[i].Place = string(place)
			}
		}
	}
	runCases(t, []ruleCase{
		{"the oldest without a spread", "r r r r", changes(withSize(2)), "StartDrain(r1) StartDrain(r2)", nil},
		{"the crowded place", "r r r r", changes(withSize(2), in("abbb")), "StartDrain(r2) StartDrain(r3)", nil},
		{"each from the place that is crowded by then", "r r r r r", changes(withSize(2), in("aabbb")), "StartDrain(r3) StartDrain(r1) StartDrain(r4)", nil},
		{"worth comes first", "r r r b", changes(withSize(3), in("bbba")), "Delete(b4)", nil},
		{"stale members", "s s s r", changes(withSize(3), in("abba")), "StartDrain(s1)", nil},
		{"named to go first", "r r r r", changes(withSize(3), in("abbb"), goesFirst(0)), "StartDrain(r1)", nil},
		{"rolled out from the place that is crowded", "s s s r", changes(withSize(3), in("abbc")), "StartDrain(s2)", nil},
		{"an old one before a stale one of a crowded place", "r s s R", changes(withSize(3), in("abbc"), each("r1", func(m *plan.Member) { m.EligibleAt = noon })), "StartDrain(r1)", nil},
		{"rolled out from the crowded place", "s s s r", changes(withSize(3), in("abba")), "StartDrain(s1)", nil},
	})
}

func draining(left time.Duration, causes ...nstance.Cause) func(*plan.Member) {
	return func(m *plan.Member) { m.State, m.Drain = nstance.Draining, newDrain(left, causes...) }
}

var (
	byRollout = nstance.Cause{Kind: nstance.CauseRollout}
	byNotice  = nstance.Cause{Kind: nstance.CauseNotice, EventID: "n"}
	byRequest = nstance.Cause{Kind: nstance.CauseRequest, Message: "by hand"}
)

func TestFinishesRemovals(t *testing.T) {
	timeout := func(d time.Duration) change { return func(v *plan.View) { v.Group.DrainTimeout = d } }
	runCases(t, []ruleCase{
		{"acknowledged", "r r r d", changes(each("d", func(m *plan.Member) { m.DrainOver = true })), "Delete(d4)", nil},
		{"deadline passed", "r r r d", changes(each("d", draining(0, byRollout))), "Delete(d4)", nil},
		{"machine gone", "r r r d", changes(each("d", func(m *plan.Member) { m.Gone = true })), "Delete(d4)", nil},
		{"drains switched off", "r r r d", changes(timeout(0)), "Delete(d4)", nil},
		{"deletion requested", "r r r d", changes(each("d", func(m *plan.Member) {
			m.Requested, m.NoDrain = &byRequest, true
		})), "Delete(d4)", nil},
		{"repeated while deleting", "r r r d", changes(each("d", func(m *plan.Member) { m.State = nstance.Deleting })), "Delete(d4)", nil},
		{"refused create does not count", "r r b", changes(each("b", func(m *plan.Member) { m.State = nstance.Failed })), "Create(size)", nil},
		{"drain without a recorded drain", "r r r d", changes(each("d", func(m *plan.Member) { m.Drain = nil })), "StartDrain(d4)", nil},
		{"an on-demand member's drain", "r r r d", changes(each("d", func(m *plan.Member) { m.OnDemand, m.DrainOver = true, true })), "Delete(d4)", nil},
	})
}

func TestTightensDrains(t *testing.T) {
	t.Run("notice during a rollout's drain: involuntary and shorter", func(t *testing.T) {
		v := newView(t, "r r r d", each("d", func(m *plan.Member) { m.Notices = []nstance.Notice{newNotice("n", 2*time.Minute)} }))
		a := onlyAction(t, plan.Plan(v, noon), plan.Tighten)
		require.Equal(t, noon.Add(110*time.Second), a.Deadline)
		require.Equal(t, []nstance.CauseKind{nstance.CauseRollout, nstance.CauseNotice}, causeKinds(a.Causes))
		require.Equal(t, "n", a.Causes[1].EventID)
		require.False(t, a.Voluntary)
	})
	t.Run("its withdrawal keeps the rollout and the deadline", func(t *testing.T) {
		v := newView(t, "r r r d", each("d", draining(time.Minute, byRollout, byNotice)))
		a := onlyAction(t, plan.Plan(v, noon), plan.Tighten)
		require.Equal(t, noon.Add(time.Minute), a.Deadline)
		require.Equal(t, []nstance.CauseKind{nstance.CauseRollout}, causeKinds(a.Causes))
		require.True(t, a.Voluntary)
	})
	t.Run("request is added once", func(t *testing.T) {
		v := newView(t, "r r r e", each("e", func(m *plan.Member) { m.Requested = &byRequest }))
		a := onlyAction(t, plan.Plan(v, noon), plan.Tighten)
		require.Equal(t, []nstance.CauseKind{nstance.CauseNotice, nstance.CauseRequest}, causeKinds(a.Causes))
		v.Members[3].Drain.Causes = a.Causes
		require.Equal(t, "none", steps(plan.Plan(v, noon)))
	})
	t.Run("another cause replaces a withdrawn notice", func(t *testing.T) {
		v := newView(t, "r r r e", each("e", func(m *plan.Member) { m.Notices, m.ExpireAt = nil, noon.Add(-1) }))
		a := onlyAction(t, plan.Plan(v, noon), plan.Tighten)
		require.Equal(t, []nstance.CauseKind{nstance.CauseExpired}, causeKinds(a.Causes))
	})
	t.Run("a second notice tightens, a later deadline does not", func(t *testing.T) {
		v := newView(t, "r r r e", each("e", func(m *plan.Member) { m.Notices[0].Deadline = noon.Add(time.Hour) }))
		require.Equal(t, "none", steps(plan.Plan(v, noon)))
		v.Members[3].Notices[0].Deadline = noon.Add(30 * time.Second)
		require.Equal(t, noon.Add(20*time.Second), onlyAction(t, plan.Plan(v, noon), plan.Tighten).Deadline)
	})
	t.Run("shrinking margin does not", func(t *testing.T) {
		v := newView(t, "r r r e")
		for s := range 100 {
			require.Equal(t, "none", steps(plan.Plan(v, noon.Add(time.Duration(s)*time.Second))))
		}
		require.Equal(t, "Delete(e4)", steps(plan.Plan(v, noon.Add(100*time.Second))))
	})
}

// TestWaitsForDrains: drains for what the group or a request wants have no deadline where the
// group has them wait, and hold their place in a rollout, but no more than that.
func TestWaitsForDrains(t *testing.T) {
	waits := func(v *plan.View) { v.Group.OnDrainTimeout = nstance.DrainTimeoutWait }
	nothing := func(*plan.View) {}
	unlimited := func(causes ...nstance.Cause) func(*plan.Member) {
		return func(m *plan.Member) {
			draining(nstance.UnlimitedDrain-time.Hour, causes...)(m)
			m.Drain.StartedAt, m.Drain.Executor, m.DrainBlocked = noon.Add(-time.Hour), nstance.ExecutorOperator, "pod web-1: budget web"
		}
	}
	for name, c := range map[string]struct {
		notation string
		change   func(*plan.View)
		want     time.Duration
	}{
		"a surplus":                 {"r r r r", nothing, nstance.UnlimitedDrain},
		"a rollout":                 {"s r r R", nothing, nstance.UnlimitedDrain},
		"a request":                 {"r r r", each("r1", func(m *plan.Member) { m.Requested = &byRequest }), nstance.UnlimitedDrain},
		"a reclaim":                 {"r r n", nothing, 110 * time.Second},
		"its age":                   {"r r r", each("r1", func(m *plan.Member) { m.ExpireAt = noon.Add(-1) }), 5 * time.Minute},
		"the group does not say so": {"r r r r", func(v *plan.View) { v.Group.OnDrainTimeout = nstance.DrainTimeoutDelete }, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			d := plan.Plan(newView(t, c.notation, waits, c.change), noon)
			i := slices.IndexFunc(d.Actions, func(a plan.Action) bool { return a.Kind == plan.StartDrain })
			require.GreaterOrEqual(t, i, 0)
			require.Equal(t, noon.Add(c.want), d.Actions[i].Deadline)
		})
	}
	for name, c := range map[string]struct {
		change func(*plan.View)
		want   time.Duration
	}{
		"a notice joins":               {each("d", func(m *plan.Member) { m.Notices = []nstance.Notice{newNotice("n", 2*time.Minute)} }), 110 * time.Second},
		"a notice joins that is far":   {each("d", func(m *plan.Member) { m.Notices = []nstance.Notice{newNotice("n", time.Hour)} }), 5 * time.Minute},
		"the group waits no more":      {func(v *plan.View) { v.Group.OnDrainTimeout = "" }, 5 * time.Minute},
		"a request joins: it waits on": {each("d", func(m *plan.Member) { m.Requested = &byRequest }), nstance.UnlimitedDrain - time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(t, "r r r d", waits, each("d", unlimited(byRollout)), c.change)
			a := onlyAction(t, plan.Plan(v, noon), plan.Tighten)
			require.Equal(t, noon.Add(c.want), a.Deadline)
			v.Members[3].Drain.Deadline, v.Members[3].Drain.Causes = a.Deadline, a.Causes
			require.Equal(t, "none", steps(plan.Plan(v, noon.Add(time.Second))), "once")
		})
	}
	runCases(t, []ruleCase{
		{"its place in the rollout is taken", "s s R d", changes(waits, each("d", unlimited(byRollout))), "none", []string{"drain"}},
		{"the others go on", "s s R d", changes(waits, withSurge(2), each("d", unlimited(byRollout))), "Create(rollout)", []string{"drain"}},
		{"it is empty", "r r r d", changes(waits, each("d", unlimited(byRollout)), each("d", func(m *plan.Member) { m.DrainOver = true })), "Delete(d4)", nil},
		{"it has a deadline", "r r r d", changes(waits), "none", nil},
	})
	const began = "; the drain began at 2026-03-01T11:00:00Z"
	for name, c := range map[string]struct {
		change func(*plan.Member)
		want   string
	}{
		"a pod blocks it":        {func(*plan.Member) {}, "pod web-1: budget web"},
		"its operator is quiet":  {func(m *plan.Member) { m.DrainBlocked, m.Drain.StartedAt = "", noon.Add(time.Second-2*time.Minute) }, ""},
		"its operator is silent": {func(m *plan.Member) { m.DrainBlocked = "" }, "its executor, the operator, names no obstacle" + began},
		"its hook is silent":     {func(m *plan.Member) { m.DrainBlocked, m.Drain.Executor = "", nstance.ExecutorAgent }, "its executor, the agent's drain hook, names no obstacle" + began},
		"its agent has no hook":  {func(m *plan.Member) { m.Drain.Executor = nstance.ExecutorNone }, "nothing empties it: no operator is connected that drains, and its agent has no drain hook" + began},
		"its agent is not there": {func(m *plan.Member) { m.Drain.Executor, m.Silent = nstance.ExecutorNone, true }, "nothing empties it: no operator is connected that drains, and its agent does not report" + began},
		"its agent only cordons": {func(m *plan.Member) { m.Drain.Executor, m.Drain.CordonOnly = nstance.ExecutorNone, true }, "nothing empties it: no operator is connected that drains, and a drain hook cannot only cordon" + began},
	} {
		t.Run(name, func(t *testing.T) {
			d := plan.Plan(newView(t, "r r r d", waits, each("d", unlimited(byRollout)), each("d", c.change)), noon)
			require.Equal(t, "none", steps(d))
			if c.want == "" {
				require.Empty(t, d.Holds)
				require.Equal(t, noon.Add(time.Second), d.Next)
				return
			}
			require.Equal(t, []plan.Hold{{Kind: plan.HoldDrain, Reason: "d4 waits without limit to be empty: " + c.want}}, d.Holds)
		})
	}
	d := plan.Plan(newView(t, "r r r d d", waits, each("d", unlimited(byRollout))), noon)
	require.Equal(t, "2 members wait without limit to be empty; d4: pod web-1: budget web", d.Holds[0].Reason)
}

func causeKinds(causes []nstance.Cause) []nstance.CauseKind {
	var out []nstance.CauseKind
	for _, c := range causes {
		out = append(out, c.Kind)
	}
	return out
}

func TestCancelsDrains(t *testing.T) {
	withdrawn := func(m *plan.Member) { m.Notices = nil }
	both := func(f ...func(*plan.Member)) change {
		return each("e", func(m *plan.Member) {
			for _, g := range f {
				g(m)
			}
		})
	}
	runCases(t, []ruleCase{
		{"only notice withdrawn", "r r r e", changes(both(withdrawn)), "CancelDrain(e4)", nil},
		{"notice marked as withdrawn", "r r r e", changes(both(func(m *plan.Member) { m.Notices[0].Cancelled = true })), "CancelDrain(e4)", nil},
		{"the member counts in the same pass", "r r e", changes(both(withdrawn)), "CancelDrain(e3)", nil},
		{"acknowledged drain, too", "r r e", changes(both(withdrawn, func(m *plan.Member) { m.DrainOver = true })), "CancelDrain(e3)", nil},
		{"no surplus removal in the same pass", "r r r r e", changes(both(withdrawn)), "CancelDrain(e5)", nil},
		{"not while a notice is in force", "r r r e", nil, "none", nil},
		{"not while deleting", "r r r e", changes(both(withdrawn, func(m *plan.Member) { m.State = nstance.Deleting })), "Delete(e4)", nil},
		{"not a rollout's drain", "r r r d", nil, "none", nil},
		{"not without known cause", "r r r e", changes(both(withdrawn, func(m *plan.Member) { m.Drain.Causes = nil })), "none", nil},
		{"not before a report to a new leader", "r r r e", changes(both(withdrawn, func(m *plan.Member) {
			m.GoodSince, m.GraceUntil = time.Time{}, noon.Add(1)
		})), "none", nil},
	})
}

func TestDrainDeadline(t *testing.T) {
	reclaim := func(deadline, detected time.Duration) nstance.Notice {
		n := nstance.Notice{Kind: nstance.Reclaim, Source: "gcp/preempted", DetectedAt: noon.Add(detected)}
		if deadline != 0 {
			n.Deadline = noon.Add(deadline)
		}
		return n
	}
	arrived := func(n nstance.Notice, when time.Duration) nstance.Notice {
		n.ReceivedAt = noon.Add(when)
		return n
	}
	cases := []struct {
		name    string
		timeout time.Duration
		notices []nstance.Notice
		want    time.Duration
	}{
		{"10 s before the cloud's", 5 * time.Minute, []nstance.Notice{reclaim(2*time.Minute, 0)}, 110 * time.Second},
		{"a third of the remaining time, if that is less", 5 * time.Minute, []nstance.Notice{reclaim(15*time.Second, 0)}, 10 * time.Second},
		{"the group's, if that is earlier", time.Minute, []nstance.Notice{reclaim(2*time.Minute, 0)}, time.Minute},
		{"the earliest of several", 5 * time.Minute, []nstance.Notice{reclaim(2*time.Minute, 0), reclaim(time.Minute, 0)}, 50 * time.Second},
		{"estimated where the cloud gives none", 5 * time.Minute, []nstance.Notice{reclaim(0, 0)}, 20 * time.Second},
		{"estimated from when it was seen", 5 * time.Minute, []nstance.Notice{reclaim(0, -15*time.Second)}, 10 * time.Second},
		{"estimated from now, without any date", 5 * time.Minute, []nstance.Notice{{Kind: nstance.Reclaim}}, 20 * time.Second},
		{"the shortest, if the deadline has passed", 5 * time.Minute, []nstance.Notice{reclaim(-time.Minute, -3*time.Minute)}, 20 * time.Second},
		{"the group's, if that is shorter", 5 * time.Second, []nstance.Notice{reclaim(-time.Minute, -3*time.Minute)}, 5 * time.Second},
		{"full margin, if it had passed on arrival", 5 * time.Minute, []nstance.Notice{arrived(reclaim(-time.Minute, -3*time.Minute), 0)}, 20 * time.Second},
		{"continues from there", 5 * time.Minute, []nstance.Notice{arrived(reclaim(-time.Minute, -3*time.Minute), -15*time.Second)}, 10 * time.Second},
		{"also where the cloud gives none", 5 * time.Minute, []nstance.Notice{arrived(reclaim(0, -time.Minute), 0)}, 20 * time.Second},
		{"the shortest, if it has passed since", 5 * time.Minute, []nstance.Notice{arrived(reclaim(-time.Minute, -3*time.Minute), -2*time.Minute)}, 20 * time.Second},
		{"not estimated for a stop", 5 * time.Minute, []nstance.Notice{{Kind: nstance.Stop, DetectedAt: noon}}, 5 * time.Minute},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			v := newView(t, "r r n", each("n", func(m *plan.Member) { m.Notices = c.notices }))
			v.Group.DrainTimeout = c.timeout
			a := onlyAction(t, plan.Plan(v, noon), plan.StartDrain)
			require.Equal(t, c.want, a.Deadline.Sub(noon))
			require.False(t, a.Voluntary)
		})
	}
}

func TestRemovesDoomed(t *testing.T) {
	expired := func(m *plan.Member) { m.ExpireAt = noon }
	asked := func(now bool) func(*plan.Member) {
		return func(m *plan.Member) { m.Requested, m.NoDrain = &byRequest, now }
	}
	sick := func(m *plan.Member) { m.Silent, m.Unhealthy = true, true }
	late := func(m *plan.Member) { m.LaunchBy = noon }
	onDemand := func(f func(*plan.Member)) change {
		return each("r4", func(m *plan.Member) { m.OnDemand = true; f(m) })
	}
	runCases(t, []ruleCase{
		{"past its forced age", "r r r", changes(each("r1", expired)), "StartDrain(r1) Create(replace)", nil},
		{"drain requested", "r r r", changes(each("r1", asked(false))), "StartDrain(r1) Create(replace)", nil},
		{"delete requested", "r r r", changes(each("r1", asked(true))), "Delete(r1) Create(replace)", nil},
		{"drain requested before it registered", "r r b", changes(each("b", asked(false))), "Delete(b3) Create(size)", nil},
		{"drains disabled", "r r n", changes(func(v *plan.View) { v.Group.DrainTimeout = 0 }), "Delete(n3) Create(replace)", nil},
		{"registered, not ready in time", "r r u", changes(each("u", late)), "StartDrain(u3) Create(size)", nil},
		{"late, but was ready before", "r r r", changes(each("r1", late)), "none", nil},
		{"late, no report to a new leader yet", "r r u", changes(each("u", func(m *plan.Member) {
			m.LaunchBy, m.GraceUntil = noon, noon.Add(-1)
		})), "none", nil},
		{"failed replacement is replaced", "r r t", changes(each("t", asReplacement)), "Delete(t3) Create(size)", nil},
		{"unhealthy, one of three", "r r r", changes(each("r", sick)), "StartDrain(r1) Create(replace)", []string{"unhealthy_cap"}},
		{"unhealthy, two of ten", "r r r r r r r r r r", changes(each("r", sick), withSize(10)),
			"StartDrain(r1) StartDrain(r2) Create(replace) Create(replace)", []string{"unhealthy_cap"}},
		{"unhealthy, while another drains for that", "r r r d", changes(each("r1", sick),
			each("d", draining(time.Minute, nstance.Cause{Kind: nstance.CauseUnhealthy}))), "none", []string{"unhealthy_cap"}},
		{"unhealthy, while another is deleted for that", "r r r d", changes(each("r1", sick), each("d", func(m *plan.Member) {
			m.State, m.Drain, m.DeletedFor = nstance.Deleting, nil, nstance.CauseUnhealthy
		})), "Delete(d4)", []string{"unhealthy_cap"}},
		{"unhealthy and noticed: the cap does not apply", "r r r", changes(each("r", func(m *plan.Member) {
			sick(m)
			m.Notices = []nstance.Notice{newNotice("n", time.Minute)}
		})), "StartDrain(r1) StartDrain(r2) StartDrain(r3) Create(replace) Create(replace) Create(replace)", nil},
		{"within a new leader's grace", "r r u", changes(each("u", func(m *plan.Member) {
			sick(m)
			m.GraceUntil = noon.Add(1)
		})), "none", []string{"settling"}},
		{"on-demand, noticed", "r r r n", changes(each("n", func(m *plan.Member) { m.OnDemand = true })), "StartDrain(n4)", nil},
		{"on-demand, gone", "r r r x", changes(each("x", func(m *plan.Member) { m.OnDemand = true })), "Delete(x4)", nil},
		{"on-demand, too old", "r r r r", changes(onDemand(expired)), "StartDrain(r4)", nil},
		{"on-demand, drain requested", "r r r r", changes(onDemand(asked(false))), "StartDrain(r4)", nil},
		{"on-demand, silent", "r r r r", changes(onDemand(sick)), "none", nil},
		{"on-demand, never registered", "r r r t", changes(each("t", func(m *plan.Member) { m.OnDemand = true })), "none", nil},
		{"on-demand, not ready in time", "r r r b", changes(each("b", func(m *plan.Member) { m.OnDemand, m.HasMachine = true, true; late(m) })), "none", nil},
		{"on-demand, no machine in time", "r r r b", changes(each("b", func(m *plan.Member) { m.OnDemand, m.HasMachine = true, false; late(m) })), "Delete(b4)", nil},
		{"on-demand, in a removed group", "r r r r", changes(onDemand(func(*plan.Member) {}), func(v *plan.View) { v.Removing = true }),
			"StartDrain(r1) StartDrain(r2) StartDrain(r3)", nil},
		{"on-demand, drifted", "r r r s", changes(each("s", func(m *plan.Member) { m.OnDemand = true })), "none", nil},
	})
}

func TestRefillsDeficits(t *testing.T) {
	backoff := func(d time.Duration) change {
		return func(v *plan.View) { v.History.BackoffUntil, v.History.Failures = noon.Add(d), 1 }
	}
	lastGood := func(v *plan.View) { v.History.LastGoodHash = staleHash }
	halted := func(v *plan.View) { v.History.HaltedHash = freshHash }
	unreadable := func(n int) change { return func(v *plan.View) { v.Unreadable = n } }
	runCases(t, []ruleCase{
		{"backing off: losses only", "r n", changes(backoff(time.Minute)), "StartDrain(n2) Create(replace)", []string{"backoff"}},
		{"backing off: no growth", "r r", changes(backoff(time.Minute)), "none", []string{"backoff"}},
		{"backing off: a failed replacement is not a loss", "r r t", changes(backoff(time.Minute), each("t", asReplacement)), "Delete(t3)", []string{"backoff"}},
		{"backing off: vanished before it registered is not a loss", "r r b", changes(backoff(time.Minute), each("b", func(m *plan.Member) {
			asReplacement(m)
			m.Gone = true
		})), "Delete(b3)", []string{"backoff"}},
		{"backing off: reclaimed is a loss", "r r b", changes(backoff(time.Minute), each("b", func(m *plan.Member) {
			asReplacement(m)
			m.Gone, m.Notices = true, []nstance.Notice{newNotice("n", time.Minute)}
		})), "Delete(b3) Create(replace)", nil},
		{"backoff over: one at a time", "r", changes(backoff(0)), "Create(size)", []string{"backoff"}},
		{"backoff over: next one waits", "r b", changes(backoff(0)), "none", []string{"backoff"}},
		{"sold out, not failed: all at once", "r", changes(backoff(0), func(v *plan.View) { v.History.Failures = 0 }), "Create(size) Create(size)", nil},
		{"backing off: one hold for both rules", "s s", changes(backoff(time.Minute), withSurge(2)), "none", []string{"backoff"}},
		{"backing off: no surge", "s s s", changes(backoff(time.Minute)), "none", []string{"backoff"}},
		{"paused: the last good definition", "s s n", changes(paused, lastGood), "StartDrain(n3) Create(replace, last good)", []string{"paused"}},
		{"halted: the last good definition", "s s", changes(halted, lastGood), "Create(rollout, last good)", []string{"halted"}},
		{"halted: the desired one without a last good one", "s s", changes(halted), "Create(rollout)", []string{"halted"}},
		{"paused: its surplus create stays", "s s S", changes(paused, lastGood), "none", []string{"paused"}},
		{"unreadable record: no scale-up", "r", changes(unreadable(1)), "none", []string{"unreadable"}},
		{"unreadable record: exactly the losses", "r n", changes(unreadable(1), withSize(5)), "StartDrain(n2) Create(replace)", []string{"unreadable"}},
		{"unreadable record: no surplus removal", "r r r r", changes(unreadable(1)), "none", []string{"unreadable"}},
		{"unreadable record: no rollout", "s s s", changes(unreadable(1)), "none", []string{"unreadable"}},
		{"unreadable record: losses of a former term", "e e e", changes(unreadable(1), each("e", inherited)), "Create(replace) Create(replace)", []string{"unreadable"}},
		{"losses before other deficits", "r e", changes(withSize(4)), "Create(replace) Create(size) Create(size)", nil},
		{"loss with a replacement, and no deficit", "r r b e", changes(each("e", answered)), "none", nil},
		{"loss without a replacement, while backing off", "r e", changes(backoff(time.Minute)), "Create(replace)", []string{"backoff"}},
		{"loss with a failed replacement backs off", "r r e", changes(backoff(time.Minute), each("e", answered)), "none", []string{"backoff"}},
		{"loss with a withdrawn notice", "r r e", changes(each("e", func(m *plan.Member) { m.Notices = nil })), "CancelDrain(e3)", nil},
		{"loss of a former term, while backing off", "r r e", changes(backoff(time.Minute), each("e", inherited)), "Create(replace)", nil},
		{"loss of a former term that may have a replacement", "r e b", changes(backoff(time.Minute), each("e", inherited), each("b", asReplacement), each("b", inherited)), "none", []string{"backoff"}},
		{"loss beside a replacement of this term", "r e b", changes(backoff(time.Minute), each("b", asReplacement)), "Create(replace)", nil},
		{"removed members count as losses", "r", changes(onceFull(3)), "Create(replace) Create(replace)", nil},
		{"not those beyond the size that was full", "r", changes(onceFull(2)), "Create(replace) Create(size)", nil},
		{"not those removed by the rollout", "s d R", changes(onceFull(3)), "Create(rollout)", nil},
		{"unreadable record: removed members", "r", changes(unreadable(1), onceFull(3)), "Create(replace)", []string{"unreadable"}},
		{"loss beside an unreadable record", "r e", changes(unreadable(1)), "Create(replace)", []string{"unreadable"}},
		{"unreadable record: loss with a replacement", "r e b", changes(unreadable(1), withSize(5), each("b", asReplacement), each("e", answered)), "none", []string{"unreadable"}},
	})
	t.Run("creates name the losses they replace", func(t *testing.T) {
		d := plan.Plan(newView(t, "x n t s s", withSize(5)), noon)
		require.Equal(t, "Delete(x1) StartDrain(n2) Delete(t3) Create(replace) Create(replace) Create(rollout)", steps(d))
		require.Equal(t, nstance.InstanceID("x1"), d.Actions[3].Replaces)
		require.Equal(t, nstance.InstanceID("n2"), d.Actions[4].Replaces)
		require.Empty(t, d.Actions[5].Replaces)
	})
	t.Run("losses of this term first, failed creations are not losses", func(t *testing.T) {
		v := newView(t, "t e n", withSize(5), each("t", asReplacement))
		creates := slices.DeleteFunc(plan.Plan(v, noon).Actions, func(a plan.Action) bool { return a.Kind != plan.Create })
		require.Equal(t, []plan.Action{
			{Kind: plan.Create, Reason: plan.ReasonReplace, Replaces: "e2", Count: 1},
			{Kind: plan.Create, Reason: plan.ReasonReplace, Replaces: "n3", Count: 1},
			{Kind: plan.Create, Reason: plan.ReasonSize, Count: 3},
		}, creates)
	})
	t.Run("failures are marked for counting", func(t *testing.T) {
		d := plan.Plan(newView(t, "t x n", each("n", func(m *plan.Member) { m.RegisteredAt = time.Time{} })), noon)
		require.Equal(t, "Delete(t1) Delete(x2) Delete(n3)", steps(plan.Decision{Actions: d.Actions[:3]}))
		require.True(t, d.Actions[0].Failure, "not registered in time")
		require.False(t, d.Actions[1].Failure, "was ready")
		require.False(t, d.Actions[2].Failure, "reclaimed")
		for name, change := range map[string]func(*plan.Member){
			"gone before it was ready":   func(m *plan.Member) { m.Gone = true },
			"silent before it was ready": func(m *plan.Member) { m.Silent, m.Unhealthy = true, true },
		} {
			d := plan.Plan(newView(t, "r r u", each("u", change)), noon)
			require.True(t, d.Actions[0].Failure, name)
			d = plan.Plan(newView(t, "r r r", each("r3", change)), noon)
			require.False(t, d.Actions[0].Failure, name)
		}
	})
}

func TestShrinksSurplus(t *testing.T) {
	since := func(d time.Duration) func(*plan.Member) {
		return func(m *plan.Member) { m.GoodSince = noon.Add(-d) }
	}
	minReady := func(v *plan.View) { v.Group.Rollout.MinReady = 10 * time.Minute }
	silent := func(m *plan.Member) { m.Silent = true }
	runCases(t, []ruleCase{
		{"intent without machine before a booting machine", "r r r b b", changes(withSize(4), each("b4", func(m *plan.Member) { m.HasMachine = false })), "Delete(b4)", nil},
		{"a former leader's intent before one of this term", "r r r b b", changes(withSize(4), each("b", func(m *plan.Member) { m.HasMachine = false }), each("b4", func(m *plan.Member) { m.Inherited = true })), "Delete(b4)", nil},
		{"a former leader's machine is one", "r r r b b", changes(withSize(4), each("b4", func(m *plan.Member) { m.Inherited = true })), "Delete(b5)", nil},
		{"booting before unhealthy", "r r r u b", changes(withSize(4)), "Delete(b5)", nil},
		{"unhealthy, stale first", "r r r V u", changes(withSize(4), withSurge(0)), "StartDrain(V4)", nil},
		{"silent before ready", "r r r r", changes(each("r3", silent)), "StartDrain(r3)", nil},
		{"on trial before ready", "r r r r", changes(minReady, each("r2", since(time.Minute))), "StartDrain(r2)", nil},
		{"on demand beyond the base before spot", "r r r r", changes(base(1), markets("soos")), "StartDrain(r2)", nil},
		{"named ones only as long as enough are ready", "r r r r r", changes(goesFirst(0), goesFirst(1), each("r5", silent)), "StartDrain(r1)", []string{"settling"}},
		{"nothing that may serve while too few are known to", "r r r r", changes(each("r3", silent), each("r4", silent)), "none", []string{"settling"}},
		{"a new leader waits for min_ready", "r r r r", changes(minReady, each("r", since(time.Minute))), "none", []string{"settling"}},
		{"removes members that serve nothing", "r r r r b", changes(minReady, each("r", since(time.Minute))), "Delete(b5)", []string{"settling"}},
		{"a removed group", "r b", changes(func(v *plan.View) { v.Removing = true }), "Delete(b2) StartDrain(r1)", nil},
		{"a removed group keeps on-demand members", "r r", changes(func(v *plan.View) { v.Removing = true },
			each("r2", func(m *plan.Member) { m.OnDemand = true })), "StartDrain(r1)", nil},
	})
}

func TestRollsOutDefinition(t *testing.T) {
	percent := func(n int) change {
		return func(v *plan.View) { v.Group.Rollout.MaxSurge = nstance.Count{N: n, Percent: true} }
	}
	eligible := each("r", func(m *plan.Member) { m.EligibleAt = noon })
	unwell := func(m *plan.Member) { m.GoodSince = time.Time{} }
	recent := func(m *plan.Member) { m.GoodSince = noon.Add(-time.Second) }
	minReady := func(v *plan.View) { v.Group.Rollout.MinReady = time.Minute }
	silent := func(m *plan.Member) { m.Silent = true }
	runCases(t, []ruleCase{
		{"eligible for their age: one at a time", "r r r", changes(eligible), "Create(rollout)", nil},
		{"unknown definition: not stale", "s s s", changes(each("s", func(m *plan.Member) { m.Hash = "" })), "none", nil},
		{"percent of the size, rounded up", "s s s s s", changes(withSize(5), percent(30)), "Create(rollout) Create(rollout)", nil},
		{"zero percent is zero", "s s s s s", changes(withSize(5), percent(0)), "StartDrain(s1)", nil},
		{"a drain and a create together", "s s s R", changes(withSurge(2)), "StartDrain(s1) Create(rollout)", nil},
		{"not while the new one is within min_ready", "s s s R", changes(minReady, each("R", recent)), "none", nil},
		{"not while a current one is silent", "s s s R", changes(each("R", silent)), "none", nil},
		{"probes fail everywhere: one at a time, remove first", "s s s s", changes(each("s", unwell), withSize(4)), "StartDrain(s1)", nil},
		{"agents silent everywhere: none", "s s s", changes(each("s", silent), withSurge(0)), "none", nil},
		{"silent stale one first, once there is a surge", "s s s R R", changes(withSurge(2), each("s2", silent)), "StartDrain(s2)", nil},
		{"a new leader waits for min_ready", "s s s", changes(minReady, each("s", recent), withSurge(0)), "none", nil},
		{"unanswered loss: max_surge 0 waits", "b s s s", changes(withSurge(0), withSize(4), each("b", asReplacement)), "none", nil},
		{"halted", "s s s", changes(func(v *plan.View) { v.History.HaltedHash = freshHash }), "none", []string{"halted"}},
		{"halted for another definition", "s s s", changes(func(v *plan.View) { v.History.HaltedHash = staleHash }), "Create(rollout)", nil},
		{"settling", "s s s u", changes(each("u", func(m *plan.Member) { m.GraceUntil = noon.Add(1) })), "none", []string{"settling"}},
	})
}

func TestHaltsRollout(t *testing.T) {
	failed := func(v *plan.View) { v.History.Failures = 2 }
	halt := func(members string, change ...change) plan.Decision {
		return plan.Plan(newView(t, members, change...), noon)
	}
	t.Run("after halt_after failures", func(t *testing.T) {
		d := halt("s s s", failed)
		require.True(t, d.Halt)
		require.Equal(t, "none", steps(d), "in the same pass")
		require.False(t, halt("s s s", func(v *plan.View) { v.History.Failures = 1 }).Halt)
	})
	t.Run("once", func(t *testing.T) {
		require.False(t, halt("s s s", failed, func(v *plan.View) { v.History.HaltedHash = freshHash }).Halt)
	})
	t.Run("never with halt_after 0", func(t *testing.T) {
		require.False(t, halt("s s s", failed, func(v *plan.View) { v.Group.Rollout.HaltAfter = 0 }).Halt)
	})
	t.Run("without a last good definition", func(t *testing.T) {
		d := halt("", failed, func(v *plan.View) { v.History.LastGoodHash = staleHash })
		require.True(t, d.Halt)
		require.Equal(t, "Create(size, last good) Create(size, last good) Create(size, last good)", steps(d))
	})
	t.Run("not a last good definition with nothing to replace", func(t *testing.T) {
		require.False(t, halt("r r", failed, func(v *plan.View) { v.History.LastGoodHash = freshHash }).Halt)
	})
}

func TestFrozenGroup(t *testing.T) {
	frozen := func(v *plan.View) { v.Frozen = true }
	runCases(t, []ruleCase{
		{"nothing starts", "n s x", changes(frozen), "none", []string{"frozen"}},
		{"drains end", "n r r d", changes(frozen, each("d", draining(0, byRollout))), "Delete(d4)", []string{"frozen"}},
		{"drains are tightened", "r r r d", changes(frozen, each("d", func(m *plan.Member) {
			m.Notices = []nstance.Notice{newNotice("n", time.Minute)}
		})), "Tighten(d4)", []string{"frozen"}},
		{"drains are cancelled", "r r e", changes(frozen, each("e", func(m *plan.Member) { m.Notices = nil })), "CancelDrain(e3)", []string{"frozen"}},
	})
}

func TestGroupWithoutDefinition(t *testing.T) {
	undefined := func(v *plan.View) { v.Hash = plan.UnknownHash }
	requested := func(m *plan.Member) { m.Requested = &byRequest }
	deleteNow := func(m *plan.Member) { m.Requested, m.NoDrain = &byRequest, true }
	runCases(t, []ruleCase{
		{"nothing starts by itself", "n s x b t", changes(undefined), "none", []string{"definition"}},
		{"requested removal, without a replacement", "r r r", changes(undefined, each("r1", requested)), "StartDrain(r1)", []string{"definition"}},
		{"requested removal without a drain", "r r r", changes(undefined, each("r1", deleteNow)), "Delete(r1)", []string{"definition"}},
		{"of a draining member, too", "r d", changes(undefined, each("d", deleteNow)), "Delete(d2)", []string{"definition"}},
		{"no drain before registration", "b r", changes(undefined, each("b", requested)), "Delete(b1)", []string{"definition"}},
		{"all causes are recorded", "n r", changes(undefined, each("n", requested)), "StartDrain(n1)", []string{"definition"}},
		{"instance on demand", "r r", changes(undefined, each("r1", func(m *plan.Member) { m.OnDemand = true; requested(m) })), "StartDrain(r1)", []string{"definition"}},
		{"not a preserved one", "r r", changes(undefined, each("r1", func(m *plan.Member) { m.Preserved = true; requested(m) })), "none", []string{"definition"}},
		{"drains end", "r d", changes(undefined, each("d", draining(0, byRollout))), "Delete(d2)", []string{"definition"}},
		{"frozen", "r r", changes(func(v *plan.View) { v.Frozen = true }, each("r1", requested)), "none", []string{"frozen"}},
		{"frozen without a definition", "r r", changes(undefined, func(v *plan.View) { v.Frozen = true }, each("r1", requested)), "none", []string{"frozen"}},
		{"removed", "r b", changes(undefined, func(v *plan.View) { v.Removing = true }), "Delete(b2) StartDrain(r1)", nil},
	})
}

func TestWrongClock(t *testing.T) {
	wrong := func(v *plan.View) { v.Clock = "it is an hour ahead" }
	held := func(members string, want string, change ...change) ruleCase {
		return ruleCase{members: members, want: want, change: append(change, wrong), holds: []string{"clock"}}
	}
	named := func(name string, c ruleCase) ruleCase { c.name = name; return c }
	past := noon.Add(-time.Hour)
	each := func(letter string, change func(*plan.Member)) change { return each(letter, change) }
	runCases(t, []ruleCase{
		named("drain deadline", held("r r r d", "none", each("d", draining(-time.Hour, byRollout)))),
		named("reclaim deadline", held("r r r e", "none", each("e", func(m *plan.Member) { m.Drain.Deadline = past }))),
		named("acknowledged drain is deleted", held("r r r d", "Delete(d4)", each("d", func(m *plan.Member) { m.Drain.Deadline, m.DrainOver = past, true }))),
		named("vanished machine is deleted", held("r r r e", "Delete(e4)", each("e", func(m *plan.Member) { m.Drain.Deadline, m.Gone = past, true }))),
		named("requested delete", held("r r r d", "Delete(d4)", each("d", func(m *plan.Member) { m.Requested, m.NoDrain = &byRequest, true }))),
		named("delete in progress", held("r r r d", "Delete(d4)", each("d", func(m *plan.Member) { m.State = nstance.Deleting }))),
		named("forced age", held("r r r", "none", each("r", func(m *plan.Member) { m.ExpireAt = past }))),
		named("eligible age", held("r r r", "none", each("r", func(m *plan.Member) { m.EligibleAt = past }))),
		named("age of an instance on demand", held("r r r r", "none", each("r4", func(m *plan.Member) { m.OnDemand, m.ExpireAt = true, past }))),
		named("registration timeout", held("r r t", "none")),
		named("launch timeout", held("r r u", "none", each("u", func(m *plan.Member) { m.LaunchBy = past }))),
		named("launch timeout of an instance on demand", held("r r r b", "none", each("b", func(m *plan.Member) {
			m.OnDemand, m.HasMachine, m.LaunchBy = true, false, past
		}))),
		named("notice", held("r r n", "StartDrain(n3) Create(replace)")),
		named("withdrawal", held("r r e", "CancelDrain(e3)", each("e", func(m *plan.Member) { m.Notices, m.Drain.Deadline = nil, past }))),
		named("vanished machine is replaced", held("r r x", "Delete(x3) Create(replace)")),
		named("unhealthy member is replaced", held("r r r", "StartDrain(r1) Create(replace)", each("r1", func(m *plan.Member) { m.Silent, m.Unhealthy = true, true }))),
		named("rollout continues", held("s s s", "Create(rollout)")),
		named("surplus is removed", held("r r r r", "StartDrain(r1)")),
		named("deficit is filled", held("r r", "Create(size)")),
		{"frozen group", "r r r d", changes(wrong, func(v *plan.View) { v.Frozen = true }, each("d", draining(-time.Hour, byRollout))),
			"none", []string{"clock", "frozen"}},
	})
	t.Run("all of it when the clock is right again", func(t *testing.T) {
		v := newView(t, "r r r d", each("d", draining(-time.Hour, byRollout)), each("r1", func(m *plan.Member) { m.ExpireAt = past }), wrong)
		d := plan.Plan(v, noon)
		require.Equal(t, "none", steps(d))
		require.Equal(t, "it is an hour ahead", d.Holds[0].Reason)
		v.Clock = ""
		require.Equal(t, "Delete(d4) StartDrain(r1) Create(replace)", steps(plan.Plan(v, noon)))
	})
}

func TestUnreadableDefinition(t *testing.T) {
	d := plan.Plan(newView(t, "n x r d", func(v *plan.View) { v.Hash = "" }), noon)
	require.Empty(t, d.Actions)
	require.Equal(t, []string{"definition"}, holdKinds(d))
}

func TestNextPlanTime(t *testing.T) {
	in := func(d time.Duration) time.Time { return noon.Add(d) }
	cases := []struct {
		name    string
		members string
		change  change
		want    time.Duration // 0: never
	}{
		{"never", "r r r", func(*plan.View) {}, 0},
		{"a drain's deadline", "r r r d", func(*plan.View) {}, 4 * time.Minute},
		{"registration", "r r b", func(*plan.View) {}, time.Minute},
		{"launch", "r r u", func(*plan.View) {}, 10 * time.Minute},
		{"min_ready", "r r r", func(v *plan.View) { v.Group.Rollout.MinReady = time.Hour + time.Second }, time.Second},
		{"grace", "r r u", each("u", func(m *plan.Member) { m.GraceUntil = in(time.Second) }), time.Second},
		{"eligible age", "r r r", each("r2", func(m *plan.Member) { m.EligibleAt = in(3 * time.Second) }), 3 * time.Second},
		{"forced age", "r r r", each("r2", func(m *plan.Member) { m.ExpireAt = in(4 * time.Second) }), 4 * time.Second},
		{"backoff", "r r", func(v *plan.View) { v.History.BackoffUntil = in(5 * time.Second) }, 5 * time.Second},
		{"backoff without a deficit", "r r r", func(v *plan.View) { v.History.BackoffUntil = in(5 * time.Second) }, 0},
		{"age of an instance on demand", "r r r r", each("r4", func(m *plan.Member) { m.OnDemand, m.ExpireAt = true, in(6*time.Second) }), 6 * time.Second},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := plan.Plan(newView(t, c.members, c.change), noon)
			require.Equal(t, "none", steps(d))
			if c.want == 0 {
				require.Zero(t, d.Next)
				return
			}
			require.Equal(t, c.want, d.Next.Sub(noon))
		})
	}
}

// TestBreaker: an unhealthy member that the breaker keeps still counts.
func TestBreaker(t *testing.T) {
	v := newView(t, "r r r", func(v *plan.View) { v.Members[0].Unhealthy, v.Members[0].Silent = true, true })
	d := plan.Plan(v, noon)
	require.Len(t, d.Actions, 2, "drained and replaced")
	v.Breaker = "the network"
	d = plan.Plan(v, noon)
	require.Empty(t, d.Actions)
	require.Equal(t, plan.HoldBreaker, d.Holds[0].Kind)
	require.Equal(t, "the network", d.Holds[0].Reason)
}
