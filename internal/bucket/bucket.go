// Package bucket is what the object stores of the clouds have in common: a
// [Store] is a storage.Store over one bucket, and a [Driver] makes the calls in
// which they differ, above all the conditional ones.
//
// Listing goes through gocloud.dev/blob. Reading, writing and deleting do not:
// blob returns no version from a write, has no conditional write but "if
// absent", and escapes some of the keys that storage permits, so all calls
// that name a key use the client beneath.
package bucket

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"gocloud.dev/blob"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/storage"
)

// A Driver makes single calls to one cloud. Its keys have the store's prefix.
// Writes are sent once: a silent repetition could answer a write that has
// landed with "changed", without a way to tell them apart. Errors come back as the
// client library made them; Fault reads them.
type Driver interface {
	// Get opens the object for reading.
	Get(ctx context.Context, key string) (io.ReadCloser, storage.Version, error)

	// Head returns the object's version without its content. An error is as
	// precise as that of Get.
	Head(ctx context.Context, key string) (storage.Version, error)

	// Put writes the object if its version is match, or if there is none when
	// match is empty. The version comes from the write's own answer.
	Put(ctx context.Context, key string, data []byte, match storage.Version) (storage.Version, error)

	// Delete removes the object if its version is v, in any case when v is empty.
	Delete(ctx context.Context, key string, v storage.Version) error

	// Looks reports whether the version must be looked at before a deletion,
	// because the back end may ignore the condition, or call absence success.
	Looks() bool

	// Query prepares a blob.ListOptions.BeforeList: list only keys with the
	// prefix and, where the back end can, only those after another. It returns the
	// token of the page that is requested; empty: it is the first, or not known.
	Query(as func(any) bool, prefix, after string) (token string)

	// Entry reads one line of a listing.
	Entry(o *blob.ListObject) storage.Entry

	// Fault returns what the service answered; false means that it did not.
	Fault(err error) (Fault, bool)

	// Place names the bucket, such as gs://name: the same through every way to it, and
	// another name than its copies have; empty: not known.
	Place() string
}

// A Fault is an answer that is no success.
type Fault struct {
	Status int    // HTTP
	Code   string // the service's word for it, such as NoSuchKey; may be empty
	Text   string // its explanation, which decides nothing; may be empty
}

// Options of a Store. Nil and zero fields mean the defaults.
type Options struct {
	// Prefix goes before every key: segments as in a key, joined by slashes.
	// Default: none.
	Prefix string

	// Timeout bounds each call, and each page of a listing. Default: 30 s.
	Timeout time.Duration

	// Dates records the time at the service. Default: not recorded.
	Dates *Dates
}

// An Opener reaches one bucket over the connections of a pool. Without one it
// uses a client that it was given.
type Opener func(*Pool) (*blob.Bucket, Driver, error)

// Store is a storage.Store over one bucket. It needs no closing.
type Store struct {
	open    Opener
	pool    *Pool // nil: the connections are not ours
	bucket  *blob.Bucket
	driver  Driver
	prefix  string // empty, or ends in a slash
	timeout time.Duration
	dates   *Dates

	plainDeletes atomic.Bool // the back end refuses deletions with a condition
}

var (
	_ storage.Store    = (*Store)(nil)
	_ storage.Dated    = (*Store)(nil)
	_ storage.Foldered = (*Store)(nil)
	_ storage.Located  = (*Store)(nil)
	_ storage.Shared   = (*Store)(nil)
)

// maxPrefix leaves room for keys: S3 and GCS permit 1024 bytes in all.
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html
const maxPrefix = 256

// New returns a store over a bucket. It asks nothing of the bucket.
func New(open Opener, pool *Pool, o *Options) (*Store, error) {
	if o == nil {
		o = &Options{}
	}
	s := &Store{open: open, pool: pool, timeout: o.Timeout, dates: o.Dates}
	if s.dates == nil {
		s.dates = &Dates{}
	}
	if s.timeout == 0 {
		s.timeout = 30 * time.Second
	}
	if err := validate.Setting("timeout", o.Timeout, time.Hour); err != nil {
		return nil, err
	}
	if p := strings.TrimSuffix(o.Prefix, "/"); p != "" {
		if len(p) > maxPrefix || storage.ValidateKey(p) != nil {
			return nil, nstance.FieldError("storage.url", "use segments as in a/b, at most 256 bytes", "prefix is not valid")
		}
		s.prefix = p + "/"
	}
	var err error
	s.bucket, s.driver, err = open(pool)
	return s, err
}

// Separate implements storage.Shared.
func (s *Store) Separate() storage.Store {
	if s.pool == nil {
		return s
	}
	out := &Store{open: s.open, pool: s.pool.Separate(), prefix: s.prefix, timeout: s.timeout, dates: s.dates}
	var err error
	if out.bucket, out.driver, err = out.open(out.pool); err != nil {
		return s // it worked before; one pool is better than none
	}
	return out
}

// Location implements storage.Located.
func (s *Store) Location() string {
	place := s.driver.Place()
	if place == "" {
		return ""
	}
	return strings.TrimSuffix(place+"/"+s.prefix, "/")
}

// Date implements storage.Dated.
func (s *Store) Date() (storage.Reading, bool) { return s.dates.Date() }

