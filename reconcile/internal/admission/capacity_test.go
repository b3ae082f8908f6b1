package admission_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
	"github.com/nstance-go/nstance/reconcile/internal/place"
)

// inFlight demands more creates than there can be, and returns how many are granted.
func (d *queueTest) inFlight(class admission.Class) int {
	d.q.Demand(group("a/web"), request(class, 1000, "m"))
	return len(d.pass(1000))
}

// TestInFlight: how many creates of one shape may be in flight, by what was answered before.
func TestInFlight(t *testing.T) {
	const memory = 3 * time.Minute
	accepted := func(n int) func(*queueTest) {
		return func(d *queueTest) {
			for range n {
				d.inFlight(admission.Growth)
				for range d.shapes {
					d.q.Ended(spot("m"), d.now)
				}
				d.q.Accepted(spot("m"), d.now, d.now)
			}
		}
	}
	shortage := func(accepted time.Duration) func(*queueTest) {
		return func(d *queueTest) {
			d.q.Refused(spot("m"), d.now, d.now)
			if d.now = d.now.Add(accepted); accepted > 0 {
				d.q.Ended(spot("m"), d.now)
				d.q.Accepted(spot("m"), d.now, d.now)
			}
		}
	}
	hanging := func(d *queueTest) { d.inFlight(admission.Growth) }
	for name, c := range map[string]struct {
		before       func(*queueTest)
		after        time.Duration
		growth, loss int
	}{
		"nothing known":                           {func(*queueTest) {}, 0, 1, 1000},
		"one accepted":                            {accepted(1), 0, 2, 1000},
		"one accepted, a while ago":               {accepted(1), 10 * time.Second, 2, 1000},
		"three accepted":                          {accepted(3), 0, 8, 1000},
		"three accepted, as long as it counts":    {accepted(3), memory, 8, 1000},
		"three accepted, long ago":                {accepted(3), memory + 1, 1, 1000},
		"one hangs":                               {hanging, 2*time.Second - 1, 0, 1000},
		"one hangs for a while":                   {hanging, 2 * time.Second, 1, 1000},
		"one hangs for longer":                    {hanging, 6 * time.Second, 7, 1000},
		"one hangs for very long":                 {hanging, 10 * time.Minute, 1000, 1000},
		"one hangs, and the clock steps back":     {hanging, -time.Minute, 0, 1000},
		"sold out":                                {shortage(0), 0, 0, 0},
		"sold out, due to be tried":               {shortage(0), 30 * time.Second, 1, 1},
		"sold out, tried late":                    {shortage(0), 4*time.Minute + 30*time.Second, 1, 1},
		"sold out, forgotten":                     {shortage(0), 4*time.Minute + 30*time.Second + 1, 1, 1000},
		"accepted after a shortage":               {shortage(4 * time.Minute), 0, 2, 2},
		"accepted after a shortage, a moment ago": {shortage(4 * time.Minute), memory - 1, 2, 2},
		"accepted after a shortage, long ago":     {shortage(4 * time.Minute), memory, 2, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			for class, want := range map[admission.Class]int{admission.Growth: c.growth, admission.Single: c.growth, admission.Loss: c.loss} {
				d := newQueueTest(t)
				c.before(d)
				d.now = d.now.Add(c.after)
				require.Equal(t, want, d.inFlight(class), "class %d", class)
			}
		})
	}
	t.Run("after a long time it begins with one again", func(t *testing.T) {
		d := newQueueTest(t)
		accepted(5)(d)
		d.now = d.now.Add(memory + 1)
		accepted(1)(d)
		require.Equal(t, 2, d.inFlight(admission.Growth))
	})
	t.Run("a loss that has to wait takes the next type", func(t *testing.T) {
		d := newQueueTest(t)
		d.q.Refused(spot("m"), d.now, d.now)
		d.now = d.now.Add(30 * time.Second)
		require.Equal(t, 1, d.inFlight(admission.Loss))
		waits := d.q.Waits(group("a/web"), d.now)
		require.Equal(t, []admission.Wait{{Wait: place.Wait{Kind: place.WaitCapacity, Shape: spot("m"), Until: d.now.Add(2 * time.Second)}}}, waits)
		d.q.Accepted(spot("m"), d.now, d.now)
		d.inFlight(admission.Loss)
		waits = d.q.Waits(group("a/web"), d.now)
		require.Equal(t, []admission.Wait{{Wait: place.Wait{Kind: place.WaitCapacity, Shape: spot("m"), Until: d.now.Add(2 * time.Second)}}}, waits, "returned capacity may be small")
		_, why, _ := d.q.Choose(request(admission.Loss, 1, "m", "n").Request, d.now)
		require.Equal(t, place.ChoiceCapacity, why)
		d.q.Demand(group("b/web"), request(admission.Loss, 1, "m", "n"))
		require.Equal(t, []string{"b/web"}, d.pass(1))
		require.Equal(t, spot("n"), d.shapes[0])
	})
}

