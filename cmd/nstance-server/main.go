// Command nstance-server keeps the machines of one shard alive. nstance-server
// --help says how; package server does the work. nstance-server dev shows all
// of it on one machine.
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
