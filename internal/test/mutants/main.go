// Command mutants counts the small changes to a package that its tests do not notice. A change is
// a condition that is always or never true, an operand of && or || that is left out, or a
// statement that is left out.
//
//	mutants [-tests PACKAGE[,PACKAGE]] [-workers 2] PACKAGE
//
// The package is compiled once with all changes; a variable of the environment says which one is
// made. Changes that no test reaches are not played. It prints those that the tests do not find.
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

// Limits of one run of the tests.
const (
	firstRun  = 10 * time.Minute
	timesLong = 8 // as long as without a change
	atLeast   = 20 * time.Second
)

func main() {
	tests := flag.String("tests", "", "packages whose tests are to find the changes, separated by commas; empty: its own")
	workers := flag.Int("workers", 2, "runs at the same time")
	flag.Parse()
	if err := run(context.Background(), flag.Arg(0), *tests, *workers); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, pkg, tests string, workers int) error {
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
		s, err := build(ctx, name, overlay, filepath.Join(dir, "tests"+strconv.Itoa(i)))
		if err != nil {
			return err
		}
		suites = append(suites, s)
	}
	alive, err := play(ctx, suites, mutants, workers)
	for _, m := range alive {
		fmt.Println(m)
	}
	if err == nil {
		fmt.Printf("%s: %d planted, %d found\n", pkg, len(mutants), len(mutants)-len(alive))
	}
	return err
}

// A suite is a compiled test program.
type suite struct {
	program, dir string
	limit        time.Duration
	reached      map[int]bool
}

// build compiles the tests of a package with all changes, and runs them without one.
func build(ctx context.Context, pkg, overlay, program string) (s suite, err error) {
	s.program = program
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", program, pkg).CombinedOutput(); err != nil {
		return s, fmt.Errorf("compile %s: %w: %s", pkg, err, out)
	}
	found, err := list(ctx, pkg)
	if err != nil {
		return s, err
	}
	s.dir, s.limit = found.Dir, firstRun
	start, file := time.Now(), program+".reached"
	if out, err := s.test(ctx, envReached+"="+file); err != nil {
		return s, fmt.Errorf("the tests of %s fail without a change: %w: %s", pkg, err, out)
	}
	s.limit = max(atLeast, timesLong*time.Since(start))
	content, err := os.ReadFile(file)
	if err != nil {
		return s, fmt.Errorf("the tests of %s reach no change: %w", pkg, err)
	}
	s.reached = map[int]bool{}
	for word := range strings.FieldsSeq(string(content)) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return s, err
		}
		s.reached[n] = true
	}
	return s, nil
}

// test runs the tests, with a variable of the environment.
func (s *suite) test(ctx context.Context, env string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.program, "-test.failfast", "-test.short")
	cmd.Dir, cmd.Env, cmd.WaitDelay = s.dir, append(os.Environ(), env), time.Second
	return cmd.CombinedOutput()
}

// play makes the changes one at a time, and returns those that no test finds.
func play(ctx context.Context, suites []suite, mutants []mutant, workers int) (alive []mutant, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := make(chan mutant)
	for range workers {
		wg.Go(func() {
			for m := range next {
				if finds(ctx, suites, m.number) {
					continue
				}
				mu.Lock()
				alive = append(alive, m)
				mu.Unlock()
			}
		})
	}
	for _, m := range mutants {
		next <- m
	}
	close(next)
	wg.Wait()
	slices.SortFunc(alive, func(a, b mutant) int { return cmp.Compare(a.number, b.number) })
	return alive, ctx.Err()
}

// finds reports whether a test fails with a change.
func finds(ctx context.Context, suites []suite, number int) bool {
	for _, s := range suites {
		if !s.reached[number] {
			continue
		}
		if _, err := s.test(ctx, envMutant+"="+strconv.Itoa(number)); err != nil {
			return true
		}
	}
	return false
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
