package admission_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
	"github.com/nstance-go/nstance/reconcile/internal/avoid"
	"github.com/nstance-go/nstance/reconcile/internal/place"
)

// TestWaitOfOthersSaysNothing: what one group waits for says nothing about a group that permits
// something else, whichever setting makes the difference. Both are in one pass, in either order.
func TestWaitOfOthersSaysNothing(t *testing.T) {
	waiting := of("x", "m")
	waiting.Subnets = []string{"s1"}
	waiting.Market = nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand, FallbackAfter: time.Hour}
	waiting.Class = admission.Growth
	for name, change := range map[string]func(r *admission.Request){
		"instance types":      func(r *admission.Request) { r.InstanceTypes = []string{"m", "n"} },
		"another type":        func(r *admission.Request) { r.InstanceTypes = []string{"n"} },
		"subnets":             func(r *admission.Request) { r.Subnets = []string{"s1", "s2"} },
		"no subnets":          func(r *admission.Request) { r.Subnets = nil },
		"a type for a subnet": func(r *admission.Request) { r.InstanceTypes, r.Subnets = []string{"m", "s1"}, nil },
		"market":              func(r *admission.Request) { r.Market.Type = nstance.OnDemand },
		"fallback_after":      func(r *admission.Request) { r.Market.FallbackAfter = time.Minute },
		"no fallback_after":   func(r *admission.Request) { r.Market.FallbackAfter = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			for _, waitsFirst := range []bool{true, false} {
				d := newQueueTest(t)
				shape := spotIn("m", "s1")
				d.q.Refused(shape, d.now, d.now)
				d.now = d.now.Add(time.Minute)
				d.q.Refused(shape, d.now, d.now)
				other := waiting
				change(&other)
				keys := []string{"a/1", "a/2"}
				for i, r := range []admission.Request{waiting, other} {
					if !waitsFirst {
						i = 1 - i
					}
					d.q.Demand(group(keys[i]), r)
				}
				free := "a/2"
				if !waitsFirst {
					free = "a/1"
				}
				require.Equal(t, []string{free}, d.pass(10))
			}
		})
	}
	t.Run("fallback", func(t *testing.T) {
		d := newQueueTest(t)
		waits := of("x", "m")
		d.q.Refused(spot("m"), d.now, d.now)
		other := waits
		other.Market.Fallback = nstance.OnDemand
		d.q.Demand(group("a/1"), waits)
		d.q.Demand(group("a/2"), other)
		require.Equal(t, []string{"a/2"}, d.pass(10))
	})
	t.Run("order", func(t *testing.T) {
		d := newQueueTest(t)
		cheapest := of("x", "m")
		cheapest.Class, cheapest.Order = admission.Growth, nstance.OrderCheapest
		d.q.Demand(group("a/1"), cheapest)
		other := cheapest
		other.Order = nstance.OrderListed
		d.q.Demand(group("a/2"), other)
		require.Equal(t, []string{"a/2"}, d.pass(10), "it waits for no prices")
	})
	t.Run("definition, when one is refused", func(t *testing.T) {
		d := newQueueTest(t)
		d.refused(spot("m"))
		d.q.Demand(group("a/1"), of("x", "m"))
		d.q.Demand(group("a/2"), of("y", "m"))
		require.Equal(t, []string{"a/2"}, d.pass(10))
	})
	t.Run("definition, when each is refused something else", func(t *testing.T) {
		d := newQueueTest(t)
		d.refused(spot("m"))
		d.q.RefusedFor("y", spot("n"), d.now, "no", d.now)
		d.q.Demand(group("a/1"), of("x", "m"))
		d.q.Demand(group("a/2"), of("y", "m"))
		require.Equal(t, []string{"a/2"}, d.pass(10))
	})
	t.Run("class", func(t *testing.T) {
		d := newQueueTest(t)
		growth := request(admission.Growth, 1, "m")
		d.q.Demand(group("a/1"), growth)
		require.Len(t, d.pass(1), 1)
		d.q.Demand(group("a/1"), growth, request(admission.Single, 1, "m"))
		d.q.Demand(group("a/2"), request(admission.Loss, 1, "m"))
		require.Equal(t, []string{"a/2"}, d.pass(10), "growth waits for an answer, a loss does not")
	})
	t.Run("placement scores", func(t *testing.T) {
		d := newQueueTest(t)
		d.q.SetZones(map[string]string{"a1": "a", "b1": "b"})
		d.q.SetScores("m", map[string]int{"a": 10})
		d.q.SetScores("m n", map[string]int{"b": 10})
		scored := func(types ...string) admission.Request {
			r := request(admission.Growth, 1, types...)
			r.Subnets, r.Order = []string{"a1", "b1"}, nstance.OrderSteadiest
			return r
		}
		d.q.Demand(group("a/busy"), scored("m"))
		require.Len(t, d.pass(1), 1)
		d.q.Demand(group("a/1"), scored("m"))
		d.q.Demand(group("a/2"), scored("n", "m"))
		require.Equal(t, []string{"a/2"}, d.pass(10), "the first choice of the other is in flight")
	})
}

