package storage_test

import (
	"context"
	"errors"
	"fmt"

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
