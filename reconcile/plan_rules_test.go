package reconcile_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
)

// A planCase changes a group and says what the plan is.
type planCase struct {
	name    string
	members string
	change  []planChange
	want    string
	holds   []string
}

func runPlanCases(t *testing.T, cases []planCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := reconcile.Plan(planView(t, c.members, c.change...), planNow)
			require.Equal(t, c.want, planSteps(d))
			require.Equal(t, c.holds, planHolds(d))
		})
	}
}

func planChanges(c ...planChange) []planChange { return c }

func planDraining(left time.Duration, causes ...nstance.Cause) func(*reconcile.Member) {
	return func(m *reconcile.Member) { m.State, m.Drain = nstance.Draining, planDrain(left, causes...) }
}

var (
	planByRollout = nstance.Cause{Kind: nstance.CauseRollout}
	planByNotice  = nstance.Cause{Kind: nstance.CauseNotice, EventID: "n"}
	planByRequest = nstance.Cause{Kind: nstance.CauseRequest, Message: "by hand"}
)

func TestPlanFinishesLeaving(t *testing.T) {
	timeout := func(d time.Duration) planChange { return func(v *reconcile.View) { v.Group.DrainTimeout = d } }
	runPlanCases(t, []planCase{
		{"acknowledged", "r r r d", planChanges(planEach("d", func(m *reconcile.Member) { m.DrainOver = true })), "Delete(d4)", nil},
		{"deadline passed", "r r r d", planChanges(planEach("d", planDraining(0, planByRollout))), "Delete(d4)", nil},
		{"machine gone", "r r r d", planChanges(planEach("d", func(m *reconcile.Member) { m.Gone = true })), "Delete(d4)", nil},
		{"drains switched off", "r r r d", planChanges(timeout(0)), "Delete(d4)", nil},
		{"deletion asked for", "r r r d", planChanges(planEach("d", func(m *reconcile.Member) {
			m.Requested, m.NoDrain = &planByRequest, true
		})), "Delete(d4)", nil},
		{"repeated while deleting", "r r r d", planChanges(planEach("d", func(m *reconcile.Member) { m.State = nstance.Deleting })), "Delete(d4)", nil},
		{"a refused create is nobody", "r r b", planChanges(planEach("b", func(m *reconcile.Member) { m.State = nstance.Failed })), "Create(size)", nil},
		{"neither is a parked machine", "r r r r", planChanges(planEach("r4", func(m *reconcile.Member) { m.State = nstance.Parked })), "none", nil},
		{"a drain that never took effect", "r r r d", planChanges(planEach("d", func(m *reconcile.Member) { m.Drain = nil })), "StartDrain(d4)", nil},
		{"an on-demand member's drain", "r r r d", planChanges(planEach("d", func(m *reconcile.Member) { m.OnDemand, m.DrainOver = true, true })), "Delete(d4)", nil},
	})
}

func TestPlanTightens(t *testing.T) {
	t.Run("a notice during a rollout's drain makes it involuntary and shorter", func(t *testing.T) {
		v := planView(t, "r r r d", planEach("d", func(m *reconcile.Member) { m.Notices = []nstance.Notice{planNotice("n", 2*time.Minute)} }))
		a := planOnly(t, reconcile.Plan(v, planNow), reconcile.Tighten)
		require.Equal(t, planNow.Add(110*time.Second), a.Deadline)
		require.Equal(t, []nstance.CauseKind{nstance.CauseRollout, nstance.CauseNotice}, planKinds(a.Causes))
		require.Equal(t, "n", a.Causes[1].EventID)
		require.False(t, a.Voluntary)
	})
	t.Run("its withdrawal leaves the rollout and the deadline", func(t *testing.T) {
		v := planView(t, "r r r d", planEach("d", planDraining(time.Minute, planByRollout, planByNotice)))
		a := planOnly(t, reconcile.Plan(v, planNow), reconcile.Tighten)
		require.Equal(t, planNow.Add(time.Minute), a.Deadline)
		require.Equal(t, []nstance.CauseKind{nstance.CauseRollout}, planKinds(a.Causes))
		require.True(t, a.Voluntary)
	})
	t.Run("a request is added once", func(t *testing.T) {
		v := planView(t, "r r r e", planEach("e", func(m *reconcile.Member) { m.Requested = &planByRequest }))
		a := planOnly(t, reconcile.Plan(v, planNow), reconcile.Tighten)
		require.Equal(t, []nstance.CauseKind{nstance.CauseNotice, nstance.CauseRequest}, planKinds(a.Causes))
		v.Members[3].Drain.Causes = a.Causes
		require.Equal(t, "none", planSteps(reconcile.Plan(v, planNow)))
	})
	t.Run("another cause takes the place of a withdrawn notice", func(t *testing.T) {
		v := planView(t, "r r r e", planEach("e", func(m *reconcile.Member) { m.Notices, m.ExpireAt = nil, planNow.Add(-1) }))
		a := planOnly(t, reconcile.Plan(v, planNow), reconcile.Tighten)
		require.Equal(t, []nstance.CauseKind{nstance.CauseExpired}, planKinds(a.Causes))
	})
	t.Run("a second notice tightens, a later deadline does not", func(t *testing.T) {
		v := planView(t, "r r r e", planEach("e", func(m *reconcile.Member) { m.Notices[0].Deadline = planNow.Add(time.Hour) }))
		require.Equal(t, "none", planSteps(reconcile.Plan(v, planNow)))
		v.Members[3].Notices[0].Deadline = planNow.Add(30 * time.Second)
		require.Equal(t, planNow.Add(20*time.Second), planOnly(t, reconcile.Plan(v, planNow), reconcile.Tighten).Deadline)
	})
	t.Run("the margin that shrinks with time does not", func(t *testing.T) {
		v := planView(t, "r r r e")
		for s := range 100 {
			require.Equal(t, "none", planSteps(reconcile.Plan(v, planNow.Add(time.Duration(s)*time.Second))))
		}
		require.Equal(t, "Delete(e4)", planSteps(reconcile.Plan(v, planNow.Add(100*time.Second))))
	})
}

