package plan_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

var writeCrossed = flag.Bool("write-crossed", false, "write testdata/crossed.txt: read every line that changes")

// A crossing is a condition that a group can be in, alone or with any other.
type crossing struct {
	letter string
	name   string
	change change
}

var crossings = []crossing{
	{"0", "max_surge 0", withSurge(0)},
	{"2", "max_surge 2", withSurge(2)},
	{"P", "paused", func(v *plan.View) { v.History.Paused, v.History.LastGoodHash = true, staleHash }},
	{"H", "halted", func(v *plan.View) { v.History.HaltedHash, v.History.LastGoodHash = freshHash, staleHash }},
	{"T", "two creates failed, the limit of halt_after", func(v *plan.View) { v.History.Failures = 2 }},
	{"B", "one create failed, backing off", func(v *plan.View) { v.History.Failures, v.History.BackoffUntil = 1, noon.Add(time.Minute) }},
	{"O", "one create failed, the backoff is over", func(v *plan.View) { v.History.Failures, v.History.BackoffUntil = 1, noon }},
	{"M", "a base of 1, every other member is on demand, and may return to spot", crossedMarkets(1, 0)},
	{"N", "a base of 2, every other member is on demand, from the second", crossedMarkets(2, 1)},
	{"W", "no warm pool any more", func(v *plan.View) { v.Group.WarmPool.Size = 0 }},
	{"X", "a warm pool of 4", func(v *plan.View) { v.Group.WarmPool.Size = 4 }},
	{"R", "warm_pool.return false, all have been woken", func(v *plan.View) {
		noReturn(v)
		each("z", func(m *plan.Member) { m.Woken, m.DrainOver = true, true })(v)
	}},
	{"C", "a claim", func(v *plan.View) { v.Claims = 1 }},
	{"D", "nothing is drained", func(v *plan.View) { v.Group.DrainTimeout = 0 }},
	{"L", "a new leader", afterTakeover},
	{"I", "what leaves and boots is of a former term", func(v *plan.View) {
		for i := range v.Members {
			v.Members[i].Inherited = v.Members[i].State.Leaving() || v.Members[i].Reason == plan.ReasonReplace
		}
	}},
	{"A", "losses are answered", func(v *plan.View) {
		for i := range v.Members {
			v.Members[i].Answered = v.Members[i].State.Leaving()
		}
	}},
	{"U", "a record cannot be read", func(v *plan.View) { v.Unreadable = 1 }},
	{"S", "half of the agents are silent, and unhealthy", func(v *plan.View) {
		for i := range v.Members {
			if m := &v.Members[i]; i%2 == 1 && !m.GoodSince.IsZero() {
				m.Silent, m.Unhealthy = true, true
			}
		}
	}},
	{"K", "the breaker has tripped", func(v *plan.View) { v.Breaker = "the network" }},
	{"Y", "the clock is wrong", func(v *plan.View) { v.Clock = "it is an hour ahead" }},
	{"F", "frozen", func(v *plan.View) { v.Frozen = true }},
	{"G", "the group is removed", func(v *plan.View) { v.Removing = true }},
	{"E", "every other member is of an eligible age, the third of a forced one", func(v *plan.View) {
		for i := range v.Members {
			if i%2 == 0 {
				v.Members[i].EligibleAt = noon
			}
		}
		v.Members[2].ExpireAt = noon
	}},
	{"Z", "min_ready is an hour and a second", func(v *plan.View) { v.Group.Rollout.MinReady = time.Hour + time.Second }},
	{"<", "smaller by one", func(v *plan.View) { v.Group.Size--; v.History.FullAt = min(v.History.FullAt, v.Group.Size) }},
	{">", "larger by one", func(v *plan.View) { v.Group.Size++ }},
}

func crossedMarkets(base, first int) change {
	return func(v *plan.View) {
		v.Group.Definition.Market = nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand, OnDemandBase: nstance.Count{N: base}}
		v.SpotFree, v.History.ReturnAt = true, noon
		for i := range v.Members {
			if m := &v.Members[i]; !m.Standby {
				m.Market = nstance.Spot
				if i%2 == first {
					m.Market = nstance.OnDemand
				}
			}
		}
	}
}

