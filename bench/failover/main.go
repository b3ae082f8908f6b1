// Command failover measures how long a shard is without a leader: from the
// signal to the leading server until the other one answers calls. The signal is
// SIGTERM, a planned hand-over, and SIGKILL, a crash. Servers are real processes
// over one directory; their shard has no machines, so that nothing but the
// change of leader is measured (bench/takeover measures reading a large one).
//
//	go run ./bench/failover [-n 10] [-ttl 6s] [-json failover.json]
//
// The floor of a crash is the ttl less its third: a leader that dies just before
// it would have renewed leaves that much. That of a hand-over is nothing.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/nstance-go/nstance/bench/internal/figures"
	"github.com/nstance-go/nstance/internal/servercmd"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/provider/simcloud"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 && os.Args[1] == "run" { // this program is its own server
		os.Exit(servercmd.Main(ctx, servercmd.Parts{Kinds: provider.Kinds{local.Kind(), simcloud.Kind()}}, os.Args[1:], os.Stdout, os.Stderr, os.Getenv))
	}
	n := flag.Int("n", 10, "changes of each kind")
	ttl := flag.Duration("ttl", 6*time.Second, "of the lease")
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	if err := run(ctx, *n, *ttl, *out); err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
}

// A result is all changes of one kind.
type result struct {
	Case     string    `json:"case"`
	Changes  []float64 `json:"changes_ms"` // sorted
	MedianMS float64   `json:"median_ms"`
	MaxMS    float64   `json:"max_ms"`
	FloorMS  float64   `json:"floor_ms"`
	TargetMS float64   `json:"target_ms"` // T9; 0: none, the ttl is not the default
	OK       bool      `json:"ok"`
}

// A report is what is written as JSON.
type report struct {
	Bench   string   `json:"bench"`
	Target  string   `json:"target"`
	Go      string   `json:"go"`
	CPUs    int      `json:"cpus"`
	TTLMS   float64  `json:"ttl_ms"`
	Results []result `json:"results"`
}

func run(ctx context.Context, n int, ttl time.Duration, out string) error {
	p, err := newPair(ctx, ttl)
	if err != nil {
		return err
	}
	defer p.close()
	rep := report{Bench: "failover", Target: "T9", Go: runtime.Version(), CPUs: runtime.GOMAXPROCS(0), TTLMS: ms(ttl)}
	for _, c := range []struct {
		name          string
		signal        os.Signal
		floor, target time.Duration
	}{
		{"planned (SIGTERM)", syscall.SIGTERM, 0, 500 * time.Millisecond},
		{"crash (SIGKILL)", os.Kill, ttl - ttl/3, 7 * time.Second},
	} {
		r := result{Case: c.name, FloorMS: ms(c.floor), TargetMS: ms(c.target)}
		for range n {
			took, err := p.change(ctx, c.signal)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			r.Changes = append(r.Changes, ms(took))
		}
		rep.Results = append(rep.Results, r.judged(ttl))
	}
	if err := rep.print(); err != nil {
		return err
	}
	return figures.Save(out, rep)
}

// judged fills in what follows from the changes.
func (r result) judged(ttl time.Duration) result {
	if len(r.Changes) == 0 {
		return r
	}
	slices.Sort(r.Changes)
	r.MedianMS, r.MaxMS = r.Changes[len(r.Changes)/2], r.Changes[len(r.Changes)-1]
	if ttl != 6*time.Second {
		r.TargetMS = 0
	}
	r.OK = r.TargetMS == 0 || r.MaxMS <= r.TargetMS
	return r
}

func (r report) print() error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "case\tchanges\tmedian\tmax\tfloor\ttarget\tok\t")
	for _, c := range r.Results {
		fmt.Fprintf(w, "%s\t%d\t%.0f ms\t%.0f ms\t%.0f ms\t%.0f ms\t%t\t\n", c.Case, len(c.Changes), c.MedianMS, c.MaxMS, c.FloorMS, c.TargetMS, c.OK)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("\n%s, %d processors, ttl %.0f ms\n", r.Go, r.CPUs, r.TTLMS)
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
