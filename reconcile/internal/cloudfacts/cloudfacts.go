// Package cloudfacts asks a provider for what creates must know of its cloud: free
// addresses and zones of subnets, prices and placement scores of spot machines, and the
// zones that the cloud shifts away from.
//
// A [Reader] hands each answer on. An error is logged, and leaves what was known. Subnets,
// spot capacity and shifts are asked for separately: a call that hangs delays no other kind.
package cloudfacts

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/provider"
)

const (
	// CountPause is how long free addresses are not counted again after an answer.
	CountPause = 15 * time.Second

	// PriceInterval is how often prices are read: clouds change them a few times a day.
	PriceInterval = 10 * time.Minute

	// ShiftInterval is how often zonal shifts are read.
	ShiftInterval = time.Minute

	// scoreInterval is how often one set of types is scored: clouds permit few different
	// questions in a day.
	scoreInterval = time.Hour

	// maxScores is how many sets of types are scored within scoreWindow: EC2 answers ten
	// different questions in a day ("Spot placement score", EC2 User Guide, Limitations).
	maxScores   = 10
	scoreWindow = 24 * time.Hour
)

// A Question is what the groups of a shard must know.
type Question struct {
	Subnets     []string       // whose free addresses and zones matter
	SpotTypes   []string       // whose prices matter
	SpotSubnets []string       // whose zones have those prices
	GroupSizes  map[string]int // size of the largest group that needs placement scores, by place.TypesKey
}

// spotWithin reports whether q asks for nothing about spot capacity but what other does.
func (q Question) spotWithin(other Question) bool {
	for key := range q.GroupSizes {
		if other.GroupSizes[key] == 0 {
			return false
		}
	}
	return subset(q.SpotTypes, other.SpotTypes) && subset(q.SpotSubnets, other.SpotSubnets)
}

func subset(a, of []string) bool {
	return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(of, s) })
}

// Options are what a Reader needs. Its functions are called from several goroutines.
type Options struct {
	Question func() Question
	Now      func() time.Time
	Log      *slog.Logger

	// What the answers are handed to. Zones are by subnet, scores by zone.
	Addresses func(free map[string]int, asked time.Time)
	Zones     func(zones map[string]string)
	Prices    func(types []string, prices []nstance.Price, asked time.Time)
	Scores    func(typesKey string, scores map[string]int)
	Shifts    func([]nstance.ZoneShift)
}

// A Reader asks a provider, as far as it can tell.
type Reader struct {
	can provider.Abilities
	Options

	countWake chan struct{}        // has room for one: the last count is old
	spotWake  chan struct{}        // has room for one: there are other groups
	scoredAt  map[string]time.Time // by place.TypesKey
	unscored  map[string]bool      // sets of types beyond maxScores, which is logged

	mu         sync.Mutex
	located    map[string]bool // subnets whose zone was read
	shiftError string          // of the latest attempt; empty: it had none
}

// New returns a Reader of what a provider can tell.
func New(can provider.Abilities, o Options) *Reader {
	return &Reader{
		can: can, Options: o, countWake: make(chan struct{}, 1), spotWake: make(chan struct{}, 1),
		scoredAt: map[string]time.Time{}, unscored: map[string]bool{}, located: map[string]bool{},
	}
}

// CountAddresses has free addresses counted again, CountPause after the last count at the
// earliest.
func (r *Reader) CountAddresses() { wake(r.countWake) }

// GroupsChanged has prices and scores read that no group needed before.
func (r *Reader) GroupsChanged() { wake(r.spotWake) }

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run reads what there is to know until ctx ends.
func (r *Reader) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { r.followSubnets(ctx) })
	wg.Go(func() { r.followSpot(ctx) })
	wg.Go(func() { r.followShifts(ctx) })
}

// ReadFirst reads, until ctx ends, what the first creates need: all but scores. Other
// subnets are those that groups may use soon.
func (r *Reader) ReadFirst(ctx context.Context, otherSubnets []string) {
	q := r.Question()
	subnets := append(slices.Clone(q.Subnets), otherSubnets...)
	slices.Sort(subnets)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { r.readSubnets(ctx, slices.Compact(subnets)) })
	wg.Go(func() { r.readPrices(ctx, q, r.Now()) })
	wg.Go(func() { r.readShifts(ctx) })
}

func (r *Reader) followSubnets(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.countWake:
		}
		if subnets := r.Question().Subnets; len(subnets) > 0 {
			r.readSubnets(ctx, subnets)
			if !sleep.For(ctx, CountPause) {
				return
			}
		}
	}
}

