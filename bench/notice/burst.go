package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance/bench/internal/figures"
	"github.com/nstance-go/nstance/bench/internal/rig"
)

// Of the cloud, and T3: after the last notice the last create is called within
// maxRatio of the creates, burstWidth at a time, each answered after burstLatency.
const (
	burstLatency = 50 * time.Millisecond
	burstWidth   = 100
	maxRatio     = 1.5
)

// A burstReport is what is written as JSON.
type burstReport struct {
	Bench    string  `json:"bench"`
	Target   string  `json:"target"`
	Go       string  `json:"go"`
	CPUs     int     `json:"cpus"`
	Agents   int     `json:"agents"`
	Notices  int     `json:"notices"`
	Replaced int     `json:"replaced"`
	SentMS   float64 `json:"sent_ms"` // from the first notice to the last one
	LastMS   float64 `json:"last_create_ms"`
	FloorMS  float64 `json:"floor_ms"`
	Ratio    float64 `json:"ratio"`
	OK       bool    `json:"ok"`
}

// runAtOnce has all agents send their notices at the same moment.
func runAtOnce(ctx context.Context, agents, notices int, out string) error {
	w := newWatcher()
	w.latency = burstLatency
	return withFleet(ctx, agents, w, func(_ *rig.Rig, fleet []*agent) error { return burst(ctx, fleet, notices, w, out) })
}

func burst(ctx context.Context, fleet []*agent, notices int, w *watcher, out string) error {
	began := time.Now()
	if err := sendAll(fleet[:notices], w); err != nil {
		return err
	}
	if err := w.Wait(ctx, func() bool { return len(w.created) == notices }); err != nil {
		return fmt.Errorf("%d of %d reclaimed members were replaced: %w", len(w.created), notices, err)
	}
	var lastSent, lastCreated time.Time
	w.Do(func() {
		lastSent, lastCreated = latestOf(w.sent), latestOf(w.created)
	})
	floor := time.Duration(notices) * burstLatency / burstWidth
	took := lastCreated.Sub(lastSent)
	rep := burstReport{
		Bench: "notice", Target: "T3", Go: runtime.Version(), CPUs: runtime.GOMAXPROCS(0), Agents: len(fleet), Notices: notices, Replaced: len(w.created),
		SentMS: ms(lastSent.Sub(began)), LastMS: ms(took), FloorMS: ms(floor), Ratio: float64(took) / float64(floor),
	}
	rep.OK = rep.Ratio <= maxRatio
	fmt.Printf("%d of %d agents noticed within %.0f ms, %d replaced; last create called %.0f ms after the last notice, floor %.0f ms, ratio %.2f, target %.1f, ok %t\n",
		rep.Notices, rep.Agents, rep.SentMS, rep.Replaced, rep.LastMS, rep.FloorMS, rep.Ratio, maxRatio, rep.OK)
	return figures.Save(out, rep)
}

// sendAll sends one notice on each stream, all at once.
func sendAll(fleet []*agent, w *watcher) error {
	var senders errgroup.Group
	begin := make(chan struct{})
	for _, a := range fleet {
		senders.Go(func() error {
			<-begin
			err := a.notice()
			w.note(w.sent, a.id)
			return err
		})
	}
	close(begin)
	return senders.Wait()
}

func latestOf[K comparable](moments map[K]time.Time) (latest time.Time) {
	for _, at := range moments {
		if at.After(latest) {
			latest = at
		}
	}
	return latest
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
