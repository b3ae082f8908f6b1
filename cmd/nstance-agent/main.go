// Command nstance-agent is the agent of the machine it runs on: it registers with
// the server of its shard, reports health, and forwards the cloud's notices.
// It is configured by environment variables, each of which has a flag that
// overrides it; nstance-agent --help lists them. Package agent does the work.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/nstance-go/nstance/agent"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/logqueue"
)

// The exit codes. docs/programs.md lists them for all programs.
const (
	exitOK    = 0
	exitError = 1 // it could not go on
	exitUsage = 2 // flags or environment are wrong
)

// gcPercent keeps the heap of about a megabyte from growing to the four that Go lets it
// by default, on every machine of the fleet. A collection takes a millisecond or two.
const gcPercent = 25

// logLimit is how many bytes of the log may wait for its reader.
const logLimit = 256 << 10

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1) // idle, it takes a tenth less processor time
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process at once, and its hook
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	cmd, err := parse(args, getenv)
	if err != nil {
		fmt.Fprintf(stderr, "%v\nsee nstance-agent --help\n", err)
		return exitUsage
	}
	switch {
	case cmd.help:
		fmt.Fprint(stdout, usage())
		return exitOK
	case cmd.version:
		fmt.Fprintln(stdout, "nstance-agent", versionText())
		return exitOK
	}
	return serve(ctx, cmd.getenv, stderr)
}

func serve(ctx context.Context, getenv func(string) string, stderr io.Writer) int {
	o, err := agent.FromEnv(getenv)
	if err != nil {
		fmt.Fprintln(stderr, clip.Text(err.Error(), math.MaxInt))
		return exitUsage
	}
	level := slog.LevelInfo
	if o.Debug {
		level = slog.LevelDebug
	}
	handler, err := logqueue.Handler("NSTANCE_LOG_FORMAT", o.LogFormat, level)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitUsage
	}
	logger, lines := logqueue.Logger(stderr, logLimit, handler)
	defer lines.Close()
	defer logqueue.Libraries(logger)()
	o.Log = logger
	a, err := agent.New(o)
	if err != nil {
		fmt.Fprintln(lines, clip.Text(err.Error(), math.MaxInt))
		return exitUsage
	}
	o.Log.Info("nstance-agent starts", "version", versionText(), "instance_id", o.InstanceID)
	if err := a.Run(ctx); err != nil {
		o.Log.Error("nstance-agent ends", "err", err)
		return exitError
	}
	return exitOK
}
