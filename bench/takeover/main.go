// Command takeover measures how long a new leader takes to load its shard: from
// the beginning of its term until it plans. It does so without a snapshot, with
// one, and with one behind which part of the records have changed, over a store
// in memory that answers as slowly as object storage.
//
//	go run ./bench/takeover [-records 10000] [-latency 20ms] [-json takeover.json]
//
// The floor is arithmetic: the pages of the listing one after another, or with a snapshot
// that one and all pages at once, then the records that must be read, 64 at a time, each
// answered after the latency.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/bench/internal/figures"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

var owner = nstance.Owner{Installation: "bench", Cluster: "bench", Shard: "s1"}

const (
	width = 64   // records read at the same time
	page  = 1000 // keys in one answer of a listing, as S3 has it
)

func main() {
	records := flag.Int("records", 10_000, "records of the shard")
	latency := flag.Duration("latency", 20*time.Millisecond, "of each answer of the store")
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	if err := run(context.Background(), *records, *latency, *out); err != nil {
		fmt.Fprintln(os.Stderr, "takeover:", err)
		os.Exit(1)
	}
}

// A result is one takeover.
type result struct {
	Case     string  `json:"case"`
	Records  int     `json:"records"`
	Reads    int     `json:"reads"` // of records
	ReadyMS  float64 `json:"ready_ms"`
	FloorMS  float64 `json:"floor_ms"`
	Ratio    float64 `json:"ratio"`
	TargetMS float64 `json:"target_ms"` // T8; 0: none
	OK       bool    `json:"ok"`
}

// A report is what is written as JSON.
type report struct {
	Bench     string   `json:"bench"`
	Target    string   `json:"target"`
	Go        string   `json:"go"`
	CPUs      int      `json:"cpus"`
	LatencyMS float64  `json:"latency_ms"`
	Snapshot  int      `json:"snapshot_bytes"`
	Results   []result `json:"results"`
}

func run(ctx context.Context, n int, latency time.Duration, out string) error {
	b := &bench{store: storage.NewMemory(), cloud: simcloud.New(nil), n: n, latency: latency}
	defer b.cloud.Close()
	if err := b.fill(ctx); err != nil {
		return err
	}
	rep := report{Bench: "takeover", Target: "T8", Go: runtime.Version(), CPUs: runtime.GOMAXPROCS(0), LatencyMS: ms(latency)}
	for _, c := range []struct {
		name    string
		changed int           // records changed behind the snapshot
		target  time.Duration // T8
		prepare func(context.Context) error
	}{
		{"no snapshot", n, 5 * time.Second, nil},
		{"snapshot", 0, 500 * time.Millisecond, b.save},
		{"snapshot, 2% changed since", n / 50, 500 * time.Millisecond, b.change},
	} {
		if c.prepare != nil {
			if err := c.prepare(ctx); err != nil {
				return err
			}
		}
		r, err := b.takeOver(ctx, c.changed)
		if err != nil {
			return err
		}
		r.Case, r.TargetMS = c.name, ms(c.target)
		r.OK = r.ReadyMS <= r.TargetMS
		rep.Results = append(rep.Results, r)
	}
	if obj, err := b.store.Get(ctx, layout.SnapshotKey(owner.Shard)); err == nil {
		rep.Snapshot = len(obj.Data)
	}
	if err := rep.print(); err != nil {
		return err
	}
	return figures.Save(out, rep)
}

func (r report) print() error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "case\trecords\tread\tready\tfloor\tratio\ttarget\tok\t")
	for _, c := range r.Results {
		fmt.Fprintf(w, "%s\t%d\t%d\t%.0f ms\t%.0f ms\t%.2f\t%.0f ms\t%t\t\n", c.Case, c.Records, c.Reads, c.ReadyMS, c.FloorMS, c.Ratio, c.TargetMS, c.OK)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("\n%s, %d processors, %.0f ms latency; the snapshot has %d KiB\n", r.Go, r.CPUs, r.LatencyMS, r.Snapshot>>10)
	return nil
}

// A bench is one shard between two leaders.
type bench struct {
	store   *storage.Memory
	cloud   *simcloud.Cloud
	n       int
	latency time.Duration
	epoch   uint64
	ids     []nstance.InstanceID
}

// takeOver begins a term and ends it as soon as the shard is known. changed is
// how many records it has to read at least.
func (b *bench) takeOver(ctx context.Context, changed int) (result, error) {
	b.epoch++
	slow := &slow{Store: b.store, latency: b.latency}
	ready := make(chan struct{})
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	began := time.Now()
	r, err := reconcile.New(b.cloud, slow, &reconcile.Options{Owner: owner, Epoch: b.epoch, Check: ctx.Err})
	if err != nil {
		return result{}, err
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.Run(ctx) }) // nil, when ctx ends
	wg.Go(func() { b.await(ctx, r, ready) })
	<-ready
	took := time.Since(began)
	stop()
	wg.Wait()
	if got := len(r.Instances()); got != b.n {
		return result{}, fmt.Errorf("%d records were loaded, not %d", got, b.n)
	}
	pages, rounds := 2, (changed+width-1)/width
	if changed == b.n {
		pages = b.n/page + 1
	}
	floor := time.Duration(pages+rounds) * b.latency
	return result{Records: b.n, Reads: slow.reads(), ReadyMS: ms(took), FloorMS: ms(floor), Ratio: float64(took) / float64(floor)}, nil
}

func (b *bench) await(ctx context.Context, r *reconcile.Reconciler, ready chan<- struct{}) {
	defer close(ready)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !r.Loaded() && ctx.Err() == nil {
		<-tick.C
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
