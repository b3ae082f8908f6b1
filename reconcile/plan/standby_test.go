package plan_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// TestStandbyNeverCounts: stand-by members are in none of the numbers of a group.
func TestStandbyNeverCounts(t *testing.T) {
	c := plan.NewCensus(newView(t, "r r p a w c z", pool(5)), noon)
	require.Equal(t, plan.Counts{Ready: 2, Missing: 1, Surplus: -1, Standby: 5, Parked: 1}, c.Counts())
}

// TestWakes: a stand-by member is woken for each member that is lost, at the same moment
// as its replacement is created, and runs until that is ready.
func TestWakes(t *testing.T) {
	over := func(m *plan.Member) { m.Drain.Deadline = noon.Add(-time.Second) }
	claimed := func(n int) change { return func(v *plan.View) { v.Claims = n } }
	runCases(t, []ruleCase{
		{"a notice", "r r n p p", changes(pool(2)), "StartDrain(n3) Create(replace) Wake(p4)", nil},
		{"two at once", "r n n p p", changes(pool(2)), "StartDrain(n2) StartDrain(n3) Create(replace) Create(replace) Wake(p4) Wake(p5)", nil},
		{"more losses than stand-by members", "n n n p", changes(pool(1)), "StartDrain(n1) StartDrain(n2) StartDrain(n3) Create(replace) Create(replace) Create(replace) Wake(p4)", nil},
		{"a machine that is gone", "r r x p", changes(pool(1)), "Delete(x3) Create(replace) Wake(p4)", nil},
		{"the replacement boots", "r r e b w", changes(pool(1), each("b", asReplacement), each("e", answered)), "none", nil},
		{"the replacement boots, nothing is parked", "r r b a", changes(pool(1), each("b", asReplacement)), "none", nil},
		{"the replacement is ready", "r r r a", changes(pool(1)), "StartDrain(a4)", nil},
		{"a bridge that is still being woken", "r r r w", changes(pool(1)), "none", nil},
		{"without a pool", "r r n", changes(onceFull(3)), "StartDrain(n3) Create(replace)", nil},
		{"no loss, the group grows", "r r r p", changes(withSize(5), pool(1), onceFull(3)), "Create(size) Create(size)", nil},
		{"fresh ones before stale ones", "r r n q p", changes(pool(2)), "StartDrain(n3) Create(replace) Wake(p5)", nil},
		{"a stale one is better than none", "r r n q", changes(pool(1)), "StartDrain(n3) Create(replace) Wake(q4)", nil},
		{"one that is drained is nearer", "r r n z p", changes(pool(2)), "StartDrain(n3) Create(replace) CancelDrain(z4)", nil},
		{"two that are drained, for one", "r r n z z p", changes(pool(3)), "StartDrain(n3) Create(replace) CancelDrain(z4)", nil},
		{"one that was just made", "r r n i p", changes(pool(2)), "StartDrain(n3) Create(replace)", nil},
		{"another than the one that does not wake", "r r b W p", changes(pool(2), each("b", asReplacement)), "Wake(p5)", nil},
		{"another than the one that the provider does not start, though it accepted that", "r r b w p", changes(pool(2), each("b", asReplacement), each("w", func(m *plan.Member) { m.LaunchBy = noon })), "Wake(p5)", nil},
		{"a rollout is no loss", "s s d B p", changes(pool(1), withSurge(0)), "none", nil},
		{"a loss while the replacement of a rollout boots", "s s n B p", changes(pool(1), onceFull(3)), "StartDrain(n3) Wake(p5)", nil},
		{"a loss while a rollout drains", "s n R d p", changes(pool(1), onceFull(3)), "StartDrain(n2) Create(replace) Wake(p5)", nil},
		{"a loss while the group shrinks", "r r n d d p", changes(pool(1), onceFull(3)), "StartDrain(n3) Create(replace) Wake(p6)", nil},
		{"a loss while the pool shrinks", "r r n p p", changes(pool(1)), "StartDrain(n3) Create(replace) Wake(p4) Delete(p5)", nil},
		{"one that cannot be parked", "r r n k", changes(pool(1), each("k", func(m *plan.Member) { m.ParkFailed = true })), "StartDrain(n3) Create(replace) Wake(k4)", nil},
		{"one whose drain is over", "r r n z", changes(pool(1), each("z", over)), "Park(z4) StartDrain(n3) Create(replace)", nil},
		{"a claim of a group that is removed", "r a", changes(pool(1), claimed(1), func(v *plan.View) { v.Removing = true }), "StartDrain(r1) StartDrain(a2)", nil},
		{"a claim", "r r r p", changes(pool(1), claimed(1)), "Wake(p4)", nil},
		{"a claim ends", "r r r a", changes(pool(1), claimed(0)), "StartDrain(a4)", nil},
		{"after a takeover", "r r r p", changes(pool(1), afterTakeover), "none", []string{"settling"}},
		{"silence alone", "r r r p", changes(pool(1), each("r1", func(m *plan.Member) { m.Silent = true })), "none", nil},
		{"frozen", "r r n p", changes(pool(1), func(v *plan.View) { v.Frozen = true }), "none", []string{"frozen"}},
		{"records that cannot be read", "r r p", changes(pool(1), func(v *plan.View) { v.Unreadable = 1 }), "none", []string{"unreadable"}},
	})
}

