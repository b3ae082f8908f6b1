package admission_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
	"github.com/nstance-go/nstance/reconcile/internal/place"
)

func spotIn(typ, subnet string) place.Shape {
	return place.Shape{InstanceType: typ, Subnet: subnet, Market: nstance.Spot}
}

// spreadRequest permits types m and n in subnets a1, a2 (zone a) and b1 (zone b).
func spreadRequest(d *queueTest, by nstance.SpreadBy, limit int, has ...place.Shape) admission.Request {
	d.q.SetZones(map[string]string{"a1": "a", "a2": "a", "b1": "b"})
	r := request(admission.Loss, 1, "m", "n")
	r.Subnets = []string{"a1", "a2", "b1"}
	r.Spread = &place.Spread{By: by, Limit: limit, Members: map[place.Shape]int{}}
	for _, shape := range has {
		r.Spread.Members[shape]++
	}
	return r
}

// TestSpread: the first shape whose place has less than its share is chosen; without one,
// the least crowded.
func TestSpread(t *testing.T) {
	for name, c := range map[string]struct {
		by     nstance.SpreadBy
		limit  int
		has    string // type/subnet of the members
		change func(d *queueTest)
		want   string
		why    place.Choice
	}{
		"nothing yet":             {nstance.SpreadPool, 1, "", nil, "m/a1", place.ChoiceListed},
		"a pool is a zone's":      {nstance.SpreadPool, 1, "m/a2", nil, "m/b1", place.ChoiceSpread},
		"below the share":         {nstance.SpreadPool, 2, "m/a2", nil, "m/a1", place.ChoiceListed},
		"both zones of the type":  {nstance.SpreadPool, 1, "m/a1 m/b1", nil, "n/a1", place.ChoiceSpread},
		"by type":                 {nstance.SpreadType, 1, "m/a1", nil, "n/a1", place.ChoiceSpread},
		"by zone":                 {nstance.SpreadZone, 1, "n/a2", nil, "m/b1", place.ChoiceSpread},
		"by subnet":               {nstance.SpreadSubnet, 1, "n/a1", nil, "m/a2", place.ChoiceSpread},
		"all crowded: the least":  {nstance.SpreadZone, 1, "m/a1 m/a1 m/b1", nil, "m/b1", place.ChoiceCrowded},
		"all equally crowded":     {nstance.SpreadZone, 1, "m/a1 m/b1", nil, "m/a1", place.ChoiceCrowded},
		"a share of nothing":      {nstance.SpreadZone, 0, "", nil, "m/a1", place.ChoiceCrowded},
		"the others are sold out": {nstance.SpreadZone, 1, "m/a1", soldOutIn("b1"), "m/a1", place.ChoiceCrowded},
		"an earlier type is gone": {nstance.SpreadType, 1, "", soldOutIn("a1"), "m/a2", place.ChoiceCapacity},
		"the others were reclaimed": {nstance.SpreadZone, 1, "m/a1", func(d *queueTest) {
			d.q.Reclaimed(spotIn("m", "b1"), "b", d.now)
			d.q.Reclaimed(spotIn("n", "b1"), "b", d.now)
		}, "m/a1", place.ChoiceCrowded},
		"an earlier one was reclaimed": {nstance.SpreadPool, 2, "", func(d *queueTest) { d.q.Reclaimed(spotIn("m", "a1"), "a", d.now) }, "m/b1", place.ChoiceReclaimed},
		"an earlier subnet is full":    {nstance.SpreadPool, 2, "", func(d *queueTest) { d.q.SetAddresses(map[string]int{"a1": 0, "a2": 1, "b1": 0}, d.now) }, "m/a2", place.ChoiceListed},
		"all subnets but one are full": {nstance.SpreadZone, 1, "m/a1", func(d *queueTest) { d.q.SetAddresses(map[string]int{"b1": 0}, d.now) }, "m/a1", place.ChoiceCrowded},
	} {
		t.Run(name, func(t *testing.T) {
			d := newQueueTest(t)
			var has []place.Shape
			for _, s := range strings.Fields(c.has) {
				typ, subnet, _ := strings.Cut(s, "/")
				has = append(has, spotIn(typ, subnet))
			}
			r := spreadRequest(d, c.by, c.limit, has...)
			if c.change != nil {
				c.change(d)
			}
			shape, why, free := d.q.Choose(r.Request, d.now)
			require.True(t, free)
			require.Equal(t, c.want, shape.InstanceType+"/"+shape.Subnet)
			require.Equal(t, c.why, why)
		})
	}
}

