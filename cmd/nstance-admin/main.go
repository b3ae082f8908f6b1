// Command nstance-admin administers the shards of an Nstance cluster. See
// docs/nstance-admin.md.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/nstance-go/nstance/clouds/store"
	"github.com/nstance-go/nstance/internal/admin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	os.Exit(admin.Main(ctx, store.Open, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv))
}
