// Package health measures machines and evaluates their health.
//
// On the machine a [Collector] measures CPU, memory and disk usage and runs the
// user-defined probes; both go into the agent's reports. On the server a [Policy]
// evaluates the [Track] of each instance: whether it reports in time, whether the
// provider must be asked, and when it is unhealthy. The server half is pure:
// values in, verdicts out, no clock, no I/O, no lock.
//
// A Collector is safe for concurrent use. A Policy and a Track are values: a Track must
// not be used concurrently.
package health

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
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

	// Log receives a line when measuring begins to fail, and when it works
	// again. Nil discards.
	Log *slog.Logger
}

// A Collector measures the machine that it runs on. Its methods are safe for
// concurrent use, except for Run with itself. Create it with NewCollector.
type Collector struct {
	source   source
	interval time.Duration
	probes   []*probeState
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
	if err := validate.Duration("interval", o.Interval, minInterval, window); err != nil {
		return nil, err
	}
	o.Interval = cmp.Or(o.Interval, defaultInterval)
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

// Run takes a sample at once and then one each interval, and runs each probe at
// its own interval, until ctx ends. Then it waits for the probes and returns
// nil. Values that cannot be read are left out of the averages. The error is
// logged once and does not end the collector.
func (c *Collector) Run(ctx context.Context) error {
	var probes sync.WaitGroup
	defer probes.Wait()
	slots := make(chan struct{}, maxProbesAtOnce)
	for _, p := range c.probes {
		probes.Go(func() { c.repeatProbe(ctx, p, slots) })
	}
	tick := time.NewTicker(c.interval)
	defer tick.Stop()
	readError := ""
	for {
		readError = c.takeSample(readError)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// takeSample adds a sample and returns the read error, or "". An error that
// differs from the previous one is logged.
func (c *Collector) takeSample(previousError string) (readError string) {
	s, err := c.source.read(time.Now())
	if err != nil {
		readError = err.Error()
	}
	c.addSample(s)
	switch readError {
	case previousError:
	case "":
		c.log.Info("machine usage can be read again")
	default:
		c.log.Warn("machine usage cannot be read: reports leave it out", "err", err)
	}
	return readError
}

func (c *Collector) addSample(s sample) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.samples = append(within(c.samples, s.at), s)
}

// Usage returns the averages over the last minute, or since Run began if that
// is shorter. Unknown values are zero: before the first sample, on systems other
// than Linux, and for the processor before the second sample.
func (c *Collector) Usage() nstance.Usage {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return average(within(c.samples, now))
}
