package reconcile

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/provider"
)

const (
	// countPause is how long the provider is not asked for free addresses after an
	// answer.
	countPause = 15 * time.Second

	// firstCount is how long a term waits for its first count.
	firstCount = 2 * time.Second
)

// A subnetReader asks the provider for what creates must know of subnets: their free
// addresses and their zones.
type subnetReader struct {
	counter nstance.SubnetCounter // nil: the provider cannot tell
	locator nstance.SubnetLocator // nil: likewise
	counted func(free map[string]int, asked time.Time)
	located func(zones map[string]string)
	now     func() time.Time
	log     *slog.Logger
	wake    chan struct{} // has room for one: the last count is old

	mu    sync.Mutex
	known map[string]bool // subnets whose zone was read
}

// newSubnetReader returns a reader that hands on what the provider answers.
func newSubnetReader(can provider.Abilities, counted func(free map[string]int, asked time.Time), located func(zones map[string]string), o *Options) *subnetReader {
	return &subnetReader{
		counter: can.Subnets, locator: can.Zones, counted: counted, located: located, now: o.Now, log: o.Log,
		wake: make(chan struct{}, 1), known: map[string]bool{},
	}
}

// ask has the subnets read again.
func (c *subnetReader) ask() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run reads the subnets in use whenever the last count is old, until ctx ends.
func (c *subnetReader) run(ctx context.Context, inUse func() []string) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
		if subnets := inUse(); len(subnets) > 0 {
			c.read(ctx, subnets)
			if !sleep.For(ctx, countPause) {
				return
			}
		}
	}
}

// read asks about subnets. What is not answered leaves what was known.
func (c *subnetReader) read(ctx context.Context, subnets []string) {
	if len(subnets) > 0 {
		c.count(ctx, subnets)
		c.locate(ctx, subnets)
	}
}

func (c *subnetReader) count(ctx context.Context, subnets []string) {
	if c.counter == nil {
		return
	}
	asked := c.now()
	free, err := c.counter.FreeAddresses(ctx, subnets)
	if err != nil {
		c.log.Warn("free addresses not counted", "code", nstance.CodeOf(err), "err", err)
		return
	}
	c.counted(free, asked)
}

// locate asks once for the zone of each subnet: it never changes.
func (c *subnetReader) locate(ctx context.Context, subnets []string) {
	unknown := c.unlocated(subnets)
	if c.locator == nil || len(unknown) == 0 {
		return
	}
	zones, err := c.locator.SubnetZones(ctx, unknown)
	if err != nil {
		c.log.Warn("zones of subnets not read", "code", nstance.CodeOf(err), "err", err)
		return
	}
	c.mu.Lock()
	for subnet := range zones {
		c.known[subnet] = true
	}
	c.mu.Unlock()
	c.located(zones)
}

func (c *subnetReader) unlocated(subnets []string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(subnets), func(s string) bool { return c.known[s] })
}
