// Package health tells how machines are: on the machine itself, and from the
// signs of life that reach a server.
//
// On the machine a [Collector] measures what it uses and runs the probes that
// its owner defined; both go into the agent's reports. At the server a [Policy]
// judges the [Track] of each instance: whether it is in touch, whether the
// provider must be asked, and when silence means that it is lost. That half is
// pure: values in, verdicts out, no clock, no I/O, no lock.
package health

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	window          = time.Minute
	defaultInterval = 5 * time.Second
	minInterval     = time.Second // bounds what the window holds
)

// CollectorOptions say what a Collector measures. Nil and zero fields mean the
// defaults.
type CollectorOptions struct {
	// Proc is where Linux shows its state. Empty means /proc.
	Proc string

	// DiskPath is a path on the file system whose usage is reported. Empty
	// means /.
	DiskPath string

	// Interval is the time between samples, from one second to one minute.
	// Zero means five seconds.
	Interval time.Duration

	// Probes are run by Run, at most 32 of them, eight at the same time.
	Probes []Probe

	// Log is told when measuring begins to fail, and when it works again. Nil
	// discards.
	Log *slog.Logger
}

// A Collector measures the machine that it runs on. Its methods are safe for
// concurrent use, except for Run with itself. Create it with NewCollector.
type Collector struct {
	source   source
	interval time.Duration
	probes   []*probing
	client   *http.Client
	log      *slog.Logger

	mu      sync.Mutex
	samples []sample // oldest first, none older than the window
}

// NewCollector returns a Collector that has not measured anything. Fails with
// Invalid for an interval out of bounds or a probe that cannot be run.
func NewCollector(opts *CollectorOptions) (*Collector, error) {
	var o CollectorOptions
	if opts != nil {
		o = *opts
	}
	if o.Proc == "" {
		o.Proc = "/proc"
	}
	if o.DiskPath == "" {
		o.DiskPath = "/"
	}
	if o.Interval == 0 {
		o.Interval = defaultInterval
	}
	if o.Interval < minInterval || o.Interval > window {
		return nil, nstance.FieldError("interval", "use 1s to 1m", "%v is out of bounds", o.Interval)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	probes, err := checkProbes(o.Probes)
	if err != nil {
		return nil, err
	}
	return &Collector{
		source:   source{proc: o.Proc, disk: o.DiskPath},
		interval: o.Interval,
		probes:   probes,
		client:   probeClient(),
		log:      o.Log,
	}, nil
}

// Run takes a sample at once and then one each interval, and so it runs each
// probe, until ctx ends; then it waits for the probes and returns nil. What
// cannot be read is left out of the averages: trouble with one file is logged
// once and never ends the collector.
func (c *Collector) Run(ctx context.Context) error {
	var probes sync.WaitGroup
	defer probes.Wait()
	slots := make(chan struct{}, maxProbesAtOnce)
	for _, p := range c.probes {
		probes.Go(func() { c.repeat(ctx, p, slots) })
	}
	tick := time.NewTicker(c.interval)
	defer tick.Stop()
	trouble := ""
	for {
		trouble = c.sample(trouble)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// sample adds a sample and returns what is wrong, which is logged if it differs
// from what was wrong before.
func (c *Collector) sample(before string) (trouble string) {
	s, err := c.source.read(time.Now())
	if err != nil {
		trouble = err.Error()
	}
	c.add(s)
	switch trouble {
	case before:
	case "":
		c.log.Info("machine usage can be read again")
	default:
		c.log.Warn("machine usage cannot be read", "err", err)
	}
	return trouble
}

func (c *Collector) add(s sample) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.samples = append(within(c.samples, s.at), s)
}

// Usage returns the averages over the last minute, or since Run began if that
// is shorter. What is not known is zero: before the first sample, on systems
// other than Linux, and for the processor before the second sample.
func (c *Collector) Usage() nstance.Usage {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return average(within(c.samples, now))
}