// Get implements storage.Store.
func (s *Store) Get(ctx context.Context, key string) (storage.Object, error) {
	c, err := s.begin(ctx, "get", key)
	if err != nil {
		return storage.Object{}, err
	}
	defer c.cancel()
	body, v, err := s.driver.Get(c.ctx, s.prefix+key)
	if err != nil {
		return storage.Object{}, s.failed(c, err)
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, storage.MaxObjectSize+1))
	switch {
	case err != nil: // even 404: a client resumes a broken read, and asks for a version that is replaced
		return storage.Object{}, s.unanswered(c, err)
	case len(data) > storage.MaxObjectSize:
		return storage.Object{}, nstance.Errorf(nstance.Invalid, "get %s: it is larger than %d bytes", key, storage.MaxObjectSize)
	case v == "":
		return storage.Object{}, nstance.Errorf(nstance.Unavailable, "get %s: the answer has no version", key)
	}
	return storage.Object{Key: key, Data: data, Version: v}, nil
}

// PutIfAbsent implements storage.Store.
func (s *Store) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	return s.put(ctx, key, data, "")
}

// PutIfMatch implements storage.Store.
func (s *Store) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	if !usable(v) { // and an empty one must never become a write without condition
		c, err := s.begin(ctx, "put", key)
		if err == nil {
			c.cancel()
		}
		return "", cmp.Or(err, nstance.Errorf(nstance.Conflict, "put %s: nothing has such a version", key))
	}
	return s.put(ctx, key, data, v)
}

// usable reports whether a version can be sent in a header.
func usable(v storage.Version) bool {
	for _, c := range []byte(v) {
		if c <= ' ' || c >= 0x7f || c == '"' {
			return false
		}
	}
	return v != "" && len(v) <= 256
}

func (s *Store) put(ctx context.Context, key string, data []byte, match storage.Version) (storage.Version, error) {
	if len(data) > storage.MaxObjectSize {
		return "", nstance.Errorf(nstance.Invalid, "put %s: %d bytes are more than an object may have, %d", key, len(data), storage.MaxObjectSize)
	}
	c, err := s.begin(ctx, "put", key)
	if err != nil {
		return "", err
	}
	defer c.cancel()
	c.write = true
	var v storage.Version
	err = s.patiently(c, func() (err error) {
		v, err = s.driver.Put(c.ctx, s.prefix+key, data, match)
		return err
	})
	switch gone := errors.Is(err, nstance.NotFound); {
	case err == nil && v == "":
		return "", nstance.Errorf(nstance.Ambiguous, "put %s: the answer has no version", key)
	case gone && match != "": // what S3 says where others say 412
		return "", nstance.Errorf(nstance.Conflict, "put %s: it is gone", key)
	case gone:
		return "", nstance.Errorf(nstance.Ambiguous, "put %s: the store says that it does not exist, as it should", key)
	}
	return v, err
}

// DeleteIfMatch implements storage.Store.
func (s *Store) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	c, err := s.begin(ctx, "delete", key)
	if err != nil {
		return err
	}
	defer c.cancel()
	if s.driver.Looks() || !usable(v) {
		if err := s.look(c, v); err != nil {
			return err
		}
	}
	c.write = true
	err = s.patiently(c, func() error { return s.remove(c, v) })
	if errors.Is(err, nstance.Conflict) {
		c.write = false
		return cmp.Or(s.look(c, v), err) // changed, or gone?
	}
	return err
}

// remove deletes what has just been looked at, or what has version v. A store
// that knows no such condition says so (501), and is asked without from then on:
// it is no worse than one that ignores the condition.
func (s *Store) remove(c *call, v storage.Version) error {
	looked := s.driver.Looks() && usable(v)
	if looked && s.plainDeletes.Load() {
		return s.driver.Delete(c.ctx, s.prefix+c.key, "")
	}
	err := s.driver.Delete(c.ctx, s.prefix+c.key, v)
	if f, ok := s.driver.Fault(err); looked && ok && f.Status == http.StatusNotImplemented {
		s.plainDeletes.Store(true)
		return s.driver.Delete(c.ctx, s.prefix+c.key, "")
	}
	return err
}

// look fails with NotFound or Conflict unless the key has version v.
func (s *Store) look(c *call, v storage.Version) error {
	have, err := s.driver.Head(c.ctx, s.prefix+c.key)
	switch {
	case err != nil:
		return s.failed(c, err)
	case have == "":
		return nstance.Errorf(nstance.Unavailable, "%s %s: the answer has no version", c.op, c.key)
	case have != v:
		return nstance.Errorf(nstance.Conflict, "%s %s: it has changed", c.op, c.key)
	}
	return nil
}

// patience is how often a write is sent that lost a race without a winner yet.
const patience = 6

// patiently makes a write again while the store says that another write to the
// same key was under way, which S3 does instead of waiting. Such an answer
// means that nothing was written. Should it lie, the next answer is Conflict,
// and a writer that reads back finds its own write ID.
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
func (s *Store) patiently(c *call, write func() error) error {
	for attempt := 0; ; attempt++ {
		err := write()
		if err == nil {
			return nil
		}
		if f, ok := s.driver.Fault(err); !ok || !f.busy() || attempt == patience-1 {
			return s.failed(c, err)
		}
		if !sleep.For(c.ctx, sleep.Jitter(sleep.Backoff(attempt+1, 20*time.Millisecond, time.Second))) {
			return s.failed(c, err)
		}
	}
}
