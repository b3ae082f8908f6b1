package health_test

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
)

// A server follows one instance whose stream breaks and which never comes back.
func Example() {
	policy := health.Policy{Interval: time.Minute, Jitter: -1, Missed: 3}
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	judge := func(t health.Track, seconds int) {
		verdict, _ := policy.Judge(t, at(seconds))
		fmt.Printf("%3d s: %s\n", seconds, verdict)
	}

	track := policy.Begin(at(0), true)
	judge(track, 1)
	track.Reported(at(2))
	judge(track, 2)
	track.Disconnected(at(10), false)
	judge(track, 10)
	track.Answered(at(11), nstance.StatusRunning)
	judge(track, 11)
	judge(track, 62)
	track.Answered(at(63), nstance.StatusRunning)
	judge(track, 63)
	judge(track, 182)
	// Output:
	//   1 s: waiting
	//   2 s: well
	//  10 s: ask
	//  11 s: waiting
	//  62 s: ask
	//  63 s: silent
	// 182 s: unhealthy
}

// An agent runs the probes that the machine's owner wants.
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
