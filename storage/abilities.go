package storage

import (
	"context"
	"iter"
	"strings"

	"github.com/nstance-go/nstance"
)

// A Shared store uses the same connections for all its calls, as buckets do.
type Shared interface {
	// Separate returns a store over the same objects, with connections of its
	// own.
	Separate() Store
}

// Separate returns a store over the same objects that shares no connection with s,
// if s is Shared; else s.
func Separate(s Store) Store {
	if shared, ok := s.(Shared); ok {
		return shared.Separate()
	}
	return s
}

// A Foldered store can list the folders in a folder without the keys in them.
type Foldered interface {
	// Folders yields the names, without slashes, of the folders right below
	// prefix, which is empty or ends in a slash; otherwise like List.
	Folders(ctx context.Context, prefix string) iter.Seq2[string, error]
}

// Folders calls Foldered.Folders. Without that it lists one key of each folder.
func Folders(ctx context.Context, s Store, prefix string) iter.Seq2[string, error] {
	if foldered, ok := s.(Foldered); ok {
		return foldered.Folders(ctx, prefix)
	}
	return func(yield func(string, error) bool) {
		for after := ""; ; {
			key, err := firstKey(ctx, s, prefix, after)
			if err != nil {
				yield("", err)
				return
			}
			if key == "" {
				return
			}
			name, _, inFolder := strings.Cut(strings.TrimPrefix(key, prefix), "/")
			if after = key; inFolder {
				if !yield(name, nil) {
					return
				}
				after = prefix + name + "0" // which follows everything that begins with a slash there
			}
		}
	}
}

func firstKey(ctx context.Context, s Store, prefix, after string) (string, error) {
	for entry, err := range s.List(ctx, prefix, after) {
		return entry.Key, err
	}
	return "", nil
}

// Shards returns the shards that have instance records in a store.
func Shards(ctx context.Context, s Store) ([]nstance.ShardID, error) {
	var shards []nstance.ShardID
	for name, err := range Folders(ctx, s, "instance/") {
		if err != nil {
			return nil, err
		}
		shards = append(shards, nstance.ShardID(name))
	}
	return shards, nil
}

// ListPage returns at most limit entries after a key, and the key after which the
// next page begins: the last one, or none when there is nothing more.
func ListPage(ctx context.Context, s Store, prefix, after string, limit int) (page []Entry, next string, err error) {
	for entry, err := range s.List(ctx, prefix, after) {
		if err != nil {
			return nil, "", err
		}
		if len(page) == limit {
			return page, page[limit-1].Key, nil
		}
		page = append(page, entry)
	}
	return page, "", nil
}
