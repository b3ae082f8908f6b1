// Command notice measures how fast a shard server answers a reclaim notice:
// from the instant at which the server has it until it calls the provider's
// create for the replacement. Every agent holds a session of its own over
// mutual TLS; they tell their notices one after another, over a store in
// memory.
//
//	go run ./bench/notice [-agents 1000] [-notices 500] [-at-once | -busy] [-json notice.json]
//
// With -at-once all notices are sent at the same moment instead, on the same kind of
// streams, over a cloud that answers a create after 50 ms: how long after the last
// notice the last create is called, beside the arithmetic of 100 calls in flight.
//
// With -busy it measures what one tenant's calls cost others: calls of another tenant, and
// notices, first alone and then while a tenant sends every kind of call at its full budget.
//
// Measured beside it on the same connections: an RPC that does nothing (one
// that the server does not know, so that gRPC itself refuses it), and a health
// report with its acknowledgement, which is the session's own round trip.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/bench/internal/rig"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/sleep"
)

const target = 5 * time.Millisecond // T2, for p99

func main() {
	agents := flag.Int("agents", 1000, "connected agents")
	notices := flag.Int("notices", 500, "notices, each from another agent")
	atOnce := flag.Bool("at-once", false, "all notices at the same moment, over a cloud with calls of 50 ms")
	busy := flag.Bool("busy", false, "beside a tenant at its full budget")
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	measure := run
	switch {
	case *atOnce:
		measure = runAtOnce
	case *busy:
		measure = runBusy
	}
	if err := measure(ctx, *agents, min(*notices, *agents), *out); err != nil {
		fmt.Fprintln(os.Stderr, "notice:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, agents, notices int, out string) error {
	w := newWatcher()
	return withFleet(ctx, agents, w, func(_ *rig.Rig, fleet []*agent) error { return oneByOne(ctx, fleet, notices, w, out) })
}

// withFleet runs a shard with connected agents while do works.
func withFleet(ctx context.Context, agents int, w *watcher, do func(r *rig.Rig, fleet []*agent) error) (err error) {
	r, err := rig.Start(ctx, rig.Options{Machines: agents, Wrap: w.wrap, Journal: w.journal})
	if err != nil {
		return err
	}
	defer func() {
		if serr := r.Stop(); err == nil {
			err = serr
		}
	}()
	fleet, err := connect(ctx, r, w)
	if err != nil {
		return err
	}
	return do(r, fleet)
}

func oneByOne(ctx context.Context, fleet []*agent, notices int, w *watcher, out string) error {
	idle, reports, err := floors(ctx, fleet[:notices])
	if err != nil {
		return err
	}
	if err := tell(ctx, fleet[:notices], w); err != nil {
		return err
	}
	report := rig.Report{Bench: "notice", Target: "T2", FloorFirst: true, With: map[string]any{"agents": len(fleet)}, Results: []rig.Result{
		rig.Sum("empty RPC", idle, 0),
		rig.Sum("report and acknowledgement", reports, 0),
		rig.Sum("server has the notice, create called", w.took(w.received), target),
		rig.Sum("agent sends the notice, create called", w.took(w.sent), 0),
	}}
	return report.Show(os.Stdout, out)
}

// connect registers every machine and opens its session.
func connect(ctx context.Context, r *rig.Rig, w *watcher) ([]*agent, error) {
	fleet := make([]*agent, len(r.Specs))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i, spec := range r.Specs {
		g.Go(func() error {
			cert, err := r.Register(gctx, i, spec)
			if err != nil {
				return fmt.Errorf("register: %w", err)
			}
			fleet[i], err = newAgent(ctx, r, i, spec.ID, cert)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return fleet, w.Wait(ctx, func() bool { return w.ready == len(fleet) })
}

// floors measures what the same connections do anyway.
func floors(ctx context.Context, fleet []*agent) (idle, reports []time.Duration, err error) {
	for _, a := range fleet {
		began := time.Now()
		err := a.Invoke(ctx, "/nstance.v1.AgentService/Nothing", &emptypb.Empty{}, &emptypb.Empty{})
		if status.Code(err) != codes.Unimplemented {
			return nil, nil, fmt.Errorf("an RPC that does nothing: %w", err)
		}
		idle = append(idle, time.Since(began))
		began = time.Now()
		if err := a.Report(); err != nil {
			return nil, nil, err
		}
		reports = append(reports, time.Since(began))
	}
	return idle, reports, nil
}

// tell makes one agent after another report its notice.
func tell(ctx context.Context, fleet []*agent, w *watcher) error {
	before := 0
	w.Do(func() { before = len(w.created) })
	for i, a := range fleet {
		w.note(w.sent, a.id)
		if err := a.notice(); err != nil {
			return err
		}
		if err := w.Wait(ctx, func() bool { return len(w.created) > before+i }); err != nil {
			return err
		}
	}
	return nil
}

// A watcher records when things happened to which instance.
type watcher struct {
	rig.Changes
	latency  time.Duration // of a create
	ready    int
	replaces map[nstance.InstanceID]nstance.InstanceID // by the new one
	sent     map[nstance.InstanceID]time.Time
	received map[nstance.InstanceID]time.Time
	created  map[nstance.InstanceID]time.Time // by the instance that is replaced
}

func newWatcher() *watcher {
	return &watcher{
		replaces: map[nstance.InstanceID]nstance.InstanceID{}, sent: map[nstance.InstanceID]time.Time{},
		received: map[nstance.InstanceID]time.Time{}, created: map[nstance.InstanceID]time.Time{},
	}
}

func (w *watcher) note(what map[nstance.InstanceID]time.Time, id nstance.InstanceID) {
	now := time.Now()
	w.Do(func() { what[id] = now })
}

// journal is called by the server; the first event of a notice is written when
// it has come off the wire.
func (w *watcher) journal(e nstance.Event) {
	switch e.Type {
	case eventtype.NoticeDetected:
		w.note(w.received, e.Instance)
	case nstance.EventReplacementRequested:
		w.Do(func() { w.replaces[e.Instance] = e.Replaces })
	case nstance.EventReady:
		w.Do(func() { w.ready++ })
	}
}

// took returns how long after each of since the create was called.
func (w *watcher) took(since map[nstance.InstanceID]time.Time) (out []time.Duration) {
	w.Do(func() {
		for id, at := range w.created {
			out = append(out, at.Sub(since[id]))
		}
	})
	return out
}

// wrap notes each create at the moment of its call.
func (w *watcher) wrap(p nstance.Provider) nstance.Provider { return watched{p, w} }

type watched struct {
	nstance.Provider
	w *watcher
}

// Create implements nstance.Provider.
func (p watched) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	now := time.Now()
	p.w.Do(func() {
		if old := p.w.replaces[spec.ID]; old != "" {
			p.w.created[old] = now
		}
	})
	sleep.For(ctx, p.w.latency)
	return p.Provider.Create(ctx, spec)
}
