package records

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
)

// contents remembers which definitions and fetched user data this term uses.
// Their keys end in the digest of their bytes, so they never change. Only the
// shard's leader writes and deletes them.
type contents struct {
	elapsed func() time.Duration // since some instant, also while the machine sleeps

	mu       sync.Mutex               // guards what follows, never held over I/O
	uses     map[string]contentUse    // by key; they keep an object for an hour
	deleting map[string]time.Duration // by key: until when a deletion may land

	unnamedSince map[string]time.Duration // by key; of CollectGarbage alone
}

type contentUse struct {
	at     time.Duration
	stored bool // it was written or read, and not deleted since
}

// maxUses bounds the uses that are remembered for longer than needed.
const maxUses = 4096

func newContents(elapsed func() time.Duration) *contents {
	if elapsed == nil {
		began := time.Now()
		elapsed = func() time.Duration { return time.Since(began) }
	}
	return &contents{elapsed: elapsed, uses: map[string]contentUse{}, deleting: map[string]time.Duration{}, unnamedSince: map[string]time.Duration{}}
}

// use keeps an object for an hour, and reports whether it is known to be stored.
// Fails with Unavailable while it is being deleted.
func (c *contents) use(key string) (stored bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.elapsed() < c.deleting[key] {
		return false, nstance.Errorf(nstance.Unavailable, "%s is being deleted because no document named it: try again in a minute", key)
	}
	if len(c.uses) >= maxUses {
		c.forgetOld()
	}
	u := contentUse{at: c.elapsed(), stored: c.uses[key].stored}
	c.uses[key] = u
	return u.stored, nil
}

// confirm remembers that an object in use is stored.
func (c *contents) confirm(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uses[key] = contentUse{c.elapsed(), true}
}

// forgetOld needs the lock.
func (c *contents) forgetOld() {
	now := c.elapsed()
	maps.DeleteFunc(c.uses, func(_ string, u contentUse) bool { return now-u.at >= garbageAge })
}

// startDelete reports whether an object may be deleted. It cannot be used then
// before endDelete, or for a minute.
func (c *contents) startDelete(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgetOld()
	if _, used := c.uses[key]; used {
		return false
	}
	now := c.elapsed()
	maps.DeleteFunc(c.deleting, func(_ string, until time.Duration) bool { return now >= until })
	c.deleting[key] = now + lateDelete
	return true
}

func (c *contents) endDelete(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.deleting, key)
}

// putContent stores an object, unless it is stored, and keeps it for an hour.
func (r *Records) putContent(ctx context.Context, key string, data []byte) error {
	stored, err := r.contents.use(key)
	if err != nil || stored {
		return err
	}
	if err := r.fence.allow(key, 0); err != nil {
		return err
	}
	if _, err := PutOnce(ctx, r.store, key, data); err != nil {
		return err
	}
	r.contents.confirm(key)
	return nil
}

// getContent reads an object that putContent has written, and keeps it.
func (r *Records) getContent(ctx context.Context, key, digest string) ([]byte, error) {
	if _, err := r.contents.use(key); err != nil {
		return nil, err
	}
	obj, err := r.store.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	r.contents.confirm(key)
	if digestOf(obj.Data) != digest {
		return nil, unreadable(key, "its content has another digest")
	}
	return obj.Data, nil
}

// PutFetched stores fetched user data under its digest, which a document must name
// within the hour. It may be repeated after any error. Fails with
// Unavailable when the term is over or the object is being deleted, and
// otherwise as storage says.
func (r *Records) PutFetched(ctx context.Context, data []byte) (digest string, err error) {
	digest = digestOf(data)
	return digest, r.putContent(ctx, layout.FetchedKey(r.shard, digest), data)
}

// Fetched returns fetched user data. Fails with NotFound when there is none,
// Invalid when it is damaged.
func (r *Records) Fetched(ctx context.Context, digest string) ([]byte, error) {
	return r.getContent(ctx, layout.FetchedKey(r.shard, digest), digest)
}

// PutBootstrapData stores sealed bootstrap data under its name, 64 hexadecimal digits
// that follow from what is sealed. A document must name it within the hour. It may be
// repeated after any error, and fails as PutFetched does.
func (r *Records) PutBootstrapData(ctx context.Context, name string, sealed []byte) error {
	return r.putContent(ctx, layout.BootstrapKey(r.shard, name), sealed)
}

// SealedBootstrapData returns what PutBootstrapData has stored, perhaps sealed with
// another key since. Fails with NotFound when there is none.
func (r *Records) SealedBootstrapData(ctx context.Context, name string) ([]byte, error) {
	key := layout.BootstrapKey(r.shard, name)
	if _, err := r.contents.use(key); err != nil {
		return nil, err
	}
	obj, err := r.store.Get(ctx, key)
	if err == nil {
		r.contents.confirm(key)
	}
	return obj.Data, err
}