// TestQuotaAfterAcceptance: a type that is lacking in every subnet has lacked there since it was
// refused first, whatever was accepted and came to nothing in between.
func TestQuotaAfterAcceptance(t *testing.T) {
	r := of("x", "m")
	r.Subnets = []string{"s1", "s2", "s3"}
	r.Market = nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand, FallbackAfter: 150 * time.Second}
	for name, lose := range map[string]func(d *queueTest){
		"no quota": func(d *queueTest) { d.q.LostQuota(spotIn("m", "s2"), r.Subnets, d.now) },
		"no capacity, everywhere": func(d *queueTest) {
			for _, subnet := range r.Subnets {
				d.q.Lost(spotIn("m", subnet), d.now)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newQueueTest(t)
			start := d.now
			d.q.RefusedQuota(spotIn("m", "s1"), r.Subnets, d.now, d.now)
			d.now = d.now.Add(time.Minute)
			for _, subnet := range r.Subnets {
				d.q.Accepted(spotIn("m", subnet), d.now, d.now)
			}
			d.now = d.now.Add(time.Minute)
			lose(d)
			got, _ := d.chosen(r)
			require.Empty(t, got)
			d.now = start.Add(r.Market.FallbackAfter - 1)
			got, _ = d.chosen(r)
			require.Empty(t, got)
			d.now = start.Add(r.Market.FallbackAfter)
			got, _ = d.chosen(r)
			require.Equal(t, "m on demand", got)
		})
	}
	t.Run("refused anew after it was accepted: another shortage", func(t *testing.T) {
		d := newQueueTest(t)
		d.q.RefusedQuota(spotIn("m", "s1"), r.Subnets, d.now, d.now)
		d.now = d.now.Add(2 * time.Minute)
		for _, subnet := range r.Subnets {
			d.q.Accepted(spotIn("m", subnet), d.now, d.now)
		}
		d.now = d.now.Add(time.Second)
		again := d.now
		d.q.RefusedQuota(spotIn("m", "s1"), r.Subnets, d.now, d.now)
		for _, wait := range []time.Duration{time.Minute, r.Market.FallbackAfter - 1} {
			d.now = again.Add(wait)
			shape, _, _ := d.q.Choose(r.Request, d.now)
			require.Equal(t, nstance.Spot, shape.Market)
		}
	})
	t.Run("another type has its own", func(t *testing.T) {
		d := newQueueTest(t)
		d.q.RefusedQuota(spotIn("m", "s1"), r.Subnets, d.now, d.now)
		for _, shape := range []place.Shape{spotIn("n", "s1"), {InstanceType: "m", Subnet: "s1", Market: nstance.OnDemand}} {
			other := of("x", shape.InstanceType)
			other.Subnets, other.Market.Type = r.Subnets, shape.Market
			_, _, free := d.q.Choose(other.Request, d.now)
			require.True(t, free, shape)
		}
	})
}

