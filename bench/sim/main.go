// Command sim measures the speed of the simulation: virtual time per second
// of wall clock, with faults, for small groups and for large ones. It builds the
// simulation as make sim does and plays seeds one after another, each in its own
// process, with one processor.
//
//	go run ./bench/sim [-seeds 5] [-json sim.json]
//
// It also prints processor time, which other programs on the same machine affect less.
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
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/nstance-go/nstance/bench/internal/figures"
	"github.com/nstance-go/nstance/internal/test/sim/exact"
)

func main() {
	seeds := flag.Int("seeds", 5, "how many to play of each size")
	module := flag.String("module", ".", "directory of the module")
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *seeds, *module, *out); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

// A result is the measurement of one size.
type result struct {
	Members    int     `json:"members"`
	Seeds      int     `json:"seeds"`
	Events     int     `json:"events"`
	Virtual    float64 `json:"virtual_hours"`
	Violations int     `json:"violations"`
	WallS      float64 `json:"wall_s"`
	CPUS       float64 `json:"cpu_s"`
	PerWall    float64 `json:"virtual_per_wall"`
	PerCPU     float64 `json:"virtual_per_cpu"`
	Target     float64 `json:"target"` // T13, virtual per wall; 0: none
	OK         bool    `json:"ok"`
}

// A report is written as JSON.
type report struct {
	Bench   string   `json:"bench"`
	Target  string   `json:"target"`
	Go      string   `json:"go"`
	CPUs    int      `json:"cpus"`
	Results []result `json:"results"`
}

func run(ctx context.Context, seeds int, module, out string) error {
	dir, err := os.MkdirTemp("", "bench-sim")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program, err := build(ctx, dir, module)
	if err != nil {
		return err
	}
	rep := report{Bench: "sim", Target: "T13", Go: runtime.Version(), CPUs: runtime.NumCPU()}
	for _, c := range []struct {
		members int
		target  float64
	}{{10, 0}, {50, 0}, {200, 1000}} {
		r, err := play(ctx, program, c.members, seeds)
		if err != nil {
			return err
		}
		r.Target, r.OK = c.target, r.PerWall >= c.target && r.Violations == 0
		rep.Results = append(rep.Results, r)
	}
	if err := rep.print(); err != nil {
		return err
	}
	return figures.Save(out, rep)
}

func build(ctx context.Context, dir, module string) (string, error) {
	overlay, err := exact.Write(filepath.Join(dir, "exact"), module, nil)
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "sim")
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", program, "./internal/test/sim/cmd")
	cmd.Dir, cmd.Stderr = module, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return program, cmd.Run()
}

// play plays seeds from 1 on, one at a time. A violation is part of the result.
func play(ctx context.Context, program string, members, seeds int) (result, error) {
	r := result{Members: members}
	cmd := exec.CommandContext(ctx, program, "-json", "-journal=0", "-workers=1", fmt.Sprint("-size=", members), fmt.Sprint("-seeds=", seeds))
	start := time.Now()
	text, err := cmd.Output()
	r.WallS = time.Since(start).Seconds()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("the simulation says %q: %w", text, err)
	}
	r.CPUS = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	r.PerWall, r.PerCPU = r.Virtual*3600/r.WallS, r.Virtual*3600/r.CPUS
	return r, nil
}

func (r report) print() error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "members\tseeds\tvirtual\twall\tcpu\tvirtual / wall\tvirtual / cpu\ttarget\tok\t")
	for _, c := range r.Results {
		fmt.Fprintf(w, "%d\t%d\t%.1f h\t%.1f s\t%.1f s\t%.0f\t%.0f\t%.0f\t%t\t\n", c.Members, c.Seeds, c.Virtual, c.WallS, c.CPUS, c.PerWall, c.PerCPU, c.Target, c.OK)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("\n%s, %d processors\n", r.Go, r.CPUs)
	return nil
}