func planKinds(causes []nstance.Cause) []nstance.CauseKind {
	var out []nstance.CauseKind
	for _, c := range causes {
		out = append(out, c.Kind)
	}
	return out
}

func TestPlanCancels(t *testing.T) {
	withdrawn := func(m *reconcile.Member) { m.Notices = nil }
	both := func(f ...func(*reconcile.Member)) planChange {
		return planEach("e", func(m *reconcile.Member) {
			for _, g := range f {
				g(m)
			}
		})
	}
	runPlanCases(t, []planCase{
		{"when the only notice is withdrawn", "r r r e", planChanges(both(withdrawn)), "CancelDrain(e4)", nil},
		{"when it is marked as withdrawn", "r r r e", planChanges(both(func(m *reconcile.Member) { m.Notices[0].Cancelled = true })), "CancelDrain(e4)", nil},
		{"and the member counts in the same pass", "r r e", planChanges(both(withdrawn)), "CancelDrain(e3)", nil},
		{"even an acknowledged drain", "r r e", planChanges(both(withdrawn, func(m *reconcile.Member) { m.DrainOver = true })), "CancelDrain(e3)", nil},
		{"but nothing surplus with it goes yet", "r r r r e", planChanges(both(withdrawn)), "CancelDrain(e5)", nil},
		{"not while a notice stands", "r r r e", nil, "none", nil},
		{"not one that is deleting", "r r r e", planChanges(both(withdrawn, func(m *reconcile.Member) { m.State = nstance.Deleting })), "Delete(e4)", nil},
		{"not a rollout whose reason is gone", "r r r d", nil, "none", nil},
		{"not a drain of unknown cause", "r r r e", planChanges(both(withdrawn, func(m *reconcile.Member) { m.Drain.Causes = nil })), "none", nil},
		{"not before a new leader has heard from the agent", "r r r e", planChanges(both(withdrawn, func(m *reconcile.Member) {
			m.GoodSince, m.GraceUntil = time.Time{}, planNow.Add(1)
		})), "none", nil},
	})
}

func TestPlanDrainDeadline(t *testing.T) {
	reclaim := func(deadline, detected time.Duration) nstance.Notice {
		n := nstance.Notice{Kind: nstance.Reclaim, Source: "gcp/preempted", DetectedAt: planNow.Add(detected)}
		if deadline != 0 {
			n.Deadline = planNow.Add(deadline)
		}
		return n
	}
	arrived := func(n nstance.Notice, when time.Duration) nstance.Notice {
		n.ReceivedAt = planNow.Add(when)
		return n
	}
	cases := []struct {
		name    string
		timeout time.Duration
		notices []nstance.Notice
		want    time.Duration
	}{
		{"10 s before the cloud's", 5 * time.Minute, []nstance.Notice{reclaim(2*time.Minute, 0)}, 110 * time.Second},
		{"a third of what is left, if that is less", 5 * time.Minute, []nstance.Notice{reclaim(15*time.Second, 0)}, 10 * time.Second},
		{"the group's, if that is earlier", time.Minute, []nstance.Notice{reclaim(2*time.Minute, 0)}, time.Minute},
		{"the earliest of several", 5 * time.Minute, []nstance.Notice{reclaim(2*time.Minute, 0), reclaim(time.Minute, 0)}, 50 * time.Second},
		{"estimated where the cloud gives none", 5 * time.Minute, []nstance.Notice{reclaim(0, 0)}, 20 * time.Second},
		{"estimated from when it was seen", 5 * time.Minute, []nstance.Notice{reclaim(0, -15*time.Second)}, 10 * time.Second},
		{"estimated from now, if nobody knows when", 5 * time.Minute, []nstance.Notice{{Kind: nstance.Reclaim}}, 20 * time.Second},
		{"now, if it has passed", 5 * time.Minute, []nstance.Notice{reclaim(-time.Minute, -3*time.Minute)}, 0},
		{"drained now, if it had passed on arrival", 5 * time.Minute, []nstance.Notice{arrived(reclaim(-time.Minute, -3*time.Minute), 0)}, 20 * time.Second},
		{"and goes on from there", 5 * time.Minute, []nstance.Notice{arrived(reclaim(-time.Minute, -3*time.Minute), -15*time.Second)}, 10 * time.Second},
		{"also where the cloud gives none", 5 * time.Minute, []nstance.Notice{arrived(reclaim(0, -time.Minute), 0)}, 20 * time.Second},
		{"not because it has passed since", 5 * time.Minute, []nstance.Notice{arrived(reclaim(-time.Minute, -3*time.Minute), -2*time.Minute)}, 0},
		{"not estimated for a stop", 5 * time.Minute, []nstance.Notice{{Kind: nstance.Stop, DetectedAt: planNow}}, 5 * time.Minute},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			v := planView(t, "r r n", planEach("n", func(m *reconcile.Member) { m.Notices = c.notices }))
			v.Group.DrainTimeout = c.timeout
			a := planOnly(t, reconcile.Plan(v, planNow), reconcile.StartDrain)
			require.Equal(t, c.want, a.Deadline.Sub(planNow))
			require.False(t, a.Voluntary)
		})
	}
}

