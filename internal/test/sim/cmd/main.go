// Command cmd plays seeds of the simulation, upward from the first, until it
// is stopped or has played as many as asked for. The last line counts what
// happened; it exits with 1 when an invariant did not hold.
//
// Each seed is played by a process of its own, so that nothing of one seed
// reaches the next. Built as make sim builds it, a seed replays exactly;
// -replay plays each twice and compares everything that happened.
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

// options are what a run is asked for.
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

// run plays the seeds and reports whether everything held.
func run(ctx context.Context, args []string) bool {
	var o options
	f := flag.NewFlagSet("sim", flag.ExitOnError)
	f.Uint64Var(&o.from, "from", 1, "first seed; 0: one that the clock gives")
	f.Uint64Var(&o.seeds, "seeds", 0, "how many seeds; 0: until stopped")
	f.IntVar(&o.workers, "workers", runtime.NumCPU(), "seeds at the same time")
	f.IntVar(&o.lines, "journal", 60, "how many of the last journal lines to print of a seed that fails")
	f.DurationVar(&o.limit, "limit", 5*time.Minute, "longest that one seed may take; longer counts as a violation")
	f.BoolVar(&o.first, "first", false, "stop at the first seed that fails")
	f.BoolVar(&o.replay, "replay", false, "play every seed twice; a difference counts as a violation")
	f.BoolVar(&o.asJSON, "json", false, "print the last line as JSON")
	f.StringVar(&o.trace, "trace", "", "directory for a file per seed with everything that happened")
	f.DurationVar(&o.faults, "faults", 0, "virtual time with faults; 0: the simulation's own")
	f.IntVar(&o.size, "size", 0, "of the group; 0: the simulation's own")
	_ = f.Parse(args) // it exits
	if o.from == 0 {
		o.from = uint64(time.Now().Unix()) << 16
	}
	if !exact {
		fmt.Println("built without the overlay: the order of goroutines is not the seed's; make sim builds it so that a seed replays exactly")
	}
	if o.seeds == 0 {
		fmt.Printf("playing seeds from %d on; press Ctrl-C to stop\n", o.from)
	}
	s := &summary{options: o, start: time.Now()}
	s.play(ctx)
	s.print()
	return s.Violations == 0
}
