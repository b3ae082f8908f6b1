// Command attack measures what hostile clients make a shard server hold: the server is a
// process of its own with default limits, and after each attack the result is how much its
// resident memory was above what it had idle. While an attack lasts, an agent registers and
// connects.
//
//	go run ./bench/attack [-json attack.json]
//
// It needs Linux, and about 5,000 file descriptors.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"text/tabwriter"
	"time"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/bench/internal/figures"
	"github.com/nstance-go/nstance/bench/internal/rig"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/test/flood"
)

const targetMiB = 64 // T22

const (
	hold   = 10 * time.Second // how long each attack goes on: connections that were closed are opened again
	sample = 20 * time.Millisecond
)

func main() {
	if rig.Served() {
		return
	}
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := run(ctx, *out); err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

// An attack keeps so many connections open.
type attack struct {
	name    string
	conns   int
	sources int // addresses that they come from
	start   func(ctx context.Context, r *rig.Remote, from net.IP) error
}

// A result is one attack.
type result struct {
	Attack      string  `json:"attack"`
	Connections int     `json:"connections"` // attempted at the same time
	Opened      int     `json:"opened"`      // in all
	IdleMiB     float64 `json:"idle_mib"`
	PeakMiB     float64 `json:"peak_mib"` // above idle
	AgentMS     float64 `json:"agent_ms"` // until an agent had registered and reported, the slowest
	Agents      int     `json:"agents"`   // that did so meanwhile
	Repeated    int     `json:"repeated"` // attempts that failed
}

// A report is what is written as JSON.
type report struct {
	Bench   string   `json:"bench"`
	Target  string   `json:"target"`
	Go      string   `json:"go"`
	CPUs    int      `json:"cpus"`
	Results []result `json:"results"`
	OK      bool     `json:"ok"`
}

func run(ctx context.Context, out string) error {
	rep := report{Bench: "attack", Target: "T22", Go: runtime.Version(), CPUs: runtime.GOMAXPROCS(0), OK: true}
	var u flood.Unfinished
	defer u.Close()
	for _, a := range attacks(&u) {
		res, err := measure(ctx, a, &u)
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		rep.Results = append(rep.Results, res)
		rep.OK = rep.OK && res.PeakMiB <= targetMiB
	}
	fmt.Printf("%s (%s), %s, %d CPUs\n", rep.Bench, rep.Target, rep.Go, rep.CPUs)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tconnections\topened\tidle\tabove idle\tagents meanwhile\tthe slowest\trepeated\t")
	for _, r := range rep.Results {
		fmt.Fprintf(w, "%s\t%d\t%d\t%.1f MiB\t%.1f MiB\t%d\t%.0f ms\t%d\t\n", r.Attack, r.Connections, r.Opened, r.IdleMiB, r.PeakMiB, r.Agents, r.AgentMS, r.Repeated)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("target %d MiB above idle; ok %t\n", targetMiB, rep.OK)
	return figures.Save(out, rep)
}

func attacks(u *flood.Unfinished) []attack {
	calls := func(operator func(*rig.Remote) *tls.Certificate, size, count, piece int) func(context.Context, *rig.Remote, net.IP) error {
		return func(ctx context.Context, r *rig.Remote, from net.IP) error {
			c := flood.Calls{From: from, Count: count, Size: size, Piece: piece, Addr: r.Registration, Method: apiv1.RegistrationService_RegisterAgent_FullMethodName}
			var cert *tls.Certificate
			if operator != nil {
				cert = operator(r)
				c.Addr, c.Method = r.Operators, apiv1.OperatorService_Plan_FullMethodName
			}
			c.TLS = pki.ClientTLS(r.Roots, cert, rig.Zone, rig.Cluster)
			return u.Start(ctx, c)
		}
	}
	used := func(r *rig.Remote) *tls.Certificate { return r.Operator }
	revoked := func(r *rig.Remote) *tls.Certificate { return r.Revoked }
	return []attack{
		{"anonymous, a call without its last byte", 2048, 16, calls(nil, 30<<10, 1, 16<<10)},
		{"anonymous, 100 calls each", 2048, 16, calls(nil, 30<<10, 100, 16<<10)},
		{"anonymous, in frames of a byte", 2048, 16, calls(nil, 30<<10, 4, 1)},
		{"anonymous, half a ClientHello", 2048, 16, func(ctx context.Context, r *rig.Remote, from net.IP) error {
			return u.StartHello(ctx, from, r.Registration)
		}},
		{"an operator, 64 calls each", 64, 1, calls(used, 1<<20, 64, 16<<10)},
		{"a revoked operator, 64 calls each", 64, 1, calls(revoked, 1<<20, 64, 16<<10)},
	}
}

// measure plays an attack on a server of its own.
func measure(ctx context.Context, a attack, u *flood.Unfinished) (res result, err error) {
	r, err := rig.Launch(ctx, rig.Orders{Machines: 200, Operator: true})
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, r.Stop()) }()
	first, err := rig.Apply(r.Specs[0])
	if err == nil {
		err = join(ctx, r, 0, first) // what is made once is idle
	}
	if err != nil {
		return res, err
	}
	idle, err := r.Memory()
	if err != nil {
		return res, err
	}
	res = result{Attack: a.name, Connections: a.conns, IdleMiB: float64(idle.Settled) / (1 << 20)}
	defer u.Close()
	ctx, cancel := context.WithTimeout(ctx, hold)
	defer cancel()
	opened := make(chan int, 1)
	go func() { opened <- keepOpen(ctx, r, a, u) }()
	agents := make(chan struct{})
	go func() { defer close(agents); res.joinAll(ctx, r) }()
	peak := 0
	for tick := time.NewTicker(sample); ctx.Err() == nil; <-tick.C {
		now, err := r.Resident()
		if err != nil {
			return res, err
		}
		peak = max(peak, now)
	}
	res.Opened, res.PeakMiB = <-opened, float64(peak-idle.Settled)/(1<<20)
	<-agents
	return res, nil
}

// keepOpen opens the connections of an attack, and others for those that were closed.
func keepOpen(ctx context.Context, r *rig.Remote, a attack, u *flood.Unfinished) (opened int) {
	for tick := time.NewTicker(sample); ctx.Err() == nil; <-tick.C {
		for u.Open() < a.conns && ctx.Err() == nil {
			if a.start(context.WithoutCancel(ctx), r, net.IPv4(127, 1, 0, byte(1+opened%a.sources))) != nil {
				break // refused; once more at the next tick
			}
			opened++
		}
	}
	return opened
}

// joinAll has one agent after another register and connect.
func (res *result) joinAll(ctx context.Context, r *rig.Remote) {
	for n := 1; n < len(r.Specs); n++ {
		began := time.Now()
		a, err := rig.Apply(r.Specs[n])
		for ; err == nil; res.Repeated++ { // as agents do: with the same key
			if join(ctx, r, n, a) == nil {
				break
			}
			if ctx.Err() != nil {
				return
			}
		}
		res.Agents++
		res.AgentMS = max(res.AgentMS, float64(time.Since(began))/float64(time.Millisecond))
	}
}

func join(ctx context.Context, r *rig.Remote, n int, a rig.Applicant) error {
	cert, err := r.Send(ctx, n, a)
	if err != nil {
		return err
	}
	s, err := r.Connect(ctx, n, cert)
	if err != nil {
		return err
	}
	return s.Close()
}
