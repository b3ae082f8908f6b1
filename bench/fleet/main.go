// Command fleet runs a fleet of agents on this machine, and tells what it cost: two servers and
// several programs of agents are processes of their own, over mutual TLS, with storage in a
// directory and a simulated cloud that outlives the servers.
//
//	go run ./bench/fleet [-agents 10000] [-reclaimed 1000] [-for 1h] [-json fleet.json]
//
// All machines start at once, as after an outage. A third of the time later some are taken back
// at once, with two minutes' notice. After another third the leading server is killed. At the
// end every machine must have its agent, and none may have been made or lost but those that were
// taken back. It needs Linux, descriptors for a connection of each agent, and with many of them
// TMPDIR in memory: a disk that others use delays the lease behind thousands of records.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/nstance-go/nstance/bench/internal/figures"
	"github.com/nstance-go/nstance/internal/servercmd"
	"github.com/nstance-go/nstance/provider"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 && os.Args[1] == "run" { // this program is its own server
		os.Exit(servercmd.Main(ctx, servercmd.Parts{Kinds: provider.Kinds{kind()}}, os.Args[1:], os.Stdout, os.Stderr, os.Getenv))
	}
	if len(os.Args) > 2 && os.Args[1] == "agents" { // and its own agents
		if err := agents(ctx, os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "agents:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.IntVar(&o.agents, "agents", 10_000, "machines, each with an agent")
	flag.IntVar(&o.reclaimed, "reclaimed", 1000, "of them, taken back at once")
	flag.IntVar(&o.processes, "processes", 8, "programs of agents")
	flag.DurationVar(&o.length, "for", time.Hour, "from when all agents are connected")
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	rep, err := run(ctx, o)
	if err == nil {
		err = errors.Join(rep.print(), figures.Save(*out, rep))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

type options struct {
	agents, reclaimed, processes int
	length                       time.Duration
}

// Targets: agents are back after a change of the leader, and replacements are asked for after a wave.
const (
	targetBack = 30 * time.Second
	targetLast = time.Second
)

// A report is what is written as JSON.
type report struct {
	Bench  string `json:"bench"`
	Go     string `json:"go"`
	CPUs   int    `json:"cpus"`
	Agents int    `json:"agents"`

	UpSeconds      float64 `json:"up_s"`               // from the first leader until every machine is ready
	LeaderMiB      float64 `json:"leader_mib"`         // resident, at the end of the first third
	LeaderPercent  float64 `json:"leader_cpu_percent"` // of one processor, while nothing happens
	StandbyMiB     float64 `json:"standby_mib"`
	StandbyPercent float64 `json:"standby_cpu_percent"`
	AgentKiB       float64 `json:"agent_kib"`          // resident, of the programs of agents, each
	AgentsPercent  float64 `json:"agents_cpu_percent"` // of one processor, all together

	Reclaimed    int     `json:"reclaimed"`
	LastCreateMS float64 `json:"last_create_ms"` // from the last notice until the last replacement is asked for
	WholeSeconds float64 `json:"whole_s"`        // until all are ready and those taken back have ended

	LeaderlessSeconds float64 `json:"leaderless_s"` // from the kill until the other server leads
	BackSeconds       float64 `json:"back_s"`       // from the kill until every agent is connected
	PeakMiB           float64 `json:"peak_mib"`     // of the new leader, when they are

	Made int  `json:"made"` // machines, in the whole run
	OK   bool `json:"ok"`
}

func run(ctx context.Context, o options) (_ report, err error) {
	w, err := newWorld(ctx, o)
	defer func() { err = errors.Join(err, w.close()) }()
	if err != nil {
		return report{}, err
	}
	r := report{Bench: "fleet", Go: runtime.Version(), CPUs: runtime.GOMAXPROCS(0), Agents: o.agents, Reclaimed: o.reclaimed}
	for _, step := range []struct {
		name string
		run  func(context.Context, *report) error
	}{{"all start", w.up}, {"nothing happens", w.idle}, {"some are taken back", w.reclaim}, {"the leader is killed", w.failover}, {"to the end", w.last}} {
		fmt.Fprintf(os.Stderr, "%s: %s\n", time.Now().Format(time.TimeOnly), step.name)
		if err := step.run(ctx, &r); err != nil {
			return r, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	r.OK = r.Made == o.agents+o.reclaimed && r.LastCreateMS <= float64(targetLast.Milliseconds()) && r.BackSeconds <= targetBack.Seconds()
	return r, nil
}

func (r report) print() error {
	_, err := fmt.Printf(`fleet, %s, %d CPUs, %d agents
all ready after                           %.0f s
leader, idle                              %.0f MiB, %.1f %% of a processor
standby                                   %.0f MiB, %.1f %%
agents                                    %.0f KiB each, %.1f %% together
%d taken back: last replacement asked for %.0f ms after the last notice (target %d), all ready and the old ones gone after %.0f s
leader killed: the other leads after      %.1f s, all agents are back after %.1f s (target %.0f), %.0f MiB
machines made                             %d; ok %t
`, r.Go, r.CPUs, r.Agents, r.UpSeconds, r.LeaderMiB, r.LeaderPercent, r.StandbyMiB, r.StandbyPercent, r.AgentKiB, r.AgentsPercent,
		r.Reclaimed, r.LastCreateMS, targetLast.Milliseconds(), r.WholeSeconds, r.LeaderlessSeconds, r.BackSeconds, targetBack.Seconds(), r.PeakMiB, r.Made, r.OK)
	return err
}
