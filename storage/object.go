package storage

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
)

// maxAttempts bounds how often one change is written, and how often it is made
// anew after others have changed the object.
const maxAttempts = 6

// held is what is known of an object. It is never changed, only replaced, so
// readers need no lock.
type held[T Document] struct {
	value   T
	version Version
	unknown Unknown
}

func (h *held[T]) header() Header { return h.value.header() }

// fence keeps a term that is over from writing.
type fence struct {
	epoch uint64
	check func() error
}

// allow fails with Unavailable when the term is over, or when what stands was
// written by a later one.
func (f fence) allow(key string, standing uint64) error {
	if f.check != nil {
		if err := f.check(); err != nil {
			return nstance.Errorf(nstance.Unavailable, "write %s: this term is over: %w", key, err)
		}
	}
	if f.epoch != 0 && standing > f.epoch {
		return nstance.Errorf(nstance.Unavailable, "write %s: term %d is over: term %d has written it", key, f.epoch, standing)
	}
	return nil
}

// one is a single conditionally written JSON object. Its methods that take a
// context need the turn, which take gives; known does not.
type one[T Document] struct {
	store Store
	key   string
	fence fence
	valid func(T) error // of what is read; nil: anything goes
	turn  chan struct{} // holds a token while somebody reads or writes the object

	now   atomic.Pointer[held[T]] // nil: absent, or not read yet
	doubt atomic.Bool             // now may not be what is stored: read before the next write

	unsettled   []string  // IDs of writes that may land still, oldest first; of the turn
	unsettledAt time.Time // when the last of them was sent
}

const (
	// lateWrites is how long after it was sent a write without an answer may land.
	lateWrites = 10 * time.Minute
	// maxUnsettled bounds how many such writes of one object are known.
	maxUnsettled = 8
)

// unsettle remembers a write without an answer.
func (o *one[T]) unsettle(id string) {
	o.unsettledAt = time.Now()
	if !slices.Contains(o.unsettled, id) {
		o.unsettled = append(o.unsettled, id)
	}
	if len(o.unsettled) > maxUnsettled {
		o.unsettled = o.unsettled[1:]
	}
}

// mayLand reports whether a write without an answer may land still.
func (o *one[T]) mayLand() bool {
	return len(o.unsettled) > 0 && time.Since(o.unsettledAt) < lateWrites
}

// isOwn reports whether what stands is an own write of v, and settles it then.
func (o *one[T]) isOwn(h *held[T], v T) bool {
	if h == nil || !slices.Contains(o.unsettled, h.header().WriteID) || !equalBodies(h.value, v) {
		return false
	}
	o.unsettled = nil
	return true
}

func newOne[T Document](s Store, key string, f fence) *one[T] {
	return &one[T]{store: s, key: key, fence: f, turn: make(chan struct{}, 1)}
}

// take waits for the turn. It is a channel, not a mutex, because it is held
// while storage is asked, and waiting for it must end with ctx.
func (o *one[T]) take(ctx context.Context) error {
	select {
	case o.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return stopped(ctx, "wait for", o.key)
	}
}

func (o *one[T]) give() { <-o.turn }

func (o *one[T]) know(h *held[T]) *held[T] {
	o.now.Store(h)
	o.doubt.Store(false)
	return h
}