func TestPlanDoomed(t *testing.T) {
	expired := func(m *reconcile.Member) { m.ExpireAt = planNow }
	asked := func(now bool) func(*reconcile.Member) {
		return func(m *reconcile.Member) { m.Requested, m.NoDrain = &planByRequest, now }
	}
	sick := func(m *reconcile.Member) { m.Silent, m.Unhealthy = true, true }
	late := func(m *reconcile.Member) { m.LaunchBy = planNow }
	onDemand := func(f func(*reconcile.Member)) planChange {
		return planEach("r4", func(m *reconcile.Member) { m.OnDemand = true; f(m) })
	}
	runPlanCases(t, []planCase{
		{"past its forced age", "r r r", planChanges(planEach("r1", expired)), "StartDrain(r1) Create(replace)", nil},
		{"asked to go", "r r r", planChanges(planEach("r1", asked(false))), "StartDrain(r1) Create(replace)", nil},
		{"asked to be deleted", "r r r", planChanges(planEach("r1", asked(true))), "Delete(r1) Create(replace)", nil},
		{"asked to go before it registered", "r r b", planChanges(planEach("b", asked(false))), "Delete(b3) Create(size)", nil},
		{"no drains in this group", "r r n", planChanges(func(v *reconcile.View) { v.Group.DrainTimeout = 0 }), "Delete(n3) Create(replace)", nil},
		{"registered, not ready in time", "r r u", planChanges(planEach("u", late)), "StartDrain(u3) Create(replace)", nil},
		{"never too late once it was well", "r r r", planChanges(planEach("r1", late)), "none", nil},
		{"nor if a new leader has not heard of it", "r r u", planChanges(planEach("u", func(m *reconcile.Member) {
			m.LaunchBy, m.GraceUntil = planNow, planNow.Add(-1)
		})), "none", nil},
		{"a replacement that fails is replaced", "r r t", planChanges(planEach("t", planReplacing)), "Delete(t3) Create(replace)", nil},
		{"unhealthy, one of three", "r r r", planChanges(planEach("r", sick)), "StartDrain(r1) Create(replace)", []string{"unhealthy_cap"}},
		{"unhealthy, two of ten", "r r r r r r r r r r", planChanges(planEach("r", sick), planSize(10)),
			"StartDrain(r1) StartDrain(r2) Create(replace) Create(replace)", []string{"unhealthy_cap"}},
		{"unhealthy, while one is leaving for that", "r r r d", planChanges(planEach("r1", sick),
			planEach("d", planDraining(time.Minute, nstance.Cause{Kind: nstance.CauseUnhealthy}))), "none", []string{"unhealthy_cap"}},
		{"unhealthy, while one is being deleted for that", "r r r d", planChanges(planEach("r1", sick), planEach("d", func(m *reconcile.Member) {
			m.State, m.Drain, m.DeletedFor = nstance.Deleting, nil, nstance.CauseUnhealthy
		})), "Delete(d4)", []string{"unhealthy_cap"}},
		{"unhealthy and noticed is no matter of health", "r r r", planChanges(planEach("r", func(m *reconcile.Member) {
			sick(m)
			m.Notices = []nstance.Notice{planNotice("n", time.Minute)}
		})), "StartDrain(r1) StartDrain(r2) StartDrain(r3) Create(replace) Create(replace) Create(replace)", nil},
		{"no verdict within a new leader's grace", "r r u", planChanges(planEach("u", func(m *reconcile.Member) {
			sick(m)
			m.GraceUntil = planNow.Add(1)
		})), "none", []string{"settling"}},
		{"on-demand, noticed", "r r r n", planChanges(planEach("n", func(m *reconcile.Member) { m.OnDemand = true })), "StartDrain(n4)", nil},
		{"on-demand, gone", "r r r x", planChanges(planEach("x", func(m *reconcile.Member) { m.OnDemand = true })), "Delete(x4)", nil},
		{"on-demand, too old", "r r r r", planChanges(onDemand(expired)), "StartDrain(r4)", nil},
		{"on-demand, asked to go", "r r r r", planChanges(onDemand(asked(false))), "StartDrain(r4)", nil},
		{"on-demand, silent", "r r r r", planChanges(onDemand(sick)), "none", nil},
		{"on-demand, never registered", "r r r t", planChanges(planEach("t", func(m *reconcile.Member) { m.OnDemand = true })), "none", nil},
		{"on-demand, not ready in time", "r r r b", planChanges(planEach("b", func(m *reconcile.Member) { m.OnDemand, m.HasMachine = true, true; late(m) })), "none", nil},
		{"on-demand, no machine in time", "r r r b", planChanges(planEach("b", func(m *reconcile.Member) { m.OnDemand, m.HasMachine = true, false; late(m) })), "Delete(b4)", nil},
		{"on-demand, of a group that goes", "r r r r", planChanges(onDemand(func(*reconcile.Member) {}), func(v *reconcile.View) { v.Removing = true }),
			"StartDrain(r1) StartDrain(r2) StartDrain(r3)", nil},
		{"on-demand, drifted", "r r r s", planChanges(planEach("s", func(m *reconcile.Member) { m.OnDemand = true })), "none", nil},
	})
}

