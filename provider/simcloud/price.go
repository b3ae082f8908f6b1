package simcloud

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/nstance-go/nstance"
)

// SetPrice changes what machines of a pool cost for an hour; 0 makes it unknown. The pool
// names all three fields.
func (c *Cloud) SetPrice(p Pool, perHour float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if perHour <= 0 {
		delete(c.prices, p)
		return
	}
	c.prices[p] = perHour
}

// Prices implements [nstance.PriceLister].
func (c *Cloud) Prices(ctx context.Context, types []string) (prices []nstance.Price, err error) {
	err = c.call(ctx, opPrices, "", func() error {
		for p, perHour := range c.prices {
			if slices.Contains(types, p.InstanceType) {
				prices = append(prices, nstance.Price{InstanceType: p.InstanceType, Zone: p.Zone, Market: p.Market, PerHour: perHour})
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(prices, func(a, b nstance.Price) int {
		return cmp.Or(cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.Market, b.Market))
	})
	return prices, nil
}

// ZoneScores implements [nstance.ZoneScorer].
func (c *Cloud) ZoneScores(ctx context.Context, _ []string, _ int) (scores map[string]int, err error) {
	err = c.call(ctx, opZoneScores, "", func() error {
		scores = maps.Clone(c.o.Scores)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return scores, nil
}
