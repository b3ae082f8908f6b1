package plan_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// TestCauseOfDeletion: what is deleted for a rollout or a surplus is no loss, and neither is what
// a former leader began to delete for a cause that is not known: the next voluntary step waits
// for it. Everything else is a loss, which no backoff delays.
func TestCauseOfDeletion(t *testing.T) {
	backoff := func(v *plan.View) { v.History.BackoffUntil, v.History.Failures = noon.Add(time.Minute), 1 }
	for cause, loss := range map[nstance.CauseKind]bool{
		"": false, nstance.CauseRollout: false, nstance.CauseSurplus: false, nstance.CauseStandby: false,
		nstance.CauseNotice: true, nstance.CauseGone: true, nstance.CauseRequest: true, nstance.CauseUnhealthy: true, nstance.CauseExpired: true, nstance.CauseTimeout: true,
	} {
		deleting := each("d", func(m *plan.Member) { m.State, m.Drain, m.DeletedFor = nstance.Deleting, nil, cause })
		drains := each("d", func(m *plan.Member) {
			m.Drain = newDrain(4*time.Minute, nstance.Cause{Kind: cause})
			m.Drain.Voluntary = !loss
		})
		for how, change := range map[string]change{"deleted": deleting, "drained": drains} {
			if cause == "" && how == "drained" {
				continue
			}
			t.Run(how+" for "+string(cause), func(t *testing.T) {
				want := map[bool][4]string{
					true:  {"Create(replace)", "Create(replace)", "Create(replace)", "StartDrain(s1)"},
					false: {"Create(rollout)", "none", "none", "none"},
				}[loss]
				for i, v := range []plan.View{
					newView(t, "r r d", change),
					newView(t, "r r d", change, backoff),
					newView(t, "r r d", change, backoff, each("d", inherited)),
					newView(t, "s s s R d", change),
				} {
					d := plan.Plan(v, noon)
					if how == "deleted" {
						require.Equal(t, v.Members[len(v.Members)-1].ID, d.Actions[0].ID, "it goes on")
						require.Empty(t, d.Actions[0].Causes, "which a record has already")
						d.Actions = d.Actions[1:]
					}
					require.Equal(t, want[i], steps(d), "case %d", i)
				}
			})
		}
	}
}

