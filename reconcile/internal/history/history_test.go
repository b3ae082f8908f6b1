package history_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/history"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestPause(t *testing.T) {
	var g history.Group
	require.True(t, g.Pause("odd image", now))
	require.False(t, g.Pause("another reason", now.Add(time.Hour)), "a repeat changes nothing")
	require.Equal(t, "odd image", g.PauseReason)
	require.Equal(t, now, g.PausedAt)
	require.True(t, g.Resume("h1"))
	require.True(t, g.Empty())
	require.False(t, g.Resume("h1"))
}

func TestHalt(t *testing.T) {
	var g history.Group
	g.Failed("h1", "h1", "no such image", now)
	g.Failed("h1", "h1", "no such image", now)
	require.True(t, g.Halt("h1", now))
	require.False(t, g.Halt("h1", now))
	require.Equal(t, "2 replacements in a row did not become ready; the latest: no such image", g.HaltReason)
	require.True(t, g.Halted("h1"))
	require.False(t, g.Halted("h2"), "another definition")
	require.True(t, g.Resume("h1"))
	require.True(t, g.Empty(), "with the failures")

	require.True(t, g.Halt("h1", now))
	require.False(t, g.Resume("h2"), "nothing of that definition is halted")
	g.Pause("", now)
	require.True(t, g.Resume("h2"))
	require.True(t, g.Halted("h1"), "it ends for the desired definition only")
	require.False(t, g.Halted(""), "a definition that is not known")
}

func TestFailures(t *testing.T) {
	var f history.Failures
	for i, seconds := range []int{5, 10, 20, 40, 80, 160, 300, 300} {
		f.Failed("h1", "h1", "no boot", now)
		require.Equal(t, history.Failures{
			InRow: i + 1, FailureHash: "h1", Refusals: i + 1, LastFailure: "no boot", BackoffUntil: now.Add(time.Duration(seconds) * time.Second),
		}, f)
	}
	f.Failed("h0", "h1", "", now)
	require.Equal(t, 8, f.InRow, "another definition is not to blame")
	require.Equal(t, 9, f.Refusals)

	require.False(t, f.Desire("h1"))
	require.False(t, f.Desire(""), "not known")
	require.True(t, f.Desire("h2"))
	require.Zero(t, f)
	require.False(t, f.Succeeded())
	f.Failed("h0", "h1", "", now)
	require.False(t, f.Desire("h1"), "it is not the desired one that failed")
	require.True(t, f.Succeeded())
	require.Zero(t, f)
}

// TestFailuresOfAnotherDefinition: a backoff that members of the last good definition began ends
// as any other does.
func TestFailuresOfAnotherDefinition(t *testing.T) {
	var g history.Group
	g.Failed("h0", "h1", "no boot", now)
	require.True(t, g.Resume("h1"))
	require.True(t, g.Empty())
	g.Failed("h0", "h1", "no boot", now)
	require.True(t, g.Desire("h2"))
	require.True(t, g.Empty())
}

func TestReclaims(t *testing.T) {
	limit := nstance.ReclaimLimit{Reclaims: 2, Window: time.Hour}
	var g history.Group
	require.False(t, g.Reclaimed(nstance.ReclaimLimit{}, now), "the group counts none")
	require.True(t, g.Reclaimed(limit, now))
	require.Zero(t, g.ReclaimedUntil(limit))
	saved := g
	for i := range 3 {
		require.True(t, g.Reclaimed(limit, now.Add(time.Duration(i+1)*time.Minute)))
		require.Len(t, *g.Reclaims, 2, "as many as count")
	}
	require.Len(t, *saved.Reclaims, 1, "a copy does not change")
	require.Equal(t, now.Add(2*time.Minute).Add(time.Hour), g.ReclaimedUntil(limit))
}

