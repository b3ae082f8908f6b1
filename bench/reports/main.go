// Command reports measures how many health reports a second one server takes, on the full
// path: the agent sends a report over its stream and waits for the acknowledgement. The
// server is a process of its own, every agent has a connection over mutual TLS.
//
//	go run ./bench/reports [-agents 1000] [-rounds 10] [-json reports.json]
//
// The floor is a bare gRPC server that returns the same message on as many streams. Both are
// asked in turn, a second each, and the ratio is the median of all rounds. A server reads at
// most 50 messages a second from one agent: use so many agents that this is not the limit.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/nstance-go/nstance/bench/internal/figures"
	"github.com/nstance-go/nstance/bench/internal/rig"
)

const (
	target     = 0.6 // T4: reports a second, by the floor's
	roundTime  = time.Second
	openWidth  = 16 // connections opened at the same time
	agentLimit = 50 // messages a second that a server reads from one agent
)

func main() {
	if rig.Served() {
		return
	}
	agents := flag.Int("agents", 1000, "connected agents, and bare streams")
	rounds := flag.Int("rounds", 10, "seconds for each of both")
	profile := flag.String("profile", "", "file for a profile of the server's processor time")
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := run(ctx, *agents, *rounds, *profile, *out); err != nil {
		fmt.Fprintln(os.Stderr, "reports:", err)
		os.Exit(1)
	}
}

// A result is one server.
type result struct {
	Case      string  `json:"case"`
	Samples   int     `json:"samples"`
	PerSecond float64 `json:"per_second"`
	ServerUS  float64 `json:"server_us"` // processor time of the server for one

	rates  []float64 // of each round
	wall   time.Duration
	server time.Duration
}

// A report is what is written as JSON.
type report struct {
	Bench   string   `json:"bench"`
	Target  string   `json:"target"`
	Go      string   `json:"go"`
	CPUs    int      `json:"cpus"`
	Agents  int      `json:"agents"`
	Results []result `json:"results"`
	Ratio   float64  `json:"ratio"`        // the median of the rounds
	CPU     float64  `json:"server_ratio"` // of the processor time for one
	Limited bool     `json:"limited"`      // the limit of each agent may have been reached
	OK      bool     `json:"ok"`
}

func run(ctx context.Context, agents, rounds int, profile, out string) (err error) {
	r, err := rig.Launch(ctx, rig.Orders{Machines: agents, Bare: true, Profile: profile})
	if err != nil {
		return err
	}
	ctx, disconnect := context.WithCancel(ctx)
	defer func() { err = errors.Join(err, r.Stop()); disconnect() }()
	echoes, reports, err := open(ctx, r, agents)
	if err != nil {
		return err
	}
	floor, subject := result{Case: "echo of the same message"}, result{Case: "report and acknowledgement"}
	for range rounds {
		if err := errors.Join(floor.measure(r, echoes), subject.measure(r, reports)); err != nil {
			return err
		}
	}
	rep := report{
		Bench: "reports", Target: "T4", Go: runtime.Version(), CPUs: runtime.GOMAXPROCS(0), Agents: agents,
		Results: []result{floor.sum(), subject.sum()}, Ratio: medianRatio(subject.rates, floor.rates),
	}
	rep.CPU = rep.Results[1].ServerUS / rep.Results[0].ServerUS
	rep.Limited = rep.Results[1].PerSecond > 0.9*agentLimit*float64(agents)
	rep.OK = rep.Ratio >= target
	if err := rep.print(os.Stdout); err != nil {
		return err
	}
	return figures.Save(out, rep)
}

// open opens both streams of each agent, and returns what each does again and again.
func open(ctx context.Context, r *rig.Remote, agents int) (echoes, reports []func() error, err error) {
	echoes, reports = make([]func() error, agents), make([]func() error, agents)
	g := errgroup.Group{} // streams outlive it
	g.SetLimit(openWidth)
	for n := range agents {
		g.Go(func() error {
			cert, err := r.Register(ctx, n, r.Specs[n])
			if err != nil {
				return err
			}
			session, err := r.Connect(ctx, n, cert)
			if err != nil {
				return err
			}
			conn, err := r.Dial(r.Bare.Mutual, n, cert)
			if err != nil {
				return err
			}
			stream, err := conn.NewStream(ctx, &rig.EchoStream, rig.Echo)
			echoes[n], reports[n] = echo(stream), session.Report
			return err
		})
	}
	return echoes, reports, g.Wait()
}

func echo(stream grpc.ClientStream) func() error {
	number := uint64(0)
	return func() error {
		number++
		return rig.SendEcho(stream, number)
	}
}

// measure has every agent do its part one time after another, for one round.
func (r *result) measure(server *rig.Remote, agents []func() error) error {
	before, err := server.ProcessorTime()
	if err != nil {
		return err
	}
	var done atomic.Int64
	g := errgroup.Group{}
	began := time.Now()
	for _, do := range agents {
		g.Go(func() error {
			for time.Since(began) < roundTime {
				if err := do(); err != nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	took := time.Since(began)
	after, err := server.ProcessorTime()
	r.server += after - before
	r.wall += took
	r.Samples += int(done.Load())
	r.rates = append(r.rates, float64(done.Load())/took.Seconds())
	return err
}

func (r *result) sum() result {
	r.PerSecond = float64(r.Samples) / r.wall.Seconds()
	r.ServerUS = float64(r.server.Microseconds()) / float64(r.Samples)
	return *r
}

func medianRatio(of, floor []float64) float64 {
	ratios := make([]float64, len(of))
	for i := range of {
		ratios[i] = of[i] / floor[i]
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

func (r report) print(to io.Writer) error {
	fmt.Fprintf(to, "%s (%s), %s, %d CPUs, %d agents\n", r.Bench, r.Target, r.Go, r.CPUs, r.Agents)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tsamples\ta second\tserver's processor\t")
	for _, c := range r.Results {
		fmt.Fprintf(w, "%s\t%d\t%.0f\t%.0f µs\t\n", c.Case, c.Samples, c.PerSecond, c.ServerUS)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(to, "%.2f of the floor's rate (target %.1f), %.2f of its processor time; the limit of each agent was reached: %t; ok %t\n",
		r.Ratio, target, r.CPU, r.Limited, r.OK)
	return nil
}
