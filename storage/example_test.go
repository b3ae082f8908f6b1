package storage_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// Two writers have read the same version: one write succeeds, the other fails with
// Conflict.
func Example() {
	ctx := context.Background()
	store, _ := storage.Open(ctx, "mem://")
	v1, _ := store.PutIfAbsent(ctx, "greeting", []byte("hello"))

	_, err := store.PutIfMatch(ctx, "greeting", []byte("good morning"), v1)
	fmt.Println("first:", err)
	_, err = store.PutIfMatch(ctx, "greeting", []byte("good evening"), v1)
	fmt.Println("second:", errors.Is(err, nstance.Conflict))
	obj, _ := store.Get(ctx, "greeting")
	fmt.Printf("%s\n", obj.Data)
	// Output:
	// first: <nil>
	// second: true
	// good morning
}

func ExampleRecords() {
	ctx := context.Background()
	recs := storage.NewRecords(storage.NewMemory(), "z1", &storage.RecordsOptions{Epoch: 1})
	if _, _, err := recs.Load(ctx); err != nil {
		fmt.Println(err)
	}
	now := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	id, _ := nstance.NewInstanceID("web", now)

	rec, err := recs.Create(ctx, storage.Instance{ID: id, Tenant: "default", Group: "web", CreatedAt: now})
	fmt.Println(rec.Registered(), err)
	rec, err = recs.Update(ctx, id, func(r *storage.Instance) error {
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