func TestPlanRefills(t *testing.T) {
	backoff := func(d time.Duration) planChange {
		return func(v *reconcile.View) { v.History.BackoffUntil, v.History.Failures = planNow.Add(d), 1 }
	}
	lastGood := func(v *reconcile.View) { v.History.LastGoodHash = planStale }
	halted := func(v *reconcile.View) { v.History.HaltedHash = planFresh }
	owed := func(ids ...nstance.InstanceID) planChange { return func(v *reconcile.View) { v.Owed = ids } }
	unreadable := func(n int) planChange { return func(v *reconcile.View) { v.Unreadable = n } }
	runPlanCases(t, []planCase{
		{"backing off: losses only", "r n", planChanges(backoff(time.Minute)), "StartDrain(n2) Create(replace)", []string{"backoff"}},
		{"backing off: nothing else", "r r", planChanges(backoff(time.Minute)), "none", []string{"backoff"}},
		{"backing off: a failed replacement is no loss", "r r t", planChanges(backoff(time.Minute), planEach("t", planReplacing)), "Delete(t3)", []string{"backoff"}},
		{"backing off: one that died before it registered neither", "r r b", planChanges(backoff(time.Minute), planEach("b", func(m *reconcile.Member) {
			planReplacing(m)
			m.Gone = true
		})), "Delete(b3)", []string{"backoff"}},
		{"backing off: one that was reclaimed is", "r r b", planChanges(backoff(time.Minute), planEach("b", func(m *reconcile.Member) {
			planReplacing(m)
			m.Gone, m.Notices = true, []nstance.Notice{planNotice("n", time.Minute)}
		})), "Delete(b3) Create(replace)", nil},
		{"backoff over: one at a time", "r", planChanges(backoff(0)), "Create(size)", []string{"backoff"}},
		{"backoff over: and then none", "r b", planChanges(backoff(0)), "none", []string{"backoff"}},
		{"sold out, not failed: all at once", "r", planChanges(backoff(0), func(v *reconcile.View) { v.History.Failures = 0 }), "Create(size) Create(size)", nil},
		{"backing off: one hold for both rules", "s s", planChanges(backoff(time.Minute), planSurge(2)), "none", []string{"backoff"}},
		{"backing off: no surge", "s s s", planChanges(backoff(time.Minute)), "none", []string{"backoff"}},
		{"paused: the last good definition", "s s n", planChanges(planPaused, lastGood), "StartDrain(n3) Create(replace, last good)", []string{"paused"}},
		{"halted: the last good definition", "s s", planChanges(halted, lastGood), "Create(rollout, last good)", []string{"halted"}},
		{"halted: the desired one if none is known", "s s", planChanges(halted), "Create(rollout)", []string{"halted"}},
		{"paused: what that made is left alone", "s s S", planChanges(planPaused, lastGood), "none", []string{"paused"}},
		{"unreadable record: no scale-up", "r", planChanges(unreadable(1)), "none", []string{"unreadable"}},
		{"unreadable record: exactly the losses", "r n", planChanges(unreadable(1), planSize(5)), "StartDrain(n2) Create(replace)", []string{"unreadable"}},
		{"unreadable record: no surplus goes", "r r r r", planChanges(unreadable(1)), "none", []string{"unreadable"}},
		{"unreadable record: no rollout", "s s s", planChanges(unreadable(1)), "none", []string{"unreadable"}},
		{"unreadable record: a loss that the budget refused", "e e e", planChanges(unreadable(1)), "Create(replace) Create(replace)", []string{"unreadable"}},
		{"a loss that is owed goes before what else is missing", "r", planChanges(owed("x")), "Create(replace) Create(size)", nil},
		{"owed, and nobody is missing any more", "r r r", planChanges(owed("x")), "none", nil},
		{"owed, although backing off", "r", planChanges(owed("x"), backoff(time.Minute)), "Create(replace)", []string{"backoff"}},
		{"owed, but its notice is withdrawn", "r r e", planChanges(owed("e3"), planEach("e", func(m *reconcile.Member) { m.Notices = nil })), "CancelDrain(e3)", nil},
		{"owed beside an unreadable record", "r e", planChanges(owed("x"), unreadable(1), planEach("e", planReplacing)), "Create(replace)", []string{"unreadable"}},
		{"unreadable record: a loss that is being replaced", "r e b", planChanges(unreadable(1), planSize(5), planEach("b", planReplacing)), "none", []string{"unreadable"}},
	})
	t.Run("losses are named to their replacements", func(t *testing.T) {
		d := reconcile.Plan(planView(t, "x n t s s", planSize(5)), planNow)
		require.Equal(t, "Delete(x1) StartDrain(n2) Delete(t3) Create(replace) Create(replace) Create(rollout)", planSteps(d))
		require.Equal(t, nstance.InstanceID("x1"), d.Actions[3].Replaces)
		require.Equal(t, nstance.InstanceID("n2"), d.Actions[4].Replaces)
		require.Empty(t, d.Actions[5].Replaces)
	})
	t.Run("those that are owed first, failed creations last", func(t *testing.T) {
		v := planView(t, "t n", planSize(4), planEach("t", planReplacing))
		v.Owed = []nstance.InstanceID{"x9"}
		creates := slices.DeleteFunc(reconcile.Plan(v, planNow).Actions, func(a reconcile.Action) bool { return a.Kind != reconcile.Create })
		require.Equal(t, []reconcile.Action{
			{Kind: reconcile.Create, Reason: reconcile.ReasonReplace, Replaces: "x9"},
			{Kind: reconcile.Create, Reason: reconcile.ReasonReplace, Replaces: "n2"},
			{Kind: reconcile.Create, Reason: reconcile.ReasonReplace, Replaces: "t1", Failure: true},
			{Kind: reconcile.Create, Reason: reconcile.ReasonSize},
		}, creates)
	})
	t.Run("what comes back is owed no more", func(t *testing.T) {
		v := planView(t, "r e", planEach("e", func(m *reconcile.Member) { m.Notices = nil }))
		v.Owed = []nstance.InstanceID{"e2", "x9"}
		a := planOnly(t, reconcile.Plan(v, planNow), reconcile.Create)
		require.Equal(t, nstance.InstanceID("x9"), a.Replaces)
		require.Equal(t, []nstance.InstanceID{"e2", "x9"}, v.Owed)
	})
	t.Run("failures are marked for counting", func(t *testing.T) {
		d := reconcile.Plan(planView(t, "t x n", planEach("n", func(m *reconcile.Member) { m.RegisteredAt = time.Time{} })), planNow)
		require.Equal(t, "Delete(t1) Delete(x2) Delete(n3)", planSteps(reconcile.Decision{Actions: d.Actions[:3]}))
		require.True(t, d.Actions[0].Failure, "not in time")
		require.False(t, d.Actions[1].Failure, "had served")
		require.False(t, d.Actions[2].Failure, "reclaimed")
		for name, change := range map[string]func(*reconcile.Member){
			"died before it was ready":   func(m *reconcile.Member) { m.Gone = true },
			"silent before it was ready": func(m *reconcile.Member) { m.Silent, m.Unhealthy = true, true },
		} {
			d := reconcile.Plan(planView(t, "r r u", planEach("u", change)), planNow)
			require.True(t, d.Actions[0].Failure, name)
			d = reconcile.Plan(planView(t, "r r r", planEach("r3", change)), planNow)
			require.False(t, d.Actions[0].Failure, name)
		}
	})
}

