package reconcile

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/groupspec"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
)

const (
	// priceInterval is how often prices are read: clouds change them a few times a day.
	priceInterval = 10 * time.Minute

	// scoreInterval is how often one set of types is scored: clouds permit few different
	// questions in a day.
	scoreInterval = time.Hour

	// maxScores is how many sets of types are scored: EC2 answers ten different questions
	// in a day ("Spot placement score", EC2 User Guide, Limitations).
	maxScores = 10
)

// A spotQuestion is what the groups of a shard must know of spot capacity.
type spotQuestion struct {
	types    []string       // that have a price
	subnets  []string       // whose zones have prices
	scoredOf map[string]int // size of the largest group by its types, see typesKey
}

// within reports whether q asks for nothing but what other does.
func (q spotQuestion) within(other spotQuestion) bool {
	for key := range q.scoredOf {
		if other.scoredOf[key] == 0 {
			return false
		}
	}
	return subset(q.types, other.types) && subset(q.subnets, other.subnets)
}

func subset(a, of []string) bool {
	return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(of, s) })
}

// A spotReader asks the provider what spot machines cost and where they can be had.
type spotReader struct {
	locate func(ctx context.Context, subnets []string)
	prices nstance.PriceLister // nil: the provider cannot tell
	scores nstance.ZoneScorer  // nil: likewise
	priced func(types []string, prices []nstance.Price, asked time.Time)
	scored func(types string, zones map[string]int)
	log    *slog.Logger
	wake   chan struct{} // has room for one: there are other groups

	scoredAt map[string]time.Time // by typesKey; of the goroutine that reads
}

func newSpotReader(can provider.Abilities, locate func(context.Context, []string), priced func([]string, []nstance.Price, time.Time), scored func(string, map[string]int), log *slog.Logger) *spotReader {
	return &spotReader{
		locate: locate, prices: can.Prices, scores: can.Scores, priced: priced, scored: scored, log: log,
		wake: make(chan struct{}, 1), scoredAt: map[string]time.Time{},
	}
}

// ask has prices and scores read soon.
func (c *spotReader) ask() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run reads prices and scores every now and then, and when asked, until ctx ends.
func (c *spotReader) run(ctx context.Context, question func() spotQuestion, now func() time.Time) {
	if c.prices == nil && c.scores == nil {
		return
	}
	for {
		q := question()
		c.readPrices(ctx, q, now())
		c.readScores(ctx, q.scoredOf, now())
		if !c.pause(ctx, func() bool { return !question().within(q) }) {
			return
		}
	}
}

// pause waits until prices are old, or something was not asked for yet. It returns false when
// ctx has ended.
func (c *spotReader) pause(ctx context.Context, unknown func() bool) bool {
	wait := time.NewTimer(priceInterval*9/10 + rand.N(priceInterval/5))
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-wait.C:
			return true
		case <-c.wake:
			if unknown() {
				return true
			}
		}
	}
}

// readPrices asks for prices, and for the zones that have them. Without an answer the last
// prices count until they are old.
func (c *spotReader) readPrices(ctx context.Context, q spotQuestion, now time.Time) {
	if c.prices == nil || len(q.types) == 0 {
		return
	}
	c.locate(ctx, q.subnets)
	prices, err := c.prices.Prices(ctx, q.types)
	if err != nil {
		c.log.Warn("prices not read", "code", nstance.CodeOf(err), "err", err)
		return
	}
	c.priced(q.types, prices, now)
}

func (c *spotReader) readScores(ctx context.Context, wanted map[string]int, now time.Time) {
	if c.scores == nil {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		at, asked := c.scoredAt[key]
		if asked && now.Sub(at) < scoreInterval || !asked && len(c.scoredAt) >= maxScores {
			continue
		}
		c.scoredAt[key] = now
		zones, err := c.scores.ZoneScores(ctx, typesOf(key), wanted[key])
		if err != nil {
			c.log.Warn("placement scores not read", "types", key, "code", nstance.CodeOf(err), "err", err)
			continue
		}
		c.scored(key, zones)
	}
}

// typesKey names a set of types, typesOf is its inverse.
func typesKey(types []string) string { return strings.Join(slices.Sorted(slices.Values(types)), " ") }

func typesOf(key string) []string { return strings.Fields(key) }

// spotQuestion returns what the groups as they are must know.
func (r *Reconciler) spotQuestion() spotQuestion {
	r.mu.Lock()
	defer r.mu.Unlock()
	types, subnets, q := map[string]bool{}, map[string]bool{}, spotQuestion{scoredOf: map[string]int{}}
	for _, g := range r.groups {
		def := g.spec.Definition
		if def.Market.Type != nstance.Spot || len(def.InstanceTypes) == 0 {
			continue
		}
		for _, t := range def.InstanceTypes {
			types[t] = true
		}
		for _, s := range def.Subnets {
			subnets[s] = true
		}
		if groupspec.Order(&g.spec) == nstance.OrderSteadiest && g.spec.Size > 0 {
			key := typesKey(def.InstanceTypes)
			q.scoredOf[key] = max(q.scoredOf[key], g.spec.Size)
		}
	}
	q.types, q.subnets = slices.Sorted(maps.Keys(types)), slices.Sorted(maps.Keys(subnets))
	return q
}

// recordPrices records an answer about types. It is the price at launch of machines that
// were created a moment before.
func (r *Reconciler) recordPrices(types []string, prices []nstance.Price, asked time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.admission.SetPrices(types, prices, asked)
	for _, m := range r.members {
		if m.price == 0 && m.rec.PricePerHour == 0 && asked.Sub(m.rec.CreatedAt) < priceInterval {
			m.price = r.admission.Price(capacityShape(m.rec.Shape), asked)
		}
	}
	if r.loaded {
		r.admitCreates(r.opts.Now(), nil)
	}
}

func (r *Reconciler) recordScores(types string, zones map[string]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.zoneScores[types] = zones
}

func (r internals) SetPoolRates(rates []loop.PoolRate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := make([]admission.Rate, len(rates))
	for i, rate := range rates {
		known[i] = admission.Rate(rate)
	}
	r.admission.SetRates(known, r.opts.Now())
}

// requestFor returns what a member of g with this definition asks the admission queue for.
func (s *shard) requestFor(g *group, def nstance.Definition) admission.Request {
	request := admission.Request{Count: 1, InstanceTypes: def.InstanceTypes, Subnets: def.Subnets, Market: def.Market, Order: groupspec.Order(&g.spec)}
	if request.Order == nstance.OrderSteadiest {
		request.Scores = s.zoneScores[typesKey(def.InstanceTypes)]
	}
	return request
}
