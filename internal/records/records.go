// Package records is what a shard keeps in its store: the records of its instances,
// with their definitions and a snapshot, its lease, and single documents such as its state.
//
// [Records] and [Doc] keep what they read and wrote in memory, write without reading
// first, and settle a lost answer by reading back the write ID that every document
// carries. What is written is an interface to later versions of this module, and to
// nothing else.
package records

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/storage"
)

// Records keeps the instance records of one shard for one leadership term. It
// holds them all in memory, so that a healthy instance's life costs three puts
// and one delete, and no read. It is safe for concurrent use: one writer at a
// time for each record, any number for different ones. No lock is held while
// storage is asked.
//
// Values that it returns share memory with it: do not change what they point
// to. The function given to Update gets a copy of its own.
type Records struct {
	store storage.Store
	shard nstance.ShardID
	fence fence
	width int
	log   *slog.Logger
	defs  definitions
	snap  snapshots

	contents *contents

	mu              sync.RWMutex // guards what follows, never held over I/O
	byID            map[nstance.InstanceID]*record
	foreign         []Problem // objects under the prefix that are no records
	snapshotProblem error     // why the snapshot was not used
}

// Options adjust New. Nil and zero mean the defaults.
type Options struct {
	Epoch uint64       // the writer's term; 0: a tool outside of any term, which keeps the epochs it finds
	Width int          // reads in flight during Load; 64
	Check func() error // asked before each write: an error means that the term is over; nil: never
	Log   *slog.Logger // nil: discard

	// Elapsed is the time since some fixed instant, also while the machine
	// sleeps. Nil: the ordinary monotonic time.
	Elapsed func() time.Duration
}

// A Problem is a record that exists and cannot be read or understood. It is
// never absence: decisions about its group must wait.
type Problem struct {
	Key    string
	Tenant nstance.TenantID   // as the key says; empty where it says nothing
	Group  nstance.GroupID    // likewise
	ID     nstance.InstanceID // likewise
	Err    error
}

// A record is one instance's object and its problem, if any.
type record struct {
	*guarded[Instance]
	ref            Ref
	problem        atomic.Pointer[Problem]
	readsRequested atomic.Uint64
	lastRead       uint64 // number of the last read that succeeded; needs the lock
}

