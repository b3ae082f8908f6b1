package reconcile

import (
	"context"
	"log/slog"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	// countPause is how long the provider is not asked for free addresses after an
	// answer.
	countPause = 15 * time.Second

	// firstCount is how long a term waits for its first count.
	firstCount = 2 * time.Second
)

// An addressCounter asks the provider for the free addresses of subnets.
type addressCounter struct {
	subnets nstance.SubnetCounter // nil: the provider cannot tell
	counted func(free map[string]int, asked time.Time)
	now     func() time.Time
	log     *slog.Logger
	wake    chan struct{} // has room for one: the last count is old
}

func newAddressCounter(subnets nstance.SubnetCounter, counted func(free map[string]int, asked time.Time), o *Options) *addressCounter {
	return &addressCounter{subnets: subnets, counted: counted, now: o.Now, log: o.Log, wake: make(chan struct{}, 1)}
}

// ask has the free addresses counted again.
func (c *addressCounter) ask() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run counts the free addresses of the subnets in use whenever the last count is old,
// until ctx ends.
func (c *addressCounter) run(ctx context.Context, inUse func() []string) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
		if subnets := inUse(); len(subnets) > 0 {
			c.count(ctx, subnets)
			if !sleep.For(ctx, countPause) {
				return
			}
		}
	}
}

// count asks for the free addresses of subnets. What is not answered leaves the old
// count.
func (c *addressCounter) count(ctx context.Context, subnets []string) {
	if c.subnets == nil || len(subnets) == 0 {
		return
	}
	asked := c.now()
	free, err := c.subnets.FreeAddresses(ctx, subnets)
	if err != nil {
		c.log.Warn("free addresses not counted", "code", nstance.CodeOf(err), "err", err)
		return
	}
	c.counted(free, asked)
}