// TestActionsSayWhy: each step quotes what is known of its cause.
func TestActionsSayWhy(t *testing.T) {
	unregistered := func(m *plan.Member) { m.RegisteredAt, m.GoodSince, m.HasMachine = time.Time{}, time.Time{}, false }
	for name, c := range map[string]struct {
		members string
		change  []change
		want    []nstance.Cause
	}{
		"gone":                    {"r r x", nil, []nstance.Cause{{Kind: nstance.CauseGone, Message: "the provider says that the machine does not run"}}},
		"gone, with a cause":      {"r r x", changes(each("x", func(m *plan.Member) { m.Loss = nstance.LossReclaimed })), []nstance.Cause{{Kind: nstance.CauseGone, Message: "the provider says that the machine does not run: " + string(nstance.LossReclaimed)}}},
		"gone, in words":          {"r r x", changes(each("x", func(m *plan.Member) { m.LossWords = "no host" })), []nstance.Cause{{Kind: nstance.CauseGone, Message: "the provider says that the machine does not run: no host"}}},
		"noticed":                 {"r r n", nil, []nstance.Cause{{Kind: nstance.CauseNotice, EventID: "n", Message: "aws/spot terminate"}}},
		"noticed, requested, old": {"r r n", changes(each("n", func(m *plan.Member) { m.Requested, m.ExpireAt = &byRequest, noon })), []nstance.Cause{{Kind: nstance.CauseNotice, EventID: "n", Message: "aws/spot terminate"}, byRequest, {Kind: nstance.CauseExpired, Message: "older than the group permits"}}},
		"not registered in time":  {"r r t", nil, []nstance.Cause{{Kind: nstance.CauseTimeout, Message: "not registered within its registration timeout"}}},
		"not ready in time":       {"r r u", changes(each("u", func(m *plan.Member) { m.LaunchBy = noon })), []nstance.Cause{{Kind: nstance.CauseTimeout, Message: "not ready within its launch timeout"}}},
		"no machine in time":      {"r r t", changes(each("t", unregistered)), []nstance.Cause{{Kind: nstance.CauseTimeout, Message: "the provider made no machine in time"}}},
		"refused until then":      {"r r t", changes(each("t", unregistered), each("t", func(m *plan.Member) { m.Refusal = "no size" })), []nstance.Cause{{Kind: nstance.CauseTimeout, Message: "the provider made no machine in time; it answered: no size"}}},
		"unhealthy":               {"r r r", changes(each("r3", func(m *plan.Member) { m.Silent, m.Unhealthy = true, true })), []nstance.Cause{{Kind: nstance.CauseUnhealthy, Message: "no reports past the limit, and the provider says that the machine runs"}}},
		"for a rollout":           {"s s s R", nil, []nstance.Cause{{Kind: nstance.CauseRollout, Message: "the group's definition changed"}}},
		"for its age":             {"r r r R", changes(each("r", func(m *plan.Member) { m.EligibleAt = noon })), []nstance.Cause{{Kind: nstance.CauseRollout, Message: "older than expiry.eligible_age"}}},
		"as advised":              {"r r r R", changes(each("r", func(m *plan.Member) { m.EligibleAt, m.EligibleFor = noon, "it is advised" })), []nstance.Cause{{Kind: nstance.CauseRollout, Message: "it is advised"}}},
		"back to spot":            {"r r r R", changes(markets("osss"), each("R", func(m *plan.Member) { m.GoodSince = noon })), []nstance.Cause{{Kind: nstance.CauseSurplus, Message: "surplus: group has 4 members, size is 3"}}},
		"parked":                  {"r r r a", changes(pool(1)), []nstance.Cause{{Kind: nstance.CauseStandby, Message: "it returns to the warm pool"}}},
		"needed once": {"r r r a", changes(pool(1), noReturn, func(v *plan.View) { v.Group.DrainTimeout = 0 }),
			[]nstance.Cause{{Kind: nstance.CauseStandby, Message: "it was needed once, and warm_pool.return is false"}}},
		"beyond the pool":    {"r r r p p", changes(pool(1)), []nstance.Cause{{Kind: nstance.CauseSurplus, Message: "surplus: the group has more stand-by members than its warm_pool.size"}}},
		"another park mode":  {"r r r p", changes(pool(1), func(v *plan.View) { v.Group.WarmPool.Mode = nstance.ParkHibernated }), []nstance.Cause{{Kind: nstance.CauseRollout, Message: "warm_pool.mode changed"}}},
		"stale and stand-by": {"r r r q", changes(pool(1)), []nstance.Cause{{Kind: nstance.CauseRollout, Message: "the group's definition changed"}}},
	} {
		t.Run(name, func(t *testing.T) {
			d := plan.Plan(newView(t, c.members, c.change...), noon)
			require.NotEmpty(t, d.Actions)
			require.Equal(t, c.want, d.Actions[0].Causes, steps(d))
		})
	}
}

