// Package storage keeps the truth of a shard: small objects under string keys,
// each written under a condition, so that two writers never overwrite each
// other unnoticed.
//
// [Store] is the port. This package brings two drivers, [Dir] over a directory
// and [Memory]; adapters for object stores live beside it. storagetest checks
// every driver, and [Probe] refuses, at start, a back end that accepts the
// conditions and ignores them.
//
// What reconcile and the server keep in it is theirs alone: the format of their
// objects is internal.
//
// Stores are safe for concurrent use; objects, entries and versions are values.
package storage

import (
	"context"
	"iter"
	"strings"

	"github.com/nstance-go/nstance"
)

// A Version names what a key holds. It is opaque: compare it, do not order it.
//
// Different bytes never have the same version. Equal bytes may: an object
// store may derive versions from content. A writer that must recognise its own
// write puts a random write ID into the object. [Dir] and
// [Memory] give every write a version of its own.
type Version string

// An Object is what a key holds.
type Object struct {
	Key     string
	Data    []byte // the caller's own copy
	Version Version
}

// An Entry is one line of a listing.
type Entry struct {
	Key     string
	Version Version // empty when the driver could not read the object: Get says why
	Size    int64   // bytes
}

// A Store holds objects of up to MaxObjectSize bytes under keys that
// ValidateKey accepts. No key may continue another key after a slash: a driver
// may refuse a/b with Invalid where a exists.
//
// Implementations are safe for concurrent use, by several processes too, and
// strongly consistent: what a write has confirmed, every later Get and List
// shows. They copy data, coming and going, and return promptly when ctx is
// done, with Unavailable when nothing was changed and Ambiguous when that is
// not sure. A bad key or an object that is too large is Invalid. An error is
// never absence: NotFound means that the store definitely holds no such key.
type Store interface {
	// Get returns the object, or NotFound.
	Get(ctx context.Context, key string) (Object, error)

	// PutIfAbsent writes the key if nothing is there, else fails with
	// Conflict. The version comes from the write itself. Of many concurrent
	// callers one succeeds. Unavailable and Ambiguous mean that the write may
	// land, even later: read back before deciding.
	PutIfAbsent(ctx context.Context, key string, data []byte) (Version, error)

	// PutIfMatch replaces what has version v. It fails with Conflict when the
	// key has changed or is gone, and otherwise like PutIfAbsent.
	PutIfMatch(ctx context.Context, key string, data []byte, v Version) (Version, error)

	// DeleteIfMatch removes what has version v. It fails with Conflict when
	// the key has changed, NotFound when it is gone. On back ends without
	// conditional deletion a write that comes between look and deletion may be
	// lost: delete only objects without other writers.
	DeleteIfMatch(ctx context.Context, key string, v Version) error

	// List yields the entries whose key begins with prefix and sorts after
	// after, in the byte order of keys, page by page. Keys written or removed
	// meanwhile may be missing or not; all others appear exactly once. An
	// error ends the sequence; what came before it is not the whole.
	List(ctx context.Context, prefix, after string) iter.Seq2[Entry, error]
}

// MaxObjectSize is how many bytes an object may have in every driver.
const MaxObjectSize = 64 << 20

const (
	maxKeyLen     = 512
	maxSegmentLen = 200
)

// ValidateKey returns nil or an Invalid error. A key is one or more segments
// joined by single slashes, at most 512 bytes; a segment is at most 200 letters, digits, '.',
// '_', '-' and does not begin with a dot.
func ValidateKey(key string) error {
	const remedy = "use segments of A-Z, a-z, 0-9, '.', '_' and '-', joined by single slashes"
	if len(key) > maxKeyLen {
		return nstance.FieldError("key", remedy, "%q... is %d bytes long, more than %d", key[:64], len(key), maxKeyLen)
	}
	for segment := range strings.SplitSeq(key, "/") {
		switch {
		case segment == "":
			return nstance.FieldError("key", remedy, "%q has an empty segment", key)
		case segment[0] == '.':
			return nstance.FieldError("key", remedy, "%q has a segment that begins with a dot", key)
		case len(segment) > maxSegmentLen:
			return nstance.FieldError("key", remedy, "%q has a segment of more than %d bytes", key, maxSegmentLen)
		case strings.Trim(segment, keyChars) != "":
			return nstance.FieldError("key", remedy, "%q contains a character that is not permitted", key)
		}
	}
	return nil
}

const keyChars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"

// begin checks the key and ctx at the start of each call of a driver.
func begin(ctx context.Context, op, key string) error {
	if err := ValidateKey(key); err != nil {
		return err
	}
	return stopped(ctx, op, key)
}

// beginPut is begin for writes.
func beginPut(ctx context.Context, key string, data []byte) error {
	if len(data) > MaxObjectSize {
		return nstance.Errorf(nstance.Invalid, "put %s: %d bytes are more than an object may have, %d", key, len(data), MaxObjectSize)
	}
	return begin(ctx, "put", key)
}

func stopped(ctx context.Context, op, key string) error {
	if err := ctx.Err(); err != nil {
		return nstance.Errorf(nstance.Unavailable, "%s %s: %w", op, key, err)
	}
	return nil
}