// TestTurns: a tenant or group that has to wait delays no other, and demand that is repeated gains
// nothing.
func TestTurns(t *testing.T) {
	soldOut, free := request(admission.Growth, 2, "sold"), request(admission.Growth, 2, "m")
	for name, first := range map[string]string{"tenants": "a/web", "groups": "b/another"} {
		t.Run(name+" that wait", func(t *testing.T) {
			d := newQueueTest(t)
			d.proven("m")
			d.q.Refused(spot("sold"), d.now, d.now)
			d.q.Demand(group(first), soldOut)
			d.q.Demand(group("b/web"), free)
			d.q.Demand(group("b/more"), free)
			require.Equal(t, []string{"b/web", "b/more", "b/web", "b/more"}, d.pass(10))
		})
	}
	t.Run("repeated within a tenant", func(t *testing.T) {
		d := newQueueTest(t)
		d.proven("m")
		for range 3 {
			d.q.Demand(group("a/one"), free)
		}
		d.q.Demand(group("a/two"), free)
		require.Equal(t, []string{"a/one", "a/two", "a/one", "a/two"}, d.pass(10))
		require.Empty(t, d.pass(10))
	})
	t.Run("losses only", func(t *testing.T) {
		d := newQueueTest(t)
		d.proven("m")
		d.q.Demand(group("a/web"), request(admission.Loss, 1, "m"), request(admission.Single, 1, "m"), request(admission.Growth, 1, "m"))
		require.Len(t, d.passFor(10, true), 1)
		require.Len(t, d.passFor(10, true), 0)
		require.Len(t, d.pass(10), 2)
		require.Empty(t, d.q.Waits(group("a/none"), d.now))
	})
	t.Run("tokens again", func(t *testing.T) {
		d := newQueueTest(t)
		d.proven("m")
		d.tokens = 0
		d.q.Demand(group("a/web"), free)
		require.Empty(t, d.pass(10))
		require.Len(t, d.q.Waits(group("a/web"), d.now), 1)
		d.tokens = 5
		require.Len(t, d.pass(1), 1)
		require.Empty(t, d.q.Waits(group("a/web"), d.now), "it is served at once")
	})
	t.Run("losses before tenants and groups", func(t *testing.T) {
		d := newQueueTest(t)
		d.tokens = 0
		d.q.Demand(group("a/web"), request(admission.Loss, 1, "m"))
		d.q.Demand(group("b/web"), request(admission.Growth, 1, "m"))
		d.q.Demand(group("c/web"), request(admission.Growth, 1, "m"))
		d.pass(10)
		require.Equal(t, admission.LossesFirst, d.q.Waits(group("b/web"), d.now)[0].Before)
		require.Empty(t, d.q.Waits(group("a/web"), d.now)[0].Before)
	})
}

