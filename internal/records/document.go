package records

import (
	"context"

	"github.com/nstance-go/nstance/storage"
)

// Doc is one document, such as a shard's state. T embeds Header and describes the
// other fields. Top-level fields that T lacks survive every rewrite. Update sets
// the header; its function may only raise the epoch. Keys that end in .jsonc may
// have been written by a person: comments are understood, and lost by the next
// write.
//
// A Doc is safe for concurrent use; one caller reads or writes at a time.
// Values it returns share memory with it: do not change what they point to.
type Doc[T Document] struct{ o *guarded[T] }

// DocOptions adjust NewDoc. Nil means the defaults.
type DocOptions struct {
	Epoch uint64       // the writer's term; 0: a tool outside of any term, which keeps the epoch it finds
	Check func() error // asked before each write: an error means that the term is over; nil: never
}

// NewDoc returns the document under key. Nothing is read yet.
func NewDoc[T Document](s storage.Store, key string, o *DocOptions) *Doc[T] {
	if o == nil {
		o = &DocOptions{}
	}
	d := &Doc[T]{newGuarded[T](s, key, fence{o.Epoch, o.Check})}
	d.o.inDoubt.Store(true)
	return d
}

// Load reads the document. A missing one is the zero T, without an error. One
// that is damaged, or of a newer major format, is Invalid, never missing.
func (d *Doc[T]) Load(ctx context.Context) (T, error) {
	return d.with(ctx, d.o.read)
}

// Held returns what was last read or written, without asking storage, and
// whether there was anything.
func (d *Doc[T]) Held() (T, bool) {
	h := d.o.current.Load()
	return valueOf(h), h != nil
}

// Update applies fn to a copy of the document, a zero T if it is missing, and
// writes the result under the condition that it was not changed since. It
// reads first only if nothing was read before or the last write's outcome is
// unknown. When another writer was faster, fn is applied again to its document; a
// lost answer is settled by reading back the write ID. An fn that changes nothing
// causes no write, unless an unanswered write of this term, or of an earlier one, may
// still land: after an Update without an error none does, and what it returns is what
// is durable. An error of fn ends the update. Fails with Unavailable when the
// term is over, Ambiguous when the write may have landed, or has landed after the end of the term, Invalid when the stored
// document cannot be read, Conflict when other writers were faster each time.
func (d *Doc[T]) Update(ctx context.Context, fn func(*T) error) (T, error) {
	return d.with(ctx, func(ctx context.Context) (*held[T], error) {
		h, err := d.o.update(ctx, true, fn)
		if err == nil {
			err = d.o.fence.answered(d.o.key)
		}
		return h, err
	})
}

func (d *Doc[T]) with(ctx context.Context, do func(context.Context) (*held[T], error)) (T, error) {
	var none T
	if err := d.o.acquire(ctx); err != nil {
		return none, err
	}
	defer d.o.release()
	h, err := do(ctx)
	if err != nil {
		return none, err
	}
	return valueOf(h), nil
}

func valueOf[T Document](h *held[T]) (v T) {
	if h != nil {
		v = h.value
	}
	return v
}