func TestReturnToSpot(t *testing.T) {
	var g history.Group
	market := nstance.Market{ReturnAfter: 10 * time.Minute, FallbackWhen: nstance.ReclaimLimit{Reclaims: 1, Window: 2 * time.Hour}}
	require.Zero(t, g.ReturnAt(market))
	require.True(t, g.SetFallenBack(true, now))
	require.False(t, g.SetFallenBack(true, now.Add(time.Hour)), "it waits already")
	require.Equal(t, now.Add(10*time.Minute), g.ReturnAt(market))
	require.Equal(t, now.Add(30*time.Minute), g.ReturnAt(nstance.Market{}), "the default")

	g.ReturnEnded(false, now)
	g.ReturnEnded(false, now.Add(time.Minute))
	require.Equal(t, now.Add(41*time.Minute), g.ReturnAt(market), "doubled twice")
	for range 20 {
		g.ReturnEnded(false, now)
	}
	require.Equal(t, now.Add(24*time.Hour), g.ReturnAt(market))
	require.Equal(t, now.Add(48*time.Hour), g.ReturnAt(nstance.Market{ReturnAfter: 48 * time.Hour}))
	g.ReturnEnded(true, now)
	g.Reclaimed(market.FallbackWhen, now)
	require.Equal(t, now.Add(2*time.Hour), g.ReturnAt(market), "not while reclaims count")

	require.True(t, g.SetFallenBack(false, now))
	require.False(t, g.SetFallenBack(false, now))
	require.Zero(t, g.ReturnAt(market))
}

func TestReadyAt(t *testing.T) {
	var g history.Group
	require.False(t, g.SetReadyAt(3, false))
	require.True(t, g.SetReadyAt(3, true))
	require.False(t, g.SetReadyAt(5, false), "three were ready, five never")
	require.Equal(t, 3, g.FullAt)
	require.True(t, g.SetReadyAt(2, false), "lowered with the size")
	require.Equal(t, 2, g.FullAt)
}

func TestReadiness(t *testing.T) {
	var g history.Group
	require.False(t, g.Ready.Covers("i1", now), "not known")
	var r history.Readiness
	require.False(t, g.SetReady(r), "nothing is known")
	r.Include(now)
	r.Include(now.Add(-time.Minute))
	r.Exclude("i9")
	r.Exclude("i2")
	r.Exclude("i3")
	require.True(t, g.SetReady(r))
	require.False(t, g.SetReady(r))
	require.Equal(t, []nstance.InstanceID{"i2", "i3", "i9"}, g.Ready.Except)
	require.True(t, g.Ready.Covers("i1", now))
	require.False(t, g.Ready.Covers("i2", now))
	require.True(t, g.Ready.Excludes("i2"))
	require.False(t, g.Ready.Excludes("i1"))
	require.False(t, g.Ready.Covers("i3", now.Add(time.Minute)))
	for range 100 {
		r.Exclude("i4")
	}
	require.False(t, g.SetReady(r), "too many are left out")
}

func TestClaims(t *testing.T) {
	var g history.Group
	first := history.Claim{Node: "n1", Reason: "reclaimed", Since: now, Until: now.Add(time.Hour)}
	stands, known, changed, err := g.AddClaim(first)
	require.NoError(t, err)
	require.Equal(t, first, stands)
	require.False(t, known)
	require.True(t, changed)
	saved := g

	sooner, later := first, history.Claim{Node: "n1", Since: now.Add(time.Minute), Until: now.Add(2 * time.Hour)}
	sooner.Until = now.Add(time.Minute)
	_, known, changed, err = g.AddClaim(first)
	require.NoError(t, err)
	require.True(t, known)
	require.False(t, changed, "a repeat changes nothing")
	stands, known, changed, err = g.AddClaim(sooner)
	require.NoError(t, err)
	require.Equal(t, first, stands)
	require.True(t, known)
	require.False(t, changed)
	stands, known, changed, err = g.AddClaim(later)
	require.NoError(t, err)
	require.Equal(t, history.Claim{Node: "n1", Reason: "reclaimed", Since: now, Until: now.Add(2 * time.Hour)}, stands)
	require.True(t, known && changed)
	require.Equal(t, []history.Claim{first}, saved.Standing(), "a copy does not change")

	_, _, _, err = g.AddClaim(history.Claim{Node: "n2", Until: now.Add(time.Minute)})
	require.NoError(t, err)
	over := func(c history.Claim) bool { return !c.Until.After(now.Add(time.Minute)) }
	require.True(t, g.EndClaims(over))
	require.False(t, g.EndClaims(over))
	require.False(t, g.EndClaim("n2"))
	require.True(t, g.EndClaim("n1"))
	require.True(t, g.Empty())
}

