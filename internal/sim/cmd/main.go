// Command cmd plays seeds of the simulation, upward from the first, until it
// is stopped or has played as many as asked for. The last line counts what
// happened; it exits with 1 when an invariant did not hold.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-go/nstance/internal/sim"
)

func main() {
	from := flag.Uint64("from", 1, "first seed; 0: one that the clock gives")
	seeds := flag.Uint64("seeds", 0, "how many seeds; 0: until stopped")
	workers := flag.Int("workers", runtime.GOMAXPROCS(0), "seeds at the same time")
	lines := flag.Int("journal", 60, "how many of the last journal lines to print of a seed that fails")
	first := flag.Bool("first", false, "stop at the first seed that fails")
	asJSON := flag.Bool("json", false, "print the last line as JSON")
	testing.Init()
	flag.Parse()
	if *from == 0 {
		*from = uint64(time.Now().Unix()) << 16
	}
	s := &summary{start: time.Now(), lines: *lines, first: *first}
	if *seeds == 0 {
		fmt.Printf("playing seeds from %d on; press Ctrl-C to stop\n", *from)
	}
	// A bubble needs a test around it, in a program too.
	testing.Main(func(_, _ string) (bool, error) { return true, nil }, []testing.InternalTest{{
		Name: "seeds",
		F: func(t *testing.T) {
			s.play(t, *from, *seeds, *workers)
			s.print(*asJSON)
			os.Exit(min(s.Violations, 1)) // before the test says its own last line
		},
	}}, nil, nil)
}

// A summary counts what came of all seeds.
type summary struct {
	mu         sync.Mutex
	start      time.Time
	lines      int
	first      bool
	Seeds      uint64  `json:"seeds"`
	Events     int     `json:"events"`
	Virtual    float64 `json:"virtual_hours"`
	Violations int     `json:"violations"`
}

func (s *summary) play(t *testing.T, from, count uint64, workers int) {
	var wg sync.WaitGroup
	next := make(chan uint64)
	for range max(1, workers) {
		wg.Go(func() {
			for seed := range next {
				s.add(one(t, seed))
			}
		})
	}
	for seed := from; (count == 0 || seed < from+count) && !s.enough(); seed++ {
		next <- seed
	}
	close(next)
	wg.Wait()
}

func one(t *testing.T, seed uint64) (res sim.Result) {
	t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
		synctest.Test(t, func(*testing.T) { res = sim.Run(sim.Config{Seed: seed}) })
	})
	return res
}

func (s *summary) add(res sim.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Seeds++
	s.Events += res.Events
	s.Virtual += res.Virtual.Hours()
	s.Violations += len(res.Violations)
	if len(res.Violations) > 0 {
		fmt.Printf("seed %d fails; the last that happened:\n", res.Seed)
		for _, e := range res.Journal[max(0, len(res.Journal)-s.lines):] {
			fmt.Println("  ", e)
		}
		for _, v := range res.Violations {
			fmt.Printf("seed %d: %v\n", res.Seed, v)
		}
	}
	if s.Seeds%50 == 0 {
		fmt.Printf("%d seeds, up to about %d, in %v\n", s.Seeds, res.Seed, time.Since(s.start).Round(time.Second))
	}
}

func (s *summary) enough() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first && s.Violations > 0
}

func (s *summary) print(asJSON bool) {
	if asJSON {
		_ = json.NewEncoder(os.Stdout).Encode(s) // there is nowhere else to say it
		return
	}
	fmt.Printf("seeds=%d events=%d virtual=%.0fh violations=%d\n", s.Seeds, s.Events, s.Virtual, s.Violations)
}
