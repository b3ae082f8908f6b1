package admission_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
	"github.com/nstance-go/nstance/reconcile/internal/place"
)

// orderRequest permits types m and n in zones a and b.
func orderRequest(d *queueTest, order nstance.ShapeOrder) admission.Request {
	d.q.SetZones(map[string]string{"a1": "a", "b1": "b"})
	r := request(admission.Loss, 1, "m", "n")
	r.Subnets, r.Order = []string{"a1", "b1"}, order
	return r
}

func rate(typ, zone string, hours, reclaims int) place.Rate {
	return place.Rate{InstanceType: typ, Zone: zone, Market: nstance.Spot, MachineTime: time.Duration(hours) * time.Hour, Reclaims: reclaims}
}

func price(typ, zone string, perHour float64) nstance.Price {
	return nstance.Price{InstanceType: typ, Zone: zone, Market: nstance.Spot, PerHour: perHour}
}

// TestShapeOrder: which of the permitted shapes is chosen, and why.
func TestShapeOrder(t *testing.T) {
	prices := []nstance.Price{price("m", "a", 0.05), price("m", "b", 0.04), price("n", "a", 0.03)}
	for name, c := range map[string]struct {
		order  nstance.ShapeOrder
		prices []nstance.Price
		rates  []place.Rate
		change func(d *queueTest, r *admission.Request)
		want   string
		why    place.Choice
	}{
		"listed":                              {nstance.OrderListed, prices, []place.Rate{rate("m", "a", 100, 90)}, nil, "m/a1", place.ChoiceListed},
		"cheapest":                            {nstance.OrderCheapest, prices, nil, nil, "n/a1", place.ChoiceCheapest},
		"cheapest, no prices":                 {nstance.OrderCheapest, nil, nil, nil, "m/a1", place.ChoiceListed},
		"cheapest, one price":                 {nstance.OrderCheapest, prices[2:], nil, nil, "n/a1", place.ChoiceCheapest},
		"cheapest is about to go":             {nstance.OrderCheapest, prices, []place.Rate{rate("n", "a", 100, 200), rate("m", "b", 1000, 5)}, nil, "m/b1", place.ChoiceCheapest},
		"cheapest, equal prices":              {nstance.OrderCheapest, []nstance.Price{price("m", "a", 1), price("m", "b", 1)}, nil, nil, "m/a1", place.ChoiceCheapest},
		"the cheapest is sold out":            {nstance.OrderCheapest, prices, nil, func(d *queueTest, _ *admission.Request) { d.q.Refused(spotIn("n", "a1"), d.now, d.now) }, "m/b1", place.ChoiceCapacity},
		"the cheapest was reclaimed":          {nstance.OrderCheapest, prices, nil, func(d *queueTest, _ *admission.Request) { d.q.Reclaimed(spotIn("n", "a1"), "a", d.now) }, "m/b1", place.ChoiceReclaimed},
		"the cheapest has its share":          {nstance.OrderCheapest, prices, nil, hasMembers(spotIn("n", "a1")), "m/b1", place.ChoiceSpread},
		"old prices":                          {nstance.OrderCheapest, prices, nil, func(d *queueTest, _ *admission.Request) { d.now = d.now.Add(7 * time.Hour) }, "m/a1", place.ChoiceListed},
		"steadiest":                           {nstance.OrderSteadiest, nil, []place.Rate{rate("m", "a", 1000, 20), rate("m", "b", 1000, 10), rate("n", "a", 1000, 1), rate("n", "b", 1000, 30)}, nil, "n/a1", place.ChoiceSteadiest},
		"steadiest, nothing known":            {nstance.OrderSteadiest, nil, nil, nil, "m/a1", place.ChoiceSteadiest},
		"one bad hour is no bad pool":         {nstance.OrderSteadiest, nil, []place.Rate{rate("m", "a", 5000, 50), rate("m", "b", 5000, 500), rate("n", "a", 1, 1), rate("n", "b", 5000, 500)}, nil, "m/a1", place.ChoiceSteadiest},
		"an unknown pool is as the mean":      {nstance.OrderSteadiest, nil, []place.Rate{rate("m", "a", 1000, 60), rate("m", "b", 1000, 80), rate("n", "b", 1000, 0)}, nil, "n/b1", place.ChoiceSteadiest},
		"rather unknown than bad":             {nstance.OrderSteadiest, nil, []place.Rate{rate("m", "a", 1000, 60), rate("m", "b", 1000, 80), rate("n", "b", 1000, 70)}, nil, "m/a1", place.ChoiceSteadiest},
		"the cloud expects more of b":         {nstance.OrderSteadiest, nil, nil, func(d *queueTest, _ *admission.Request) { d.q.SetScores("m n", map[string]int{"a": 3, "b": 8}) }, "m/b1", place.ChoiceSteadiest},
		"a middling score is as good as none": {nstance.OrderSteadiest, nil, nil, func(d *queueTest, _ *admission.Request) { d.q.SetScores("m n", map[string]int{"a": 5}) }, "m/b1", place.ChoiceSteadiest},
		"a better one is better than none":    {nstance.OrderSteadiest, nil, nil, func(d *queueTest, _ *admission.Request) { d.q.SetScores("m n", map[string]int{"b": 6}) }, "m/b1", place.ChoiceSteadiest},
		"what happened outweighs a score":     {nstance.OrderSteadiest, nil, []place.Rate{rate("m", "a", 9000, 9), rate("m", "b", 9000, 900), rate("n", "b", 9000, 900), rate("n", "a", 9000, 900)}, func(d *queueTest, _ *admission.Request) { d.q.SetScores("m n", map[string]int{"a": 3, "b": 8}) }, "m/a1", place.ChoiceSteadiest},
	} {
		t.Run(name, func(t *testing.T) {
			d := newQueueTest(t)
			r := orderRequest(d, c.order)
			d.q.SetPrices([]string{"m", "n"}, c.prices, d.now)
			d.q.SetRates(c.rates, d.now)
			if c.change != nil {
				c.change(d, &r)
			}
			shape, why, free := d.q.Choose(r.Request, d.now)
			require.True(t, free)
			require.Equal(t, c.want, shape.InstanceType+"/"+shape.Subnet)
			require.Equal(t, c.why, why)
		})
	}
}

