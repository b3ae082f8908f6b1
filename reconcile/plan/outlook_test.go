package plan_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// TestCounts: each member is in one of the numbers, and those of the whole group add up.
func TestCounts(t *testing.T) {
	gone := func(m *plan.Member) { m.Gone = true }
	preserved := func(m *plan.Member) { m.Preserved = true }
	onDemand := func(m *plan.Member) { m.OnDemand = true }
	for members, c := range map[string]struct {
		change []change
		want   plan.Counts
	}{
		"r r r":       {nil, plan.Counts{Ready: 3}},
		"b u R":       {nil, plan.Counts{Booting: 2, Ready: 1}},
		"s r r":       {nil, plan.Counts{Ready: 3, Stale: 1, Surplus: -1}}, // one more may be there
		"s s s R":     {nil, plan.Counts{Ready: 4, Stale: 3}},              // the spare one of the rollout
		"s s s R R":   {nil, plan.Counts{Ready: 5, Stale: 3, Surplus: 1}},
		"r x":         {nil, plan.Counts{Ready: 1, Gone: 1, Missing: 2, Surplus: -2}},
		"r d e":       {nil, plan.Counts{Ready: 1, Leaving: 2, Missing: 2, Surplus: -2}},
		"r d x b":     {changes(each("d", gone)), plan.Counts{Ready: 1, Leaving: 1, Gone: 1, Booting: 1, Missing: 1, Surplus: -1}},
		"r s b s":     {changes(each("s2", gone), withSize(2)), plan.Counts{Ready: 2, Gone: 1, Booting: 1, Stale: 1}},
		"r n":         {nil, plan.Counts{Ready: 2, Missing: 2, Surplus: -2}}, // it serves until it is drained
		"r r p a":     {changes(pool(2)), plan.Counts{Ready: 2, Standby: 2, Parked: 1, Missing: 1, Surplus: -1}},
		"r r r s x p": {changes(pool(1), each("s", onDemand), each("x", onDemand)), plan.Counts{Ready: 3, OnDemand: 2, Standby: 1, Parked: 1}},
		"r s r d":     {changes(each("s", preserved), each("d", preserved)), plan.Counts{Ready: 2, Preserved: 2, Missing: 1, Surplus: -1}},
		"r r":         {changes(withSize(1)), plan.Counts{Ready: 2, Surplus: 1}},
		"r d q":       {changes(pool(1), each("d", func(m *plan.Member) { m.Hash = staleHash })), plan.Counts{Ready: 1, Leaving: 1, Standby: 1, Parked: 1, Missing: 2, Surplus: -2}},
		"r r b":       {changes(func(v *plan.View) { v.Hash = plan.UnknownHash }, withSize(5)), plan.Counts{Ready: 2, Booting: 1, Surplus: -2}},
	} {
		t.Run(members, func(t *testing.T) {
			require.Equal(t, c.want, plan.NewCensus(newView(t, members, c.change...), noon).Counts())
		})
	}
}

// TestStatus: a member that has served in this term is ready though it misses reports, one
// that served before is until it is heard of, and a machine that is gone is shown as such.
func TestStatus(t *testing.T) {
	unheard := func(m *plan.Member) { m.GoodSince, m.GraceUntil = time.Time{}, noon.Add(time.Minute) }
	for name, c := range map[string]struct {
		letter string
		change func(*plan.Member)
		want   nstance.State
	}{
		"ready":                            {"r", func(*plan.Member) {}, nstance.Ready},
		"silent":                           {"r", func(m *plan.Member) { m.Silent, m.Unhealthy = true, true }, nstance.Ready},
		"well for less than min_ready":     {"r", func(m *plan.Member) { m.GoodSince = noon.Add(-time.Minute + 1) }, nstance.Booting},
		"well for min_ready":               {"r", func(m *plan.Member) { m.GoodSince = noon.Add(-time.Minute) }, nstance.Ready},
		"never well":                       {"u", func(*plan.Member) {}, nstance.Booting},
		"was ready, not heard of":          {"r", func(m *plan.Member) { unheard(m); m.WasReady = true }, nstance.Ready},
		"was not ready, not heard of":      {"r", unheard, nstance.Booting},
		"was ready, heard of and not well": {"r", func(m *plan.Member) { m.GoodSince, m.WasReady = time.Time{}, true }, nstance.Booting},
		"gone":                             {"x", func(*plan.Member) {}, nstance.Gone},
		"gone while it drains":             {"d", func(m *plan.Member) { m.Gone = true }, nstance.Draining},
		"was ready, not heard of, gone":    {"x", func(m *plan.Member) { unheard(m); m.WasReady = true }, nstance.Gone},
		"being deleted":                    {"r", func(m *plan.Member) { m.State = nstance.Deleting }, nstance.Deleting},
		"parked":                           {"p", func(*plan.Member) {}, nstance.Parked},
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(t, c.letter, func(v *plan.View) { v.Group.Rollout.MinReady = time.Minute; c.change(&v.Members[0]) })
			census := plan.NewCensus(v, noon)
			require.Equal(t, c.want, census.Status(&v.Members[0]))
		})
	}
}

