// Command shards counts the calls that many shards make to one object storage while nothing
// happens: a leader and a standby for each, with default settings and machines that exist. Shards
// share nothing but the storage and the authorities in it, so calls grow with their number. What
// instances cost during their lives is counted by bench/calls.
//
//	go run ./bench/shards [-shards 100] [-machines 10] [-for 10m] [-json shards.json]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/nstance-go/nstance/bench/internal/figures"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/test/freeport"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

const (
	configuration = `{
	"cluster": {"id": "bench"},
	"shard": {
		"id": %[1]q, "provider": {"kind": "sim"}, "advertise": {"peer": %[3]q},
		"bind": {"http": "127.0.0.1:0", "registration": "127.0.0.1:0", "operator": "127.0.0.1:0", "agent": "127.0.0.1:0", "peer": %[3]q}
	},
	"templates": {"vm": {
		"kind": "web", "arch": "amd64", "instance_type": "small", "userdata": {"content": "{{.Nonce}}"},
		"registration_timeout": "24h", "launch_timeout": "24h"
	}},
	"groups": {"default": {"web": {"template": "vm", "size": %[2]d}}}
}`
	month = 30 * 24 * time.Hour

	// List prices in dollars for 1,000 requests of S3 Standard in us-east-1 and of Cloud Storage
	// Standard in a region: writes and lists, and reads. Deletions are free. Sources:
	// https://aws.amazon.com/s3/pricing/ and https://cloud.google.com/storage/pricing.
	writePrice, readPrice = 0.005, 0.0004
)

func main() {
	shards := flag.Int("shards", 100, "shards of one cluster")
	machines := flag.Int("machines", 10, "of each shard")
	during := flag.Duration("for", 10*time.Minute, "how long calls are counted, after as long a start as 100 shards need")
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *shards, *machines, *during, *out)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "shards:", err)
		os.Exit(1)
	}
}

// A result is what one kind of call came to, for one shard.
type result struct {
	Call    string  `json:"call"`
	PerHour float64 `json:"per_hour"`
	Dollars float64 `json:"dollars_a_month"`
}

// A report is written as JSON.
type report struct {
	Bench     string   `json:"bench"`
	Go        string   `json:"go"`
	CPUs      int      `json:"cpus"`
	Shards    int      `json:"shards"`
	Machines  int      `json:"machines"`
	Seconds   float64  `json:"seconds"`
	PerSecond float64  `json:"calls_a_second"` // of all shards
	Results   []result `json:"results"`
}

func run(ctx context.Context, shards, machines int, during time.Duration, out string) error {
	store := newCountingStore(storage.NewMemory())
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var servers sync.WaitGroup
	defer func() {
		stop(nil)
		servers.Wait()
	}()
	for i := range shards {
		cloud := simcloud.New(&simcloud.Options{})
		defer cloud.Close()
		for n := range 2 { // the first leads
			s, err := newServer(ctx, store, cloud, fmt.Sprintf("s%d", i+1), machines)
			if err != nil {
				return err
			}
			servers.Go(func() {
				if err := s.Run(ctx); err != nil && ctx.Err() == nil {
					stop(err)
				}
			})
			if i == 0 && n == 0 {
				if err := s.Ready(ctx); err != nil {
					return errors.Join(err, context.Cause(ctx))
				}
			}
		}
	}
	if err := store.awaitIntents(ctx, shards*machines); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	if !sleep.For(ctx, time.Minute) { // what follows a start is over
		return context.Cause(ctx)
	}
	before, start := store.counts(), time.Now()
	if !sleep.For(ctx, during) {
		return context.Cause(ctx)
	}
	return newReport(before, store.counts(), time.Since(start), shards, machines).print(out)
}

func newServer(ctx context.Context, store storage.Store, cloud *simcloud.Cloud, shard string, machines int) (*server.Server, error) {
	peer, err := freeport.Address() // standbys watch the leader there
	if err != nil {
		return nil, err
	}
	source := func(context.Context) (string, []byte, error) {
		return "bench.jsonc", fmt.Appendf(nil, configuration, shard, machines, peer), nil
	}
	return server.New(ctx, store, cloud, source, &server.Options{Kinds: provider.Kinds{simcloud.Kind()}, Shared: true})
}

func newReport(before, after map[string]int, took time.Duration, shards, machines int) report {
	rep := report{Bench: "shards", Go: runtime.Version(), CPUs: runtime.GOMAXPROCS(0), Shards: shards, Machines: machines, Seconds: took.Seconds()}
	for call, n := range after {
		n -= before[call]
		if n == 0 {
			continue
		}
		price := writePrice
		switch {
		case strings.HasPrefix(call, "get "):
			price = readPrice
		case strings.HasPrefix(call, "delete "):
			price = 0
		}
		rep.PerSecond += float64(n) / took.Seconds()
		each := float64(n) / float64(shards) / took.Hours()
		rep.Results = append(rep.Results, result{call, each, each * month.Hours() / 1000 * price})
	}
	slices.SortFunc(rep.Results, func(a, b result) int { return strings.Compare(a.Call, b.Call) })
	return rep
}

func (r report) print(file string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "call\tan hour and shard\t$ a month and shard\t")
	sum := result{Call: "all"}
	for _, c := range append(r.Results, sum) {
		if c.Call == sum.Call {
			c = sum
		}
		sum.PerHour, sum.Dollars = sum.PerHour+c.PerHour, sum.Dollars+c.Dollars
		fmt.Fprintf(w, "%s\t%.1f\t%.3f\t\n", c.Call, c.PerHour, c.Dollars)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("%d shards: %.1f calls a second\n", r.Shards, r.PerSecond)
	return figures.Save(file, r)
}
