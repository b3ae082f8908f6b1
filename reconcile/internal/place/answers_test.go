package place_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/avoid"
	"github.com/nstance-go/nstance/reconcile/internal/place"
)

// two permits two types in two subnets.
var two = place.Request{Definition: "x", InstanceTypes: []string{"m", "n"}, Subnets: []string{"a1", "b1"}, Market: nstance.Market{Type: nstance.Spot}, Urgent: true}

func spot(typ, subnet string) place.Shape {
	return place.Shape{InstanceType: typ, Subnet: subnet, Market: nstance.Spot}
}

// requireFound requires where a request goes next and why there, and what it waits for if it
// permits one shape only.
func requireFound(t *testing.T, m *place.Map, want place.Shape, why place.Choice, waits place.WaitKind, words string) {
	t.Helper()
	shape, choice, wait := m.Find(two, began)
	require.Nil(t, wait)
	require.Equal(t, want, shape)
	require.Equal(t, why, choice)
	alone := two
	alone.InstanceTypes, alone.Subnets = []string{"m"}, []string{"a1"}
	_, _, wait = m.Find(alone, began)
	if waits == "" {
		require.Nil(t, wait)
		return
	}
	require.NotNil(t, wait)
	require.Equal(t, waits, wait.Kind)
	require.Contains(t, wait.Reason()+m.Candidates(alone, began).Answer(), words)
	require.WithinRange(t, wait.Until, began.Add(30*time.Second), began.Add(time.Minute))
}

// TestAnswered: what each answer to a create says about the shapes that may be tried next.
func TestAnswered(t *testing.T) {
	for code, c := range map[nstance.Code]struct {
		next  place.Shape
		why   place.Choice
		waits place.WaitKind
	}{
		nstance.Capacity:    {spot("m", "b1"), place.ChoiceCapacity, place.WaitCapacity},
		nstance.Quota:       {spot("n", "a1"), place.ChoiceCapacity, place.WaitCapacity}, // of the type, wherever
		nstance.Invalid:     {spot("m", "b1"), place.ChoiceRefused, place.WaitRefused},
		nstance.Denied:      {spot("m", "b1"), place.ChoiceRefused, place.WaitRefused},
		nstance.Conflict:    {spot("m", "b1"), place.ChoiceRefused, place.WaitRefused},
		nstance.Unavailable: {spot("m", "a1"), place.ChoiceListed, ""},
		nstance.Throttled:   {spot("m", "a1"), place.ChoiceListed, ""},
		nstance.Ambiguous:   {spot("m", "a1"), place.ChoiceListed, ""},
		nstance.Internal:    {spot("m", "a1"), place.ChoiceListed, ""},
	} {
		t.Run(string(code), func(t *testing.T) {
			m := newMap()
			m.Answered(two, spot("m", "a1"), began.Add(-time.Second), &nstance.Error{Code: code, Msg: "no, said the cloud"}, began)
			requireFound(t, m, c.next, c.why, c.waits, "no, said the cloud")
			m.Answered(two, spot("m", "a1"), began.Add(time.Second), nil, began.Add(2*time.Second))
			shape, _, wait := m.Find(two, began.Add(3*time.Second))
			require.Nil(t, wait)
			require.Equal(t, spot("m", "a1"), shape, "it was accepted since")
		})
	}
}

// TestMachineLost: what the end of a machine says about the shapes that may be tried next, though
// its create was accepted.
func TestMachineLost(t *testing.T) {
	for cause, c := range map[nstance.LossCause]struct {
		next  place.Shape
		why   place.Choice
		waits place.WaitKind
		words string
	}{
		nstance.LossCapacity:  {spot("m", "b1"), place.ChoiceCapacity, place.WaitCapacity, ""},
		nstance.LossQuota:     {spot("n", "a1"), place.ChoiceCapacity, place.WaitCapacity, ""},
		nstance.LossReclaimed: {spot("m", "b1"), place.ChoiceReclaimed, "", ""},
		nstance.LossInvalid:   {spot("m", "b1"), place.ChoiceRefused, place.WaitRefused, string(nstance.LossInvalid)},
		"":                    {spot("m", "b1"), place.ChoiceRefused, place.WaitRefused, "the image does not start"},
		nstance.LossHost:      {spot("m", "a1"), place.ChoiceListed, "", ""},
		nstance.LossThrottled: {spot("m", "a1"), place.ChoiceListed, "", ""},
	} {
		t.Run("cause "+string(cause), func(t *testing.T) {
			m := newMap()
			sent := began.Add(-time.Second)
			m.Answered(two, spot("m", "a1"), sent, nil, sent)
			answer := ""
			if cause == "" {
				answer = "the image does not start"
			}
			m.MachineLost(two, spot("m", "a1"), "za", cause, sent, answer, began)
			requireFound(t, m, c.next, c.why, c.waits, c.words)
		})
	}
}

// TestWarnedCountsAsReclaimed: pools that the cloud recommends to leave are tried last, and the
// recommendation matters for an hour.
func TestWarnedCountsAsReclaimed(t *testing.T) {
	m := newMap()
	m.Warned(spot("m", "a1"), "za", began)
	requireFound(t, m, spot("m", "b1"), place.ChoiceReclaimed, "", "")
	since, until := m.WarnedFor(spot("m", "a1"), "", began)
	require.Equal(t, began, since)
	m.Warned(spot("m", "a1"), "za", began.Add(time.Minute))
	again, _ := m.WarnedFor(spot("m", "a1"), "", began.Add(time.Minute))
	require.Equal(t, began, again, "since the first one")
	for _, s := range []place.Shape{spot("m", "b1"), spot("n", "a1")} {
		none, _ := m.WarnedFor(s, "", began)
		require.Zero(t, none, s)
	}
	over, _ := m.WarnedFor(spot("m", "a1"), "", until)
	require.Zero(t, over)
	m.Warned(spot("m", "a1"), "za", until)
	anew, _ := m.WarnedFor(spot("m", "a1"), "", until)
	require.Equal(t, until, anew)
}

// TestPreferredPoolIsAvoided: the reason of a choice is that the one which the request prefers
// to all others is avoided, be it first in the list or by price.
func TestPreferredPoolIsAvoided(t *testing.T) {
	m := newMap()
	m.AvoidedPools.Put(avoid.Entry{Pool: avoid.Pool{InstanceType: "m"}})
	requireChoice := func(r place.Request, typ string, why place.Choice) {
		t.Helper()
		shape, choice, wait := m.Find(r, began)
		require.Nil(t, wait)
		require.Equal(t, typ, shape.InstanceType)
		require.Equal(t, why, choice)
	}
	requireChoice(two, "n", place.ChoiceAvoided)
	listed := two
	listed.InstanceTypes = []string{"n", "m"}
	requireChoice(listed, "n", place.ChoiceListed)
	instead := two
	instead.Instead = place.ChoiceReclaims
	requireChoice(instead, "n", place.ChoiceReclaims)
	fallback := listed
	fallback.Market.Fallback = nstance.OnDemand // of which m comes before n of spot in no order
	requireChoice(fallback, "n", place.ChoiceListed)
}
