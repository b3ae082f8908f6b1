// Command bridge measures how soon a stand-by machine of a warm pool is ready in place of
// a member that is reclaimed: scenario bridge of single-machine mode, with real servers and
// agents over mutual TLS, again and again in one shard. The machines are processes that
// pretend to boot for 8 s and to wake for 1 s; notices come by a long poll.
//
//	go run ./bench/bridge [-n 20] [-park stopped|hibernated] [-json bridge.json]
//
// The floor is the provider's own wake time of the same machine, from its call until the
// process runs. The target is for what comes on top: the notice, the plan, the record, the
// agent's start, its new certificate and its report. In the same rounds a group without a pool
// loses a member too.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/bench/internal/rig"
	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/internal/servercmd"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
)

const target = 300 * time.Millisecond // T17, for p99

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 && slices.Contains([]string{"machine", "drain-demo"}, os.Args[1]) { // this program is its own machine
		os.Exit(servercmd.Main(ctx, servercmd.Parts{Kinds: provider.Kinds{local.Kind(servercmd.Machine()...)}}, os.Args[1:], os.Stdout, os.Stderr, os.Getenv))
	}
	n := flag.Int("n", 20, "members that are lost, one after another")
	park := flag.String("park", string(nstance.ParkStopped), "how the pool is parked: stopped or hibernated")
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	if err := run(ctx, *n, nstance.ParkMode(*park), *out); err != nil {
		fmt.Fprintln(os.Stderr, "bridge:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, n int, park nstance.ParkMode, out string) error {
	var printed bytes.Buffer
	err := dev.Run(ctx, &dev.Options{Scenario: dev.Bridge, Rounds: n, Park: park, Protocol: "gcp", JSON: true, Out: &printed, HTTP: "127.0.0.1:0"})
	if err != nil {
		return err
	}
	summary, err := lastLine(&printed)
	if err != nil {
		return err
	}
	of := func(pick func(dev.BridgeRound) int64) (all []time.Duration) {
		for _, r := range summary.Bridge {
			all = append(all, time.Duration(pick(r))*time.Millisecond)
		}
		return all
	}
	report := rig.Report{Bench: "bridge", Target: "T17", FloorFirst: true, With: map[string]any{"rounds": n, "park": park}, Results: []rig.Result{
		rig.Sum("provider's own wake time", of(func(r dev.BridgeRound) int64 { return r.ProviderWakeMS }), 0),
		rig.Sum("notice, capacity back with a pool", of(func(r dev.BridgeRound) int64 { return r.WithPool.CapacityBackMS }), 0),
		rig.Sum("notice, capacity back without one", of(func(r dev.BridgeRound) int64 { return r.WithoutPool.CapacityBackMS }), 0),
		rig.Sum("bridge ready, beyond the wake time", of(func(r dev.BridgeRound) int64 { return r.AddedMS }), target),
	}}
	return report.Show(os.Stdout, out)
}

// lastLine returns the summary, which is the last line.
func lastLine(printed *bytes.Buffer) (s dev.Summary, err error) {
	var last []byte
	lines := bufio.NewScanner(printed)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		last = bytes.Clone(lines.Bytes())
	}
	if err := lines.Err(); err != nil {
		return s, err
	}
	return s, json.Unmarshal(last, &s)
}
