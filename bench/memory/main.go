// Command memory measures what a connected idle agent costs a shard server in memory: the
// server is a process of its own, agents are sessions in this one, over mutual TLS, and the
// result is the slope of the server's resident memory between half of the agents and all.
//
//	go run ./bench/memory [-agents 10000] [-json memory.json]
//
// The floor is a bare gRPC server, in a process of its own too, to which as many streams are
// connected, with buffers of the same size. Both are measured as they are, and after a
// garbage collection that gives free memory back. There are as many agents as file
// descriptors permit. It needs Linux.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance/bench/internal/figures"
	"github.com/nstance-go/nstance/bench/internal/rig"
)

// T5.
const (
	targetRatio = 1.3 // of the floor
	targetKiB   = 64
)

const (
	width    = 16  // connections opened at the same time
	otherFDs = 200 // descriptors that are left for other purposes
)

func main() {
	if rig.Served() {
		return
	}
	agents := flag.Int("agents", 10_000, "connected agents, or as many as file descriptors permit")
	heap := flag.String("heap", "", "file for a profile of the server's memory")
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	if err := run(ctx, *agents, *heap, *out); err != nil {
		fmt.Fprintln(os.Stderr, "memory:", err)
		os.Exit(1)
	}
}

// A result is one server. Sizes are in KiB for each agent.
type result struct {
	Case    string  `json:"case"`
	Agents  int     `json:"agents"`
	AsItIs  float64 `json:"resident_kib"`
	Settled float64 `json:"settled_kib"` // after a garbage collection
	Heap    float64 `json:"heap_kib"`    // of it
	Stacks  float64 `json:"stacks_kib"`  // of it
	Base    float64 `json:"base_mib"`    // resident memory of the process without agents
}

// A report is what is written as JSON.
type report struct {
	Bench   string   `json:"bench"`
	Target  string   `json:"target"`
	Go      string   `json:"go"`
	CPUs    int      `json:"cpus"`
	Results []result `json:"results"`
	Ratio   float64  `json:"ratio"` // settled, by the floor
	OK      bool     `json:"ok"`
}

func run(ctx context.Context, agents int, heap, out string) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	agents = min(agents, int(limit.Cur)-otherFDs)
	floor, err := measure(ctx, "bare gRPC stream", rig.Orders{Bare: true}, agents, openBare)
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	subject, err := measure(ctx, "session of an agent", rig.Orders{Machines: agents, Heap: heap}, agents, openSession)
	if err != nil {
		return err
	}
	rep := report{
		Bench: "memory", Target: "T5", Go: runtime.Version(), CPUs: runtime.GOMAXPROCS(0),
		Results: []result{floor, subject}, Ratio: subject.Settled / floor.Settled,
	}
	rep.OK = rep.Ratio <= targetRatio && subject.AsItIs <= targetKiB
	if err := rep.print(); err != nil {
		return err
	}
	return figures.Save(out, rep)
}

func (r report) print() error {
	fmt.Printf("%s (%s), %s, %d CPUs\n", r.Bench, r.Target, r.Go, r.CPUs)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tagents\tresident, each\tafter a collection\tof it heap\tstacks\tthe process without\t")
	for _, c := range r.Results {
		fmt.Fprintf(w, "%s\t%d\t%.1f KiB\t%.1f KiB\t%.1f KiB\t%.1f KiB\t%.0f MiB\t\n", c.Case, c.Agents, c.AsItIs, c.Settled, c.Heap, c.Stacks, c.Base)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("after a collection %.2f of the floor (target %.1f), resident %.1f KiB (target %d); ok %t\n",
		r.Ratio, targetRatio, r.Results[1].AsItIs, targetKiB, r.OK)
	return nil
}

// An opener prepares the nth agent of a server, and returns what connects it.
type opener func(ctx context.Context, r *rig.Remote, n int) (connect func() error, err error)

// measure connects agents to a server of its own.
func measure(ctx context.Context, name string, o rig.Orders, agents int, open opener) (_ result, err error) {
	r, err := rig.Launch(ctx, o)
	if err != nil {
		return result{}, err
	}
	ctx, disconnect := context.WithCancel(ctx)
	defer func() { err = errors.Join(err, r.Stop()); disconnect() }() // a profile of the memory shows what is connected
	connects := make([]func() error, agents)
	if err := forEach(agents, func(n int) (err error) {
		connects[n], err = open(ctx, r, n)
		return err
	}); err != nil {
		return result{}, err
	}
	base, err := r.Memory()
	if err != nil {
		return result{}, err
	}
	half, err := connectUpTo(r, connects[:agents/2])
	if err != nil {
		return result{}, err
	}
	all, err := connectUpTo(r, connects[agents/2:])
	if err != nil {
		return result{}, err
	}
	each := func(less, more int) float64 { return float64(more-less) / 1024 / float64(agents-agents/2) }
	return result{
		Case: name, Agents: agents, Base: float64(base.Settled) / (1 << 20),
		AsItIs: float64(all.AsItIs-base.Settled) / 1024 / float64(agents), Settled: each(half.Settled, all.Settled),
		Heap: each(half.Heap, all.Heap), Stacks: each(half.Stacks, all.Stacks),
	}, nil
}

func connectUpTo(r *rig.Remote, connects []func() error) (rig.Memory, error) {
	if err := forEach(len(connects), func(n int) error { return connects[n]() }); err != nil {
		return rig.Memory{}, err
	}
	return r.Memory()
}

func forEach(count int, do func(n int) error) error {
	g := errgroup.Group{} // streams outlive it
	g.SetLimit(width)
	for n := range count {
		g.Go(func() error { return do(n) })
	}
	return g.Wait()
}

func openBare(ctx context.Context, r *rig.Remote, n int) (func() error, error) {
	id, err := rig.NewID()
	if err != nil {
		return nil, err
	}
	cert, err := r.Issue(id)
	if err != nil {
		return nil, err
	}
	conn, err := r.Dial(r.Bare.Mutual, n, cert)
	return func() error {
		stream, err := conn.NewStream(ctx, &rig.EchoStream, rig.Echo)
		if err != nil {
			return err
		}
		return rig.SendEcho(stream, 1)
	}, err
}

func openSession(ctx context.Context, r *rig.Remote, n int) (func() error, error) {
	cert, err := r.Register(ctx, n, r.Specs[n])
	return func() error { return connect(ctx, r, n, cert) }, err
}

func connect(ctx context.Context, r *rig.Remote, n int, cert *tls.Certificate) error {
	_, err := r.Connect(ctx, n, cert)
	return err
}