// TestChoices: the strongest reason is given for a shape.
func TestChoices(t *testing.T) {
	onDemand := func(typ, subnet string) place.Shape {
		return place.Shape{InstanceType: typ, Subnet: subnet, Market: nstance.OnDemand}
	}
	crowded := func(r *admission.Request) {
		r.Spread = &place.Spread{By: nstance.SpreadZone, Limit: 0, Members: map[place.Shape]int{}}
	}
	prices := func(d *queueTest) {
		d.q.SetPrices([]string{"m", "n"}, []nstance.Price{price("m", "a", 3), price("m", "b", 2), price("n", "a", 1)}, d.now)
	}
	cheapest := spotIn("n", "a1")
	for name, c := range map[string]struct {
		order  nstance.ShapeOrder
		change func(d *queueTest, r *admission.Request)
		want   place.Shape
		why    place.Choice
	}{
		"cheapest":          {nstance.OrderCheapest, func(d *queueTest, _ *admission.Request) {}, cheapest, place.ChoiceCheapest},
		"cheapest, crowded": {nstance.OrderCheapest, func(_ *queueTest, r *admission.Request) { crowded(r) }, cheapest, place.ChoiceCrowded},
		"cheapest, full":    {nstance.OrderCheapest, func(d *queueTest, _ *admission.Request) { d.q.SetAddresses(map[string]int{"a1": 0}, d.now) }, spotIn("m", "b1"), place.ChoiceAddresses},
		"cheapest, full and reclaimed": {nstance.OrderCheapest, func(d *queueTest, _ *admission.Request) {
			d.q.SetAddresses(map[string]int{"a1": 0}, d.now)
			d.q.Reclaimed(cheapest, "a", d.now)
		}, spotIn("m", "b1"), place.ChoiceAddresses},
		"cheapest, full and sold out": {nstance.OrderCheapest, func(d *queueTest, _ *admission.Request) {
			d.q.SetAddresses(map[string]int{"a1": 0}, d.now)
			d.q.Refused(cheapest, d.now, d.now)
		}, spotIn("m", "b1"), place.ChoiceCapacity},
		"cheapest, full, was sold out": {nstance.OrderCheapest, func(d *queueTest, _ *admission.Request) {
			d.q.SetAddresses(map[string]int{"a1": 0}, d.now)
			d.q.Refused(cheapest, d.now, d.now)
			d.q.Accepted(cheapest, d.now.Add(1), d.now.Add(1))
		}, spotIn("m", "b1"), place.ChoiceAddresses},
		"cheapest, refused and sold out": {nstance.OrderCheapest, func(d *queueTest, _ *admission.Request) {
			d.refused(cheapest)
			d.q.Refused(cheapest, d.now, d.now)
		}, spotIn("m", "b1"), place.ChoiceRefused},
		"cheapest, reclaimed, with its share": {nstance.OrderCheapest, func(d *queueTest, r *admission.Request) {
			d.q.Reclaimed(cheapest, "a", d.now)
			r.Spread = &place.Spread{By: nstance.SpreadPool, Limit: 1, Members: map[place.Shape]int{cheapest: 1}}
		}, spotIn("m", "b1"), place.ChoiceReclaimed},
		"the steadiest is sold out": {nstance.OrderSteadiest, func(d *queueTest, _ *admission.Request) {
			d.q.Refused(spotIn("m", "a1"), d.now, d.now)
		}, spotIn("m", "b1"), place.ChoiceCapacity},
		"fallback, crowded": {nstance.OrderListed, func(d *queueTest, r *admission.Request) {
			crowded(r)
			r.Market.Fallback = nstance.OnDemand
			soldOutIn("a1")(d)
			soldOutIn("b1")(d)
		}, onDemand("m", "a1"), place.ChoiceFallback},
		"spot is due to be tried, though its places are crowded": {nstance.OrderListed, func(d *queueTest, r *admission.Request) {
			r.Spread = &place.Spread{By: nstance.SpreadPool, Limit: 1, Members: map[place.Shape]int{}}
			r.Market.Fallback = nstance.OnDemand
			for _, typ := range r.InstanceTypes {
				for _, subnet := range r.Subnets {
					r.Spread.Members[spotIn(typ, subnet)] = 2
				}
			}
			soldOutIn("a1")(d)
			soldOutIn("b1")(d)
			d.now = d.now.Add(30 * time.Second)
		}, spotIn("m", "a1"), place.ChoiceCrowded},
	} {
		t.Run(name, func(t *testing.T) {
			d := newQueueTest(t)
			r := orderRequest(d, c.order)
			r.Definition = "x"
			prices(d)
			c.change(d, &r)
			shape, why, _ := d.q.Choose(r.Request, d.now)
			require.Equal(t, c.want, shape)
			require.Equal(t, c.why, why)
		})
	}
}

