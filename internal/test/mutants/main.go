// Command mutants counts the small changes to a package that its tests do not notice. A change is
// a condition that is always or never true, an operand of && or || that is left out, or a
// statement that is left out.
//
//	mutants [-tests PACKAGE[,PACKAGE]] [-skip TEST[,TEST]] [-workers 2] PACKAGE
//
// The package is compiled once with all changes; a variable of the environment says which one is
// made. Only tests that reach a change are run with it, the cheapest first. It prints the changes
// that the tests do not find, and those with which they only take too long. Limits are of the
// processor's time, so that other work on the machine finds nothing; a test that waits for ever is
// run twice.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Of the processes that play a change.
const (
	envMutant  = "NSTANCE_MUTANT"         // its number; empty: none
	envReached = "NSTANCE_MUTANT_REACHED" // a file that gets the numbers of those that are reached
)

// Limits of one run of tests.
const (
	timesLong = 8 // of the processor's time, as much as without a change
	atLeast   = 10 * time.Second
	wait      = 2 * time.Minute // of the clock
	cheap     = 200 * time.Millisecond
)

func main() {
	tests := flag.String("tests", "", "packages whose tests are to find the changes, separated by commas; empty: its own")
	skip := flag.String("skip", "", "tests that are left out because they cost much, separated by commas")
	workers := flag.Int("workers", 2, "runs at the same time")
	flag.Parse()
	if err := run(context.Background(), flag.Arg(0), *tests, strings.Split(*skip, ","), *workers); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, pkg, tests string, skip []string, workers int) error {
	if pkg == "" || workers < 1 {
		return errors.New("name a package, such as ./reconcile/plan, and at least one worker")
	}
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	mutants, overlay, err := plant(ctx, pkg, dir)
	if err != nil {
		return err
	}
	var suites []suite
	for i, name := range strings.Split(cmp.Or(tests, pkg), ",") {
		s, err := build(ctx, name, overlay, filepath.Join(dir, "tests"+strconv.Itoa(i)), skip)
		if err != nil {
			return err
		}
		suites = append(suites, s)
	}
	alive, slow := play(ctx, suites, mutants, workers, wait)
	missed, slow := play(ctx, suites, slow, 1, 2*wait)
	for _, m := range slow {
		fmt.Println(m, "(found by the time limit only)")
	}
	alive = append(alive, missed...)
	slices.SortFunc(alive, func(a, b mutant) int { return cmp.Compare(a.number, b.number) })
	for _, m := range alive {
		fmt.Println(m)
	}
	fmt.Printf("%s: %d planted, %d found\n", pkg, len(mutants), len(mutants)-len(alive))
	return nil
}

// A suite is a compiled test program.
type suite struct {
	program, dir string
	tests        []test // the cheapest first
}

// A test is one of a suite.
type test struct {
	name    string
	cost    time.Duration // of the processor, without a change
	reached map[int]bool
}

// build compiles the tests of a package with all changes, and runs each without one, but for those
// to skip.
func build(ctx context.Context, pkg, overlay, program string, skip []string) (s suite, err error) {
	s.program = program
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", program, pkg).CombinedOutput(); err != nil {
		return s, fmt.Errorf("compile %s: %w: %s", pkg, err, out)
	}
	found, err := list(ctx, pkg)
	if err != nil {
		return s, err
	}
	s.dir = found.Dir
	names, err := exec.CommandContext(ctx, program, "-test.list", ".").Output()
	if err != nil {
		return s, fmt.Errorf("list the tests of %s: %w", pkg, err)
	}
	for name := range strings.FieldsSeq(string(names)) {
		if strings.HasPrefix(name, "Benchmark") || slices.Contains(skip, name) {
			continue
		}
		t, err := s.first(ctx, name)
		if err != nil {
			return s, fmt.Errorf("%s of %s, without a change: %w", name, pkg, err)
		}
		s.tests = append(s.tests, t)
	}
	slices.SortStableFunc(s.tests, func(a, b test) int { return cmp.Compare(a.cost, b.cost) })
	return s, nil
}

// first runs a test without a change, to learn what it costs and which changes it reaches.
func (s *suite) first(ctx context.Context, name string) (t test, err error) {
	t = test{name: name, reached: map[int]bool{}}
	file := s.program + ".reached"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return t, err
	}
	if t.cost, err = s.run(ctx, []string{name}, envReached+"="+file, time.Hour, 5*wait); err != nil {
		return t, err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return t, err
	}
	for word := range strings.FieldsSeq(string(content)) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return t, err
		}
		t.reached[n] = true
	}
	return t, nil
}

// errTooSlow is the result of tests that did not end in time.
var errTooSlow = errors.New("the tests take too long")

// run runs tests with a variable of the environment, and returns the processor's time.
func (s *suite) run(ctx context.Context, names []string, env string, cost, limit time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	bounded := fmt.Sprintf(`ulimit -t %d; exec "$0" "$@"`, int(cost.Seconds()))
	cmd := exec.CommandContext(ctx, "sh", "-c", bounded, s.program, "-test.failfast", "-test.short", "-test.run", "^("+strings.Join(names, "|")+")$")
	cmd.Dir, cmd.Env, cmd.WaitDelay = s.dir, append(os.Environ(), env), time.Second
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return 0, errTooSlow
	case err != nil:
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// play makes the changes one at a time, and returns those that no test finds, and those with
// which tests do not end in time.
func play(ctx context.Context, suites []suite, mutants []mutant, workers int, limit time.Duration) (alive, slow []mutant) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := make(chan mutant)
	for range workers {
		wg.Go(func() {
			for m := range next {
				err := find(ctx, suites, m.number, limit)
				mu.Lock()
				switch {
				case err == nil:
					alive = append(alive, m)
				case errors.Is(err, errTooSlow):
					slow = append(slow, m)
				}
				mu.Unlock()
			}
		})
	}
	for _, m := range mutants {
		next <- m
	}
	close(next)
	wg.Wait()
	return alive, slow
}

// find returns how the tests fail with a change, or nil.
func find(ctx context.Context, suites []suite, number int, limit time.Duration) (slow error) {
	for _, s := range suites {
		for _, some := range s.portions(number) {
			cost, names := time.Duration(0), []string(nil)
			for _, t := range some {
				cost, names = cost+t.cost, append(names, t.name)
			}
			switch _, err := s.run(ctx, names, envMutant+"="+strconv.Itoa(number), max(atLeast, timesLong*cost), limit); {
			case errors.Is(err, errTooSlow):
				slow = err
			case err != nil:
				return err
			}
		}
	}
	return slow
}

// portions returns the tests that reach a change: first those that cost little together.
func (s *suite) portions(number int) (out [][]test) {
	var cost time.Duration
	var first, then []test
	for _, t := range s.tests {
		if !t.reached[number] {
			continue
		}
		if cost += t.cost; cost <= cheap {
			first = append(first, t)
		} else {
			then = append(then, t)
		}
	}
	for _, some := range [][]test{first, then} {
		if len(some) > 0 {
			out = append(out, some)
		}
	}
	return out
}

// A listed is what go list says of a package.
type listed struct {
	Dir, Name string
	GoFiles   []string
}

func list(ctx context.Context, pkg string) (out listed, err error) {
	printed, err := exec.CommandContext(ctx, "go", "list", "-json=Dir,Name,GoFiles", pkg).Output()
	if err != nil {
		return out, fmt.Errorf("find %s: %w", pkg, err)
	}
	return out, json.Unmarshal(printed, &out)
}