func TestPlanShrinks(t *testing.T) {
	since := func(d time.Duration) func(*reconcile.Member) {
		return func(m *reconcile.Member) { m.GoodSince = planNow.Add(-d) }
	}
	minReady := func(v *reconcile.View) { v.Group.Rollout.MinReady = 10 * time.Minute }
	silent := func(m *reconcile.Member) { m.Silent = true }
	runPlanCases(t, []planCase{
		{"no machine before one that boots", "r r r b b", planChanges(planSize(4), planEach("b4", func(m *reconcile.Member) { m.HasMachine = false })), "Delete(b4)", nil},
		{"one that boots before one that is not well", "r r r u b", planChanges(planSize(4)), "Delete(b5)", nil},
		{"not well, stale first", "r r r V u", planChanges(planSize(4), planSurge(0)), "StartDrain(V4)", nil},
		{"silent before ready", "r r r r", planChanges(planEach("r3", silent)), "StartDrain(r3)", nil},
		{"on trial before ready", "r r r r", planChanges(minReady, planEach("r2", since(time.Minute))), "StartDrain(r2)", nil},
		{"nothing that may serve while too few are known to", "r r r r", planChanges(planEach("r3", silent), planEach("r4", silent)), "none", []string{"settling"}},
		{"a new leader waits for min_ready", "r r r r", planChanges(minReady, planEach("r", since(time.Minute))), "none", []string{"settling"}},
		{"but not with what serves nothing", "r r r r b", planChanges(minReady, planEach("r", since(time.Minute))), "Delete(b5)", []string{"settling"}},
		{"a removed group", "r b", planChanges(func(v *reconcile.View) { v.Removing = true }), "Delete(b2) StartDrain(r1)", nil},
		{"a removed group keeps on-demand members", "r r", planChanges(func(v *reconcile.View) { v.Removing = true },
			planEach("r2", func(m *reconcile.Member) { m.OnDemand = true })), "StartDrain(r1)", nil},
	})
}

