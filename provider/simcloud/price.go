package simcloud

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/nstance-go/nstance"
)

// prices are what capacity costs and how likely it is.
type prices struct {
	*core
	calls  *calls
	byPool map[Pool]float64
}

// SetPrice changes what machines of a pool cost for an hour; 0 makes it unknown. The pool
// names all three fields.
func (c *prices) SetPrice(p Pool, perHour float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if perHour <= 0 {
		delete(c.byPool, p)
		return
	}
	c.byPool[p] = perHour
}

// Prices implements [nstance.PriceLister].
func (c *prices) Prices(ctx context.Context, types []string) ([]nstance.Price, error) {
	return ask(ctx, c.calls, opPrices, "", func() (prices []nstance.Price, err error) {
		for p, perHour := range c.byPool {
			if slices.Contains(types, p.InstanceType) {
				prices = append(prices, nstance.Price{InstanceType: p.InstanceType, Zone: p.Zone, Market: p.Market, PerHour: perHour})
			}
		}
		slices.SortFunc(prices, func(a, b nstance.Price) int {
			return cmp.Or(cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.Market, b.Market))
		})
		return prices, nil
	})
}

// ZoneScores implements [nstance.ZoneScorer].
func (c *prices) ZoneScores(ctx context.Context, _ []string, _ int) (map[string]int, error) {
	return ask(ctx, c.calls, opZoneScores, "", func() (map[string]int, error) { return maps.Clone(c.o.Scores), nil })
}