// TestSeveralAvoidancesOfOneShape: it is free when the last one ends, and the request when the
// first of its shapes is.
func TestSeveralAvoidancesOfOneShape(t *testing.T) {
	const endless = 0
	type avoided struct {
		typ, zone string
		hours     int
	}
	for name, c := range map[string]struct {
		avoid []avoided
		hours int // until the request is granted; 0: not by time
		typ   string
	}{
		"the last to end":                        {[]avoided{{"m", "", 3}, {"", "za", 1}, {"n", "", 5}, {"", "zb", 4}}, 3, "m"},
		"in another order":                       {[]avoided{{"", "zb", 4}, {"n", "", 5}, {"", "za", 1}, {"m", "", 3}}, 3, "m"},
		"one without an end":                     {[]avoided{{"m", "", endless}, {"m", "", 1}, {"n", "", 2}}, 2, "n"},
		"one without an end, after the others":   {[]avoided{{"m", "", 1}, {"m", "", endless}, {"n", "", 2}}, 2, "n"},
		"each shape has one without an end":      {[]avoided{{"m", "", 1}, {"n", "", 2}, {"", "", endless}}, endless, ""},
		"one that is over before another begins": {[]avoided{{"m", "", 2}, {"m", "", 2}, {"n", "", 2}}, 2, "m"},
	} {
		t.Run(name, func(t *testing.T) {
			d := avoidTest(t)
			var all []avoid.Entry
			for _, a := range c.avoid {
				is := avoid.Entry{Pool: avoid.Pool{InstanceType: a.typ, Zone: a.zone}, Reason: a.typ + a.zone}
				if a.typ+a.zone == "" {
					is.Market = nstance.Spot
				}
				if a.hours != endless {
					is.Until = d.now.Add(time.Duration(a.hours) * time.Hour)
				}
				all = append(all, is)
			}
			d.q.avoid(all)
			web := group("a/web")
			r := request(admission.Loss, 1, "m", "n")
			r.Subnets = []string{"a1", "b1"}
			if name == "the last to end" || name == "in another order" {
				r.Subnets = []string{"a1"}
			}
			d.q.Demand(web, r)
			require.Empty(t, d.pass(10))
			waits := d.q.Waits(web, d.now)
			require.Len(t, waits, 1)
			require.Equal(t, waits[0].Until, d.next)
			repeat := r
			repeat.Repeats = &place.Shape{InstanceType: c.typ, Subnet: "a1", Market: nstance.Spot}
			d.q.Demand(group("a/repeat"), repeat)
			require.Empty(t, d.pass(10))
			if c.hours == endless {
				require.Zero(t, d.next)
				require.False(t, d.q.Candidates(r.Request, d.now).OpenOutside(""))
				return
			}
			until := d.now.Add(time.Duration(c.hours) * time.Hour)
			require.Equal(t, until, d.next)
			require.Equal(t, until, d.q.Waits(group("a/repeat"), d.now)[0].Until)
			d.now = until.Add(-1)
			require.Empty(t, d.pass(10))
			d.now = until
			require.Len(t, d.pass(10), 2)
			require.Equal(t, spotIn(c.typ, "a1"), d.shapes[0])
		})
	}
}

// TestOpen: whether anything that a request permits is left, at any time and outside of a zone.
func TestOpen(t *testing.T) {
	r := anywhere(fallback)
	r.Subnets = []string{"a1", "unknown"}
	for name, c := range map[string]struct {
		avoid         []avoid.Entry
		open, outside bool
	}{
		"nothing avoided":    {nil, true, true},
		"the known zone":     {[]avoid.Entry{{Pool: avoid.Pool{Zone: "za"}}}, true, false},
		"one type":           {[]avoid.Entry{{Pool: avoid.Pool{InstanceType: "m"}}}, true, true},
		"spot":               {[]avoid.Entry{{Pool: avoid.Pool{Market: nstance.Spot}}}, true, true},
		"both types":         {[]avoid.Entry{{Pool: avoid.Pool{InstanceType: "m"}}, {Pool: avoid.Pool{InstanceType: "n"}}}, false, false},
		"both markets":       {[]avoid.Entry{{Pool: avoid.Pool{Market: nstance.Spot}}, {Pool: avoid.Pool{Market: nstance.OnDemand}}}, false, false},
		"both, one is over":  {[]avoid.Entry{{Pool: avoid.Pool{InstanceType: "m"}}, {Pool: avoid.Pool{InstanceType: "n"}, Until: time.Unix(1, 0)}}, true, true},
		"the zone and types": {[]avoid.Entry{{Pool: avoid.Pool{Zone: "za", InstanceType: "m"}}, {Pool: avoid.Pool{Zone: "za", InstanceType: "n"}}}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := avoidTest(t)
			d.q.avoid(c.avoid)
			require.Equal(t, c.open, d.q.Candidates(r.Request, d.now).OpenOutside(""))
			require.Equal(t, c.outside, d.q.Candidates(r.Request, d.now).OpenOutside("zb"))
			_, _, wait := d.q.Find(r.Request, d.now)
			require.Equal(t, !c.open, wait != nil)
		})
	}
}