// TestShapeWithoutNames: a request that names no type, subnet or market is for a machine on demand.
func TestShapeWithoutNames(t *testing.T) {
	d := newQueueTest(t)
	r := admission.Request{Count: 1, Request: place.Request{Definition: "x"}}
	shape, _, free := d.q.Choose(r.Request, d.now)
	require.True(t, free)
	require.Equal(t, place.Shape{Market: nstance.OnDemand}, shape)
	d.refused(shape)
	d.q.Demand(group("a/web"), r)
	require.Empty(t, d.pass(1))
	require.Equal(t, "machine, on-demand: no", d.q.Waits(group("a/web"), d.now)[0].Refused)
	d.q.LostQuota(spot("m"), nil, d.now)
	_, _, free = d.q.Choose(request(admission.Loss, 1, "m").Request, d.now)
	require.False(t, free)
	d.q.Explain(spot("m"), "no room", d.now)
	require.Equal(t, "no room", d.q.Candidates(request(admission.Loss, 1, "m").Request, d.now).Answer())
	d.q.Accepted(spot("m"), d.now.Add(1), d.now.Add(1))
	require.Empty(t, d.q.Candidates(request(admission.Loss, 1, "m").Request, d.now.Add(1)).Answer(), "which is over")
}

// TestAwaitsFirstPrices: what goes by prices waits for the first answer about its types, for 2 s at
// most. Losses wait for none, and neither does what goes by another order.
func TestAwaitsFirstPrices(t *testing.T) {
	web := group("a/web")
	d := newQueueTest(t)
	r := request(admission.Growth, 1, "m", "n")
	r.Order = nstance.OrderCheapest
	start := d.now
	waits := func(want time.Duration) {
		t.Helper()
		d.q.Demand(web, r)
		require.Empty(t, d.pass(1))
		require.Equal(t, start.Add(want), d.next)
		require.Equal(t, []admission.Wait{{Wait: place.Wait{Kind: place.WaitPrices, Shape: spot("m"), Until: d.next}}}, d.q.Waits(web, d.now))
	}
	granted := func(class admission.Class, order nstance.ShapeOrder) {
		t.Helper()
		other := r
		other.Class, other.Order = class, order
		d.q.Demand(web, other)
		require.Len(t, d.pass(1), 1)
		d.end(d.shapes[0], true)
	}
	waits(2 * time.Second)
	granted(admission.Loss, nstance.OrderCheapest)
	granted(admission.Growth, nstance.OrderListed)
	d.now = start.Add(time.Second)
	waits(2 * time.Second)
	r.InstanceTypes = []string{"m", "n", "o"}
	waits(3 * time.Second)
	r.InstanceTypes = []string{"o", "m", "n"}
	d.q.Demand(web, r)
	require.Empty(t, d.pass(1))
	require.Equal(t, start.Add(3*time.Second), d.next, "until the last of them")
	r.InstanceTypes = []string{"o", "m"}
	d.q.SetPrices([]string{"o"}, nil, d.now)
	d.now = start.Add(2*time.Second - 1)
	d.q.Demand(web, r)
	require.Empty(t, d.pass(1), "there is no answer about m")
	d.now = start.Add(2 * time.Second)
	granted(admission.Growth, nstance.OrderCheapest)
	d.q.SetPrices([]string{"m", "o"}, nil, d.now)
	granted(admission.Growth, nstance.OrderCheapest)
	d.q.SetPrices([]string{"o"}, nil, d.now) // m was not asked for, as no group wanted it
	r.InstanceTypes = []string{"m"}
	waits(4 * time.Second)
}

