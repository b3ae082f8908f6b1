package storagetest

import (
	"context"
	"fmt"
	"iter"

	"github.com/nstance-go/nstance/internal/conformance"
	"github.com/nstance-go/nstance/storage"
)

// recorded is a store whose calls are bounded and recorded.
type recorded struct {
	store storage.Store
	calls *conformance.Calls
}

// A described object is an object in the words of a failure.
type described storage.Object

func (o described) String() string {
	if o.Version == "" && o.Data == nil {
		return "no object"
	}
	return fmt.Sprintf("%d bytes of version %s", len(o.Data), o.Version)
}

func (r recorded) Get(ctx context.Context, key string) (storage.Object, error) {
	obj, err := conformance.Call(ctx, r.calls, fmt.Sprintf("Get(%q)", key), func(ctx context.Context) (described, error) {
		obj, err := r.store.Get(ctx, key)
		return described(obj), err
	})
	return storage.Object(obj), err
}

func (r recorded) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	return conformance.Call(ctx, r.calls, fmt.Sprintf("PutIfAbsent(%q, %d bytes)", key, len(data)), func(ctx context.Context) (storage.Version, error) {
		return r.store.PutIfAbsent(ctx, key, data)
	})
}

func (r recorded) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	name := fmt.Sprintf("PutIfMatch(%q, %d bytes, version %s)", key, len(data), v)
	return conformance.Call(ctx, r.calls, name, func(ctx context.Context) (storage.Version, error) {
		return r.store.PutIfMatch(ctx, key, data, v)
	})
}

func (r recorded) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	name := fmt.Sprintf("DeleteIfMatch(%q, version %s)", key, v)
	_, err := conformance.Call(ctx, r.calls, name, func(ctx context.Context) (conformance.None, error) {
		return conformance.None{}, r.store.DeleteIfMatch(ctx, key, v)
	})
	return err
}

func (r recorded) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	name := fmt.Sprintf("List(prefix %q, after %q)", prefix, after)
	return conformance.Sequence(ctx, r.calls, name, func(ctx context.Context) iter.Seq2[storage.Entry, error] {
		return r.store.List(ctx, prefix, after)
	})
}

// Folders uses the store's own ability, if it has one.
func (r recorded) Folders(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return conformance.Sequence(ctx, r.calls, fmt.Sprintf("Folders(prefix %q)", prefix), func(ctx context.Context) iter.Seq2[string, error] {
		return storage.Folders(ctx, r.store, prefix)
	})
}
