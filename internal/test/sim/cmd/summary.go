package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance/internal/test/sim"
)

// summary counts the outcomes of all seeds.
type summary struct {
	options
	start time.Time

	mu         sync.Mutex
	Seeds      uint64  `json:"seeds"`
	Events     int     `json:"events"`
	Virtual    float64 `json:"virtual_hours"`
	Violations int     `json:"violations"`

	Times   map[string]int `json:"times"`   // that something happened, by name
	Reached map[string]int `json:"reached"` // seeds in which it did
}

func (s *summary) play(ctx context.Context) {
	var wg sync.WaitGroup
	next := make(chan uint64)
	for range max(1, s.workers) {
		wg.Go(func() {
			for seed := range next {
				if out := s.one(ctx, seed); ctx.Err() == nil {
					s.add(out)
				}
			}
		})
	}
	for seed := s.from; (s.seeds == 0 || seed < s.from+s.seeds) && !s.enough() && ctx.Err() == nil; seed++ {
		select {
		case next <- seed:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
}

// one runs a seed, twice for a replay.
func (s *summary) one(ctx context.Context, seed uint64) outcome {
	out := s.process(ctx, seed, "")
	if s.replay {
		if again := s.process(ctx, seed, "-again"); again.Hash != out.Hash {
			out.Violations = append(out.Violations, sim.Violation{Rule: "replay", What: "two runs differ: " + out.Hash + " and " + again.Hash})
		}
	}
	return out
}

// process runs a seed in a process of its own. An abnormal exit is a violation.
func (s *summary) process(ctx context.Context, seed uint64, suffix string) outcome {
	bounded, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	args := []string{"play", fmt.Sprint("-seed=", seed), fmt.Sprint("-faults=", s.faults), fmt.Sprint("-size=", s.size)}
	if s.trace != "" {
		args = append(args, "-trace="+filepath.Join(s.trace, fmt.Sprintf("%d%s.txt", seed, suffix)))
	}
	cmd := exec.CommandContext(bounded, os.Args[0], args...)
	cmd.Env = []string{"GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1", fmt.Sprint("SIM_SCHEDULE=", seed)}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	var out outcome
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		said := strings.Split(stderr.String()+string(text), "\n")
		out.Seed, out.Journal = seed, said[:min(len(said), 100)]
		out.Violations = []sim.Violation{{Rule: "end", What: fmt.Sprintf("the process of this seed failed: %v", err)}}
	}
	return out
}

func (s *summary) add(res outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Seeds++
	s.Events += res.Events
	s.Virtual += res.Virtual.Hours()
	s.Violations += len(res.Violations)
	for name, n := range res.Fired {
		s.Times[name] += n
		s.Reached[name]++
	}
	if len(res.Violations) > 0 {
		fmt.Printf("seed %d fails; latest events:\n", res.Seed)
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

func (s *summary) print() {
	if s.asJSON {
		_ = json.NewEncoder(os.Stdout).Encode(s) // no other output
		return
	}
	s.printReached()
	fmt.Printf("seeds=%d events=%d virtual=%.0fh violations=%d\n", s.Seeds, s.Events, s.Virtual, s.Violations)
}

// printReached says how often what happened did, the rarest first, and which rules no seed has
// reached.
func (s *summary) printReached() {
	names := slices.Collect(maps.Keys(s.Times))
	for _, name := range sim.Rules() {
		if s.Times[name] == 0 {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(s.Reached[a], s.Reached[b]), cmp.Compare(s.Times[a], s.Times[b]), cmp.Compare(a, b))
	})
	for _, name := range names {
		fmt.Printf("%8d times in %d of %d seeds: %s\n", s.Times[name], s.Reached[name], s.Seeds, name)
	}
}
