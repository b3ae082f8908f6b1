package records

import (
	"context"
	"errors"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// anyDocument is a document of any kind: all but its header is Unknown.
type anyDocument struct{ Header }

// Readable returns nil if this program can read data as what stands under key,
// an instance's record or another object with a Header, and else an Invalid
// error that says why not.
func Readable(key string, data []byte) error {
	if strings.HasPrefix(key, "instance/") {
		_, err := DecodeInstance(key, data)
		return err
	}
	_, _, err := Decode[anyDocument](key, data)
	return err
}

// Repair replaces what stands under key in version v by data, with a write ID
// of its own, or removes it if data is nil. What can be read is not touched:
// its owner would not learn of it. Epoch is the writer's term; 0 keeps the one
// in data.
//
// Fails with Conflict when what stands there is another version or can be
// read, NotFound when nothing stands there, Invalid when data cannot be read
// either, and like a Store's writes.
func Repair(ctx context.Context, s storage.Store, key string, v storage.Version, data []byte, epoch uint64) (storage.Version, error) {
	stamped, err := repaired(key, data, epoch)
	if err != nil {
		return "", err
	}
	if err := broken(ctx, s, key, v); err != nil {
		return "", err
	}
	if data == nil {
		return "", s.DeleteIfMatch(ctx, key, v)
	}
	return s.PutIfMatch(ctx, key, stamped, v)
}

// Rehearse checks everything that Repair would, and writes nothing.
func Rehearse(ctx context.Context, s storage.Store, key string, v storage.Version, data []byte) error {
	if _, err := repaired(key, data, 0); err != nil {
		return err
	}
	return broken(ctx, s, key, v)
}

// broken returns nil if what stands under key is version v and cannot be read.
func broken(ctx context.Context, s storage.Store, key string, v storage.Version) error {
	obj, err := s.Get(ctx, key)
	switch {
	case err != nil:
		return err
	case obj.Version != v:
		return &nstance.Error{Code: nstance.Conflict, Field: "version", Msg: key + " has changed since it was shown", Remedy: "look at it again"}
	case Readable(key, obj.Data) == nil:
		return &nstance.Error{Code: nstance.Conflict, Field: "key", Msg: key + " can be read: there is nothing to repair"}
	}
	return nil
}

// repaired checks data and gives it a header of its own.
func repaired(key string, data []byte, epoch uint64) ([]byte, error) {
	if data == nil {
		return nil, nil
	}
	doc, fields, err := Decode[anyDocument](key, data)
	if err != nil {
		return nil, correct(err)
	}
	doc.Header = NextHeader(doc.Header, epoch)
	out, err := Encode(doc, fields)
	if err == nil {
		err = correct(Readable(key, out))
	}
	return out, err
}

// correct says what to do about data that cannot be read.
func correct(err error) error {
	if err == nil {
		return nil
	}
	e := &nstance.Error{Code: nstance.Invalid, Field: "data", Msg: "the new content cannot be read either: " + err.Error(), Remedy: "correct it"}
	if known, ok := errors.AsType[*nstance.Error](err); ok && known.Remedy != "" {
		e.Remedy = known.Remedy
	}
	return e
}