// TestHoldsSayWhy: each hold says what it waits for, with numbers, and how long.
func TestHoldsSayWhy(t *testing.T) {
	silent := func(m *plan.Member) { m.Silent = true }
	sick := func(m *plan.Member) { m.Silent, m.Unhealthy = true, true }
	failed := func(n int, until time.Time, why string) change {
		return func(v *plan.View) {
			v.History.Failures, v.History.BackoffUntil, v.History.LastFailure = n, until, why
			v.History.LastGoodHash = freshHash
		}
	}
	soon := noon.Add(time.Minute)
	for name, c := range map[string]struct {
		members string
		change  []change
		want    plan.Hold
	}{
		"backing off":            {"r r", changes(failed(1, soon, "")), plan.Hold{Kind: plan.HoldBackoff, Reason: "backing off after failed creates", Until: soon}},
		"backing off, with why":  {"r r", changes(failed(1, soon, "no host")), plan.Hold{Kind: plan.HoldBackoff, Reason: "backing off after failed creates; the latest: no host", Until: soon}},
		"one at a time":          {"r", changes(failed(1, noon, "no host")), plan.Hold{Kind: plan.HoldBackoff, Reason: "after failed creates one at a time until a member is ready; the latest: no host"}},
		"a failure just now":     {"r t", changes(failed(1, noon, "no host")), plan.Hold{Kind: plan.HoldBackoff, Reason: "backing off after failed creates; the latest: no host"}},
		"halted":                 {"r r s", changes(failed(2, soon, "")), plan.Hold{Kind: plan.HoldHalted, Reason: "creates from the desired definition did not become ready"}},
		"paused":                 {"r r r", changes(paused), plan.Hold{Kind: plan.HoldPaused, Reason: "the rollout is paused"}},
		"new leader":             {"r r r", changes(afterTakeover, each("r3", func(m *plan.Member) { m.GraceUntil = soon.Add(time.Minute) })), plan.Hold{Kind: plan.HoldSettling, Reason: "3 members have not reported since this leader took over", Until: soon.Add(time.Minute)}},
		"surplus has to wait":    {"r r r r r", changes(each("r2", silent), each("r3", silent), each("r4", silent)), plan.Hold{Kind: plan.HoldSettling, Reason: "2 surplus members stay until enough others are known to be ready"}},
		"unreadable":             {"r r", changes(func(v *plan.View) { v.Unreadable = 7 }), plan.Hold{Kind: plan.HoldUnreadable, Reason: "7 records of the group could not be read"}},
		"several unhealthy":      {"r r r", changes(each("r", sick)), plan.Hold{Kind: plan.HoldUnhealthyCap, Reason: "2 unhealthy members wait: 1 of the group's 3 may be replaced at a time"}},
		"many unhealthy":         {"r r r r r r r r r r", changes(each("r", sick), withSize(10)), plan.Hold{Kind: plan.HoldUnhealthyCap, Reason: "8 unhealthy members wait: 2 of the group's 10 may be replaced at a time"}},
		"unhealthy, the breaker": {"r r r", changes(each("r", sick), func(v *plan.View) { v.Breaker = "the network" }), plan.Hold{Kind: plan.HoldBreaker, Reason: "the network"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := plan.Plan(newView(t, c.members, c.change...), noon)
			require.Equal(t, []plan.Hold{c.want}, d.Holds)
		})
	}
}

// TestSleepersAreNeverLate: a stand-by member that is parked, or on its way, has no launch to be
// late for, and one whose machine is gone takes no bridge.
func TestSleepersAreNeverLate(t *testing.T) {
	late := func(m *plan.Member) { m.RegisterBy, m.LaunchBy = noon, noon }
	for _, letter := range []string{"p", "q", "k", "w"} {
		d := plan.Plan(newView(t, "r r r "+letter, pool(1), each(letter, late), paused), noon)
		require.Equal(t, "none", steps(d), letter)
	}
}

