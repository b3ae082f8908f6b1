package admin

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// A Cost is what cost prints: an estimate from the prices at launch, in the cloud's currency.
type Cost struct {
	Since         time.Time  `json:"since"`
	Until         time.Time  `json:"until"`
	Pools         []PoolCost `json:"pools"`
	Total         float64    `json:"total"`
	UnpricedHours float64    `json:"unpriced_hours"` // machine hours whose price is not known: not in Total
}

// A PoolCost is what the machines of one type in one zone and market cost.
type PoolCost struct {
	InstanceType  string  `json:"instance_type"`
	Zone          string  `json:"zone"`
	Market        string  `json:"market"`
	Hours         float64 `json:"hours"`
	UnpricedHours float64 `json:"unpriced_hours"`
	Factor        float64 `json:"factor"` // of --factor; 1 without
	Cost          float64 `json:"cost"`
	Reclaims      int32   `json:"reclaims"`
}

// A typeNumber is a number for instance types that fit a pattern, in one market or in all.
type typeNumber struct {
	pattern string
	market  string // empty: all
	number  float64
}

func costCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "cost", Short: "Estimate what a period's machines cost",
		Long: "Estimate what a period's machines cost, from what the cloud said of prices when they were launched. Machines\n" +
			"without a known price are listed as hours, unless --price says what they cost.",
		Args: arguments(),
	}
	out, read := newOutput(cmd), readRates(cmd, env)
	var factors, prices []string
	cmd.Flags().StringArrayVar(&factors, "factor", nil, "what is really paid, as TYPE[/MARKET]=FACTOR: m5.*=0.8 is a discount of 20%; may be repeated, the first that fits counts")
	cmd.Flags().StringArrayVar(&prices, "price", nil, "price for an hour where the cloud said none, as TYPE[/MARKET]=PRICE: m5.large/on-demand=0.096; may be repeated")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		paid, err := typeNumbers("--factor", factors)
		if err != nil {
			return err
		}
		known, err := typeNumbers("--price", prices)
		if err != nil {
			return err
		}
		return read(cmd, func(resp *apiv1.GetInterruptionRatesResponse) error {
			cost := costOf(resp, paid, known)
			return out.print(cost, func(t *table) { writeCost(t, cost) })
		})
	}
	return cmd
}

// typeNumbers reads TYPE[/MARKET]=NUMBER. Types may have * and ?.
func typeNumbers(flag string, texts []string) (all []typeNumber, err error) {
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		n := typeNumber{}
		n.pattern, n.market, _ = strings.Cut(name, "/")
		n.number, err = strconv.ParseFloat(value, 64)
		_, malformed := path.Match(n.pattern, "")
		market := n.market == "" || n.market == string(nstance.Spot) || n.market == string(nstance.OnDemand)
		if !ok || err != nil || malformed != nil || n.pattern == "" || !market || !(n.number >= 0 && n.number < 1e9) {
			return nil, nstance.FieldError(flag, "use such as m5.*=0.8 or m5.large/on-demand=0.096", "%.64q is not TYPE[/MARKET]=NUMBER", text)
		}
		all = append(all, n)
	}
	return all, nil
}

// numberFor returns the first number that fits, and whether there is one.
func numberFor(all []typeNumber, instanceType, market string) (float64, bool) {
	i := slices.IndexFunc(all, func(n typeNumber) bool {
		fits, _ := path.Match(n.pattern, instanceType) // its pattern was checked
		return fits && (n.market == "" || n.market == market)
	})
	if i < 0 {
		return 0, false
	}
	return all[i].number, true
}

func costOf(resp *apiv1.GetInterruptionRatesResponse, factors, prices []typeNumber) Cost {
	c := Cost{Since: wire.TimeOf(resp.GetSince()), Until: wire.TimeOf(resp.GetUntil()), Pools: []PoolCost{}}
	for _, r := range resp.GetRates() {
		pool := PoolCost{
			InstanceType: r.GetInstanceType(), Zone: r.GetZone(), Market: r.GetMarket(), Hours: r.GetMachineTime().AsDuration().Hours(),
			UnpricedHours: (r.GetMachineTime().AsDuration() - r.GetPricedTime().AsDuration()).Hours(), Factor: 1, Cost: r.GetCost(), Reclaims: r.GetReclaims(),
		}
		if price, ok := numberFor(prices, pool.InstanceType, pool.Market); ok {
			pool.Cost, pool.UnpricedHours = pool.Cost+price*pool.UnpricedHours, 0
		}
		if factor, ok := numberFor(factors, pool.InstanceType, pool.Market); ok {
			pool.Cost, pool.Factor = pool.Cost*factor, factor
		}
		c.Total, c.UnpricedHours = c.Total+pool.Cost, c.UnpricedHours+pool.UnpricedHours
		c.Pools = append(c.Pools, pool)
	}
	return c
}

func writeCost(t *table, c Cost) {
	if len(c.Pools) == 0 {
		t.say("no machines between %s and %s", c.Since.Format(time.RFC3339), c.Until.Format(time.RFC3339))
		return
	}
	t.say("from %s to %s, by the prices at launch", c.Since.Format(time.RFC3339), c.Until.Format(time.RFC3339))
	t.row("TYPE", "ZONE", "MARKET", "HOURS", "WITHOUT PRICE", "FACTOR", "COST", "RECLAIMS")
	for _, p := range c.Pools {
		t.row(cmp.Or(p.InstanceType, "unknown"), cmp.Or(p.Zone, "unknown"), cmp.Or(p.Market, "unknown"), decimal(p.Hours, 1), decimal(p.UnpricedHours, 1),
			strconv.FormatFloat(p.Factor, 'g', -1, 64), decimal(p.Cost, 2), count(p.Reclaims))
	}
	t.row("total", "", "", "", decimal(c.UnpricedHours, 1), "", decimal(c.Total, 2), "")
}

func decimal(n float64, places int) string { return strconv.FormatFloat(n, 'f', places, 64) }
