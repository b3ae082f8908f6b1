// Command nstance-operator makes the shards of Nstance infrastructure of Cluster
// API. See nstance-operator --help; packages operator and operator/webhooks do
// the work.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/nstance-go/nstance/internal/operatorcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	code := operatorcmd.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