// TestMarketsRollOut: a rollout of a group with an on-demand base comes to an end, one after the
// other, whichever surge is permitted, and the base is whole but for one where none is.
func TestMarketsRollOut(t *testing.T) {
	runCases(t, []ruleCase{
		{"surge 0: the spot ones first", "s s s", changes(withSurge(0), base(1), markets("oss")), "StartDrain(s1)", nil},
		{"surge 0: one at a time", "d s s", changes(withSurge(0), base(1), markets("oss")), "Create(rollout)", nil},
		{"surge 0: the base lacks one, which boots", "s s B", changes(withSurge(0), base(1), markets("sso")), "none", nil},
		{"surge 0: the base is whole again", "s s R", changes(withSurge(0), base(1), markets("sso")), "StartDrain(s1)", nil},
		{"surge 0: the base lacks one of two", "s s R", changes(withSurge(0), base(2), markets("sos")), "StartDrain(s1)", nil},
		{"surge 0: all on demand", "s s R", changes(withSurge(0), base(3), markets("ooo")), "StartDrain(s1)", nil},
		{"surge 0: not ready, of the base", "V s s", changes(withSurge(0), base(1), markets("oss")), "StartDrain(V1)", nil},
		{"surge 0: never registered, of the base", "S s s", changes(withSurge(0), base(1), markets("oss")), "Delete(S1)", nil},
		{"surge 0: the base is larger, and stale", "s s s", changes(withSurge(0), base(2), markets("oss")), "StartDrain(s2)", nil},
		{"surge 0: the base is larger", "r r r", changes(withSurge(0), base(2), markets("oss")), "StartDrain(r2)", nil},
		{"surge 0: while it boots", "r r b", changes(withSurge(0), base(2), markets("oso")), "none", nil},
		{"surge 0: no way back to spot", "r r r", changes(withSurge(0), base(1), markets("oos"), func(v *plan.View) { v.SpotFree, v.History.ReturnAt = true, noon }), "none", nil},
		{"surge 1: the base's replacement first", "s s s", changes(base(1), markets("oss")), "Create(rollout)", nil},
		{"surge 1: then it may go", "s s s R", changes(base(1), markets("osso")), "StartDrain(s1)", nil},
		{"surge 1: not for a spot one", "s s s R", changes(base(1), markets("osss")), "StartDrain(s2)", nil},
		{"surge 1: never registered, of the base", "S r r", changes(base(1), markets("oss")), "Create(rollout)", nil},
		{"surge 1: back to spot", "r r r", changes(base(1), markets("oos"), func(v *plan.View) { v.SpotFree, v.History.ReturnAt = true, noon }), "Create(rollout)", nil},
		{"surge 1: not while spot is sold out", "r r r", changes(base(1), markets("oos"), func(v *plan.View) { v.History.ReturnAt = noon }), "none", nil},
		{"surge 1: not yet", "r r r", changes(base(1), markets("oos"), func(v *plan.View) { v.SpotFree, v.History.ReturnAt = true, noon.Add(1) }), "none", nil},
		{"surge 1: not while one leaves", "r r r e", changes(base(1), markets("oosd"), func(v *plan.View) { v.SpotFree, v.History.ReturnAt = true, noon }), "none", nil},
		{"surge 1: not while a stand-by member leaves: it does", "r r r z", changes(pool(1), base(1), markets("oosd"), func(v *plan.View) { v.SpotFree, v.History.ReturnAt = true, noon }), "Create(rollout)", nil},
		{"surge 1: the one from spot is ready", "r r r R", changes(base(1), markets("ooss")), "StartDrain(r1)", nil},
		{"surge 1: nor while one leaves and one boots", "r r b e", changes(base(1), markets("ooss"), answeredAll, func(v *plan.View) { v.SpotFree, v.History.ReturnAt = true, noon }), "none", nil},
		{"surge 1: one that is kept does not hold it up", "r r r r", changes(base(1), markets("oosd"), each("r4", func(m *plan.Member) { m.Preserved = true }), func(v *plan.View) { v.SpotFree, v.History.ReturnAt = true, noon }), "Create(rollout)", nil},
		{"surge 1: the oldest on demand goes", "r r r R", changes(base(1), markets("soos")), "StartDrain(r2)", nil},
		{"on demand as configured: there is no way to spot", "r r r", changes(func(v *plan.View) {
			markets("ooo")(v)
			v.Group.Definition.Market.Type, v.SpotFree, v.History.ReturnAt = nstance.OnDemand, true, noon
		}), "none", nil},
		{"paused: the base is not completed", "r r r", changes(base(1), markets("sss"), paused), "none", []string{"paused"}},
		{"paused: what is lost of it is", "r r n", changes(base(1), markets("sso"), paused), "StartDrain(n3) Create(replace)", []string{"paused"}},
	})
	for name, c := range map[string]struct {
		members string
		change  []change
		want    nstance.MarketType
	}{
		"a loss of the base":              {"r r n", changes(base(1), markets("sso")), nstance.OnDemand},
		"a loss beside the base":          {"r r n", changes(base(1), markets("oss")), ""},
		"a stale base does not count":     {"s r n", changes(base(1), markets("oss")), nstance.OnDemand},
		"but does while it is paused":     {"s r n", changes(base(1), markets("oss"), paused), ""},
		"the group grows, base included":  {"r r", changes(base(1), markets("ss")), nstance.OnDemand},
		"back to spot, not as configured": {"r r r", changes(base(1), markets("oos"), func(v *plan.View) { v.SpotFree, v.History.ReturnAt = true, noon }), nstance.Spot},
		"a group without markets":         {"r r", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := plan.Plan(newView(t, c.members, c.change...), noon)
			i := slices.IndexFunc(d.Actions, func(a plan.Action) bool { return a.Kind == plan.Create })
			require.Equal(t, c.want, d.Actions[i].Market)
		})
	}
	t.Run("two creates, one of them for the base", func(t *testing.T) {
		d := plan.Plan(newView(t, "r", base(1), markets("s")), noon)
		require.Equal(t, []plan.Action{
			{Kind: plan.Create, Reason: plan.ReasonSize, Count: 1, Market: nstance.OnDemand}, {Kind: plan.Create, Reason: plan.ReasonSize, Count: 1},
		}, d.Actions)
	})
}

