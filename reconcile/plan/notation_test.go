package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// The notation of the worked cases: one letter a member, oldest first.
//
//	r ready            s ready, stale             n ready, noticed
//	b booting          B booting for the rollout  S stale, never registered
//	u registered only  V the same, stale          R ready from the rollout
//	d leaving voluntarily   e leaving for a reclaim
//	x gone                  t not registered in time
//
// Stand-by members:
//
//	p parked           q parked, stale            k being parked
//	w being woken      W the same, in vain        a woken, ready
//	c being made       i ready for the first time z drained, to be parked
//
// Members are named by letter and place, so "s s R" is s1, s2 and R3.

const (
	freshHash = "v1:new"
	staleHash = "v1:old"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// newView returns a group of size 3 with max_surge 1 and a drain timeout of
// 5 min, with members in the notation above.
func newView(t testing.TB, notation string, change ...func(*plan.View)) plan.View {
	v := plan.View{
		Hash: freshHash,
		Group: nstance.Group{
			Key: nstance.GroupKey{Tenant: "default", Group: "web"}, Size: 3, DrainTimeout: 5 * time.Minute,
			Rollout: nstance.Rollout{MaxSurge: nstance.Count{N: 1}, HaltAfter: 2},
		},
	}
	for i, letter := range strings.Fields(notation) {
		m := newMember(t, letter)
		m.ID = nstance.InstanceID(fmt.Sprintf("%s%d", letter, i+1))
		m.CreatedAt = noon.Add(-24*time.Hour + time.Duration(i)*time.Minute)
		v.Members = append(v.Members, m)
	}
	for _, f := range change {
		f(&v)
	}
	return v
}

func newMember(t testing.TB, letter string) plan.Member {
	if strings.ContainsAny(letter, "pqkwWaciz") {
		return newStandby(letter)
	}
	m := plan.Member{State: nstance.Booting, Reason: plan.ReasonSize, Hash: freshHash, HasMachine: true}
	if strings.ContainsAny(letter, "sSV") {
		m.Hash = staleHash
	}
	if strings.ContainsAny(letter, "BR") {
		m.Reason = plan.ReasonRollout
	}
	switch letter {
	case "b", "B", "S":
		m.RegisterBy, m.LaunchBy = noon.Add(time.Minute), noon.Add(10*time.Minute)
		return m
	case "t":
		m.RegisterBy, m.LaunchBy = noon.Add(-time.Second), noon.Add(10*time.Minute)
		return m
	}
	m.RegisteredAt = noon.Add(-time.Hour)
	switch letter {
	case "u", "V":
		m.LaunchBy = noon.Add(10 * time.Minute)
		return m
	}
	m.GoodSince = noon.Add(-time.Hour)
	switch letter {
	case "r", "s", "R":
	case "n":
		m.Notices = []nstance.Notice{newNotice("n", 2*time.Minute)}
	case "x":
		m.Gone = true
	case "d":
		m.State, m.Drain = nstance.Draining, newDrain(4*time.Minute, nstance.Cause{Kind: nstance.CauseRollout})
	case "e":
		m.State, m.Drain = nstance.Draining, newDrain(100*time.Second, nstance.Cause{Kind: nstance.CauseNotice, EventID: "e"})
		m.Notices = []nstance.Notice{newNotice("e", 110*time.Second)}
	default:
		t.Fatalf("unknown letter %q", letter)
	}
	return m
}

func newStandby(letter string) plan.Member {
	m := plan.Member{
		State: nstance.Parked, Standby: true, ParkMode: nstance.ParkStopped, Reason: plan.ReasonStandby, Market: nstance.OnDemand,
		Hash: freshHash, HasMachine: true, RegisteredAt: noon.Add(-time.Hour), Woken: strings.ContainsAny(letter, "wWa"),
	}
	switch letter {
	case "q":
		m.Hash = staleHash
	case "k":
		m.State = nstance.Parking
	case "w", "W":
		m.State, m.WakeFailed = nstance.Waking, letter == "W"
	case "a", "i":
		m.State, m.GoodSince = nstance.Booting, noon.Add(-time.Minute)
	case "c":
		m.State, m.RegisteredAt = nstance.Booting, time.Time{}
		m.RegisterBy, m.LaunchBy = noon.Add(time.Minute), noon.Add(10*time.Minute)
	case "z":
		m.State, m.GoodSince = nstance.Draining, noon.Add(-time.Minute)
		m.Drain = newDrain(4*time.Minute, nstance.Cause{Kind: nstance.CauseStandby})
	}
	return m
}

func newNotice(id string, left time.Duration) nstance.Notice {
	return nstance.Notice{
		Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot", EventID: id,
		DetectedAt: noon, Deadline: noon.Add(left),
	}
}

func newDrain(left time.Duration, causes ...nstance.Cause) *nstance.Drain {
	return &nstance.Drain{
		Generation: 1, StartedAt: noon.Add(-time.Minute), Deadline: noon.Add(left), Causes: causes,
		Voluntary: causes[0].Kind == nstance.CauseRollout || causes[0].Kind == nstance.CauseSurplus,
	}
}

// steps writes a decision's actions the way the worked cases do.
func steps(d plan.Decision) string {
	names := map[plan.ActionKind]string{
		plan.StartDrain: "StartDrain", plan.Tighten: "Tighten", plan.CancelDrain: "CancelDrain", plan.Delete: "Delete",
		plan.Park: "Park", plan.Wake: "Wake",
	}
	out := []string{}
	for _, a := range d.Actions {
		switch {
		case a.Kind != plan.Create:
			out = append(out, fmt.Sprintf("%s(%s)", names[a.Kind], a.ID))
		case a.LastGood:
			out = append(out, slices.Repeat([]string{fmt.Sprintf("Create(%s, last good)", a.Reason)}, a.Count)...)
		default:
			out = append(out, slices.Repeat([]string{fmt.Sprintf("Create(%s)", a.Reason)}, a.Count)...)
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, " ")
}

func holdKinds(d plan.Decision) []string {
	var out []string
	for _, h := range d.Holds {
		out = append(out, string(h.Kind))
	}
	return out
}

// onlyAction returns the only action of its kind.
func onlyAction(t *testing.T, d plan.Decision, kind plan.ActionKind) plan.Action {
	t.Helper()
	var out []plan.Action
	for _, a := range d.Actions {
		if a.Kind == kind {
			out = append(out, a)
		}
	}
	require.Len(t, out, 1, "%s in %s", kind, steps(d))
	return out[0]
}

// Changes to a view.

func withSize(n int) func(*plan.View) { return func(v *plan.View) { v.Group.Size = n } }

func withSurge(n int) func(*plan.View) {
	return func(v *plan.View) { v.Group.Rollout.MaxSurge.N = n }
}

func goesFirst(member int) change { return func(v *plan.View) { v.Members[member].GoesFirst = true } }

func paused(v *plan.View) { v.History.Paused = true }

// pool gives the group a warm pool.
func pool(size int) func(*plan.View) {
	return func(v *plan.View) {
		v.Group.WarmPool = nstance.WarmPool{Size: size, Mode: nstance.ParkStopped}
		v.History.FullAt = v.Group.Size
	}
}

func noReturn(v *plan.View) { v.Group.WarmPool.NoReturn = true }

// afterTakeover makes every registered member one that a new leader has not
// heard of yet.
func afterTakeover(v *plan.View) {
	for i := range v.Members {
		if m := &v.Members[i]; !m.RegisteredAt.IsZero() {
			m.GoodSince, m.LaunchBy, m.GraceUntil = time.Time{}, time.Time{}, noon.Add(time.Minute)
		}
	}
}

// each changes the members whose letter is given.
func each(letter string, change func(*plan.Member)) func(*plan.View) {
	return func(v *plan.View) {
		for i := range v.Members {
			if strings.HasPrefix(string(v.Members[i].ID), letter) {
				change(&v.Members[i])
			}
		}
	}
}

func asReplacement(m *plan.Member) { m.Reason = plan.ReasonReplace }

func answered(m *plan.Member) { m.Answered = true }

func inherited(m *plan.Member) { m.Inherited = true }

// onceFull says that the whole group was ready at a size.
func onceFull(size int) func(*plan.View) { return func(v *plan.View) { v.History.FullAt = size } }
