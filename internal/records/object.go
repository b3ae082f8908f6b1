package records

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/storage"
)

// maxAttempts bounds how often one change is written, and how often it is made
// anew after others have changed the object.
const maxAttempts = 6

// held is an object as it was last read or written. It is never changed, only
// replaced, so readers need no lock.
type held[T Document] struct {
	value   T
	version storage.Version
	unknown Unknown
}

func (h *held[T]) header() Header { return h.value.header() }

// fence prevents writes of a term that is over.
type fence struct {
	epoch uint64
	check func() error
}

// allow fails with Unavailable when the term is over, or when a later term has
// written the stored object.
func (f fence) allow(key string, stored uint64) error {
	if f.check != nil {
		if err := f.check(); err != nil {
			return nstance.Errorf(nstance.Unavailable, "write %s: this term is over: %w", key, err)
		}
	}
	if f.epoch != 0 && stored > f.epoch {
		return nstance.Errorf(nstance.Unavailable, "write %s: term %d is over: term %d has written it", key, f.epoch, stored)
	}
	return nil
}

// answered fails with Ambiguous when the term is over although a write has landed: the next
// leader may have read before that, so that it is not in force, and no caller may rely on it.
func (f fence) answered(key string) error {
	if f.check == nil {
		return nil
	}
	if err := f.check(); err != nil {
		return nstance.Errorf(nstance.Ambiguous, "write %s: answered after the end of this term: %w", key, err)
	}
	return nil
}

// guarded is one document, which is written under a condition. Its methods that
// take a context need the lock.
type guarded[T Document] struct {
	store storage.Store
	key   string
	fence fence
	valid func(T) error // checks what is read; nil: no check
	lock  chan struct{} // holds a token during a read or write; a channel, so that waiting for it ends with ctx

	current atomic.Pointer[held[T]] // nil: absent, or not read yet
	inDoubt atomic.Bool             // current may differ from what is stored: read before the next write

	unsettled   []string  // IDs of writes that may still land, oldest first; needs the lock
	unsettledAt time.Time // when the last of them was sent
}

const (
	// lateWrites is how long an unanswered write may still land after it was sent.
	lateWrites = 10 * time.Minute
	// maxUnsettled bounds the unanswered writes that are remembered for one object.
	maxUnsettled = 8
)

// addUnsettled remembers an unanswered write.
func (o *guarded[T]) addUnsettled(id string) {
	o.unsettledAt = time.Now()
	if !slices.Contains(o.unsettled, id) {
		o.unsettled = append(o.unsettled, id)
	}
	if len(o.unsettled) > maxUnsettled {
		o.unsettled = o.unsettled[1:]
	}
}

// mayLand reports whether an unanswered write may still land.
func (o *guarded[T]) mayLand() bool {
	return len(o.unsettled) > 0 && time.Since(o.unsettledAt) < lateWrites
}

// unanswered reports whether a write whose answer was lost may still
// replace base: one of this term, or one of an earlier term, whose writer may have been
// cut off by its end. Any write makes their condition false.
func (o *guarded[T]) unanswered(base *held[T]) bool {
	return len(o.unsettled) > 0 || base.header().Epoch < o.fence.epoch
}

// isOwn reports whether the stored object is an own write of v, and settles it then.
func (o *guarded[T]) isOwn(h *held[T], v T) bool {
	if h == nil || !slices.Contains(o.unsettled, h.header().WriteID) || !equalBodies(h.value, v) {
		return false
	}
	o.unsettled = nil
	return true
}

func newGuarded[T Document](s storage.Store, key string, f fence) *guarded[T] {
	return &guarded[T]{store: s, key: key, fence: f, lock: make(chan struct{}, 1)}
}

// acquire waits for the lock, which is held during calls of storage.
func (o *guarded[T]) acquire(ctx context.Context) error {
	select {
	case o.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return stopped(ctx, "wait for", o.key)
	}
}

func (o *guarded[T]) release() { <-o.lock }

func (o *guarded[T]) setCurrent(h *held[T]) *held[T] {
	o.current.Store(h)
	o.inDoubt.Store(false)
	return h
}

// read reads the stored object. Nil without an error means absent. After an error
// the current object stays in doubt.
func (o *guarded[T]) read(ctx context.Context) (*held[T], error) {
	o.inDoubt.Store(true)
	obj, err := o.store.Get(ctx, o.key)
	if errors.Is(err, nstance.NotFound) {
		return o.setCurrent(nil), nil
	}
	if err != nil {
		return nil, err
	}
	h, err := parse[T](o.key, obj.Data)
	if err == nil && o.valid != nil {
		err = o.valid(h.value)
	}
	if err != nil {
		return nil, err
	}
	h.version = obj.Version
	return o.setCurrent(h), nil
}