func (r *Reader) readSubnets(ctx context.Context, subnets []string) {
	if len(subnets) == 0 {
		return
	}
	if r.can.Subnets != nil {
		asked := r.Now()
		free, err := r.can.Subnets.FreeAddresses(ctx, subnets)
		if err != nil {
			r.Log.Warn("free addresses not counted", "code", nstance.CodeOf(err), "err", err)
		} else {
			r.Addresses(free, asked)
		}
	}
	r.locate(ctx, subnets)
}

// locate asks once for the zone of each subnet: it never changes.
func (r *Reader) locate(ctx context.Context, subnets []string) {
	unknown := r.unlocated(subnets)
	if r.can.Zones == nil || len(unknown) == 0 {
		return
	}
	zones, err := r.can.Zones.SubnetZones(ctx, unknown)
	if err != nil {
		r.Log.Warn("zones of subnets not read", "code", nstance.CodeOf(err), "err", err)
		return
	}
	r.mu.Lock()
	for subnet := range zones {
		r.located[subnet] = true
	}
	r.mu.Unlock()
	r.Zones(zones)
}

func (r *Reader) unlocated(subnets []string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(subnets), func(s string) bool { return r.located[s] })
}

// followSpot reads prices and scores now, every PriceInterval, and when groups need others.
func (r *Reader) followSpot(ctx context.Context) {
	for {
		q := r.Question()
		r.readPrices(ctx, q, r.Now())
		r.readScores(ctx, q.GroupSizes, r.Now())
		if !r.awaitSpot(ctx, q) {
			return
		}
	}
}

// awaitSpot waits until the answers to q are old or not enough. It returns false when ctx has
// ended.
func (r *Reader) awaitSpot(ctx context.Context, q Question) bool {
	old := time.NewTimer(PriceInterval*9/10 + rand.N(PriceInterval/5))
	defer old.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-old.C:
			return true
		case <-r.spotWake:
			if !r.Question().spotWithin(q) {
				return true
			}
		}
	}
}

// readPrices asks for prices, and for the zones that have them.
func (r *Reader) readPrices(ctx context.Context, q Question, now time.Time) {
	if r.can.Prices == nil || len(q.SpotTypes) == 0 {
		return
	}
	r.locate(ctx, q.SpotSubnets)
	prices, err := r.can.Prices.Prices(ctx, q.SpotTypes)
	if err != nil {
		r.Log.Warn("prices not read", "code", nstance.CodeOf(err), "err", err)
		return
	}
	r.Prices(q.SpotTypes, prices, now)
}

// readScores asks for each set of types once in scoreInterval, whether it is answered or not.
func (r *Reader) readScores(ctx context.Context, sizes map[string]int, now time.Time) {
	if r.can.Scores == nil {
		return
	}
	maps.DeleteFunc(r.scoredAt, func(_ string, at time.Time) bool { return now.Sub(at) >= scoreWindow })
	for _, key := range slices.Sorted(maps.Keys(sizes)) {
		at, asked := r.scoredAt[key]
		switch {
		case now.Sub(at) < scoreInterval:
			continue
		case !asked && len(r.scoredAt) >= maxScores:
			r.passOver(key)
			continue
		}
		delete(r.unscored, key)
		r.scoredAt[key] = now
		scores, err := r.can.Scores.ZoneScores(ctx, strings.Fields(key), sizes[key])
		if err != nil {
			r.Log.Warn("placement scores not read", "types", key, "code", nstance.CodeOf(err), "err", err)
			continue
		}
		r.Scores(key, scores)
	}
}

// passOver logs once that a set of types has no placement scores.
func (r *Reader) passOver(key string) {
	if !r.unscored[key] {
		r.Log.Warn("no placement scores: the cloud answers few different questions in a day", "types", key, "limit", maxScores)
	}
	r.unscored[key] = true
}

func (r *Reader) followShifts(ctx context.Context) {
	interval := time.NewTicker(ShiftInterval)
	defer interval.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-interval.C:
			r.readShifts(ctx)
		}
	}
}

func (r *Reader) readShifts(ctx context.Context) {
	if r.can.Shifts == nil {
		return
	}
	shifts, err := r.can.Shifts.ShiftedZones(ctx)
	switch {
	case err == nil:
		r.recordShiftError("")
		r.Shifts(shifts)
	case ctx.Err() == nil && r.recordShiftError(err.Error()): // once, not every minute
		r.Log.Warn("zonal shifts not read", "code", nstance.CodeOf(err), "err", err)
	}
}

// recordShiftError reports whether it is another error than that of the attempt before.
func (r *Reader) recordShiftError(text string) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed, r.shiftError = text != r.shiftError, text
	return changed
}