// soldOutIn has both types refused in a subnet.
func soldOutIn(subnet string) func(*queueTest) {
	return func(d *queueTest) {
		d.q.Refused(spotIn("m", subnet), d.now, d.now)
		d.q.Refused(spotIn("n", subnet), d.now, d.now)
	}
}

func TestSpreadKeepsMarketsApart(t *testing.T) {
	d := newQueueTest(t)
	r := spreadRequest(d, nstance.SpreadPool, 1, spotIn("m", "a1"))
	r.Market.Fallback = nstance.OnDemand
	for _, subnet := range r.Subnets {
		soldOutIn(subnet)(d)
	}
	shape, why, _ := d.q.Choose(r.Request, d.now)
	require.Equal(t, place.Shape{InstanceType: "m", Subnet: "a1", Market: nstance.OnDemand}, shape)
	require.Equal(t, place.ChoiceFallback, why)
}

// TestSpreadOfOnePass: what one pass grants counts at once.
func TestSpreadOfOnePass(t *testing.T) {
	d := newQueueTest(t)
	r := spreadRequest(d, nstance.SpreadPool, 2)
	r.Count = 5
	other := r
	other.Index = 1
	d.q.Demand(group("a/web"), r, other)
	d.pass(20)
	places := map[string]int{}
	for _, s := range d.shapes {
		places[d.q.Place(nstance.SpreadPool, s, "")]++
	}
	require.Equal(t, map[string]int{"m/a//spot": 3, "m/b//spot": 3, "n/a//spot": 2, "n/b//spot": 2}, places)
}

// TestSpreadOfGroups: what another group waits for says nothing about this one.
func TestSpreadOfGroups(t *testing.T) {
	d := newQueueTest(t)
	one := request(admission.Growth, 1, "m", "n")
	one.Spread = &place.Spread{By: nstance.SpreadType, Limit: 5, Members: map[place.Shape]int{}}
	other := request(admission.Growth, 1, "m", "n")
	other.Spread = &place.Spread{By: nstance.SpreadType, Limit: 1, Members: map[place.Shape]int{spot("m"): 1}}
	d.q.Demand(group("a/busy"), request(admission.Growth, 1, "m"))
	require.Equal(t, []string{"a/busy"}, d.pass(1))
	d.q.Demand(group("a/one"), one)
	d.q.Demand(group("a/other"), other)
	require.Equal(t, []string{"a/other"}, d.pass(5), "m is in flight, n is free")
}

// TestSpreadBound: whatever the members, refusals and limits, a grant exceeds the share of
// its place only if no place below it has capacity.
func TestSpreadBound(t *testing.T) {
	for seed := range uint64(300) {
		dice := rand.New(rand.NewPCG(seed, 1))
		d := newQueueTest(t)
		by := []nstance.SpreadBy{nstance.SpreadPool, nstance.SpreadType, nstance.SpreadZone, nstance.SpreadSubnet}[dice.IntN(4)]
		r := spreadRequest(d, by, dice.IntN(5))
		var shapes []place.Shape
		for _, typ := range r.InstanceTypes {
			for _, subnet := range r.Subnets {
				shapes = append(shapes, spotIn(typ, subnet))
			}
		}
		usable := map[place.Shape]bool{}
		for _, s := range shapes {
			r.Spread.Members[s] = dice.IntN(4)
			switch usable[s] = dice.IntN(3) > 0; {
			case usable[s]:
			case dice.IntN(2) == 0:
				d.q.Reclaimed(s, "", d.now)
				for _, other := range shapes { // of the same pool
					if d.q.Place(nstance.SpreadPool, other, "") == d.q.Place(nstance.SpreadPool, s, "") {
						usable[other] = false
					}
				}
			default:
				d.q.Refused(s, d.now, d.now)
			}
		}
		for _, s := range shapes { // a pool that was reclaimed later
			if shape, why, _ := d.q.Choose(place.Request{InstanceTypes: []string{s.InstanceType}, Subnets: []string{s.Subnet, "other"}, Market: r.Market}, d.now); shape != s || why != place.ChoiceListed {
				usable[s] = false
			}
		}
		crowd := func(at place.Shape) (n int) {
			for s, members := range r.Spread.Members {
				if d.q.Place(by, s, "") == d.q.Place(by, at, "") {
					n += members
				}
			}
			return n
		}
		got, _, free := d.q.Choose(r.Request, d.now)
		if !free || !usable[got] {
			continue // every shape is sold out or was reclaimed
		}
		for _, s := range shapes {
			if usable[s] && crowd(got) >= r.Spread.Limit {
				require.GreaterOrEqual(t, crowd(s), crowd(got), "seed %d: %v is less crowded than %v", seed, s, got)
			}
		}
	}
}
