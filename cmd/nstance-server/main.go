// Command nstance-server keeps the groups of one shard at their size. See
// nstance-server --help; package server does the work. nstance-server dev runs a
// whole shard on one machine.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/nstance-go/nstance/internal/servercmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends it at once
	code := servercmd.Main(ctx, parts(), os.Args[1:], os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(code)
}