func TestPlanRollsOut(t *testing.T) {
	percent := func(n int) planChange {
		return func(v *reconcile.View) { v.Group.Rollout.MaxSurge = nstance.Count{N: n, Percent: true} }
	}
	eligible := planEach("r", func(m *reconcile.Member) { m.EligibleAt = planNow })
	unwell := func(m *reconcile.Member) { m.GoodSince = time.Time{} }
	recent := func(m *reconcile.Member) { m.GoodSince = planNow.Add(-time.Second) }
	minReady := func(v *reconcile.View) { v.Group.Rollout.MinReady = time.Minute }
	silent := func(m *reconcile.Member) { m.Silent = true }
	runPlanCases(t, []planCase{
		{"eligible for their age: one at a time", "r r r", planChanges(eligible), "Create(rollout)", nil},
		{"of unknown origin: not stale", "s s s", planChanges(planEach("s", func(m *reconcile.Member) { m.Hash = "" })), "none", nil},
		{"percent of the size, rounded up", "s s s s s", planChanges(planSize(5), percent(30)), "Create(rollout) Create(rollout)", nil},
		{"zero percent is zero", "s s s s s", planChanges(planSize(5), percent(0)), "StartDrain(s1)", nil},
		{"a drain and a create together", "s s s R", planChanges(planSurge(2)), "StartDrain(s1) Create(rollout)", nil},
		{"not while the new one is on trial", "s s s R", planChanges(minReady, planEach("R", recent)), "none", nil},
		{"not while a fresh one is silent", "s s s R", planChanges(planEach("R", silent)), "none", nil},
		{"probes fail everywhere: one at a time, first", "s s s s", planChanges(planEach("s", unwell), planSize(4)), "StartDrain(s1)", nil},
		{"agents silent everywhere: none", "s s s", planChanges(planEach("s", silent), planSurge(0)), "none", nil},
		{"a silent stale one first, once there is a spare", "s s s R R", planChanges(planSurge(2), planEach("s2", silent)), "StartDrain(s2)", nil},
		{"a new leader waits for min_ready", "s s s", planChanges(minReady, planEach("s", recent), planSurge(0)), "none", nil},
		{"an open loss: max_surge 0 waits", "b s s s", planChanges(planSurge(0), planSize(4), planEach("b", planReplacing)), "none", nil},
		{"halted", "s s s", planChanges(func(v *reconcile.View) { v.History.HaltedHash = planFresh }), "none", []string{"halted"}},
		{"halted for another definition", "s s s", planChanges(func(v *reconcile.View) { v.History.HaltedHash = planStale }), "Create(rollout)", nil},
		{"settling", "s s s u", planChanges(planEach("u", func(m *reconcile.Member) { m.GraceUntil = planNow.Add(1) })), "none", []string{"settling"}},
	})
}

