// Command registrations measures how many agents a second a shard server registers, and
// how many new sessions it opens: each over a new connection with a TLS 1.3 handshake, to a
// server in a process of its own, over a store in memory.
//
//	go run ./bench/registrations [-rounds 40] [-block 50] [-json registrations.json]
//
// The floor is a bare mutual handshake of TLS 1.3 on the same machine. Blocks of every case
// follow one another in each round, so that what else the machine does affects all alike, and
// ratios are the medians of all rounds.
// Clients prepare their keys and requests before. Between floor and product two bare gRPC
// servers show what gRPC itself costs for a new connection.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nstance-go/nstance/bench/internal/figures"
	"github.com/nstance-go/nstance/bench/internal/rig"
)

const (
	target = 0.6 // T6: registrations a second, by the floor's
	width  = 16  // clients at the same time
)

func main() {
	if rig.Served() {
		return
	}
	rounds := flag.Int("rounds", 40, "blocks of each case")
	block := flag.Int("block", 50, "operations of one block")
	profile := flag.String("profile", "", "file for a profile of the server's processor time")
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := run(ctx, *rounds, *block, *profile, *out); err != nil {
		fmt.Fprintln(os.Stderr, "registrations:", err)
		os.Exit(1)
	}
}

// A result is one case.
type result struct {
	Case      string  `json:"case"`
	Samples   int     `json:"samples"`
	PerSecond float64 `json:"per_second"`
	Ratio     float64 `json:"ratio"`            // of the floor's rate, the median of the rounds
	ServerMS  float64 `json:"server_ms"`        // processor time of the server for one
	CPURatio  float64 `json:"server_ratio"`     // of the floor's processor time
	Target    float64 `json:"target,omitempty"` // T6, of ratio; 0: none
	OK        bool    `json:"ok"`

	rounds       []time.Duration // of each block
	wall, server time.Duration
}

// A report is what is written as JSON.
type report struct {
	Bench   string   `json:"bench"`
	Target  string   `json:"target"`
	Go      string   `json:"go"`
	CPUs    int      `json:"cpus"`
	Width   int      `json:"width"`
	Results []result `json:"results"`
}

func run(ctx context.Context, rounds, block int, profile, out string) (err error) {
	n := rounds * block
	r, err := rig.Launch(ctx, rig.Orders{Machines: n, Bare: true, Profile: profile})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Stop()) }()
	b := &bench{Remote: r, certs: make([]*tls.Certificate, n), sessions: make([]*rig.Session, n)}
	if err := b.prepare(); err != nil {
		return err
	}
	cases := []struct {
		name   string
		target float64
		do     func(ctx context.Context, n int) error
	}{
		{"mutual handshake", 0, b.handshake},
		{"gRPC call on a new connection", 0, b.call},
		{"registration", target, b.register},
		{"gRPC stream on a new connection", 0, b.echo},
		{"session, with its first report", 0, b.connect},
	}
	results := make([]result, len(cases))
	for round := range rounds {
		for i, c := range cases {
			results[i].Case, results[i].Target = c.name, c.target
			if err := results[i].measure(ctx, r, round*block, block, c.do); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	rep := report{Bench: "registrations", Target: "T6", Go: runtime.Version(), CPUs: runtime.GOMAXPROCS(0), Width: width, Results: sum(results)}
	if err := rep.print(os.Stdout); err != nil {
		return err
	}
	return errors.Join(figures.Save(out, rep), b.close())
}

// measure does a block of a case.
func (r *result) measure(ctx context.Context, server *rig.Remote, from, n int, do func(context.Context, int) error) error {
	before, err := server.ProcessorTime()
	if err != nil {
		return err
	}
	began := time.Now()
	g := errgroup.Group{} // sessions outlive it
	g.SetLimit(width)
	for i := from; i < from+n; i++ {
		g.Go(func() error { return do(ctx, i) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	took := time.Since(began)
	r.wall, r.rounds = r.wall+took, append(r.rounds, took)
	after, err := server.ProcessorTime()
	r.server += after - before
	r.Samples += n
	return err
}

// sum compares every case with the first.
func sum(all []result) []result {
	for i := range all {
		r := &all[i]
		n := float64(r.Samples)
		r.PerSecond = n / r.wall.Seconds()
		r.ServerMS = 1000 * r.server.Seconds() / n
		r.Ratio = medianRatio(all[0].rounds, r.rounds)
		r.CPURatio = r.server.Seconds() / all[0].server.Seconds()
		r.OK = r.Ratio >= r.Target
	}
	return all
}

func medianRatio(floor, of []time.Duration) float64 {
	ratios := make([]float64, len(of))
	for i := range of {
		ratios[i] = floor[i].Seconds() / of[i].Seconds()
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

func (r report) print(to io.Writer) error {
	fmt.Fprintf(to, "%s (%s), %s, %d CPUs, %d clients at a time\n", r.Bench, r.Target, r.Go, r.CPUs, r.Width)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tsamples\ta second\tby the floor\tserver's processor\tby the floor\ttarget\t")
	for _, c := range r.Results {
		target := "-"
		if c.Target > 0 {
			target = fmt.Sprintf("%g: %s", c.Target, map[bool]string{true: "ok", false: "missed"}[c.OK])
		}
		fmt.Fprintf(w, "%s\t%d\t%.0f\t%.2f\t%.2f ms\t%.2f\t%s\t\n", c.Case, c.Samples, c.PerSecond, c.Ratio, c.ServerMS, c.CPURatio, target)
	}
	return w.Flush()
}

// A bench is a server with machines that register one after another.
type bench struct {
	*rig.Remote
	applicants []rig.Applicant
	bareCerts  []*tls.Certificate
	certs      []*tls.Certificate
	sessions   []*rig.Session
}

func (b *bench) prepare() error {
	for _, spec := range b.Specs {
		a, err := rig.Apply(spec)
		if err != nil {
			return err
		}
		cert, err := b.Issue(spec.ID)
		if err != nil {
			return err
		}
		b.applicants, b.bareCerts = append(b.applicants, a), append(b.bareCerts, cert)
	}
	return nil
}

func (b *bench) handshake(ctx context.Context, n int) error {
	return b.Handshake(ctx, b.Bare.Handshake, n, b.bareCerts[n])
}

func (b *bench) call(ctx context.Context, n int) error {
	conn, err := b.Dial(b.Bare.Open, n, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Invoke(ctx, rig.Nothing, &emptypb.Empty{}, &emptypb.Empty{})
}

func (b *bench) register(ctx context.Context, n int) (err error) {
	b.certs[n], err = b.Send(ctx, n, b.applicants[n])
	return err
}

func (b *bench) echo(ctx context.Context, n int) error {
	conn, err := b.Dial(b.Bare.Mutual, n, b.bareCerts[n])
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := conn.NewStream(ctx, &rig.EchoStream, rig.Echo)
	if err == nil {
		err = rig.SendEcho(stream, 1)
	}
	return err
}

func (b *bench) connect(ctx context.Context, n int) (err error) {
	b.sessions[n], err = b.Connect(ctx, n, b.certs[n])
	return err
}

func (b *bench) close() error {
	var errs []error
	for _, s := range b.sessions {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
