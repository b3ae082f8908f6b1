// Command nstance-dev is single-machine mode: a whole shard on this machine, for
// evaluation and tests. It does what nstance-server dev does, and is linked without
// the clients of any cloud, so that it builds quickly. See nstance-dev --help;
// package internal/dev does the work.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/nstance-go/nstance/internal/servercmd"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/provider/qemu"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends it at once
	parts := servercmd.Parts{Kinds: provider.Kinds{local.Kind(servercmd.Machine()...), qemu.Kind()}}
	code := servercmd.Dev(ctx, parts, os.Args[1:], os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(code)
}
