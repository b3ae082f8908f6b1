// Command agent measures what the agent costs a machine: the resident memory and
// the processor time of the real program, which watches a metadata service over
// HTTP and is connected to a whole server over mutual TLS, idle and in the middle
// of a drain, and the size of the program.
//
//	go run ./bench/agent [-provider aws] [-idle 1m] [-beside program] [-json agent.json]
//
// The floor is a program that is nothing but a gRPC client with one connection. With
// -beside another termination handler runs for the idle time, with the same metadata
// service. It needs Linux, and Go to build both programs.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/nstance-go/nstance/bench/internal/figures"
)

// T11.
const (
	maxResident = 16 << 20 // bytes, idle and in the middle of a drain
	maxCPU      = 0.1      // percent of a core, idle
	maxProgram  = 14 << 20 // bytes, stripped
)

func main() {
	protocol := flag.String("provider", "aws", "protocol of the metadata service: aws, gcp or azure")
	idle := flag.Duration("idle", time.Minute, "time over which the processor time is measured")
	beside := flag.String("beside", "", "another program to measure; it finds the metadata service in INSTANCE_METADATA_URL")
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute+*idle)
	defer cancel()
	if err := run(ctx, *protocol, *beside, *idle, *out); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

// A report is what is written as JSON. Sizes are in MiB.
type report struct {
	Bench    string  `json:"bench"`
	Target   string  `json:"target"`
	Go       string  `json:"go"`
	CPUs     int     `json:"cpus"`
	Provider string  `json:"provider"`
	Floor    usage   `json:"floor"`
	Beside   *usage  `json:"beside,omitempty"` // the other program, idle
	Idle     usage   `json:"idle"`
	Draining usage   `json:"draining"`
	Program  float64 `json:"program_mib"`
	OK       bool    `json:"ok"`
}

// A usage is what a process used.
type usage struct {
	Resident float64 `json:"resident_mib"`
	CPU      float64 `json:"cpu_percent"` // of one core, on average
}

func run(ctx context.Context, protocol, beside string, idle time.Duration, out string) error {
	b, err := start(ctx, protocol, beside)
	if err != nil {
		return err
	}
	defer b.stop()
	rep := report{Bench: "agent", Target: "T11", Go: runtime.Version(), CPUs: runtime.GOMAXPROCS(0), Provider: protocol}
	used, err := b.measureIdle(ctx, idle)
	if err != nil {
		return err
	}
	rep.Floor, rep.Idle = used[0], used[1]
	if b.beside != nil {
		rep.Beside = &used[2]
		fmt.Printf("%s: resident %.1f MiB idle; processor %.3f %% idle\n", beside, used[2].Resident, used[2].CPU)
	}
	if rep.Draining, err = b.measureDrain(ctx); err != nil {
		return err
	}
	if rep.Program, err = b.programSize(); err != nil {
		return err
	}
	rep.OK = max(rep.Idle.Resident, rep.Draining.Resident) <= mib(maxResident) && rep.Idle.CPU <= maxCPU && rep.Program <= mib(maxProgram)
	fmt.Printf("%s: resident %.1f MiB idle, %.1f draining (floor %.1f, target %.0f); processor %.3f %% idle (floor %.3f, target %.1f); program %.1f MiB (target %.0f); ok %t\n",
		protocol, rep.Idle.Resident, rep.Draining.Resident, rep.Floor.Resident, mib(maxResident),
		rep.Idle.CPU, rep.Floor.CPU, maxCPU, rep.Program, mib(maxProgram), rep.OK)
	return figures.Save(out, rep)
}

func mib(bytes int) float64 { return float64(bytes) / (1 << 20) }
