// Command reclaim measures a mass reclaim: a fifth of one group's members get
// a termination notice at once, over a simulated cloud whose calls take 50 ms
// and of which 100 are in flight.
//
//	go run ./bench/reclaim [-members 5000] [-reclaimed 1000] [-json reclaim.json]
//
// The floor is arithmetic: the creates, 100 at a time, each answered after the
// latency. The creates are paced as by default, a thousand at once.
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

const (
	latency = 50 * time.Millisecond // of a call to the cloud
	width   = 100                   // calls in flight at most
	ratio   = 1.5                   // T3: the last create is called at the latest after so much of the floor
)

func main() {
	members := flag.Int("members", 5000, "members of the group")
	reclaimed := flag.Int("reclaimed", 1000, "members that get a notice")
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := run(ctx, *members, *reclaimed, *out); err != nil {
		fmt.Fprintln(os.Stderr, "reclaim:", err)
		os.Exit(1)
	}
}

// A report is what is written as JSON.
type report struct {
	Bench     string  `json:"bench"`
	Target    string  `json:"target"`
	Go        string  `json:"go"`
	CPUs      int     `json:"cpus"`
	Members   int     `json:"members"`
	Reclaimed int     `json:"reclaimed"`
	Replaced  int     `json:"replaced"`
	FirstMS   float64 `json:"first_create_ms"`
	LastMS    float64 `json:"last_create_ms"`
	FloorMS   float64 `json:"floor_ms"`
	Ratio     float64 `json:"ratio"`
	OK        bool    `json:"ok"`
}

func run(ctx context.Context, members, reclaimed int, out string) error {
	b, err := start(ctx, members)
	if err != nil {
		return err
	}
	defer b.stop()
	if err := b.fill(ctx); err != nil {
		return err
	}
	first, last, err := b.reclaim(ctx, min(reclaimed, members))
	if err != nil {
		return err
	}
	floor := time.Duration(reclaimed) * latency / width
	rep := report{
		Bench: "reclaim", Target: "T3", Go: runtime.Version(), CPUs: runtime.GOMAXPROCS(0),
		Members: members, Reclaimed: reclaimed, Replaced: len(b.replaced),
		FirstMS: ms(first), LastMS: ms(last), FloorMS: ms(floor), Ratio: float64(last) / float64(floor),
	}
	rep.OK = rep.Ratio <= ratio && rep.Replaced == rep.Reclaimed
	fmt.Printf("%d of %d members reclaimed at once, %d replaced; creates called after %.0f to %.0f ms, floor %.0f ms, ratio %.2f, target %.1f, ok %t\n",
		rep.Reclaimed, rep.Members, rep.Replaced, rep.FirstMS, rep.LastMS, rep.FloorMS, rep.Ratio, ratio, rep.OK)
	return figures.Save(out, rep)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