// crossed are the groups, of size 3 with a warm pool of 2.
var crossed = []string{
	"r r r p p",     // whole
	"r r r q q",     // the pool is stale
	"r r r i a",     // the pool is awake
	"r r r z k",     // and on its way to sleep
	"r r n p q",     // a loss
	"r e b w z",     // answered
	"x u t c W",     // nothing goes well
	"s s s p p",     // a rollout
	"s s s R p q",   // its first replacement is ready
	"s n V S b p a", // a loss in a rollout
	"s R d B p",     // one drains for it
	"r r r r n p p", // surplus, of both
	"e d r p",       // a loss beside a drain by will
}

// TestCrossed: every condition crossed with every other, for groups in which something is going
// on. testdata/crossed.txt has the plan of each, by letters; what is new there is to be read.
func TestCrossed(t *testing.T) {
	t.Parallel()
	const file = "testdata/crossed.txt"
	var out strings.Builder
	out.WriteString("The plan of groups in conditions that are crossed, each by its letter; a dash is none of them.\n\n")
	for _, c := range crossings {
		fmt.Fprintf(&out, "  %s  %s\n", c.letter, c.name)
	}
	plans := map[string]string{}
	for _, members := range crossed {
		fmt.Fprintf(&out, "\n%s\n", members)
		byPlan, order := map[string][]string{}, []string{}
		for i := -1; i < len(crossings); i++ {
			for j := i; j < len(crossings); j++ {
				code, got := crossedPlan(t, members, i, j)
				if byPlan[got] == nil {
					order = append(order, got)
				}
				if !slices.Contains(byPlan[got], code) {
					byPlan[got] = append(byPlan[got], code)
				}
				plans[members+": "+code] = got
			}
		}
		for _, got := range order {
			fmt.Fprintf(&out, "  %s\n    %s\n", got, strings.Join(byPlan[got], " "))
		}
	}
	if *writeCrossed {
		require.NoError(t, os.WriteFile(file, []byte(out.String()), 0o644))
	}
	on, err := os.ReadFile(file)
	require.NoError(t, err)
	for is, want := range readCrossed(string(on)) {
		require.Equal(t, want, plans[is], is)
	}
	require.Equal(t, string(on), out.String())
}

// crossedPlan returns the plan of a group in two conditions, and their letters. -1 is none.
func crossedPlan(t *testing.T, members string, conditions ...int) (code, got string) {
	v := newView(t, members, pool(2))
	slices.Sort(conditions)
	for _, i := range slices.Compact(conditions) {
		if i >= 0 {
			crossings[i].change(&v)
			code += crossings[i].letter
		}
	}
	if code == "" {
		code = "-"
	}
	d := plan.Plan(v, noon)
	got = inFull(d)
	if holds := holdKinds(d); len(holds) > 0 {
		got += " | " + strings.Join(holds, " ")
	}
	if d.Halt {
		got += " | halt"
	}
	return code, got
}

// inFull writes actions with market, cause, deadline and what they count as.
func inFull(d plan.Decision) string {
	var out []string
	for _, a := range createsApart(d.Actions) {
		s := steps(plan.Decision{Actions: []plan.Action{a}})
		var more []string
		if a.Kind == plan.Create {
			more = append(more, strings.Fields(string(a.Market))...)
			if a.Replaces != "" {
				more = append(more, "for "+string(a.Replaces))
			}
		}
		for _, kind := range causeKinds(a.Causes) {
			more = append(more, string(kind))
		}
		if !a.Deadline.IsZero() {
			more = append(more, a.Deadline.Sub(noon).String())
		}
		if a.Voluntary {
			more = append(more, "voluntary")
		}
		if a.Failure {
			more = append(more, "failure")
		}
		if len(more) > 0 {
			s += "[" + strings.Join(more, ", ") + "]"
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, " ")
}

// readCrossed returns what the file says, by members and letters.
func readCrossed(text string) map[string]string {
	out := map[string]string{}
	var members, got string
	_, text, _ = strings.Cut(text, "larger by one\n")
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "":
		case strings.HasPrefix(line, "    "):
			for _, code := range strings.Fields(line) {
				out[members+": "+code] = got
			}
		case strings.HasPrefix(line, "  "):
			got = strings.TrimSpace(line)
		default:
			members = line
		}
	}
	return out
}
