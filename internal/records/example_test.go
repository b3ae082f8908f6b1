package records_test

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
)

func Example() {
	ctx := context.Background()
	recs := records.New(storage.NewMemory(), "z1", &records.Options{Epoch: 1})
	if _, _, err := recs.Load(ctx); err != nil {
		fmt.Println(err)
	}
	now := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	id, _ := nstance.NewInstanceID("web", now)

	rec, err := recs.Create(ctx, records.Instance{ID: id, Tenant: "default", Group: "web", CreatedAt: now})
	fmt.Println(rec.Registered(), err)
	rec, err = recs.Update(ctx, id, func(r *records.Instance) error {
		r.RegisteredAt = now.Add(time.Minute)
		return nil
	})
	fmt.Println(rec.Registered(), err)
	fmt.Println(recs.Delete(ctx, id), len(recs.All()))
	// Output:
	// false <nil>
	// true <nil>
	// <nil> 0
}