func hasMembers(shape place.Shape) func(*queueTest, *admission.Request) {
	return func(_ *queueTest, r *admission.Request) {
		r.Spread = &place.Spread{By: nstance.SpreadPool, Limit: 1, Members: map[place.Shape]int{shape: 1}}
	}
}

// TestOrderKeepsMarketsApart: a price of an on-demand machine never beats spot.
func TestOrderKeepsMarketsApart(t *testing.T) {
	d := newQueueTest(t)
	r := orderRequest(d, nstance.OrderCheapest)
	r.Market.Fallback = nstance.OnDemand
	cheap := price("m", "a", 0.001)
	cheap.Market = nstance.OnDemand
	d.q.SetPrices([]string{"m", "n"}, []nstance.Price{cheap, price("n", "b", 0.5)}, d.now)
	shape, _, _ := d.q.Choose(r.Request, d.now)
	require.Equal(t, spotIn("n", "b1"), shape)
	for _, typ := range r.InstanceTypes {
		for _, subnet := range r.Subnets {
			d.q.Refused(spotIn(typ, subnet), d.now, d.now)
		}
	}
	shape, why, _ := d.q.Choose(r.Request, d.now)
	require.Equal(t, place.Shape{InstanceType: "m", Subnet: "a1", Market: nstance.OnDemand}, shape)
	require.Equal(t, place.ChoiceFallback, why)
}

// TestReclaimMemory: the more often a pool is reclaimed, the longer others come first.
func TestReclaimMemory(t *testing.T) {
	for name, c := range map[string]struct {
		rates []place.Rate
		want  time.Duration
	}{
		"nothing known":                  {nil, 20 * time.Minute},
		"never before, in a quiet shard": {[]place.Rate{rate("m", "a", 100_000, 0)}, 10 * time.Minute},
		"once in 100 hours":              {[]place.Rate{rate("m", "a", 100_000, 1000)}, 20 * time.Minute},
		"every 10 hours":                 {[]place.Rate{rate("m", "a", 100_000, 10_000)}, 110 * time.Minute},
		"within minutes":                 {[]place.Rate{rate("m", "a", 100, 1500)}, 6 * time.Hour},
		"another pool":                   {[]place.Rate{rate("n", "b", 100_000, 1000)}, 20 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			d := newQueueTest(t)
			r := orderRequest(d, nstance.OrderListed)
			d.q.SetRates(c.rates, d.now)
			d.q.Reclaimed(spotIn("m", "a1"), "a", d.now)
			for _, at := range []struct {
				after time.Duration
				want  string
			}{{c.want - 10*time.Second, "m/b1"}, {20 * time.Second, "m/a1"}} {
				d.now = d.now.Add(at.after)
				shape, _, _ := d.q.Choose(r.Request, d.now)
				require.Equal(t, at.want, shape.InstanceType+"/"+shape.Subnet)
			}
		})
	}
}

