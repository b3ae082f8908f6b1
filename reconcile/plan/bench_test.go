package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// newFleet returns a group of n members, of the letters given in turn.
func newFleet(t testing.TB, n int, letters ...string) plan.View {
	var b strings.Builder
	for i := range n {
		b.WriteString(letters[i%len(letters)] + " ")
	}
	v := newView(t, b.String(), withSize(n))
	for i := range v.Members {
		m := &v.Members[i]
		m.ID = nstance.InstanceID(fmt.Sprintf("web%05d", i))
		m.EligibleAt, m.ExpireAt = noon.Add(time.Hour), noon.Add(2*time.Hour)
	}
	return v
}

// TestAllocatesNothingPerMember: for groups without actions, full or in a rollout.
func TestAllocatesNothingPerMember(t *testing.T) {
	for _, letters := range [][]string{{"r"}, {"r", "s", "r", "B"}} {
		allocs := func(n int) float64 {
			v := newFleet(t, n, letters...)
			require.Empty(t, plan.Plan(v, noon).Actions)
			return testing.AllocsPerRun(5, func() { plan.Plan(v, noon) })
		}
		few, many := allocs(20), allocs(2000)
		require.Equal(t, few, many)
		require.LessOrEqual(t, many, 2.0)
	}
}

func BenchmarkPlan(b *testing.B) {
	for name, letters := range map[string][]string{"unchanged": {"r"}, "rollout": {"r", "s", "r", "B"}} {
		v := newFleet(b, 10_000, letters...)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				plan.Plan(v, noon)
			}
		})
	}
	b.Run("floor", func(b *testing.B) { // one read of the fields that Plan reads
		v, due := newFleet(b, 10_000, "r"), 0
		for b.Loop() {
			for i := range v.Members {
				m := &v.Members[i]
				if m.State.Leaving() || len(m.Notices) > 0 || m.Hash != v.Hash || m.ExpireAt.Before(noon) || m.GoodSince.After(noon) {
					due++
				}
			}
		}
		require.Zero(b, due)
	})
	b.Run("1000x10", func(b *testing.B) {
		groups := make([]plan.View, 1000)
		for i := range groups {
			groups[i] = newFleet(b, 10, "r")
		}
		b.ReportAllocs()
		for b.Loop() {
			for i := range groups {
				plan.Plan(groups[i], noon)
			}
		}
	})
	b.Run("reclaim", func(b *testing.B) {
		v := newFleet(b, 10_000, "r")
		v.Members[5000].Notices = []nstance.Notice{newNotice("n", time.Minute)}
		b.ReportAllocs()
		for b.Loop() {
			plan.Plan(v, noon)
		}
	})
	b.Run("surplus", func(b *testing.B) {
		v := newFleet(b, 10_000, "r")
		v.Group.Size--
		b.ReportAllocs()
		for b.Loop() {
			plan.Plan(v, noon)
		}
	})
}
