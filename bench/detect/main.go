// Command detect measures how long a reclaim notice takes from the moment at
// which a machine's metadata service shows it until the shard server has it.
// Real agents with the product's detectors watch metadata services of their
// own over HTTP, aws by polling, gcp by long poll, and tell a whole server over
// mutual TLS. Notices appear at random moments.
//
//	go run ./bench/detect [-agents 100] [-poll 2s] [-spread 10s] [-json detect.json]
//
// The floor of polling is the poll interval itself, half of it on average.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/bench/internal/rig"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/imds"
)

const margin = 100 * time.Millisecond // T1: beyond the poll interval, for p99

func main() {
	agents := flag.Int("agents", 100, "agents, of each kind")
	poll := flag.Duration("poll", 2*time.Second, "how often agents poll where they must")
	spread := flag.Duration("spread", 10*time.Second, "time within which the notices appear")
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	report := rig.Report{Bench: "detect", Target: "T1", With: map[string]any{"agents": *agents, "poll": poll.String(), "spread": spread.String()}}
	for _, c := range []struct {
		protocol, name string
		target         time.Duration
	}{{imds.AWS, "aws, poll", *poll + margin}, {imds.GCP, "gcp, long poll", margin}} {
		samples, err := run(ctx, c.protocol, *agents, *poll, *spread)
		if err != nil {
			fmt.Fprintln(os.Stderr, "detect:", err)
			os.Exit(1)
		}
		report.Results = append(report.Results, rig.Sum(c.name, samples, c.target))
	}
	if err := report.Show(os.Stdout, *out); err != nil {
		fmt.Fprintln(os.Stderr, "detect:", err)
		os.Exit(1)
	}
}

// A clock records when the server had each instance's notice.
type clock struct {
	rig.Changes
	had   map[nstance.InstanceID]time.Time
	ready int
}

func (c *clock) journal(e nstance.Event) {
	now := time.Now()
	switch e.Type {
	case eventtype.NoticeDetected:
		c.Do(func() { c.had[e.Instance] = now })
	case nstance.EventReady:
		c.Do(func() { c.ready++ })
	}
}

// run measures one kind of metadata service.
func run(ctx context.Context, protocol string, agents int, poll, spread time.Duration) (samples []time.Duration, err error) {
	c := &clock{had: map[nstance.InstanceID]time.Time{}}
	r, err := rig.Start(ctx, rig.Options{Machines: agents, Journal: c.journal})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Stop()) }()
	f, err := newFleet(ctx, r, protocol, poll)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	if err := c.Wait(ctx, func() bool { return c.ready == agents }); err != nil {
		return nil, fmt.Errorf("not all agents became ready: %w", err)
	}
	shown := f.announce(ctx, spread)
	if err := c.Wait(ctx, func() bool { return len(c.had) == agents }); err != nil {
		return nil, fmt.Errorf("not every notice arrived: %w", err)
	}
	for id, at := range shown {
		samples = append(samples, c.had[id].Sub(at))
	}
	return samples, nil
}

// announce shows every machine's notice at a moment of its own within spread,
// and returns when that was.
func (f *fleet) announce(ctx context.Context, spread time.Duration) map[nstance.InstanceID]time.Time {
	var mu sync.Mutex
	shown := map[nstance.InstanceID]time.Time{}
	var wg sync.WaitGroup
	for id, cloud := range f.clouds {
		wg.Go(func() {
			select {
			case <-time.After(rand.N(spread)):
			case <-ctx.Done():
				return
			}
			mu.Lock()
			shown[id] = time.Now()
			mu.Unlock()
			cloud.Reclaim("terminate", time.Now().Add(2*time.Minute))
		})
	}
	wg.Wait()
	return shown
}
