// Command all runs every program under bench, and the benchmarks of the module's packages,
// one after another, and writes all their figures to one file. bench/compare sets two such
// files side by side.
//
//	go run ./bench/all [-only name,name] [-json bench.json]
//
// It runs in the module's directory. It goes on after a program that fails, and fails then
// itself at the end.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nstance-go/nstance/bench/internal/figures"
)

// limit is how long one program may take.
const limit = 5 * time.Minute

// A step is one run of a program.
type step struct {
	name    string
	program string
	args    []string
}

// steps are sized so that all take less than twenty minutes on two idle processors.
var steps = []step{
	{"registrations", "registrations", nil},
	{"reports", "reports", nil},
	{"memory", "memory", []string{"-agents", "4000"}},
	{"attack", "attack", nil},
	{"notice", "notice", nil},
	{"notice-at-once", "notice", []string{"-at-once", "-notices", "1000"}},
	{"notice-busy", "notice", []string{"-busy"}},
	{"reclaim", "reclaim", nil},
	{"takeover", "takeover", nil},
	{"failover", "failover", nil},
	{"calls", "calls", nil},
	{"files", "files", nil},
	{"detect", "detect", nil},
	{"agent", "agent", nil},
	{"bridge", "bridge", []string{"-n", "4"}},
	{"sim", "sim", []string{"-seeds", "2"}},
}

func main() {
	only := flag.String("only", "", "names of runs, separated by commas; benchmarks are those of Go; empty: all")
	out := flag.String("json", "bench.json", "file for all figures as JSON")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *only, *out); err != nil {
		fmt.Fprintln(os.Stderr, "all:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only, out string) (err error) {
	dir, err := os.MkdirTemp("", "nstance-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	build := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "./bench/...")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build the programs: %w", err)
	}
	wanted := func(name string) bool { return only == "" || slices.Contains(strings.Split(only, ","), name) }
	all := figures.All{
		Go: runtime.Version(), CPUs: runtime.GOMAXPROCS(0),
		Programs: map[string]json.RawMessage{}, Benchmarks: map[string]figures.Metrics{}, Failed: map[string]string{},
	}
	for _, s := range steps {
		if !wanted(s.name) || ctx.Err() != nil {
			continue
		}
		fmt.Printf("\n== %s %s\n", s.program, strings.Join(s.args, " "))
		if all.Programs[s.name], err = s.run(ctx, dir); err != nil {
			all.Failed[s.name] = err.Error()
			delete(all.Programs, s.name)
		}
	}
	if wanted("benchmarks") && ctx.Err() == nil {
		fmt.Print("\n== benchmarks of packages\n")
		if err := benchmarks(ctx, all.Benchmarks); err != nil {
			all.Failed["benchmarks"] = err.Error()
		}
	}
	if err := errors.Join(ctx.Err(), figures.Save(out, all)); err != nil {
		return err
	}
	if len(all.Failed) > 0 {
		return fmt.Errorf("%d runs failed: %v", len(all.Failed), all.Failed)
	}
	return nil
}

// run runs a program and returns the figures that it has written.
func (s step) run(ctx context.Context, dir string) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	file := filepath.Join(dir, s.name+".json")
	cmd := exec.CommandContext(ctx, filepath.Join(dir, s.program), append(slices.Clone(s.args), "-json", file)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	return os.ReadFile(file)
}
