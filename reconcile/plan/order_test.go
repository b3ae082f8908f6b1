package plan_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// maybe returns an instant within an hour of now, or now and then zero.
func maybe(r *rand.Rand, now time.Time, oneOf int) time.Time {
	if r.IntN(oneOf) > 0 {
		return time.Time{}
	}
	return now.Add(time.Duration(r.IntN(7200)-3600) * time.Second)
}

func oneOf[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// anyMember returns a member in any state, of the warm pool or not. Several share one age.
func anyMember(r *rand.Rand, i int, now time.Time) plan.Member {
	m := plan.Member{
		ID: nstance.InstanceID(fmt.Sprintf("m%02d", i)), CreatedAt: now.Add(-time.Duration(r.IntN(3)) * time.Hour), Hash: oneOf(r, "new", "new", "old"),
		Reason: oneOf(r, plan.ReasonSize, plan.ReasonReplace, plan.ReasonRollout), Market: oneOf(r, nstance.Spot, nstance.OnDemand), HasMachine: true,
		State:     oneOf(r, nstance.Provisioning, nstance.Booting, nstance.Booting, nstance.Draining, nstance.Deleting),
		GoesFirst: r.IntN(8) == 0, Silent: r.IntN(8) == 0, Inherited: r.IntN(2) == 0, Answered: r.IntN(3) == 0, Gone: r.IntN(12) == 0,
	}
	m.Taken = m.Gone && r.IntN(2) == 0
	if m.Standby = r.IntN(2) == 0; m.Standby {
		m.Reason, m.Market, m.ParkMode = plan.ReasonStandby, nstance.OnDemand, nstance.ParkStopped
		m.State = oneOf(r, nstance.Booting, nstance.Draining, nstance.Draining, nstance.Parking, nstance.Parked, nstance.Waking)
		m.WakeFailed, m.ParkFailed = r.IntN(2) == 0, r.IntN(2) == 0
		m.Woken = m.State == nstance.Waking || r.IntN(3) == 0
	}
	if m.State != nstance.Provisioning && r.IntN(6) > 0 {
		m.RegisteredAt = m.CreatedAt.Add(time.Minute)
		m.GoodSince = maybe(r, now.Add(-time.Hour), 1)
	}
	m.Unhealthy = m.Silent && r.IntN(2) == 0
	m.LaunchBy, m.GraceUntil, m.EligibleAt, m.ExpireAt = maybe(r, now, 4), maybe(r, now, 8), maybe(r, now, 8), maybe(r, now, 16)
	if r.IntN(12) == 0 {
		m.Notices = append(m.Notices, anyNotice(r, now))
	}
	switch r.IntN(40) {
	case 0:
		m.Hash = ""
	case 1:
		m.Preserved = true
	case 2:
		m.OnDemand, m.Standby, m.Reason, m.HasMachine = true, false, plan.ReasonOnDemand, r.IntN(2) == 0
	case 3:
		m.State = nstance.Failed
	case 4:
		m.Requested, m.NoDrain = &nstance.Cause{Kind: nstance.CauseRequest}, r.IntN(2) == 0
	case 5:
		m.HasMachine, m.RegisteredAt, m.GoodSince, m.RegisterBy = r.IntN(2) == 0, time.Time{}, time.Time{}, maybe(r, now, 1)
	}
	switch m.State {
	case nstance.Draining:
		cause := nstance.Cause{Kind: oneOf(r, nstance.CauseNotice, nstance.CauseRollout, nstance.CauseRequest), EventID: "e"}
		if m.Standby && r.IntN(4) > 0 {
			cause = nstance.Cause{Kind: nstance.CauseStandby}
		}
		m.Drain = &nstance.Drain{Instance: m.ID, Generation: 1, Deadline: now.Add(time.Duration(r.IntN(600)-60) * time.Second), Causes: []nstance.Cause{cause}}
		m.DrainOver = r.IntN(4) == 0
	case nstance.Deleting:
		m.DeletedFor = oneOf(r, nstance.CauseNotice, nstance.CauseRollout, nstance.CauseGone)
	}
	return m
}

// anyNotice returns a notice that is of a drain, or not, and often withdrawn.
func anyNotice(r *rand.Rand, now time.Time) nstance.Notice {
	return nstance.Notice{
		Kind: nstance.Reclaim, Source: "aws/spot", EventID: oneOf(r, "e", "f"), Cancelled: r.IntN(2) == 0,
		DetectedAt: now, Deadline: maybe(r, now.Add(2*time.Minute), 2),
	}
}

func anyView(r *rand.Rand, now time.Time) plan.View {
	size := r.IntN(6)
	v := plan.View{
		Hash: "new", Unreadable: oneOf(r, 0, 0, 0, 1), Frozen: r.IntN(12) == 0, SpotFree: r.IntN(2) == 0, Claims: oneOf(r, 0, 0, 1, 2),
		Removing: r.IntN(20) == 0,
		History: plan.History{
			FullAt: r.IntN(size + 1), Failures: oneOf(r, 0, 0, 1, 3), BackoffUntil: maybe(r, now, 3), LastGoodHash: oneOf(r, "", "new", "old"), ReturnAt: maybe(r, now, 2),
			Paused: r.IntN(10) == 0, HaltedHash: oneOf(r, "", "", "", "old", "new"),
		},
		Group: nstance.Group{
			Size: size, DrainTimeout: 5 * time.Minute, Rollout: nstance.Rollout{MaxSurge: nstance.Count{N: r.IntN(3)}, HaltAfter: 2, MinReady: oneOf(r, 0, time.Minute)},
			WarmPool: nstance.WarmPool{Size: r.IntN(4), Mode: nstance.ParkStopped, NoReturn: r.IntN(4) == 0},
			Definition: nstance.Definition{
				Kind: "web", Market: nstance.Market{Type: oneOf(r, nstance.Spot, nstance.OnDemand), Fallback: nstance.OnDemand, OnDemandBase: nstance.Count{N: r.IntN(3)}},
			},
		},
	}
	if r.IntN(12) == 0 {
		v.Clock = "it is an hour ahead"
	}
	spread := r.IntN(3) == 0
	for i := range 1 + r.IntN(9) {
		m := anyMember(r, i, now)
		if spread {
			m.Place = oneOf(r, "a", "b")
		}
		v.Members = append(v.Members, m)
	}
	return v
}

// sorted brings the actions of a decision into one order.
func sorted(d plan.Decision) plan.Decision {
	slices.SortFunc(d.Actions, func(a, b plan.Action) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Replaces, b.Replaces), cmp.Compare(a.Market, b.Market))
	})
	return d
}

// TestOrderOfMembersDecidesNothing: views whose members are listed in another order have one
// plan, with the warm pool, both markets and members of one age.
func TestOrderOfMembersDecidesNothing(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for seed := range uint64(30000) {
		r := rand.New(rand.NewPCG(seed, 0))
		v := anyView(r, now)
		other := v
		other.Members = slices.Clone(v.Members)
		r.Shuffle(len(other.Members), func(i, j int) { other.Members[i], other.Members[j] = other.Members[j], other.Members[i] })
		if want, got := sorted(plan.Plan(v, now)), sorted(plan.Plan(other, now)); fmt.Sprint(want) != fmt.Sprint(got) {
			require.Equal(t, want, got, "seed %d", seed)
		}
	}
}
