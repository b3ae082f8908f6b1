package ledger_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/storage"
)

// contextOf returns a context that outlives the cleanup functions of a test.
func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(context.WithoutCancel(t.Context()))
}

func Example() {
	ctx, stop := context.WithCancel(context.Background())
	store, ended := storage.NewMemory(), make(chan struct{})
	w := ledger.NewWriter(store, "z1", &ledger.WriterOptions{Linger: time.Millisecond})
	go func() { defer close(ended); w.Run(ctx) }()

	written := make(chan error, 1)
	w.Add(ledger.Entry{Life: &ledger.Life{ID: "web1", Outcome: ledger.Drained}}, func(err error) { written <- err })
	fmt.Println(<-written)
	stop()
	<-ended

	for day, err := range ledger.NewReader(store, "z1").Days(context.Background(), time.Time{}, time.Time{}) {
		fmt.Println(day.Lives[0].ID, day.Lives[0].Outcome, err)
	}
	// Output:
	// <nil>
	// web1 drained <nil>
}
