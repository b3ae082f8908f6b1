package place

import (
	"math"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	// shortestMemory and longestMemory bound how long shapes of a reclaimed pool come
	// after others. It is longer by shortestMemory for each reclaim that is expected
	// while a machine runs for 100 h.
	shortestMemory = 10 * time.Minute
	longestMemory  = 6 * time.Hour

	// priorHours is how many machine hours of a pool weigh as much as what is expected
	// of a pool about which nothing is known.
	priorHours = 100

	// reclaimCost is the machine time that one reclaim costs: booting the replacement,
	// draining, and repeating work that was lost.
	reclaimCost = 1 // hours

	// meanScore is the middle of the scores that clouds give, 1 to 10.
	meanScore = 5.5

	// firstPrices is how long creates wait for the first answer about the prices of their
	// types. Losses do not wait.
	firstPrices = 2 * time.Second

	// priceMemory is how long an old list of prices is better than none.
	priceMemory = 6 * time.Hour
)

// A Rate is how often machines of one pool were reclaimed.
type Rate struct {
	InstanceType string
	Zone         string
	Market       nstance.MarketType
	MachineTime  time.Duration // that machines ran, all together
	Reclaims     int
	LastReclaim  time.Time // zero: none
}

// SetRates replaces what is known of how often pools are reclaimed, and remembers the
// latest reclaim of each. Without a zone a rate counts for the mean of its market only.
func (m *Map) SetRates(rates []Rate, now time.Time) {
	p := &m.pools
	p.rates = make(map[pool]Rate, len(rates))
	sums := map[nstance.MarketType]Rate{}
	for _, r := range rates {
		if r.Zone != "" {
			p.rates[pool{r.InstanceType, r.Zone, "", r.Market}] = r
		}
		sum := sums[r.Market]
		sum.MachineTime, sum.Reclaims = sum.MachineTime+r.MachineTime, sum.Reclaims+r.Reclaims
		sums[r.Market] = sum
	}
	p.means = make(map[nstance.MarketType]float64, len(sums))
	for market, sum := range sums {
		p.means[market] = mean(sum)
	}
	for at, r := range p.rates {
		p.remember(at, r.LastReclaim, now)
	}
}

// mean is one reclaim in 100 machine hours as long as nothing is known.
func mean(sum Rate) float64 {
	return (float64(sum.Reclaims) + 1) / (sum.MachineTime.Hours() + priorHours)
}

// reclaimsPerHour estimates how often a machine of a pool is reclaimed. A pool with
// few machine hours counts almost like the mean of its market; a score of the cloud
// for its zone, if there is one, shifts what is expected of it.
func (p *poolMemory) reclaimsPerHour(at pool, scores map[string]int) float64 {
	expected, known := p.means[at.Market]
	if !known {
		expected = mean(Rate{})
	}
	if score := scores[at.Zone]; score > 0 {
		expected *= (2*meanScore - float64(score)) / meanScore
	}
	r := p.rates[at]
	return (float64(r.Reclaims) + expected*priorHours) / (r.MachineTime.Hours() + priorHours)
}

// memoryFor returns how long a reclaim in a pool matters for others of its machines.
func (p *poolMemory) memoryFor(at pool) time.Duration {
	minutes := shortestMemory.Minutes() * (1 + 100*p.reclaimsPerHour(at, nil))
	return min(longestMemory, time.Duration(minutes*float64(time.Minute)))
}

// SetPrices replaces what is known of prices by the answer about these types. Without a
// zone a price counts nowhere.
func (m *Map) SetPrices(types []string, prices []nstance.Price, at time.Time) {
	m.pools.prices, m.pools.pricesAt = make(map[pool]float64, len(prices)), at
	m.pools.answered = make(map[string]bool, len(types))
	for _, t := range types {
		m.pools.answered[t] = true
		delete(m.pools.wantedAt, t)
	}
	for _, p := range prices {
		if p.Zone != "" {
			m.pools.prices[pool{p.InstanceType, p.Zone, "", p.Market}] = p.PerHour
		}
	}
}

// Price returns the price of a machine of a shape for an hour; 0: it is not known.
func (m *Map) Price(s Shape, now time.Time) float64 { return m.pools.price(m.pools.poolOf(s), now) }

func (p *poolMemory) price(at pool, now time.Time) float64 {
	if now.Sub(p.pricesAt) > priceMemory {
		return 0
	}
	return p.prices[at]
}

// priced reports whether the price of a shape is known.
func (p *poolMemory) priced(s Shape, now time.Time) bool { return p.price(p.poolOf(s), now) > 0 }

// awaitPrices returns until when a request waits for the first prices of its types; zero:
// it does not.
func (p *poolMemory) awaitPrices(r *Request, now time.Time) (until time.Time) {
	if r.Order != nstance.OrderCheapest || r.Urgent {
		return time.Time{}
	}
	for _, t := range r.InstanceTypes {
		if p.answered[t] {
			continue
		}
		if p.wantedAt[t].IsZero() {
			p.wantedAt[t] = now
		}
		if by := p.wantedAt[t].Add(firstPrices); by.After(now) && by.After(until) {
			until = by
		}
	}
	return until
}

// weight ranks shapes by an order and the scores of zones, smaller first. Shapes without a price
// come after those that have one.
func (p *poolMemory) weight(order nstance.ShapeOrder, scores map[string]int, s Shape, now time.Time) float64 {
	at := p.poolOf(s)
	switch order {
	case nstance.OrderSteadiest:
		return p.reclaimsPerHour(at, scores)
	case nstance.OrderCheapest:
		price := p.price(at, now)
		if price <= 0 {
			return math.Inf(1)
		}
		return price * (1 + reclaimCost*p.reclaimsPerHour(at, nil))
	case nstance.OrderListed:
	}
	return 0
}