func answeredAll(v *plan.View) {
	for i := range v.Members {
		v.Members[i].Answered = true
	}
}

// TestDrainsOfRecord: what is on record of a drain may be less than all, and what the leader knows
// better counts.
func TestDrainsOfRecord(t *testing.T) {
	backoff := func(v *plan.View) { v.History.BackoffUntil, v.History.Failures = noon.Add(time.Minute), 1 }
	runCases(t, []ruleCase{
		{"its end as this leader knows it", "r r r d", changes(each("d", func(m *plan.Member) { m.DrainBy = noon })), "Delete(d4)", nil},
		{"which is later than the recorded one", "r r r d", changes(each("d", draining(-time.Minute, byRollout)), each("d", func(m *plan.Member) { m.DrainBy = noon.Add(1) })), "none", nil},
		{"of one that has not registered", "r r r d", changes(each("d", func(m *plan.Member) { m.RegisteredAt = time.Time{} })), "Delete(d4)", nil},
		{"which stays when the notice is withdrawn", "r r r e", changes(each("e", func(m *plan.Member) { m.RegisteredAt, m.Notices = time.Time{}, nil })), "CancelDrain(e4)", nil},
		{"of a stand-by member that was woken", "r r r z", changes(pool(1), each("z", func(m *plan.Member) { m.Woken, m.DrainOver = true, true })), "Park(z4)", nil},
		{"not on record, and noticed", "r r r d", changes(each("d", func(m *plan.Member) { m.Drain, m.Notices = nil, []nstance.Notice{newNotice("n", time.Minute)} })), "StartDrain(d4)", nil},
		{"without a cause: no loss", "r r d", changes(backoff, each("d", func(m *plan.Member) { m.Drain.Causes, m.Drain.Voluntary = nil, false })), "none", []string{"backoff"}},
		{"without a cause, deleted for being unhealthy: the cap counts it", "r r r d", changes(each("r1", func(m *plan.Member) { m.Silent, m.Unhealthy = true, true }), each("d", func(m *plan.Member) {
			m.State, m.Drain.Causes, m.DeletedFor = nstance.Deleting, nil, nstance.CauseUnhealthy
		})), "Delete(d4)", []string{"unhealthy_cap"}},
	})
	d := plan.Plan(newView(t, "r r r d", each("d", func(m *plan.Member) { m.Drain, m.Notices = nil, []nstance.Notice{newNotice("n", time.Minute)} })), noon)
	require.Equal(t, []nstance.CauseKind{nstance.CauseNotice}, causeKinds(d.Actions[0].Causes))
	d = plan.Plan(newView(t, "r r r e", each("e", func(m *plan.Member) { m.Notices = append(m.Notices, newNotice("f", time.Hour)) })), noon)
	a := onlyAction(t, d, plan.Tighten)
	require.Equal(t, "f", a.Causes[1].EventID, "a second notice is recorded though it comes later")
	require.Equal(t, noon.Add(100*time.Second), a.Deadline)
	d = plan.Plan(newView(t, "r r u", each("u", func(m *plan.Member) { m.LaunchBy, m.HasMachine = noon, false })), noon)
	require.True(t, onlyAction(t, d, plan.StartDrain).Failure, "it registered: so there was a machine")
}