// TestRequestsOfOneGroup: a grant is taken from the request that it is of, and each request says
// what it waits for, once.
func TestRequestsOfOneGroup(t *testing.T) {
	web := group("a/web")
	t.Run("grants", func(t *testing.T) {
		d := newQueueTest(t)
		var all []admission.Request
		for i, typ := range []string{"m", "n", "o", "p"} {
			r := request(admission.Single, 1, typ)
			r.Index, r.Instance = i/2, nstance.InstanceID([]string{"x", "y"}[i%2])
			all = append(all, r)
		}
		d.q.Refused(spot("m"), d.now, d.now) // the first one waits
		d.q.Demand(web, all...)
		require.Len(t, d.pass(10), 3)
		require.Equal(t, []place.Shape{spot("n"), spot("o"), spot("p")}, d.shapes)
		require.Equal(t, []admission.Wait{{Wait: place.Wait{Kind: place.WaitCapacity, Shape: spot("m"), Until: d.now.Add(firstRetry)}}}, d.q.Waits(web, d.now))
	})
	capacity := func(typ string) admission.Wait {
		return admission.Wait{Wait: place.Wait{Kind: place.WaitCapacity, Shape: spot(typ)}}
	}
	refused := func(answer string) admission.Wait {
		return admission.Wait{Wait: place.Wait{Kind: place.WaitRefused, Shape: spot("m"), Refused: "m, spot: " + answer}}
	}
	budget := func(before admission.Precedent) admission.Wait {
		return admission.Wait{Wait: place.Wait{Kind: admission.WaitBudget}, Before: before}
	}
	for name, c := range map[string]struct {
		learn    func(d *queueTest)
		requests []admission.Request
		want     []admission.Wait // but for their times
	}{
		"the same": {soldOut, []admission.Request{of("x", "m"), of("x", "m")}, []admission.Wait{capacity("m")}},
		"shapes":   {soldOut, []admission.Request{of("x", "m"), of("x", "n"), of("x", "m")}, []admission.Wait{capacity("m"), capacity("n")}},
		"kinds": {func(d *queueTest) { soldOut(d); d.refused(spot("m")) },
			[]admission.Request{of("x", "m"), of("y", "m")}, []admission.Wait{refused("no"), capacity("m")}},
		"answers": {func(d *queueTest) { d.refused(spot("m")); d.q.RefusedFor("y", spot("m"), d.now, "never", d.now) },
			[]admission.Request{of("x", "m"), of("y", "m")}, []admission.Wait{refused("no"), refused("never")}},
		"what is avoided": {func(d *queueTest) { soldOut(d); d.q.avoid([]avoid.Entry{{Pool: avoid.Pool{InstanceType: "n"}}}) },
			[]admission.Request{of("x", "m"), of("x", "m", "n")}, []admission.Wait{capacity("m"), {Wait: place.Wait{Kind: place.WaitCapacity, Shape: spot("m"), Avoided: (&avoid.Entry{Pool: avoid.Pool{InstanceType: "n"}}).Name()}}}},
		"what comes first": {func(d *queueTest) { d.tokens = 0 },
			[]admission.Request{request(admission.Loss, 1, "m"), request(admission.Growth, 1, "m")}, []admission.Wait{budget(""), budget(admission.LossesFirst)}},
		"no tokens": {func(d *queueTest) { d.tokens = 0 },
			[]admission.Request{request(admission.Growth, 1, "m")}, []admission.Wait{budget("")}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newQueueTest(t)
			c.learn(d)
			d.q.Demand(web, c.requests...)
			d.pass(10)
			got := d.q.Waits(web, d.now)
			for i := range got {
				require.NotZero(t, got[i].Until)
				got[i].Until = time.Time{}
			}
			require.Equal(t, c.want, got)
		})
	}
}

func soldOut(d *queueTest) {
	d.q.Refused(spot("m"), d.now, d.now)
	d.q.Refused(spot("n"), d.now, d.now)
}

