package reconcile_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
)

// The notation of the worked cases: one letter a member, oldest first.
//
//	r ready            s ready, stale             n ready, noticed
//	b booting          B booting for the rollout  S stale, never registered
//	u registered only  V the same, stale          R ready from the rollout
//	d leaving voluntarily   e leaving for a reclaim
//	x gone                  t not registered in time
//
// Members are named by letter and place, so "s s R" is s1, s2 and R3.

const (
	planFresh = "v1:new"
	planStale = "v1:old"
)

var planNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// planView returns a group of size 3 with max_surge 1 and a drain timeout of
// 5 min, with members in the notation above.
func planView(t testing.TB, notation string, change ...func(*reconcile.View)) reconcile.View {
	v := reconcile.View{
		Hash: planFresh,
		Group: nstance.Group{
			Key: nstance.GroupKey{Tenant: "default", Group: "web"}, Size: 3, DrainTimeout: 5 * time.Minute,
			Rollout: nstance.Rollout{MaxSurge: nstance.Count{N: 1}, HaltAfter: 2},
		},
	}
	for i, letter := range strings.Fields(notation) {
		m := planMember(t, letter)
		m.ID = nstance.InstanceID(fmt.Sprintf("%s%d", letter, i+1))
		m.CreatedAt = planNow.Add(-24*time.Hour + time.Duration(i)*time.Minute)
		v.Members = append(v.Members, m)
	}
	for _, f := range change {
		f(&v)
	}
	return v
}

func planMember(t testing.TB, letter string) reconcile.Member {
	m := reconcile.Member{State: nstance.Booting, Reason: reconcile.ReasonSize, Hash: planFresh, HasMachine: true}
	if strings.ContainsAny(letter, "sSV") {
		m.Hash = planStale
	}
	if strings.ContainsAny(letter, "BR") {
		m.Reason = reconcile.ReasonRollout
	}
	switch letter {
	case "b", "B", "S":
		m.RegisterBy, m.LaunchBy = planNow.Add(time.Minute), planNow.Add(10*time.Minute)
		return m
	case "t":
		m.RegisterBy, m.LaunchBy = planNow.Add(-time.Second), planNow.Add(10*time.Minute)
		return m
	}
	m.RegisteredAt = planNow.Add(-time.Hour)
	switch letter {
	case "u", "V":
		m.LaunchBy = planNow.Add(10 * time.Minute)
		return m
	}
	m.GoodSince = planNow.Add(-time.Hour)
	switch letter {
	case "r", "s", "R":
	case "n":
		m.Notices = []nstance.Notice{planNotice("n", 2*time.Minute)}
	case "x":
		m.Gone = true
	case "d":
		m.State, m.Drain = nstance.Draining, planDrain(4*time.Minute, nstance.Cause{Kind: nstance.CauseRollout})
	case "e":
		m.State, m.Drain = nstance.Draining, planDrain(100*time.Second, nstance.Cause{Kind: nstance.CauseNotice, EventID: "e"})
		m.Notices = []nstance.Notice{planNotice("e", 110*time.Second)}
	default:
		t.Fatalf("unknown letter %q", letter)
	}
	return m
}

func planNotice(id string, left time.Duration) nstance.Notice {
	return nstance.Notice{
		Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot", EventID: id,
		DetectedAt: planNow, Deadline: planNow.Add(left),
	}
}

func planDrain(left time.Duration, causes ...nstance.Cause) *nstance.Drain {
	return &nstance.Drain{
		Generation: 1, StartedAt: planNow.Add(-time.Minute), Deadline: planNow.Add(left), Causes: causes,
		Voluntary: causes[0].Kind == nstance.CauseRollout || causes[0].Kind == nstance.CauseSurplus,
	}
}

// planSteps writes a decision's actions the way the worked cases do.
func planSteps(d reconcile.Decision) string {
	names := map[reconcile.ActionKind]string{
		reconcile.StartDrain: "StartDrain", reconcile.Tighten: "Tighten", reconcile.CancelDrain: "CancelDrain", reconcile.Delete: "Delete",
	}
	out := []string{}
	for _, a := range d.Actions {
		switch {
		case a.Kind != reconcile.Create:
			out = append(out, fmt.Sprintf("%s(%s)", names[a.Kind], a.ID))
		case a.LastGood:
			out = append(out, fmt.Sprintf("Create(%s, last good)", a.Reason))
		default:
			out = append(out, fmt.Sprintf("Create(%s)", a.Reason))
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, " ")
}

func planHolds(d reconcile.Decision) []string {
	var out []string
	for _, h := range d.Holds {
		out = append(out, h.Kind)
	}
	return out
}

// planOnly returns the only action of its kind.
func planOnly(t *testing.T, d reconcile.Decision, kind reconcile.ActionKind) reconcile.Action {
	t.Helper()
	var out []reconcile.Action
	for _, a := range d.Actions {
		if a.Kind == kind {
			out = append(out, a)
		}
	}
	require.Len(t, out, 1, "%s in %s", kind, planSteps(d))
	return out[0]
}

// Changes to a view.

func planSize(n int) func(*reconcile.View) { return func(v *reconcile.View) { v.Group.Size = n } }

func planSurge(n int) func(*reconcile.View) {
	return func(v *reconcile.View) { v.Group.Rollout.MaxSurge.N = n }
}

func planPaused(v *reconcile.View) { v.History.Paused = true }

// planTakeover makes every registered member one that a new leader has not
// heard of yet.
func planTakeover(v *reconcile.View) {
	for i := range v.Members {
		if m := &v.Members[i]; !m.RegisteredAt.IsZero() {
			m.GoodSince, m.LaunchBy, m.GraceUntil = time.Time{}, time.Time{}, planNow.Add(time.Minute)
		}
	}
}

// planEach changes the members whose letter is given.
func planEach(letter string, change func(*reconcile.Member)) func(*reconcile.View) {
	return func(v *reconcile.View) {
		for i := range v.Members {
			if strings.HasPrefix(string(v.Members[i].ID), letter) {
				change(&v.Members[i])
			}
		}
	}
}

func planReplacing(m *reconcile.Member) { m.Reason = reconcile.ReasonReplace }
