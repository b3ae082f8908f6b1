// Command agent-in-your-daemon is a daemon with an Nstance agent inside: one
// process that does its work and, when the cloud takes the machine, finishes
// what it has in hand.
//
// With the environment of nstance-agent it talks to a real server. Without, it
// shows the whole way of one notice against a small server of its own, on
// loopback, and exits.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance/agent"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Getenv, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, getenv func(string) string, out io.Writer) error {
	if getenv("NSTANCE_SERVER_AGENT_ADDR") == "" {
		return demonstrate(ctx, out)
	}
	o, err := agent.FromEnv(getenv)
	if err != nil {
		return err
	}
	return daemon(ctx, o, out)
}

// daemon is all that embedding takes: the agent is made before the work begins,
// so that a mistake in its options is seen at once, and both run until ctx ends.
func daemon(ctx context.Context, o *agent.Options, out io.Writer) error {
	w := newWorker(out)
	o.Drain = w.Drain
	a, err := agent.New(o)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.Run(ctx) })
	g.Go(func() error { return w.Run(ctx) })
	return g.Wait()
}