func TestPlanHalts(t *testing.T) {
	failed := func(v *reconcile.View) { v.History.Failures = 2 }
	halt := func(members string, change ...planChange) reconcile.Decision {
		return reconcile.Plan(planView(t, members, change...), planNow)
	}
	t.Run("after as many failures as the group permits", func(t *testing.T) {
		d := halt("s s s", failed)
		require.True(t, d.Halt)
		require.Equal(t, "none", planSteps(d), "in the same pass")
		require.False(t, halt("s s s", func(v *reconcile.View) { v.History.Failures = 1 }).Halt)
	})
	t.Run("once", func(t *testing.T) {
		require.False(t, halt("s s s", failed, func(v *reconcile.View) { v.History.HaltedHash = planFresh }).Halt)
	})
	t.Run("never, if the group says so", func(t *testing.T) {
		require.False(t, halt("s s s", failed, func(v *reconcile.View) { v.Group.Rollout.HaltAfter = 0 }).Halt)
	})
	t.Run("with nothing left to roll out from, too", func(t *testing.T) {
		d := halt("", failed, func(v *reconcile.View) { v.History.LastGoodHash = planStale })
		require.True(t, d.Halt)
		require.Equal(t, "Create(size, last good) Create(size, last good) Create(size, last good)", planSteps(d))
	})
	t.Run("not a proven definition with nothing to replace", func(t *testing.T) {
		require.False(t, halt("r r", failed, func(v *reconcile.View) { v.History.LastGoodHash = planFresh }).Halt)
	})
}

func TestPlanFrozen(t *testing.T) {
	frozen := func(v *reconcile.View) { v.Frozen = true }
	runPlanCases(t, []planCase{
		{"nothing begins", "n s x", planChanges(frozen), "none", []string{"frozen"}},
		{"drains end", "n r r d", planChanges(frozen, planEach("d", planDraining(0, planByRollout))), "Delete(d4)", []string{"frozen"}},
		{"drains are tightened", "r r r d", planChanges(frozen, planEach("d", func(m *reconcile.Member) {
			m.Notices = []nstance.Notice{planNotice("n", time.Minute)}
		})), "Tighten(d4)", []string{"frozen"}},
		{"drains are cancelled", "r r e", planChanges(frozen, planEach("e", func(m *reconcile.Member) { m.Notices = nil })), "CancelDrain(e3)", []string{"frozen"}},
	})
}

func TestPlanUnnamed(t *testing.T) {
	unnamed := func(v *reconcile.View) { v.Frozen, v.Unnamed = true, true }
	asked := func(m *reconcile.Member) { m.Requested = &planByRequest }
	hasty := func(m *reconcile.Member) { m.Requested, m.NoDrain = &planByRequest, true }
	runPlanCases(t, []planCase{
		{"nothing begins by itself", "n s x b t", planChanges(unnamed), "none", []string{"frozen"}},
		{"who is asked to go goes, and nobody comes", "r r r", planChanges(unnamed, planEach("r1", asked)), "StartDrain(r1)", []string{"frozen"}},
		{"without a drain, if so asked", "r r r", planChanges(unnamed, planEach("r1", hasty)), "Delete(r1)", []string{"frozen"}},
		{"one that is draining already, too", "r d", planChanges(unnamed, planEach("d", hasty)), "Delete(d2)", []string{"frozen"}},
		{"without a drain, if there is nothing to drain", "b r", planChanges(unnamed, planEach("b", asked)), "Delete(b1)", []string{"frozen"}},
		{"for all that speaks against it", "n r", planChanges(unnamed, planEach("n", asked)), "StartDrain(n1)", []string{"frozen"}},
		{"one on demand", "r r", planChanges(unnamed, planEach("r1", func(m *reconcile.Member) { m.OnDemand = true; asked(m) })), "StartDrain(r1)", []string{"frozen"}},
		{"not one that is preserved", "r r", planChanges(unnamed, planEach("r1", func(m *reconcile.Member) { m.Preserved = true; asked(m) })), "none", []string{"frozen"}},
		{"drains end", "r d", planChanges(unnamed, planEach("d", planDraining(0, planByRollout))), "Delete(d2)", []string{"frozen"}},
		{"a freeze is a freeze", "r r", planChanges(func(v *reconcile.View) { v.Frozen = true }, planEach("r1", asked)), "none", []string{"frozen"}},
	})
}

