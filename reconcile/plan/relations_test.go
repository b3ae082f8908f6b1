package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// A relation changes a view in a way that must not change its plan, or only parts of it.
type relation struct {
	name string
	// change returns the other view, or false where it would be the same one.
	change func(v plan.View) (plan.View, bool)
	// same reduces a decision to what both must have in common.
	same func(v plan.View, d plan.Decision) string
}

// TestRelations: for views of all kinds, with everything crossed, what must make no difference
// makes none.
func TestRelations(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	long := now.Add(-1000 * time.Hour)
	for _, r := range []relation{
		{"a withdrawn notice is none", eachMember(func(m *plan.Member) bool {
			n := len(m.Notices)
			m.Notices = slices.DeleteFunc(slices.Clone(m.Notices), func(n nstance.Notice) bool { return n.Cancelled })
			return len(m.Notices) < n
		}), whole},
		{"what is kept, or was refused, is no member", without(func(m *plan.Member) bool {
			return m.State == nstance.Failed || m.State == nstance.Deleted || m.Preserved && !m.Gone && m.State != nstance.Deleting
		}), whole},
		{"instances by request are no members", without(func(m *plan.Member) bool { return m.OnDemand }), of(func(m *plan.Member) bool { return !m.OnDemand }, nil)},
		{"an unknown definition is the desired one", eachMember(func(m *plan.Member) bool {
			unknown := m.Hash == ""
			if unknown {
				m.Hash = "new"
			}
			return unknown
		}), whole},
		{"without a trusted clock no instant has come", func(v plan.View) (plan.View, bool) {
			if v.Clock == "" {
				return v, false
			}
			v.History.ReturnAt = time.Time{}
			return eachMember(func(m *plan.Member) bool {
				m.ExpireAt, m.EligibleAt, m.RegisterBy = time.Time{}, time.Time{}, time.Time{}
				if m.Drain != nil {
					drain := *m.Drain
					drain.Deadline = drain.Deadline.Add(time.Hour)
					m.Drain = &drain
				}
				return true
			})(v)
		}, func(v plan.View, d plan.Decision) string { // deadlines differ by the hour
			return of(nil, func(a plan.Action) string {
				if a.Kind == plan.Tighten {
					return ""
				}
				return fmt.Sprint(a.Kind, a.ID, a.Reason, a.Count, a.Market, a.LastGood, a.Replaces)
			})(v, d)
		}},
		{"stand-by members do nothing to the others", func(v plan.View) (plan.View, bool) {
			failing := slices.ContainsFunc(plan.Plan(v, now).Actions, func(a plan.Action) bool { return a.Failure })
			if v.History.Failures > 0 || failing { // a group creates one at a time, whatever for
				return v, false
			}
			v.Group.WarmPool.Size, v.Claims = 0, 0
			return without(func(m *plan.Member) bool { return m.Standby })(v)
		}, func(v plan.View, d plan.Decision) string {
			return of(func(m *plan.Member) bool { return !m.Standby }, func(a plan.Action) string {
				if a.Reason == plan.ReasonStandby {
					return ""
				}
				return fmt.Sprint(a)
			})(v, d)
		}},
		{"without a pool the past of one matters for its members alone", func(v plan.View) (plan.View, bool) {
			if v.Group.WarmPool.Size > 0 || slices.ContainsFunc(v.Members, func(m plan.Member) bool { return m.Standby }) {
				return v, false
			}
			v.Claims, v.Group.WarmPool.Mode, v.Group.WarmPool.NoReturn = v.Claims+1, nstance.ParkHibernated, !v.Group.WarmPool.NoReturn
			return v, true
		}, whole},
		{"ages long ago are as good as yesterday's", eachMember(func(m *plan.Member) bool {
			changed := false
			for _, at := range []*time.Time{&m.ExpireAt, &m.EligibleAt, &m.RegisterBy, &m.LaunchBy, &m.GraceUntil} {
				if !at.IsZero() && !at.After(now) {
					*at, changed = long, true
				}
			}
			return changed
		}), whole},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			tried := 0
			for seed := range uint64(2500) {
				v := anyView(rand.New(rand.NewPCG(seed, 1)), now)
				other, ok := r.change(v)
				if !ok {
					continue
				}
				tried++
				want, got := r.same(v, plan.Plan(v, now)), r.same(v, plan.Plan(other, now))
				if want != got {
					require.Equal(t, want, got, "seed %d", seed)
				}
			}
			require.Greater(t, tried, 50, "the views do not reach it")
		})
	}
}

// TestUntilNext: until the instant that a plan names, time alone changes nothing.
func TestUntilNext(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	same := of(nil, func(a plan.Action) string {
		if a.Kind == plan.StartDrain || a.Kind == plan.Tighten {
			a.Deadline = time.Time{} // it is so long from now
		}
		return fmt.Sprint(a)
	})
	named := 0
	for seed := range uint64(2500) {
		v := anyView(rand.New(rand.NewPCG(seed, 2)), now)
		d := plan.Plan(v, now)
		later := now.Add(10 * time.Hour)
		if !d.Next.IsZero() {
			require.True(t, d.Next.After(now), "seed %d", seed)
			later = d.Next.Add(-1)
			named++
		}
		for i := range v.Members { // a margin that shrinks is a matter of the notices alone
			for j := range v.Members[i].Notices {
				v.Members[i].Notices[j].Deadline = time.Time{}
			}
		}
		if want, got := same(v, plan.Plan(v, now)), same(v, plan.Plan(v, later)); want != got {
			require.Equal(t, want, got, "seed %d, %s later", seed, later.Sub(now))
		}
	}
	require.Greater(t, named, 500)
}

// whole is all of a decision.
func whole(_ plan.View, d plan.Decision) string { return fmt.Sprintf("%+v", sorted(d)) }

// of returns what a decision does to the members that pass and creates, each as text says;
// nil: all of them, whole.
func of(pass func(*plan.Member) bool, text func(plan.Action) string) func(plan.View, plan.Decision) string {
	return func(v plan.View, d plan.Decision) string {
		var out []string
		for _, a := range sorted(d).Actions {
			i := slices.IndexFunc(v.Members, func(m plan.Member) bool { return m.ID == a.ID })
			switch {
			case i >= 0 && pass != nil && !pass(&v.Members[i]):
			case text == nil:
				out = append(out, fmt.Sprintf("%+v", a))
			default:
				n := a.Count
				if n > 0 {
					a.Count = 1
				}
				out = append(out, slices.Repeat([]string{text(a)}, max(1, n))...)
			}
		}
		out = slices.DeleteFunc(out, func(s string) bool { return s == "" })
		return fmt.Sprint(out, d.Halt)
	}
}

// eachMember changes members; the view is another one if any is.
func eachMember(change func(*plan.Member) bool) func(plan.View) (plan.View, bool) {
	return func(v plan.View) (plan.View, bool) {
		v.Members = slices.Clone(v.Members)
		changed := false
		for i := range v.Members {
			changed = change(&v.Members[i]) || changed
		}
		return v, changed
	}
}

// without removes members.
func without(what func(*plan.Member) bool) func(plan.View) (plan.View, bool) {
	return func(v plan.View) (plan.View, bool) {
		n := len(v.Members)
		v.Members = slices.DeleteFunc(slices.Clone(v.Members), func(m plan.Member) bool { return what(&m) })
		return v, len(v.Members) < n
	}
}
