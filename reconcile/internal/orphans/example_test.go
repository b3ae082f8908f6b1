package orphans_test

import (
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/orphans"
)

// A machine without a record is deleted once two listings have shown it.
func Example() {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	id, _ := nstance.NewInstanceID("web", now.Add(-time.Hour))
	stray := []nstance.Machine{{ID: id, CreatedAt: now.Add(-time.Hour), Group: "web", Owner: nstance.Owner{Tenant: "default"}}}
	shard := orphans.Shard{Now: now, Members: 10, Live: 10, Frozen: func(nstance.GroupKey) error { return nil }}

	book := orphans.New(orphans.Rule{Interval: 2 * time.Minute, MinAge: 5 * time.Minute})
	for _, began := range []time.Time{now.Add(-3 * time.Minute), now} {
		book.List(stray, began)
		o, _ := book.Get(id)
		fmt.Printf("spared: %q\n", book.Spared(o, shard))
	}
	// Output:
	// spared: "two listings 2m0s apart have not shown it yet"
	// spared: ""
}
