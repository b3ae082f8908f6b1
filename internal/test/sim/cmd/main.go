// Command cmd runs seeds of the simulation, upward from the first, until it is stopped
// or has run the given number. The last line counts the results; it exits with 1 when an
// invariant did not hold.
//
// Each seed runs in a process of its own, so that no state of one seed reaches the next.
// Built by make sim, a seed replays exactly; -replay runs each twice and compares
// everything that happened.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "play" {
		play(os.Args[2:])
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if !run(ctx, os.Args[1:]) {
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	from, seeds uint64
	workers     int
	lines       int
	limit       time.Duration
	first       bool
	replay      bool
	asJSON      bool
	trace       string
	faults      time.Duration
	size        int
}

// run runs the seeds and reports whether all invariants held.
func run(ctx context.Context, args []string) bool {
	var o options
	f := flag.NewFlagSet("sim", flag.ExitOnError)
	f.Uint64Var(&o.from, "from", 1, "first seed; 0: from the clock")
	f.Uint64Var(&o.seeds, "seeds", 0, "how many seeds; 0: until stopped")
	f.IntVar(&o.workers, "workers", runtime.NumCPU(), "seeds at the same time")
	f.IntVar(&o.lines, "journal", 60, "how many of the last journal lines to print of a seed that fails")
	f.DurationVar(&o.limit, "limit", 5*time.Minute, "longest run of one seed; longer counts as a violation")
	f.BoolVar(&o.first, "first", false, "stop at the first seed that fails")
	f.BoolVar(&o.replay, "replay", false, "run every seed twice; a difference counts as a violation")
	f.BoolVar(&o.asJSON, "json", false, "print the last line as JSON")
	f.StringVar(&o.trace, "trace", "", "directory for a file per seed with everything that happened")
	f.DurationVar(&o.faults, "faults", 0, "virtual time with faults; 0: default of the simulation")
	f.IntVar(&o.size, "size", 0, "initial size of the group; 0: default of the simulation")
	_ = f.Parse(args) // it exits
	if o.from == 0 {
		o.from = uint64(time.Now().Unix()) << 16
	}
	if !exact {
		fmt.Println("built without the overlay: the order of goroutines does not depend on the seed; make sim builds it so that a seed replays exactly")
	}
	if o.seeds == 0 {
		fmt.Printf("running seeds from %d on; press Ctrl-C to stop\n", o.from)
	}
	s := &summary{options: o, start: time.Now(), Times: map[string]int{}, Reached: map[string]int{}}
	s.play(ctx)
	s.print()
	return s.Violations == 0
}
