package journal_test

import (
	"context"
	"fmt"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/journal"
)

// A journal in memory keeps the latest events; a filter chooses among them.
func Example() {
	events := journal.NewMemory(1000)
	events.Append(nstance.Event{Type: nstance.EventReady, Tenant: "default", Group: "web"})
	events.Append(nstance.Event{Type: nstance.EventReady, Tenant: "default", Group: "db"})
	found, err := events.Events(context.Background(), journal.Filter{Group: "db"})
	for _, e := range found {
		fmt.Println(e.Seq, e.Type, e.Group, err)
	}
	// Output: 2 ready db <nil>
}
