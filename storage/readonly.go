package storage

import (
	"context"
	"iter"

	"github.com/nstance-go/nstance"
)

// ReadOnly returns a view of s through which nothing can be written: every
// write fails with Denied.
func ReadOnly(s Store) Store { return readOnly{s} }

// OpenReadOnly opens what Open does for reading only. It makes and changes
// nothing: a directory must hold a store already, else it fails with NotFound,
// and need not be writable.
func OpenReadOnly(ctx context.Context, rawURL string) (Store, error) {
	path, err := locate(ctx, rawURL)
	switch {
	case err != nil:
		return nil, err
	case path == "":
		return ReadOnly(NewMemory()), nil
	}
	d, err := newDir(path)
	if err == nil {
		err = d.inspect()
	}
	if err != nil {
		return nil, err
	}
	return ReadOnly(d), nil
}

type readOnly struct{ s Store }

// Get implements Store.
func (r readOnly) Get(ctx context.Context, key string) (Object, error) { return r.s.Get(ctx, key) }

// List implements Store.
func (r readOnly) List(ctx context.Context, prefix, after string) iter.Seq2[Entry, error] {
	return r.s.List(ctx, prefix, after)
}

// Folders implements Foldered.
func (r readOnly) Folders(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return Folders(ctx, r.s, prefix)
}

// Location implements Located.
func (r readOnly) Location() string { return LocationOf(r.s) }

// PutIfAbsent implements Store.
func (r readOnly) PutIfAbsent(_ context.Context, key string, _ []byte) (Version, error) {
	return "", refuseWrite("put", key)
}

// PutIfMatch implements Store.
func (r readOnly) PutIfMatch(_ context.Context, key string, _ []byte, _ Version) (Version, error) {
	return "", refuseWrite("put", key)
}

// DeleteIfMatch implements Store.
func (r readOnly) DeleteIfMatch(_ context.Context, key string, _ Version) error {
	return refuseWrite("delete", key)
}

func refuseWrite(op, key string) error {
	return nstance.Errorf(nstance.Denied, "%s %s: the storage was opened for reading only", op, key)
}