// TestSoldOutSinceGrant: a create that was granted before its shape was refused is not sent, as
// long as the refusal says something.
func TestSoldOutSinceGrant(t *testing.T) {
	for name, c := range map[string]struct {
		since func(d *queueTest)
		after time.Duration
		want  bool
	}{
		"refused":               {func(*queueTest) {}, 0, true},
		"for the memory of it":  {func(*queueTest) {}, 4*time.Minute + 30*time.Second, true},
		"long ago":              {func(*queueTest) {}, 4*time.Minute + 30*time.Second + 1, false},
		"accepted since":        {func(d *queueTest) { d.q.Accepted(spot("m"), d.now.Add(1), d.now.Add(2)) }, 3, false},
		"accepted, sent before": {func(d *queueTest) { d.q.Accepted(spot("m"), d.now, d.now.Add(2)) }, 3, true},
		"refused the definition": {func(d *queueTest) {
			d.q.Accepted(spot("m"), d.now.Add(1), d.now.Add(2))
			d.now = d.now.Add(3)
			d.refused(spot("m"))
		}, 0, true},
		"which was accepted since": {func(d *queueTest) {
			d.q.Accepted(spot("m"), d.now.Add(1), d.now.Add(2))
			d.refused(spot("m"))
			d.q.AcceptedFor("x", spot("m"), d.now.Add(1))
		}, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newQueueTest(t)
			granted := d.now.Add(-time.Second)
			d.q.Refused(spot("m"), d.now, d.now)
			c.since(d)
			require.Equal(t, c.want, d.q.SoldOut("x", spot("m"), granted, d.now.Add(c.after)))
			require.False(t, d.q.SoldOut("x", spot("m"), d.now, d.now.Add(c.after)), "granted after the refusal")
		})
	}
}

// TestFallbackWaitsForTheLastShortage: on-demand is permitted once every shape of spot has been
// lacking for as long as the market says, whichever was the last.
func TestFallbackWaitsForTheLastShortage(t *testing.T) {
	for _, types := range [][]string{{"m", "n"}, {"n", "m"}} {
		d := newQueueTest(t)
		r := of("x", types...)
		r.Market = nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand, FallbackAfter: 10 * time.Minute}
		start := d.now
		for minute := range 18 {
			d.now = start.Add(time.Duration(minute) * time.Minute)
			d.refused(spot("n"))
			if minute >= 5 {
				d.refused(spot("m"))
			}
			shape, _, free := d.q.Choose(r.Request, d.now)
			require.Equal(t, minute < 5 || minute >= 15, free, "after %d min", minute)
			require.Equal(t, minute >= 15, shape.Market == nstance.OnDemand, "after %d min", minute)
		}
	}
}

// TestShortageThatIsOver: it counts for no fallback.
func TestShortageThatIsOver(t *testing.T) {
	d := newQueueTest(t)
	r := of("x", "m")
	r.Market = nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand, FallbackAfter: 10 * time.Minute}
	start := d.now
	d.q.Refused(spot("m"), d.now, d.now)
	d.now = d.now.Add(time.Minute)
	d.q.Accepted(spot("m"), d.now, d.now)
	for minute := 2; minute < 14; minute++ {
		d.now = start.Add(time.Duration(minute) * time.Minute)
		d.refused(spot("m"))
		_, _, free := d.q.Choose(r.Request, d.now)
		require.Equal(t, minute >= 12, free, "after %d min", minute)
	}
}

// TestZonesOfMachines: a subnet has the zone of its machines, as long as that is one.
func TestZonesOfMachines(t *testing.T) {
	for name, c := range map[string]struct {
		in   []string // zones of its machines
		want string
	}{
		"none": {nil, ""}, "one": {[]string{"a"}, "a"}, "the same twice": {[]string{"a", "a"}, "a"}, "not known": {[]string{""}, ""}, "not known at first": {[]string{"", "a"}, "a"},
		"not known later": {[]string{"a", ""}, "a"}, "several": {[]string{"a", "b"}, ""}, "several, for good": {[]string{"a", "b", "a"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := newQueueTest(t)
			for _, zone := range c.in {
				d.q.MachineIn("s", zone)
				d.q.MachineIn("", zone)
			}
			require.Equal(t, c.want, d.q.ZoneOf("s"))
			require.Empty(t, d.q.ZoneOf(""), "machines without a subnet may be anywhere")
		})
	}
}

// TestRateWithoutZone: it counts for the mean of its market, and says nothing of any pool.
func TestRateWithoutZone(t *testing.T) {
	d := newQueueTest(t)
	r := rate("m", "", 1000, 10)
	r.LastReclaim = d.now
	d.q.SetRates([]place.Rate{r}, d.now)
	got, why := d.chosen(request(admission.Loss, 1, "m", "n"))
	require.Equal(t, "m", got)
	require.Equal(t, place.ChoiceListed, why)
}

// TestQuotaWithoutSubnets: a lack of quota counts for the shape itself, too.
func TestQuotaWithoutSubnets(t *testing.T) {
	d := newQueueTest(t)
	d.q.RefusedQuota(spot("m"), nil, d.now, d.now)
	got, _ := d.chosen(request(admission.Loss, 1, "m"))
	require.Empty(t, got)
}