// load returns the current object, and reads it first if it is in doubt.
func (o *guarded[T]) load(ctx context.Context) (*held[T], error) {
	if o.inDoubt.Load() {
		return o.read(ctx)
	}
	return o.current.Load(), nil
}

func parse[T Document](key string, data []byte) (*held[T], error) {
	v, unknown, err := Decode[T](key, data)
	if err != nil {
		return nil, err
	}
	return &held[T]{value: v, unknown: unknown}, nil
}

// create writes the object if it is absent. The object of an earlier create whose
// answer was lost is success if it has the same content.
func (o *guarded[T]) create(ctx context.Context, v T) (*held[T], error) {
	base, err := o.load(ctx)
	if err != nil {
		return nil, err
	}
	if base == nil {
		return o.write(ctx, nil, v)
	}
	if o.isOwn(base, v) {
		return base, nil
	}
	return nil, changedError("write", o.key, true)
}

func equalBodies[T Document](a, b T) bool {
	x, errX := Encode(withHeader(a, Header{}), nil)
	y, errY := Encode(withHeader(b, Header{}), nil)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// update applies fn to a copy and writes it, unless fn changed nothing. After a
// write of another process it reads that, and applies fn to it: at once the first time,
// then after a wait, as others that keep changing the object would win again. A document,
// unlike a record, is made where it is missing, and settled.
func (o *guarded[T]) update(ctx context.Context, document bool, fn func(*T) error) (*held[T], error) {
	for lost := range maxAttempts {
		if lost > 1 {
			_ = sleep.For(ctx, backoff(lost)) // the write says that ctx has ended
		}
		base, err := o.load(ctx)
		if err != nil {
			return nil, err
		}
		if base == nil && !document {
			return nil, notFound("update", o.key)
		}
		next, changed, err := apply(base, fn)
		if err != nil || !changed && (!document || !o.unanswered(base)) {
			return base, err
		}
		h, err := o.write(ctx, base, next)
		if !errors.Is(err, nstance.Conflict) {
			return h, err
		}
	}
	return nil, nstance.Errorf(nstance.Conflict, "update %s: other writers changed it %d times in the meantime", o.key, maxAttempts)
}

// apply returns a copy of base after fn, and whether fn changed it.
func apply[T Document](base *held[T], fn func(*T) error) (next T, changed bool, err error) {
	if base == nil {
		return next, true, fn(&next)
	}
	if p, ok := any(base.value).(Parted[T]); ok {
		next = p.Copy()
		err = fn(&next)
		h := base.header()
		h.Epoch = max(h.Epoch, next.header().Epoch)
		return withHeader(next, h), h != base.header() || !p.Same(next), err
	}
	before, err := marshal(base.value)
	if err == nil {
		err = json.Unmarshal(before, &next)
	}
	if err == nil {
		err = fn(&next)
	}
	if err != nil {
		return next, false, err
	}
	h := base.header()
	h.Epoch = max(h.Epoch, next.header().Epoch)
	next = withHeader(next, h)
	after, err := marshal(next)
	return next, !bytes.Equal(before, after), err
}

// write replaces base, or creates the object if base is nil. After a refusal or
// without an answer it reads back: its own write ID means success, base unchanged
// means that the write may be repeated, anything else is Conflict, and becomes the
// current object.
func (o *guarded[T]) write(ctx context.Context, base *held[T], next T) (*held[T], error) {
	want, data, err := o.prepare(base, next)
	if err != nil {
		return nil, err
	}
	for attempt := range maxAttempts {
		if err = o.mayWrite(ctx, base, attempt, err); err != nil {
			return nil, err
		}
		if want.version, err = o.put(ctx, base, data); err == nil {
			o.unsettled = nil
			return o.setCurrent(want), nil
		}
		if definite(err) {
			return nil, err
		}
		o.addUnsettled(want.header().WriteID)
		now, rerr := o.readBack(ctx, err)
		switch {
		case rerr != nil:
			return nil, rerr
		case now != nil && now.header().WriteID == want.header().WriteID:
			o.unsettled = nil
			return now, nil
		case base == nil && o.isOwn(now, next): // the write of an earlier call
			return now, nil
		case !same(now, base):
			return nil, changedError("write", o.key, base == nil)
		}
	}
	return nil, gaveUp("write", o.key, err)
}

// prepare returns the object to be written, as a reader will decode it.
func (o *guarded[T]) prepare(base *held[T], next T) (*held[T], []byte, error) {
	var unknown Unknown
	if base != nil {
		unknown = base.unknown
	}
	next = withHeader(next, NextHeader(next.header(), o.fence.epoch))
	data, err := Encode(next, unknown)
	if err != nil {
		return nil, nil, err
	}
	if _, ok := any(next).(Parted[T]); ok {
		return &held[T]{value: next, unknown: unknown}, data, nil
	}
	want, err := parse[T](o.key, data)
	return want, data, err
}

// mayWrite waits before a retry, and checks that the term lasts.
func (o *guarded[T]) mayWrite(ctx context.Context, base *held[T], attempt int, last error) error {
	if attempt > 0 {
		if !sleep.For(ctx, backoff(attempt)) {
			return fmt.Errorf("write %s: gave up waiting: %w", o.key, last)
		}
	}
	if err := stopped(ctx, "write", o.key); err != nil {
		return err
	}
	if base == nil {
		return o.fence.allow(o.key, 0)
	}
	return o.fence.allow(o.key, base.header().Epoch)
}

func backoff(attempt int) time.Duration {
	return sleep.Jitter(sleep.Backoff(attempt, 20*time.Millisecond, time.Second))
}

func (o *guarded[T]) put(ctx context.Context, base *held[T], data []byte) (storage.Version, error) {
	if base == nil {
		return o.store.PutIfAbsent(ctx, o.key, data)
	}
	return o.store.PutIfMatch(ctx, o.key, data, base.version)
}

// readBack reads after a write whose outcome is unknown. Without an answer the
// outcome stays Ambiguous, and the next write reads first.
func (o *guarded[T]) readBack(ctx context.Context, cause error) (*held[T], error) {
	now, err := o.read(ctx)
	switch {
	case err == nil:
		return now, nil
	case errors.Is(err, nstance.Invalid):
		return nil, err // the stored object is unreadable: it is not this write
	}
	return nil, nstance.Errorf(nstance.Ambiguous, "write %s: %v; reading back: %w", o.key, cause, err)
}

// remove deletes the object. A missing object is success.
func (o *guarded[T]) remove(ctx context.Context) error {
	var last error
	for attempt := range maxAttempts {
		base, err := o.load(ctx)
		if err != nil || base == nil {
			return err
		}
		if err := o.mayWrite(ctx, base, attempt, last); err != nil {
			return err
		}
		last = o.store.DeleteIfMatch(ctx, o.key, base.version)
		if last == nil || errors.Is(last, nstance.NotFound) {
			o.setCurrent(nil)
			return nil
		}
		if definite(last) {
			return last
		}
		now, err := o.readBack(ctx, last)
		switch {
		case err != nil:
			return err
		case now != nil && !same(now, base):
			return changedError("delete", o.key, false)
		}
	}
	return gaveUp("delete", o.key, last)
}

// gaveUp is the error after the last attempt. A conflict although nothing has
// changed is a failure of the store, and so Unavailable.
func gaveUp(op, key string, err error) error {
	if errors.Is(err, nstance.Conflict) {
		return nstance.Errorf(nstance.Unavailable, "%s %s: refused %d times although nothing has changed: %v", op, key, maxAttempts, err)
	}
	return fmt.Errorf("%s %s, %d times: %w", op, key, maxAttempts, err)
}

func same[T Document](a, b *held[T]) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.version == b.version
}

// definite reports whether a failed write will never land.
func definite(err error) bool {
	switch nstance.CodeOf(err) {
	case nstance.Invalid, nstance.Denied, nstance.Quota, nstance.Throttled:
		return true
	}
	return false
}

func stopped(ctx context.Context, op, key string) error {
	if err := ctx.Err(); err != nil {
		return nstance.Errorf(nstance.Unavailable, "%s %s: %w", op, key, err)
	}
	return nil
}

func notFound(op, key string) error {
	return nstance.Errorf(nstance.NotFound, "%s %s: there is no such object", op, key)
}

func changedError(op, key string, exists bool) error {
	if exists {
		return nstance.Errorf(nstance.Conflict, "%s %s: it exists already", op, key)
	}
	return nstance.Errorf(nstance.Conflict, "%s %s: another writer has changed it", op, key)
}
