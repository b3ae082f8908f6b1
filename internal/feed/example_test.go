package feed_test

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/feed"
)

// The owner changes its state and publishes under one lock, and takes snapshots
// under the same lock.
func Example() {
	var mu sync.Mutex
	rooms := map[string]bool{"kitchen": true}
	f := feed.New[string](16)

	enter := func(room string) {
		mu.Lock()
		defer mu.Unlock()
		rooms[room] = true
		f.Publish(room)
	}
	view := feed.View[string]{Snapshot: func() (iter.Seq[string], nstance.Seq) {
		mu.Lock()
		defer mu.Unlock()
		return slices.Values(slices.Collect(maps.Keys(rooms))), f.Last()
	}}

	for item, err := range f.Subscribe(context.Background(), 0, view) {
		if err != nil {
			fmt.Println(err)
			return
		}
		switch item.Kind {
		case feed.Snapshot:
			fmt.Println("lit:", item.Value)
		case feed.Synced:
			fmt.Println("up to date")
			enter("hall")
		case feed.Event:
			fmt.Println("now lit:", item.Value)
			return
		}
	}
	// Output:
	// lit: kitchen
	// up to date
	// now lit: hall
}