func TestClaimsAreBounded(t *testing.T) {
	var g history.Group
	for i := range 256 {
		_, _, _, err := g.AddClaim(history.Claim{Node: string(rune('a' + i)), Until: now})
		require.NoError(t, err)
	}
	_, _, changed, err := g.AddClaim(history.Claim{Node: "one more", Until: now})
	require.ErrorIs(t, err, nstance.Throttled)
	require.False(t, changed)
	_, known, changed, err := g.AddClaim(history.Claim{Node: "a", Until: now.Add(time.Hour)})
	require.NoError(t, err)
	require.True(t, known && changed, "one that stands is extended")
}

func TestGoFirst(t *testing.T) {
	var g history.Group
	g.SetGoFirst([]nstance.InstanceID{"i2", "i1"})
	require.True(t, g.GoesFirst("i1"))
	require.False(t, g.GoesFirst("i3"))
	g.SetGoFirst(nil)
	require.False(t, g.GoesFirst("i1"))
	require.True(t, g.Empty())
}

// TestRestore: the clock of another leader was ahead.
func TestRestore(t *testing.T) {
	ahead := now.Add(24 * time.Hour)
	g := history.Group{FallbackAt: ahead, Reclaims: &history.ReclaimTimes{now.Add(-time.Hour), ahead}}
	g.BackoffUntil, g.DrilledAt = ahead, ahead
	saved, unknown := g, g
	g.Restore(now, true)
	require.Equal(t, now.Add(5*time.Minute), g.BackoffUntil)
	require.Equal(t, now, g.FallbackAt)
	require.Equal(t, now, g.DrilledAt)
	require.Equal(t, history.ReclaimTimes{now.Add(-time.Hour), now}, *g.Reclaims)
	require.Equal(t, ahead, (*saved.Reclaims)[1], "a copy does not change")
	unknown.Restore(now, false)
	saved.BackoffUntil = now.Add(5 * time.Minute)
	require.Equal(t, saved, unknown, "the clock that is wrong may be this one")

	g = history.Group{}
	g.Restore(now, true)
	require.True(t, g.Empty())
}

func TestDigests(t *testing.T) {
	require.ElementsMatch(t, []string{"d1", "d2"}, history.Digests(map[string]history.Group{
		"a": {LastGood: history.LastGood{GoodDigest: "d1"}}, "b": {Rollback: &history.Rollback{Definition: "d2"}}, "c": {},
	}))
}

// TestFormat: fields of values that belong together are those of the group.
func TestFormat(t *testing.T) {
	stored := `{"failures":2,"failure_hash":"h1","refusals":3,"last_failure":"no boot","backoff_until":"2026-03-01T12:00:00Z",` +
		`"last_good_hash":"h0","last_good":"d0","last_good_kind":"web","last_good_launch_ns":60000000000}`
	var g history.Group
	require.NoError(t, json.Unmarshal([]byte(stored), &g))
	require.Equal(t, history.Group{
		Failures: history.Failures{InRow: 2, FailureHash: "h1", Refusals: 3, LastFailure: "no boot", BackoffUntil: now},
		LastGood: history.LastGood{GoodHash: "h0", GoodDigest: "d0", Kind: "web", Launch: time.Minute},
	}, g)
	again, err := json.Marshal(g)
	require.NoError(t, err)
	require.JSONEq(t, stored, string(again))
}
