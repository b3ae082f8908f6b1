package storage

import (
	"context"
	"iter"
	"strings"
)

// A Shared store uses the same connections for all its calls, as buckets do. Separate
// may be called concurrently.
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

// A Foldered store can list the folders in a folder without the keys in them. Folders
// may be called concurrently.
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