func TestPlanClock(t *testing.T) {
	wrong := func(v *reconcile.View) { v.Clock = "it is an hour ahead" }
	held := func(members string, want string, change ...planChange) planCase {
		return planCase{members: members, want: want, change: append(change, wrong), holds: []string{"clock"}}
	}
	named := func(name string, c planCase) planCase { c.name = name; return c }
	past := planNow.Add(-time.Hour)
	each := func(letter string, change func(*reconcile.Member)) planChange { return planEach(letter, change) }
	runPlanCases(t, []planCase{
		named("a drain's deadline deletes nothing", held("r r r d", "none", each("d", planDraining(-time.Hour, planByRollout)))),
		named("nor that of a reclaim", held("r r r e", "none", each("e", func(m *reconcile.Member) { m.Drain.Deadline = past }))),
		named("its acknowledgement does", held("r r r d", "Delete(d4)", each("d", func(m *reconcile.Member) { m.Drain.Deadline, m.DrainOver = past, true }))),
		named("so does the end of its machine", held("r r r e", "Delete(e4)", each("e", func(m *reconcile.Member) { m.Drain.Deadline, m.Gone = past, true }))),
		named("and a request", held("r r r d", "Delete(d4)", each("d", func(m *reconcile.Member) { m.Requested, m.NoDrain = &planByRequest, true }))),
		named("and what was begun", held("r r r d", "Delete(d4)", each("d", func(m *reconcile.Member) { m.State = nstance.Deleting }))),
		named("a forced age", held("r r r", "none", each("r", func(m *reconcile.Member) { m.ExpireAt = past }))),
		named("an eligible age", held("r r r", "none", each("r", func(m *reconcile.Member) { m.EligibleAt = past }))),
		named("the age of an instance on demand", held("r r r r", "none", each("r4", func(m *reconcile.Member) { m.OnDemand, m.ExpireAt = true, past }))),
		named("that it did not register in time", held("r r t", "none")),
		named("that it did not become ready in time", held("r r u", "none", each("u", func(m *reconcile.Member) { m.LaunchBy = past }))),
		named("that no machine was had on demand in time", held("r r r b", "none", each("b", func(m *reconcile.Member) {
			m.OnDemand, m.HasMachine, m.LaunchBy = true, false, past
		}))),
		named("notices are acted on", held("r r n", "StartDrain(n3) Create(replace)")),
		named("and withdrawn", held("r r e", "CancelDrain(e3)", each("e", func(m *reconcile.Member) { m.Notices, m.Drain.Deadline = nil, past }))),
		named("machines that are gone are replaced", held("r r x", "Delete(x3) Create(replace)")),
		named("so are the unhealthy", held("r r r", "StartDrain(r1) Create(replace)", each("r1", func(m *reconcile.Member) { m.Silent, m.Unhealthy = true, true }))),
		named("rollouts go on", held("s s s", "Create(rollout)")),
		named("surplus goes", held("r r r r", "StartDrain(r1)")),
		named("deficits are filled", held("r r", "Create(size)")),
		{"in a frozen group, too", "r r r d", planChanges(wrong, func(v *reconcile.View) { v.Frozen = true }, each("d", planDraining(-time.Hour, planByRollout))),
			"none", []string{"clock", "frozen"}},
	})
	t.Run("all of it when the clock is right again", func(t *testing.T) {
		v := planView(t, "r r r d", planEach("d", planDraining(-time.Hour, planByRollout)), planEach("r1", func(m *reconcile.Member) { m.ExpireAt = past }), wrong)
		d := reconcile.Plan(v, planNow)
		require.Equal(t, "none", planSteps(d))
		require.Equal(t, "it is an hour ahead", d.Holds[0].Reason)
		v.Clock = ""
		require.Equal(t, "Delete(d4) StartDrain(r1) Create(replace)", planSteps(reconcile.Plan(v, planNow)))
	})
}

func TestPlanWithoutDefinition(t *testing.T) {
	d := reconcile.Plan(planView(t, "n x r d", func(v *reconcile.View) { v.Hash = "" }), planNow)
	require.Empty(t, d.Actions)
	require.Equal(t, []string{"definition"}, planHolds(d))
}

func TestPlanNext(t *testing.T) {
	in := func(d time.Duration) time.Time { return planNow.Add(d) }
	cases := []struct {
		name    string
		members string
		change  planChange
		want    time.Duration // 0: never
	}{
		{"never", "r r r", func(*reconcile.View) {}, 0},
		{"a drain's deadline", "r r r d", func(*reconcile.View) {}, 4 * time.Minute},
		{"registration", "r r b", func(*reconcile.View) {}, time.Minute},
		{"launch", "r r u", func(*reconcile.View) {}, 10 * time.Minute},
		{"min_ready", "r r r", func(v *reconcile.View) { v.Group.Rollout.MinReady = time.Hour + time.Second }, time.Second},
		{"grace", "r r u", planEach("u", func(m *reconcile.Member) { m.GraceUntil = in(time.Second) }), time.Second},
		{"eligible age", "r r r", planEach("r2", func(m *reconcile.Member) { m.EligibleAt = in(3 * time.Second) }), 3 * time.Second},
		{"forced age", "r r r", planEach("r2", func(m *reconcile.Member) { m.ExpireAt = in(4 * time.Second) }), 4 * time.Second},
		{"backoff", "r r", func(v *reconcile.View) { v.History.BackoffUntil = in(5 * time.Second) }, 5 * time.Second},
		{"a backoff that holds nothing up", "r r r", func(v *reconcile.View) { v.History.BackoffUntil = in(5 * time.Second) }, 0},
		{"an on-demand member's age", "r r r r", planEach("r4", func(m *reconcile.Member) { m.OnDemand, m.ExpireAt = true, in(6*time.Second) }), 6 * time.Second},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := reconcile.Plan(planView(t, c.members, c.change), planNow)
			require.Equal(t, "none", planSteps(d))
			if c.want == 0 {
				require.Zero(t, d.Next)
				return
			}
			require.Equal(t, c.want, d.Next.Sub(planNow))
		})
	}
}
