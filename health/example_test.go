package health_test

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
)

// A server tracks one instance whose stream breaks and which never reports again.
func Example() {
	policy := health.Policy{Interval: time.Minute, Jitter: -1, Missed: 3}
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	evaluate := func(t health.Track, seconds int) {
		verdict, _ := policy.Evaluate(t, at(seconds))
		fmt.Printf("%3d s: %s\n", seconds, verdict)
	}

	track := policy.Begin(at(0), true)
	evaluate(track, 1)
	track.Reported(at(2))
	evaluate(track, 2)
	track.Disconnected(at(10), false)
	evaluate(track, 10)
	track.Answered(at(11), nstance.StatusRunning)
	evaluate(track, 11)
	evaluate(track, 62)
	track.Answered(at(63), nstance.StatusRunning)
	evaluate(track, 63)
	evaluate(track, 182)
	// Output:
	//   1 s: waiting
	//   2 s: healthy
	//  10 s: ask provider
	//  11 s: waiting
	//  62 s: ask provider
	//  63 s: silent
	// 182 s: unhealthy
}

// An agent runs user-defined probes.
func ExampleCollector() {
	c, err := health.NewCollector(&health.CollectorOptions{
		Probes: []health.Probe{{Name: "shell", Command: []string{"/bin/sh", "-c", "exit 0"}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	for _, result := range c.Probes(ctx) {
		fmt.Println(result.Name, result.OK)
	}
	stop()
	<-ended
	// Output: shell true
}