// TestReclaimsOfFormerLeaders: a pool that was reclaimed before the term comes last for as long
// as it would have under the former leader, and what this leader knows better stays.
func TestReclaimsOfFormerLeaders(t *testing.T) {
	choose := func(d *queueTest, after time.Duration) string {
		shape, _, _ := d.q.Choose(orderRequest(d, nstance.OrderListed).Request, d.now.Add(after))
		return shape.InstanceType + "/" + shape.Subnet
	}
	for name, c := range map[string]struct {
		last time.Duration // before now
		left time.Duration // of the memory
	}{
		"an hour ago":                         {time.Hour, 50 * time.Minute},
		"two hours ago":                       {2 * time.Hour, 0},
		"in the future, by a clock of others": {-time.Hour, 110 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			d := newQueueTest(t)
			r := rate("m", "a", 100_000, 10_000)
			r.LastReclaim = d.now.Add(-c.last)
			d.q.SetRates([]place.Rate{r}, d.now)
			if c.left > 0 {
				require.Equal(t, "m/b1", choose(d, c.left-time.Second))
			}
			require.Equal(t, "m/a1", choose(d, c.left))
			d.q.Reclaimed(spotIn("m", "a1"), "a", d.now)
			d.q.SetRates([]place.Rate{r}, d.now)
			require.Equal(t, "m/b1", choose(d, 110*time.Minute-time.Second))
		})
	}
	t.Run("never", func(t *testing.T) {
		d := newQueueTest(t)
		d.q.SetRates([]place.Rate{rate("m", "a", 100, 1500)}, d.now)
		require.Equal(t, "m/a1", choose(d, 0))
	})
}

// TestShareOutlastsReclaim: a pool that was reclaimed a moment ago is the last choice. After
// that the share of the others counts more than the memory of the reclaim.
func TestShareOutlastsReclaim(t *testing.T) {
	d := newQueueTest(t)
	r := spreadRequest(d, nstance.SpreadZone, 1, spotIn("m", "b1"))
	d.q.SetRates([]place.Rate{rate("m", "a", 100, 1500), rate("n", "a", 100, 1500)}, d.now)
	d.q.Reclaimed(spotIn("m", "a1"), "a", d.now)
	d.q.Reclaimed(spotIn("n", "a1"), "a", d.now)
	check := func(want string, why place.Choice) {
		t.Helper()
		shape, reason, _ := d.q.Choose(r.Request, d.now)
		require.Equal(t, want, shape.InstanceType+"/"+shape.Subnet)
		require.Equal(t, why, reason)
	}
	check("m/b1", place.ChoiceCrowded)
	d.now = d.now.Add(3 * time.Minute)
	check("m/a1", place.ChoiceListed)
	r.Spread.Limit = 2
	check("m/b1", place.ChoiceReclaimed)
}

// TestOrderNeverCostsCapacity: whatever prices, rates and refusals, a shape is found when
// one is free, and among equals the order decides.
func TestOrderNeverCostsCapacity(t *testing.T) {
	for seed := range uint64(500) {
		dice := rand.New(rand.NewPCG(seed, 2))
		d := newQueueTest(t)
		r := orderRequest(d, []nstance.ShapeOrder{nstance.OrderListed, nstance.OrderCheapest, nstance.OrderSteadiest}[dice.IntN(3)])
		costs := map[place.Shape]float64{}
		var prices []nstance.Price
		var free []place.Shape
		for _, typ := range r.InstanceTypes {
			for zone, subnet := range map[string]string{"a": "a1", "b": "b1"} {
				shape := spotIn(typ, subnet)
				if dice.IntN(4) > 0 {
					costs[shape] = 1 + dice.Float64()
					prices = append(prices, price(typ, zone, costs[shape]))
				}
				if dice.IntN(2) == 0 {
					d.q.Refused(shape, d.now, d.now)
				} else {
					free = append(free, shape)
				}
			}
		}
		d.q.SetPrices([]string{"m", "n"}, prices, d.now)
		got, _, ok := d.q.Choose(r.Request, d.now)
		require.Equal(t, len(free) > 0, ok, "seed %d", seed)
		if !ok {
			continue
		}
		require.Contains(t, free, got)
		for _, s := range free {
			if r.Order == nstance.OrderCheapest && costs[s] > 0 {
				require.LessOrEqual(t, costs[got], costs[s], "seed %d: %v is cheaper than %v", seed, s, got)
				require.Positive(t, costs[got], "seed %d: a shape with a price comes first", seed)
			}
		}
	}
}
