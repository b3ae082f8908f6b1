package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/reconcile/plan"
)

type change = func(*plan.View)

// TestWorkedCases is the table of worked cases, in its own notation.
// Size is 3 and max_surge 1 unless changed.
func TestWorkedCases(t *testing.T) {
	cases := []struct {
		members string
		name    string
		change  []change
		want    string
	}{
		{"r r r", "a full group", nil, "none"},
		{"r r r d", "a draining member is not surplus", nil, "none"},
		{"r r r d", "same for a new leader", []change{afterTakeover}, "none"},
		{"r r", "a deficit", nil, "Create(size)"},
		{"r r d", "a draining member does not count", nil, "Create(rollout)"},
		{"r r e", "a loss without a replacement yet", nil, "Create(replace)"},
		{"r r n", "a reclaim is replaced in the same pass", nil, "StartDrain(n3) Create(replace)"},
		{"n n n", "a mass reclaim, all in parallel", nil,
			"StartDrain(n1) StartDrain(n2) StartDrain(n3) Create(replace) Create(replace) Create(replace)"},
		{"r r x", "a vanished machine needs no drain", nil, "Delete(x3) Create(replace)"},
		{"r r t", "a machine that never registered", nil, "Delete(t3) Create(size)"},
		{"s s s", "a rollout starts with a surge", nil, "Create(rollout)"},
		{"s s s B", "and waits until it is ready", nil, "none"},
		{"s s s R", "then the oldest is drained", nil, "StartDrain(s1)"},
		{"s s R d", "and the drain is awaited", nil, "none"},
		{"s s R", "then the next surge", nil, "Create(rollout)"},
		{"s s s S", "template changed while the surge machine boots", nil, "Delete(S4)"},
		{"s s n", "a reclaim during a rollout", nil, "StartDrain(n3) Create(replace) Create(rollout)"},
		{"r r r r r", "surplus, oldest first", nil, "StartDrain(r1) StartDrain(r2)"},
		{"r r r r", "surplus, the named one first", []change{goesFirst(2)}, "StartDrain(r3)"},
		{"r r r b b", "surplus, booting before ready", nil, "Delete(b5) Delete(b4)"},
		{"s r r r r", "surplus, stale first", nil, "StartDrain(s1)"},
		{"r r r r", "surplus, oldest", nil, "StartDrain(r1)"},
		{"s s s R", "paused: surplus is removed", []change{paused}, "StartDrain(s1)"},
		{"s s", "size 0, paused", []change{paused, withSize(0)}, "StartDrain(s1) StartDrain(s2)"},
		{"r r r u", "surplus, unready before ready", nil, "StartDrain(u4)"},
		{"s s s V", "stale, registered, never ready", nil, "StartDrain(V4)"},
		{"s s s", "P3 refills after V", nil, "Create(rollout)"},
		{"s r r", "max_surge 2: one, since P4 would remove a second", []change{withSurge(2)}, "Create(rollout)"},
		{"n n s", "max_surge 0: nothing voluntary while a loss is unanswered", []change{withSurge(0)},
			"StartDrain(n1) StartDrain(n2) Create(replace) Create(replace)"},
		{"b b s R", "b is a replacement: R is no surge", []change{each("b", asReplacement)}, "none"},
		{"s s s", "max_surge 0: remove first", []change{withSurge(0)}, "StartDrain(s1)"},
		{"s s d", "max_surge 0: P3 refills", []change{withSurge(0)}, "Create(rollout)"},
		{"s s d B", "max_surge 0: one at a time", []change{withSurge(0)}, "none"},
		{"s s s", "max_surge 2: two at a time", []change{withSurge(2)}, "Create(rollout) Create(rollout)"},
		{"s s s R R", "max_surge 2: two at a time", []change{withSurge(2)}, "StartDrain(s1) StartDrain(s2)"},
		{"r r r b", "just after a leader change", []change{afterTakeover}, "none"},
		{"r r r", "size 3 to 0", []change{withSize(0)}, "StartDrain(r1) StartDrain(r2) StartDrain(r3)"},
	}
	for _, c := range cases {
		t.Run(c.members+", "+c.name, func(t *testing.T) {
			v := newView(t, c.members, c.change...)
			require.Equal(t, c.want, steps(plan.Plan(v, noon)))
		})
	}
}