// TestRareMembers: members in states that only a fault, a takeover or two events at once bring about.
func TestRareMembers(t *testing.T) {
	backoff := func(v *plan.View) { v.History.BackoffUntil, v.History.Failures = noon.Add(time.Minute), 1 }
	runCases(t, []ruleCase{
		{"a drain that never took effect", "r r r d", changes(each("d", func(m *plan.Member) { m.Drain.Deadline = time.Time{} })), "StartDrain(d4)", nil},
		{"a removal without a drain on record, requested", "r r r d", changes(each("d", func(m *plan.Member) { m.Drain, m.Requested = nil, &byRequest })), "StartDrain(d4)", nil},
		{"kept, and gone", "r r x", changes(each("x", func(m *plan.Member) { m.Preserved = true })), "Delete(x3) Create(replace)", nil},
		{"kept, and deleted already", "r r r d", changes(each("d", func(m *plan.Member) { m.State, m.Preserved = nstance.Deleting, true })), "Delete(d4)", nil},
		{"deleted, and still listed", "r r r", changes(each("r3", func(m *plan.Member) { m.State = nstance.Deleted })), "Create(size)", nil},
		{"taken by the cloud as it boots: no backoff", "r r b", changes(backoff, each("b", func(m *plan.Member) { m.Gone, m.Taken = true, true })), "Delete(b3) Create(replace)", nil},
		{"gone as it boots: backoff", "r r b", changes(backoff, each("b", func(m *plan.Member) { m.Gone = true })), "Delete(b3)", []string{"backoff"}},
		{"registered, whenever it should have", "r r r", changes(each("r1", func(m *plan.Member) { m.RegisterBy = noon })), "none", nil},
		{"a loss of a former term, a replacement of this one", "r e b", changes(backoff, each("e", inherited), each("b", asReplacement)), "Create(replace)", nil},
		{"a loss of a former term, the replacement of another", "r e b", changes(backoff, each("e", inherited), each("b", asReplacement), each("b", inherited), each("b", func(m *plan.Member) { m.Replaces = "other" })), "Create(replace)", nil},
		{"surplus: no more of the base than it can spare", "r r r r r", changes(base(1), markets("oosss"), goesFirst(0), goesFirst(1)), "StartDrain(r1) StartDrain(r3)", nil},
		{"surplus: one of the base that has no machine", "r b r r", changes(base(1), markets("ooss"), each("b", func(m *plan.Member) { m.HasMachine = false })), "Delete(b2)", nil},
	})
	causes := func(members string, change func(*plan.Member)) plan.Action {
		return plan.Plan(newView(t, "r r r "+members, each(members, change)), noon).Actions[0]
	}
	a := causes("d", func(m *plan.Member) { m.Drain, m.Gone = nil, true })
	require.Equal(t, []nstance.CauseKind{nstance.CauseGone}, causeKinds(a.Causes))
	require.False(t, a.Voluntary)
	a = causes("d", func(m *plan.Member) { m.State = nstance.Deleting })
	require.Equal(t, []nstance.CauseKind{nstance.CauseRollout}, causeKinds(a.Causes))
	require.True(t, a.Voluntary)
	a = causes("d", func(m *plan.Member) { m.Drain = nil })
	require.Equal(t, []nstance.Cause{{Kind: nstance.CauseSurplus, Message: "surplus: group has 3 members, size is 3"}}, a.Causes)
	a = causes("d", func(m *plan.Member) { m.Drain, m.Requested = nil, &byRequest })
	require.Equal(t, []nstance.Cause{byRequest}, a.Causes)
	a = causes("e", func(m *plan.Member) { m.Notices = []nstance.Notice{newNotice("f", time.Hour)} })
	require.Equal(t, plan.Tighten, a.Kind, "the first notice is withdrawn, another stands")
	require.Equal(t, []string{"f"}, []string{a.Causes[0].EventID})
	require.Len(t, a.Causes, 1)
	for name, change := range map[string]func(*plan.Member){
		"taken by the cloud": func(m *plan.Member) { m.Gone, m.Taken = true, true },
		"by request":         func(m *plan.Member) { m.Gone, m.OnDemand = true, true },
	} {
		require.False(t, causes("b", change).Failure, name)
	}
	halts := plan.Plan(newView(t, "r r r", base(1), markets("sss"), func(v *plan.View) { v.History.Failures, v.History.LastGoodHash = 2, freshHash }), noon)
	require.False(t, halts.Halt, "only the market of members is to change")
}

// TestWithdrawnNoticeCutsNoDrain: neither one that begins nor one in progress.
func TestWithdrawnNoticeCutsNoDrain(t *testing.T) {
	withdrawn := func(m *plan.Member) {
		n := newNotice("n", time.Minute)
		n.Cancelled = true
		m.Notices = []nstance.Notice{n}
	}
	d := plan.Plan(newView(t, "s s s R", each("s1", withdrawn)), noon)
	require.Equal(t, noon.Add(5*time.Minute), onlyAction(t, d, plan.StartDrain).Deadline)
	require.Equal(t, "none", steps(plan.Plan(newView(t, "r r r d", each("d", withdrawn)), noon)))
}