// read looks at storage. Nil without an error means absent. After an error
// what is known stays in doubt.
func (o *one[T]) read(ctx context.Context) (*held[T], error) {
	o.doubt.Store(true)
	obj, err := o.store.Get(ctx, o.key)
	if errors.Is(err, nstance.NotFound) {
		return o.know(nil), nil
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
	return o.know(h), nil
}

// sure reads if what is known may be wrong.
func (o *one[T]) sure(ctx context.Context) (*held[T], error) {
	if o.doubt.Load() {
		return o.read(ctx)
	}
	return o.now.Load(), nil
}

func parse[T Document](key string, data []byte) (*held[T], error) {
	v, unknown, err := Decode[T](key, data)
	if err != nil {
		return nil, err
	}
	return &held[T]{value: v, unknown: unknown}, nil
}

// create writes the object where there is none. After an earlier create whose
// answer was lost, finding that one, with the same content, is success.
func (o *one[T]) create(ctx context.Context, v T) (*held[T], error) {
	base, err := o.sure(ctx)
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

// update applies fn to a copy and writes it, unless fn changed nothing. What
// others wrote meanwhile is read, and fn applied to that.
func (o *one[T]) update(ctx context.Context, create bool, fn func(*T) error) (*held[T], error) {
	for range maxAttempts {
		base, err := o.sure(ctx)
		if err != nil {
			return nil, err
		}
		if base == nil && !create {
			return nil, notFound("update", o.key)
		}
		next, changed, err := apply(base, fn)
		if err != nil || !changed {
			return base, err
		}
		h, err := o.write(ctx, base, next)
		if !errors.Is(err, nstance.Conflict) {
			return h, err
		}
	}
	return nil, nstance.Errorf(nstance.Conflict, "update %s: others have changed it %d times meanwhile", o.key, maxAttempts)
}

// apply returns what fn makes of a copy of base, and whether that is different.
func apply[T Document](base *held[T], fn func(*T) error) (next T, changed bool, err error) {
	if base == nil {
		return next, true, fn(&next)
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

// write replaces base, or creates the object if base is nil. When the answer
// is no or missing it looks what stands there: its own write ID means success,
// base unchanged means that the write may be repeated, anything else is
// Conflict, and is known from then on.
func (o *one[T]) write(ctx context.Context, base *held[T], next T) (*held[T], error) {
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
			return o.know(want), nil
		}
		if definite(err) {
			return nil, err
		}
		o.unsettle(want.header().WriteID)
		now, rerr := o.lookBack(ctx, err)
		switch {
		case rerr != nil:
			return nil, rerr
		case now != nil && now.header().WriteID == want.header().WriteID:
			o.unsettled = nil
			return now, nil
		case base == nil && o.isOwn(now, next): // an earlier call's
			return now, nil
		case !same(now, base):
			return nil, changedError("write", o.key, base == nil)
		}
	}
	return nil, givenUp("write", o.key, err)
}

// prepare returns the object to be written, as a reader will see it.
func (o *one[T]) prepare(base *held[T], next T) (*held[T], []byte, error) {
	var unknown Unknown
	if base != nil {
		unknown = base.unknown
	}
	data, err := Encode(withHeader(next, NextHeader(next.header(), o.fence.epoch)), unknown)
	if err != nil {
		return nil, nil, err
	}
	want, err := parse[T](o.key, data)
	return want, data, err
}

// mayWrite waits before a repeated attempt, and checks that the term lasts.
func (o *one[T]) mayWrite(ctx context.Context, base *held[T], attempt int, last error) error {
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

// backoff is 20 ms, doubling, with full jitter on its upper half.
func backoff(attempt int) time.Duration {
	d := 10 * time.Millisecond << attempt
	return sleep.Jitter(d)
}

func (o *one[T]) put(ctx context.Context, base *held[T], data []byte) (Version, error) {
	if base == nil {
		return o.store.PutIfAbsent(ctx, o.key, data)
	}
	return o.store.PutIfMatch(ctx, o.key, data, base.version)
}

// lookBack reads after a write whose outcome is unknown. Without an answer the
// outcome stays Ambiguous, and the next write reads first.
func (o *one[T]) lookBack(ctx context.Context, cause error) (*held[T], error) {
	now, err := o.read(ctx)
	switch {
	case err == nil:
		return now, nil
	case errors.Is(err, nstance.Invalid):
		return nil, err // something unreadable stands there: it is not our write
	}
	return nil, nstance.Errorf(nstance.Ambiguous, "write %s: %v; and it cannot be read back: %w", o.key, cause, err)
}

// remove deletes the object. That it is gone already is success.
func (o *one[T]) remove(ctx context.Context) error {
	var last error
	for attempt := range maxAttempts {
		base, err := o.sure(ctx)
		if err != nil || base == nil {
			return err
		}
		if err := o.mayWrite(ctx, base, attempt, last); err != nil {
			return err
		}
		last = o.store.DeleteIfMatch(ctx, o.key, base.version)
		if last == nil || errors.Is(last, nstance.NotFound) {
			o.know(nil)
			return nil
		}
		if definite(last) {
			return last
		}
		now, err := o.lookBack(ctx, last)
		switch {
		case err != nil:
			return err
		case now != nil && !same(now, base):
			return changedError("delete", o.key, false)
		}
	}
	return givenUp("delete", o.key, last)
}

// givenUp is the end of several attempts that changed nothing. A conflict
// where nothing has changed is the store's trouble, not the caller's.
func givenUp(op, key string, err error) error {
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

// definite reports whether a failed write is sure not to land, now or later.
func definite(err error) bool {
	switch nstance.CodeOf(err) {
	case nstance.Invalid, nstance.Denied, nstance.Quota, nstance.Throttled:
		return true
	}
	return false
}

func changedError(op, key string, exists bool) error {
	if exists {
		return nstance.Errorf(nstance.Conflict, "%s %s: it exists already", op, key)
	}
	return nstance.Errorf(nstance.Conflict, "%s %s: somebody else has changed it", op, key)
}