// New returns the records of a shard. Nothing is read before Load.
func New(s storage.Store, shard nstance.ShardID, o *Options) *Records {
	opts := Options{}
	if o != nil {
		opts = *o
	}
	if opts.Width <= 0 {
		opts.Width = 64
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Records{
		store: s, shard: shard, fence: fence{opts.Epoch, opts.Check}, width: opts.Width, log: opts.Log,
		byID: map[nstance.InstanceID]*record{}, snap: snapshots{lock: make(chan struct{}, 1)},
		contents: newContents(opts.Elapsed),
	}
}

// Create writes an instance's intent. Fails with Conflict when a record with
// this ID stands anywhere in the shard (Get shows it), Invalid for a record
// without proper names, and otherwise like Update. After Ambiguous, call it
// again with the same record: if the first call has landed, or lands later, that
// is success.
func (r *Records) Create(ctx context.Context, rec Instance) (Instance, error) {
	ref := rec.Ref(r.shard)
	if _, err := ParseInstanceKey(ref.Key()); err != nil {
		return Instance{}, err
	}
	e, err := r.acquire(ctx, rec.ID, &ref)
	if err != nil {
		return Instance{}, err
	}
	defer r.release(e)
	if e.ref != ref || e.problem.Load() != nil {
		return Instance{}, changedError("write", e.key, true)
	}
	if err := r.ensureDefinition(ctx, rec.Definition); err != nil {
		return Instance{}, err
	}
	h, err := e.create(ctx, rec)
	if err := r.trackProblem(e, err); err != nil {
		return Instance{}, err
	}
	return h.value, r.fence.answered(e.key)
}

// Get returns a record from memory.
func (r *Records) Get(id nstance.InstanceID) (Instance, bool) {
	if e := r.lookup(id); e != nil {
		h := e.current.Load()
		return valueOf(h), h != nil
	}
	return Instance{}, false
}

// Peek is Get for what is asked often: it copies nothing. The record does not change; a
// later one takes its place. Nil: there is none.
func (r *Records) Peek(id nstance.InstanceID) *Instance {
	e := r.lookup(id)
	if e == nil {
		return nil
	}
	h := e.current.Load()
	if h == nil {
		return nil
	}
	return &h.value
}

// Missing says why no record is in memory: it cannot be read (Unavailable), or none is known
// (NotFound).
func (r *Records) Missing(id nstance.InstanceID) error {
	if e := r.lookup(id); e != nil {
		if p := e.problem.Load(); p != nil {
			return nstance.Errorf(nstance.Unavailable, "record %s cannot be read: %w", p.Key, p.Err)
		}
	}
	return nstance.Errorf(nstance.NotFound, "no instance %s", id)
}

// All returns every record from memory, in the order of their IDs.
func (r *Records) All() []Instance {
	entries := r.entries()
	slices.SortFunc(entries, func(a, b *record) int { return cmp.Compare(a.ref.ID, b.ref.ID) })
	all := make([]Instance, 0, len(entries))
	for _, e := range entries {
		if h := e.current.Load(); h != nil {
			all = append(all, h.value)
		}
	}
	return all
}

// Problems returns the records that could not be read when they were last
// tried, in the order of their keys.
func (r *Records) Problems() []Problem {
	r.mu.RLock()
	all := slices.Clone(r.foreign)
	r.mu.RUnlock()
	for _, e := range r.entries() {
		if p := e.problem.Load(); p != nil {
			all = append(all, *p)
		}
	}
	slices.SortFunc(all, func(a, b Problem) int { return cmp.Compare(a.Key, b.Key) })
	return all
}

// Update applies fn to a copy of the record and writes it under the condition
// that it was not changed since. On the healthy path nothing is read. When
// another writer was faster (a late write of a former leader), fn is applied
// again, to the stored record; fn may therefore see its own effect. A lost
// answer is settled by reading back the write ID. An fn that changes nothing
// causes no write; an error of fn ends the call and is returned as it is.
//
// Fails with NotFound when there is no such record, Unavailable when the term
// is over or storage did not take the write, Ambiguous when it may have
// landed, or has landed after the end of the term, Invalid when the stored record cannot be read, Conflict when other
// writers were faster each time, Denied and Throttled as storage says. After any of them
// memory holds what is known to be durable, and the next call reads first if
// that is in doubt.
func (r *Records) Update(ctx context.Context, id nstance.InstanceID, fn func(*Instance) error) (Instance, error) {
	e, err := r.acquire(ctx, id, nil)
	if err != nil {
		return Instance{}, err
	}
	defer r.release(e)
	h, err := e.update(ctx, false, func(rec *Instance) error {
		if err := fn(rec); err != nil {
			return err
		}
		if rec.Ref(r.shard) != e.ref {
			return nstance.Errorf(nstance.Invalid, "update %s: ID, tenant and group of a record never change", e.key)
		}
		return nil
	})
	if err := r.trackProblem(e, err); err != nil {
		return Instance{}, err
	}
	return h.value, r.fence.answered(e.key)
}

// Delete removes the record. A missing record is success. Fails with Conflict
// when another writer has changed it: the stored record is then in memory, so
// that the caller can decide again. Otherwise like Update.
func (r *Records) Delete(ctx context.Context, id nstance.InstanceID) error {
	e, err := r.acquire(ctx, id, nil)
	if errors.Is(err, nstance.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.release(e)
	return r.trackProblem(e, e.remove(ctx))
}

// Refresh reads the record again: a late write of a former leader may have
// changed it. Calls that wait for the same record share one read. NotFound
// means that storage definitely holds none. For an ID that is not in memory
// the shard's keys are listed, since the key is not known.
func (r *Records) Refresh(ctx context.Context, id nstance.InstanceID) (Instance, error) {
	ref, err := r.find(ctx, id)
	if err != nil {
		return Instance{}, err
	}
	e, err := r.refresh(ctx, ref)
	if err != nil {
		return Instance{}, err
	}
	if e == nil {
		return Instance{}, notFound("read", ref.Key())
	}
	return e.value, nil
}

func (r *Records) refresh(ctx context.Context, ref Ref) (*held[Instance], error) {
	asked := uint64(0)
	if e := r.lookup(ref.ID); e != nil {
		asked = e.readsRequested.Add(1)
	}
	e, err := r.acquire(ctx, ref.ID, &ref)
	if err != nil {
		return nil, err
	}
	defer r.release(e)
	if asked != 0 && e.lastRead >= asked && !e.inDoubt.Load() {
		return e.current.Load(), nil // another read began after this call did
	}
	began := e.readsRequested.Load()
	h, err := e.read(ctx)
	if err := r.trackProblem(e, err); err != nil {
		return nil, err
	}
	e.lastRead = began
	return h, nil
}

// find returns the record's name, from memory or from a listing.
func (r *Records) find(ctx context.Context, id nstance.InstanceID) (Ref, error) {
	if e := r.lookup(id); e != nil {
		return e.ref, nil
	}
	if _, err := nstance.ParseInstanceID(string(id)); err != nil {
		return Ref{}, err
	}
	for entry, err := range r.store.List(ctx, layout.InstancePrefix(r.shard), "") {
		if err != nil {
			return Ref{}, err
		}
		if strings.HasSuffix(entry.Key, "/"+string(id)+".json") {
			return ParseInstanceKey(entry.Key)
		}
	}
	return Ref{}, nstance.Errorf(nstance.NotFound, "read %s: the shard has no such record", id)
}

func (r *Records) lookup(id nstance.InstanceID) *record {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byID[id]
}

func (r *Records) entries() []*record {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Values(r.byID))
}

// acquire takes the lock of a record; release frees it. Without ref the record
// must be known, with ref an unknown one is added.
func (r *Records) acquire(ctx context.Context, id nstance.InstanceID, ref *Ref) (*record, error) {
	for {
		e := r.lookup(id)
		if e == nil && ref == nil {
			return nil, nstance.Errorf(nstance.NotFound, "the shard has no record of %s", id)
		}
		if e == nil {
			e = r.add(*ref)
		}
		if err := e.acquire(ctx); err != nil {
			return nil, err
		}
		if r.lookup(id) == e {
			return e, nil
		}
		e.release() // it was deleted while this call waited
	}
}

func (r *Records) add(ref Ref) *record {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byID[ref.ID]
	if e == nil {
		e = &record{guarded: newGuarded[Instance](r.store, ref.Key(), r.fence), ref: ref}
		e.valid = ref.matches
		r.byID[ref.ID] = e
	}
	return e
}

// release forgets a record that is known to be absent, and frees its lock. One with a
// problem is in doubt.
func (r *Records) release(e *record) {
	if e.current.Load() == nil && !e.inDoubt.Load() && !e.mayLand() {
		r.mu.Lock()
		delete(r.byID, e.ref.ID)
		r.mu.Unlock()
	}
	e.release()
}

// trackProblem records that the record is unreadable if err is Invalid, and clears
// that once the record has been read or written.
func (r *Records) trackProblem(e *record, err error) error {
	switch {
	case !e.inDoubt.Load():
		e.problem.Store(nil)
	case errors.Is(err, nstance.Invalid):
		r.recordProblem(e, err)
	}
	return err
}

func (r *Records) recordProblem(e *record, err error) {
	r.log.Error("record cannot be read", "key", e.key, "code", nstance.CodeOf(err), "err", err)
	e.inDoubt.Store(true) // so that the next call reads it
	e.problem.Store(&Problem{Key: e.key, Tenant: e.ref.Tenant, Group: e.ref.Group, ID: e.ref.ID, Err: err})
}
