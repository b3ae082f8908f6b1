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
	"github.com/nstance-go/nstance/internal/logqueue"
	"github.com/nstance-go/nstance/storage"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	os.Exit(run(ctx, store.Open))
}

// run runs the program with a way to open storage.
func run(ctx context.Context, open func(ctx context.Context, rawURL string) (storage.Store, error)) int {
	defer logqueue.Libraries(admin.LibraryLog(os.Args[1:], os.Stderr))()
	return admin.Main(ctx, open, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv)
}