// TestOutlooks: what becomes of each member in the end, and why.
func TestOutlooks(t *testing.T) {
	const surplus = "surplus: group has 4 members, size is 3"
	stays := plan.Outlook{Counted: true}
	expired := func(m *plan.Member) { m.ExpireAt = noon }
	eligible := func(m *plan.Member) { m.EligibleAt = noon }
	onDemand := func(m *plan.Member) { m.OnDemand = true }
	drained := func(o plan.Outlook) plan.Outlook { o.Leaves = plan.StartDrain; return o }
	deleted := func(o plan.Outlook) plan.Outlook { o.Leaves = plan.Delete; return o }
	drift := plan.Outlook{Counted: true, Drifted: true, Drifts: true, Replaced: true, Reason: "its definition changes"}
	forced := plan.Outlook{Doomed: true, Expired: true, Replaced: true, Reason: "older than expiry.forced_age"}
	for name, c := range map[string]struct {
		members string
		change  []change
		want    map[string]plan.Outlook // of the members that do not just stay
	}{
		"whole":                 {"r r b", nil, nil},
		"drifted":               {"s r S", nil, map[string]plan.Outlook{"s1": drained(drift), "S3": deleted(drift)}},
		"halted all the same":   {"s r r", changes(func(v *plan.View) { v.History.HaltedHash = freshHash }), map[string]plan.Outlook{"s1": drained(drift)}},
		"nothing is drained":    {"s r r", changes(func(v *plan.View) { v.Group.DrainTimeout = 0 }), map[string]plan.Outlook{"s1": deleted(drift)}},
		"eligible":              {"r r r", changes(each("r1", eligible)), map[string]plan.Outlook{"r1": drained(plan.Outlook{Counted: true, Expired: true, Replaced: true, Reason: "older than expiry.eligible_age"})}},
		"advised":               {"r r r", changes(each("r1", func(m *plan.Member) { eligible(m); m.EligibleFor = "the cloud advises it" })), map[string]plan.Outlook{"r1": drained(plan.Outlook{Counted: true, Replaced: true, Reason: "the cloud advises it"})}},
		"expired":               {"r r r", changes(each("r1", expired)), map[string]plan.Outlook{"r1": drained(forced)}},
		"expired and drifted":   {"s r r", changes(each("s", expired)), map[string]plan.Outlook{"s1": drained(plan.Outlook{Doomed: true, Drifted: true, Expired: true, Replaced: true, Reason: forced.Reason})}},
		"expired and surplus":   {"r r r r", changes(each("r1", expired)), map[string]plan.Outlook{"r1": drained(plan.Outlook{Doomed: true, Expired: true, Reason: forced.Reason + ", and surplus"})}},
		"two expire, one goes":  {"r r r r", changes(each("r1", expired), each("r2", expired)), map[string]plan.Outlook{"r1": drained(plan.Outlook{Doomed: true, Expired: true, Reason: forced.Reason + ", and surplus"}), "r2": drained(forced)}},
		"expired beside a loss": {"r r r n", changes(each("r1", expired)), map[string]plan.Outlook{"r1": drained(forced), "n4": {Doomed: true}}},
		"expired beside one by request": {"r r r r", changes(each("r1", expired), each("r4", expired), each("r4", onDemand)), map[string]plan.Outlook{
			"r1": drained(forced), "r4": drained(plan.Outlook{Doomed: true, Expired: true, Reason: "older than expiry.on_demand_age"}),
		}},
		"kept, and expired":           {"r r r r", changes(each("r1", expired), each("r1", func(m *plan.Member) { m.Preserved = true })), map[string]plan.Outlook{"r1": {Doomed: true, Expired: true}}},
		"expired, and leaves already": {"r r r d", changes(each("d", expired)), map[string]plan.Outlook{"d4": {Doomed: true, Expired: true}}},
		"surplus":                     {"r r r r", nil, map[string]plan.Outlook{"r1": drained(plan.Outlook{Counted: true, Reason: surplus})}},
		"surplus that boots":          {"r r r b", nil, map[string]plan.Outlook{"b4": deleted(plan.Outlook{Counted: true, Reason: surplus + "; it serves nothing yet"})}},
		"surplus of a rollout":        {"s s s R", nil, map[string]plan.Outlook{"s1": drained(plan.Outlook{Counted: true, Drifted: true, Reason: surplus}), "s2": drained(drift), "s3": drained(drift)}},
		"the group is removed": {"r b", changes(func(v *plan.View) { v.Removing = true }), map[string]plan.Outlook{
			"r1": drained(plan.Outlook{Counted: true, Reason: "surplus: group has 2 members, size is 0"}),
			"b2": deleted(plan.Outlook{Counted: true, Reason: "surplus: group has 2 members, size is 0; it serves nothing yet"}),
		}},
		"leaves already":            {"r r r e", nil, map[string]plan.Outlook{"e4": {Doomed: true}}},
		"noticed":                   {"r r n", nil, map[string]plan.Outlook{"n3": {Doomed: true}}},
		"no definition":             {"s r r r", changes(func(v *plan.View) { v.Hash = plan.UnknownHash }, each("r2", expired)), map[string]plan.Outlook{"r2": {Doomed: true, Expired: true}}},
		"kept":                      {"s r r", changes(each("s", func(m *plan.Member) { m.Preserved = true })), map[string]plan.Outlook{"s1": {Drifted: true}}},
		"by request":                {"r r r s", changes(each("s", onDemand)), map[string]plan.Outlook{"s4": {}}},
		"by request, expired":       {"r r r r", changes(each("r4", onDemand), each("r4", expired)), map[string]plan.Outlook{"r4": drained(plan.Outlook{Doomed: true, Expired: true, Reason: "older than expiry.on_demand_age"})}},
		"by request, expires early": {"r r r b", changes(each("b", onDemand), each("b", expired)), map[string]plan.Outlook{"b4": deleted(plan.Outlook{Doomed: true, Expired: true, Reason: "older than expiry.on_demand_age, nothing to drain"})}},
		"stand-by":                  {"r r r p", changes(pool(1)), map[string]plan.Outlook{"p4": {}}},
		"stand-by, drifted":         {"r r r q", changes(pool(1)), map[string]plan.Outlook{"q4": deleted(plan.Outlook{Drifted: true, Drifts: true, Replaced: true, Reason: "the group's definition changed"})}},
		"stand-by, awake, drifted":  {"r r r a", changes(pool(1), each("a", func(m *plan.Member) { m.Hash = staleHash })), map[string]plan.Outlook{"a4": drained(plan.Outlook{Drifted: true, Drifts: true, Replaced: true, Reason: "the group's definition changed"})}},
		"stand-by, another mode":    {"r r r p", changes(pool(1), func(v *plan.View) { v.Group.WarmPool.Mode = nstance.ParkHibernated }), map[string]plan.Outlook{"p4": deleted(plan.Outlook{Replaced: true, Reason: "warm_pool.mode changed"})}},
		"back to spot":              {"r r r", changes(markets("osd"), func(v *plan.View) { v.History.ReturnAt, v.SpotFree = noon, true }), map[string]plan.Outlook{"r1": drained(plan.Outlook{Counted: true, Replaced: true, Reason: "the group returns to spot"})}},
		"for the base":              {"r r r", changes(base(1), markets("sss")), map[string]plan.Outlook{"r1": drained(plan.Outlook{Counted: true, Replaced: true, Reason: "the group's on-demand base is incomplete"})}},
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(t, c.members, c.change...)
			got := plan.NewCensus(v, noon).Outlooks()
			require.Len(t, got, len(v.Members))
			for i, m := range v.Members {
				want, ok := c.want[string(m.ID)]
				if !ok {
					want = stays
				}
				require.Equal(t, want, got[i], m.ID)
			}
			slices.Reverse(v.Members)
			other := plan.NewCensus(v, noon).Outlooks()
			slices.Reverse(other)
			require.Equal(t, got, other, "whatever the order of the members")
		})
	}
}

// base gives a group on spot that keeps members on demand.
func base(n int) change {
	return func(v *plan.View) {
		v.Group.Definition.Market = nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand, OnDemandBase: nstance.Count{N: n}}
	}
}

// markets gives the market of each member, o is on demand. The group is on spot.
func markets(letters string) change {
	return func(v *plan.View) {
		if v.Group.Definition.Market.Type == "" {
			base(0)(v)
		}
		for i := range v.Members {
			v.Members[i].Market = nstance.Spot
			if letters[i] == 'o' {
				v.Members[i].Market = nstance.OnDemand
			}
		}
	}
}