// TestPriceMemory: a price counts for six hours.
func TestPriceMemory(t *testing.T) {
	d := newQueueTest(t)
	orderRequest(d, nstance.OrderCheapest)
	d.q.SetPrices([]string{"m"}, []nstance.Price{price("m", "a", 2), price("m", "", 1)}, d.now)
	for at, want := range map[time.Duration]float64{0: 2, 6 * time.Hour: 2, 6*time.Hour + 1: 0} {
		require.InDelta(t, want, d.q.Price(spotIn("m", "a1"), d.now.Add(at)), 0, at)
	}
	require.Zero(t, d.q.Price(spotIn("m", "elsewhere"), d.now), "without a zone it counts nowhere")
	require.Zero(t, d.q.Price(spot("m"), d.now), "nor without a subnet")
}

// TestReclaimsAreRememberedLongest: what was learned of a pool's latest reclaim, in this term or a
// former one, never shortens what is known already, in any subnet of its zone.
func TestReclaimsAreRememberedLongest(t *testing.T) {
	known := rate("m", "a", 100_000, 10_000) // 110 min
	for name, c := range map[string]struct {
		learn func(d *queueTest)
		left  time.Duration // of the memory
		moves time.Duration // for which others come first even where they are crowded
	}{
		"in this term":                     {func(d *queueTest) { d.q.Reclaimed(spotIn("m", "a1"), "a", d.now) }, 110 * time.Minute, 3 * time.Minute},
		"in this term, in a zone by name":  {func(d *queueTest) { d.q.Reclaimed(spotIn("m", "a1"), "", d.now) }, 110 * time.Minute, 3 * time.Minute},
		"in a former term":                 {func(d *queueTest) { d.formerly(known, time.Minute) }, 109 * time.Minute, 2 * time.Minute},
		"in a former term, a while ago":    {func(d *queueTest) { d.formerly(known, 10*time.Minute) }, 100 * time.Minute, 0},
		"in this term, and before":         {func(d *queueTest) { d.q.Reclaimed(spotIn("m", "a1"), "a", d.now); d.formerly(known, time.Minute) }, 110 * time.Minute, 3 * time.Minute},
		"in this term, and long before":    {func(d *queueTest) { d.q.Reclaimed(spotIn("m", "a1"), "a", d.now); d.formerly(known, time.Hour) }, 110 * time.Minute, 3 * time.Minute},
		"in a former term, known by steps": {func(d *queueTest) { d.formerly(known, time.Hour); d.formerly(known, time.Minute) }, 109 * time.Minute, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			d := newQueueTest(t)
			d.q.SetZones(map[string]string{"a1": "a", "a2": "a", "b1": "b"})
			d.q.SetRates([]place.Rate{known}, d.now)
			c.learn(d)
			r := request(admission.Loss, 1, "m")
			r.Subnets = []string{"a2", "b1"}
			at := func(after time.Duration) string {
				shape, _, _ := d.q.Choose(r.Request, d.now.Add(after))
				return shape.Subnet
			}
			require.Equal(t, "b1", at(c.left-time.Second))
			require.Equal(t, "a2", at(c.left))
			r.Spread = &place.Spread{By: nstance.SpreadZone, Limit: 1, Members: map[place.Shape]int{spotIn("m", "b1"): 1}}
			if c.moves > 0 {
				require.Equal(t, "b1", at(c.moves-time.Second))
			}
			require.Equal(t, "a2", at(c.moves))
		})
	}
}

// formerly says that the latest reclaim of a pool was so long ago.
func (d *queueTest) formerly(r place.Rate, ago time.Duration) {
	r.LastReclaim = d.now.Add(-ago)
	d.q.SetRates([]place.Rate{r}, d.now)
}
