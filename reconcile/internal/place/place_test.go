package place_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/avoid"
	"github.com/nstance-go/nstance/reconcile/internal/place"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// anywhere permits two types in zones za and zb, and in a subnet whose zone is not known.
var anywhere = place.Request{
	Definition: "x", InstanceTypes: []string{"m", "n"}, Subnets: []string{"a1", "b1", "unknown"},
	Market: nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand, FallbackAfter: time.Minute},
}

func newMap() *place.Map {
	m := place.New()
	m.SetZones(map[string]string{"a1": "za", "b1": "zb"})
	return m
}

// The first type is sold out, and the zone of the first subnet is avoided.
func Example() {
	m := place.New()
	m.SetZones(map[string]string{"subnet-1": "zone-a", "subnet-2": "zone-b"})
	m.AvoidedPools.Put(avoid.Entry{Pool: avoid.Pool{Zone: "zone-a"}, Reason: "network trouble"})
	m.Refused(place.Shape{InstanceType: "m5.large", Subnet: "subnet-2", Market: nstance.OnDemand}, began, began)
	r := place.Request{InstanceTypes: []string{"m5.large", "m5a.large"}, Subnets: []string{"subnet-1", "subnet-2"}}
	shape, why, wait := m.Find(r, began)
	fmt.Println(shape, why, wait == nil)
	r.InstanceTypes = r.InstanceTypes[:1]
	_, _, wait = m.Find(r, began)
	fmt.Println(wait.Reason())
	// Output:
	// m5a.large in subnet-2, on-demand avoided true
	// every permitted shape is sold out or in an avoided pool: zone=zone-a: network trouble, nstance-admin pool release zone=zone-a ends it
}

// TestCandidatesSayWhy: what is against each shape decides every question about them.
func TestCandidatesSayWhy(t *testing.T) {
	m := newMap()
	spot := place.Shape{InstanceType: "m", Subnet: "a1", Market: nstance.Spot}
	r := anywhere
	r.InstanceTypes, r.Subnets = []string{"m"}, []string{"a1", "unknown"}
	ask := func() place.Candidates { return m.Candidates(r, began) }
	require.True(t, ask().OpenOutside("za"))
	require.True(t, ask().OpenUnwarned())
	require.Empty(t, ask().Answer())
	m.Warned(spot, "", began)
	require.True(t, ask().OpenUnwarned(), "the other subnet")
	m.Answered(r, spot, began.Add(1), &nstance.Error{Code: nstance.Capacity, Msg: "no room here"}, began)
	require.Equal(t, "no room here", ask().Answer())
	m.AvoidedPools.Put(avoid.Entry{Pool: avoid.Pool{Zone: "za"}, Until: began.Add(time.Hour)})
	require.True(t, ask().OpenOutside(""))
	require.False(t, ask().OpenOutside("za"), "the zone of the other subnet may be the same")
	m.Answered(r, place.Shape{InstanceType: "m", Subnet: "unknown", Market: nstance.Spot}, began.Add(1), &nstance.Error{Code: nstance.Capacity, Msg: "no room"}, began)
	require.Equal(t, "no room", ask().Answer(), "what is avoided is not waited for")
	for _, c := range ask() {
		m.Warned(c.Shape, "", began)
	}
	require.False(t, ask().OpenUnwarned())
	require.False(t, ask().Hopeless(), "capacity comes back")
	for _, c := range ask() {
		m.RefusedFor("x", c.Shape, began.Add(1), "never", began.Add(1))
	}
	require.True(t, ask().Hopeless())
	require.False(t, ask().AnotherThan(spot))
	m.Forgive("x", place.Shape{})
	require.True(t, ask().AnotherThan(spot))
}

// TestClockThatIsWrong: the time ends no avoidance then, and says nothing about its end.
func TestClockThatIsWrong(t *testing.T) {
	m := newMap()
	shape := place.Shape{InstanceType: "m", Subnet: "a1", Market: nstance.Spot}
	m.AvoidedPools.Put(avoid.Entry{Pool: avoid.Pool{InstanceType: "m"}, Until: began.Add(time.Hour)})
	require.Equal(t, began.Add(time.Hour), m.FindSame(shape, began).Until)
	m.TrustClock(false)
	require.Zero(t, m.FindSame(shape, began).Until)
	require.True(t, m.Avoided(shape, began.Add(2*time.Hour)))
	m.TrustClock(true)
	require.False(t, m.Avoided(shape, began.Add(2*time.Hour)))
}

// TestToLeave: which machines leave a pool that is drained.
func TestToLeave(t *testing.T) {
	m := newMap()
	e := avoid.Entry{Pool: avoid.Pool{Zone: "za"}, Since: began, Until: began.Add(time.Hour), Drain: true}
	m.AvoidedPools.Put(e)
	shape := place.Shape{InstanceType: "m", Subnet: "a1", Market: nstance.Spot}
	other := shape
	other.Subnet = "unknown"
	for name, c := range map[string]struct {
		resident place.Resident
		over     bool
		leaves   bool
	}{
		"by its subnet":       {place.Resident{Shape: shape, CreatedAt: began}, false, true},
		"by its machine":      {place.Resident{Shape: other, Zone: "za", CreatedAt: began}, false, true},
		"elsewhere":           {place.Resident{Shape: shape, Zone: "zb", CreatedAt: began}, false, false},
		"zone not known":      {place.Resident{Shape: other, CreatedAt: began}, false, false},
		"made since":          {place.Resident{Shape: shape, CreatedAt: began.Add(1)}, false, false},
		"the time is over":    {place.Resident{Shape: shape, CreatedAt: began}, true, false},
		"made a while before": {place.Resident{Shape: shape, CreatedAt: began.Add(-time.Hour)}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			got := m.ToLeave(c.resident, func(time.Time) bool { return c.over })
			require.Equal(t, c.leaves, got != nil)
		})
	}
	e.Drain = false
	m.AvoidedPools.Put(e)
	require.Nil(t, m.ToLeave(place.Resident{Shape: shape, CreatedAt: began}, func(time.Time) bool { return false }), "it is not drained")
}