// TestWokenIsNoCreation: a stand-by member that does not come back says nothing about the
// definition, with which it was ready before it slept.
func TestWokenIsNoCreation(t *testing.T) {
	v := newView(t, "r r b a", pool(1), each("b", asReplacement), each("a", func(m *plan.Member) {
		m.GoodSince, m.LaunchBy = time.Time{}, noon.Add(-time.Second)
	}))
	require.False(t, onlyAction(t, plan.Plan(v, noon), plan.StartDrain).Failure)
}

// TestKeepsPool: the pool has its size, what bridges nothing is parked, and what is stale is
// made anew, one at a time.
func TestKeepsPool(t *testing.T) {
	failed := func(v *plan.View) { v.History.Failures, v.History.BackoffUntil = 1, noon.Add(time.Minute) }
	old := func(m *plan.Member) { m.EligibleAt = noon.Add(-time.Second) }
	unwell := func(m *plan.Member) { m.GoodSince = time.Time{} }
	runCases(t, []ruleCase{
		{"filled", "r r r", changes(pool(2)), "Create(standby) Create(standby)", nil},
		{"filled after the group", "r r p", changes(pool(2)), "Create(replace) Wake(p3)", nil},
		{"not while creates fail", "r r r", changes(pool(2), failed), "none", []string{"backoff"}},
		{"complete", "r r r p p", changes(pool(2)), "none", nil},
		{"on its way", "r r r c k z", changes(pool(3)), "none", nil},
		{"ready for the first time", "r r r i", changes(pool(1)), "StartDrain(i4)", nil},
		{"without a drain", "r r r i", changes(pool(1), func(v *plan.View) { v.Group.DrainTimeout = 0 }), "Park(i4)", nil},
		{"drained", "r r r z", changes(pool(1), each("z", func(m *plan.Member) { m.DrainOver = true })), "Park(z4)", nil},
		{"drained too late", "r r r z", changes(pool(1), each("z", func(m *plan.Member) { m.Drain.Deadline = noon })), "Park(z4)", nil},
		{"of one that is deleted", "r r r z", changes(pool(1), each("z", func(m *plan.Member) { m.State = nstance.Deleting })), "Delete(z4) Create(standby)", nil},
		{"drained, and gone", "r r r z", changes(pool(1), each("z", func(m *plan.Member) { m.Gone = true })), "Delete(z4) Create(standby)", nil},
		{"drained, and noticed", "r r r z", changes(pool(1), each("z", func(m *plan.Member) { m.DrainOver, m.Notices = true, []nstance.Notice{newNotice("n", time.Minute)} })), "Delete(z4) Create(standby)", nil},
		{"drained without a drain on record", "r r r z", changes(pool(1), each("z", func(m *plan.Member) { m.Drain = nil })), "StartDrain(z4) Create(standby)", nil},
		{"could not be woken, need not be, and is not to return", "r r r W", changes(pool(1), noReturn), "Park(W4)", nil},
		{"one too many, which is being made", "r r r q q c", changes(pool(2)), "Delete(c6)", nil},
		{"one too many, all of them stale", "r r r q q q", changes(pool(2)), "Delete(q4)", nil},
		{"drained, and asked to go", "r r r z", changes(pool(1), each("z", func(m *plan.Member) {
			m.DrainOver, m.Requested = true, &nstance.Cause{Kind: nstance.CauseRequest}
		})), "Delete(z4) Create(standby)", nil},
		{"not to return", "r r r a", changes(pool(1), noReturn), "StartDrain(a4)", nil},
		{"not to return, drained", "r r r z", changes(pool(1), noReturn, each("z", func(m *plan.Member) { m.DrainOver, m.Woken = true, true })), "Delete(z4)", nil},
		{"not to return, never woken", "r r r z", changes(pool(1), noReturn, each("z", func(m *plan.Member) { m.DrainOver = true })), "Park(z4)", nil},
		{"could not be woken, and need not be", "r r r W", changes(pool(1)), "Park(W4)", nil},
		{"too many", "r r r p p a", changes(pool(1)), "Delete(p4) Delete(p5) StartDrain(a6)", nil},
		{"none of those that bridge", "r r b a p", changes(pool(1), each("b", asReplacement)), "Delete(p5)", nil},
		{"removed with the group", "r p a", changes(pool(2), func(v *plan.View) { v.Removing = true }), "StartDrain(r1) Delete(p2) StartDrain(a3)", nil},
		{"not ready after it was woken, removed with the group", "r a", changes(pool(1), each("a", unwell), func(v *plan.View) { v.Removing = true }), "StartDrain(r1) StartDrain(a2)", nil},
		{"not ready after it was woken, and the pool ends", "r r r a", changes(pool(0), each("a", unwell)), "StartDrain(a4)", nil},
		{"not ready after it was woken, beside one that is", "r r b a a", changes(pool(1), each("b", asReplacement), each("a4", unwell)), "StartDrain(a4)", nil},
		{"not ready after it was woken", "r r r a", changes(pool(1), each("a", unwell)), "none", nil},
		{"stale", "r r r q q", changes(pool(2)), "Delete(q4)", nil},
		{"old", "r r r p p", changes(pool(2), each("p5", old)), "Delete(p5)", nil},
		{"another mode", "r r r p", changes(pool(1), func(v *plan.View) { v.Group.WarmPool.Mode = nstance.ParkHibernated }), "Delete(p4)", nil},
		{"stale, one is being made", "r r r q c", changes(pool(2)), "none", nil},
		{"stale, paused", "r r r q", changes(pool(1), paused), "none", []string{"paused"}},
		{"stale, one is needed", "r r b q a", changes(pool(2), each("b", asReplacement)), "none", nil},
		{"stale and running", "r r r a p", changes(pool(2), each("a", func(m *plan.Member) { m.Hash = staleHash })), "StartDrain(a4)", nil},
		{"gone", "r r r p", changes(pool(1), each("p", func(m *plan.Member) { m.Gone = true })), "Delete(p4) Create(standby)", nil},
		{"asked to go", "r r r p", changes(pool(1), each("p", func(m *plan.Member) { m.Requested = &nstance.Cause{Kind: nstance.CauseRequest} })), "Delete(p4) Create(standby)", nil},
		{"not registered in time", "r r r c", changes(pool(1), each("c", func(m *plan.Member) { m.RegisterBy = noon })), "Delete(c4) Create(standby)", nil},
		{"not ready in time", "r r r i", changes(pool(1), each("i", func(m *plan.Member) { m.GoodSince, m.LaunchBy = time.Time{}, noon })), "StartDrain(i4) Create(standby)", nil},
		{"silent after it was woken", "r r b a p", changes(pool(2), each("b", asReplacement), each("a", func(m *plan.Member) { m.Unhealthy = true })), "StartDrain(a4) Wake(p5) Create(standby)", nil},
	})
	d := plan.Plan(newView(t, "r r r", pool(1)), noon)
	require.Equal(t, nstance.OnDemand, onlyAction(t, d, plan.Create).Market, "spot machines cannot be parked")
	d = plan.Plan(newView(t, "r r r c", pool(1), each("c", func(m *plan.Member) { m.RegisterBy = noon })), noon)
	require.True(t, onlyAction(t, d, plan.Delete).Failure, "its definition is at fault")
}
