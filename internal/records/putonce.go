package records

import (
	"context"
	"errors"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// PutOnce writes an object that never changes afterwards, unless one stands
// under that key, and returns what stands. After a refusal or a lost answer that
// is read back, so the caller compares it with data to learn whose write it was.
// Fails as the write did when nothing stands (after Ambiguous it may land
// still), or as the read when that fails too. It may be repeated.
func PutOnce(ctx context.Context, s storage.Store, key string, data []byte) (standing []byte, err error) {
	_, err = s.PutIfAbsent(ctx, key, data)
	if err == nil {
		return data, nil
	}
	if definite(err) {
		return nil, err
	}
	obj, readErr := s.Get(ctx, key)
	switch {
	case readErr == nil:
		return obj.Data, nil
	case errors.Is(readErr, nstance.NotFound):
		return nil, err
	}
	return nil, errors.Join(err, readErr)
}
