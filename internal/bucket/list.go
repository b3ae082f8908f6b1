package bucket

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"gocloud.dev/blob"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

const pageSize = 1000 // keys; the most that S3 gives

// List implements storage.Store.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		last := ""
		for token := blob.FirstPageToken; len(token) > 0; {
			page, next, err := s.page(ctx, prefix, after, token)
			if err != nil {
				yield(storage.Entry{}, err)
				return
			}
			token = next
			for _, e := range page {
				if err := misfit(ctx, s.prefix+prefix, last, e.Key); err != nil {
					yield(storage.Entry{}, err)
					return
				}
				last = e.Key
				if e.Key = strings.TrimPrefix(e.Key, s.prefix); e.Key > after && !yield(e, nil) {
					return
				}
			}
		}
	}
}

// Folders implements storage.Foldered.
func (s *Store) Folders(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		last := ""
		for token := blob.FirstPageToken; len(token) > 0; {
			objects, next, err := s.objects(ctx, prefix, "", "/", token)
			if err != nil {
				yield("", err)
				return
			}
			token = next
			for _, o := range objects {
				if !o.IsDir {
					continue
				}
				if err := misfit(ctx, s.prefix+prefix, last, o.Key); err != nil {
					yield("", err)
					return
				}
				last = o.Key
				if !yield(strings.TrimSuffix(strings.TrimPrefix(o.Key, s.prefix+prefix), "/"), nil) {
					return
				}
			}
		}
	}
}

// objects returns one page of a listing, where folders are taken together if a
// delimiter is given.
func (s *Store) objects(ctx context.Context, prefix, after, delimiter string, token []byte) ([]*blob.ListObject, []byte, error) {
	c, err := s.start(ctx, "list", cmp.Or(prefix, "everything"))
	if err != nil {
		return nil, nil, err
	}
	defer c.cancel()
	full := s.prefix + prefix
	if after != "" {
		after = s.prefix + after
	}
	asked := ""
	objects, next, err := s.answered(c.ctx, token, &blob.ListOptions{
		Prefix: full, Delimiter: delimiter,
		BeforeList: func(as func(any) bool) error {
			last := asked
			if asked = s.driver.Query(as, full, after); asked != "" && asked == last {
				return errSamePage
			}
			return nil
		},
	})
	if err == nil && bytes.Equal(next, token) {
		err = errSamePage
	}
	if err != nil {
		return nil, nil, s.failed(c, err)
	}
	return objects, next, nil
}

// ErrNoListing is the error of an answer to a listing that is none, such as an empty one or a
// page for people: it must not be read as the list of nothing.
var ErrNoListing = errors.New("the answer is no listing")

// errSamePage is the error of a page that names itself as the next one.
var errSamePage = fmt.Errorf("%w: it goes on with itself", ErrNoListing)

// answered returns a page of a listing. A client that trusts the answer to be one panics if
// it is another document.
func (s *Store) answered(ctx context.Context, token []byte, o *blob.ListOptions) (objects []*blob.ListObject, next []byte, err error) {
	defer func() {
		if recover() != nil {
			err = ErrNoListing
		}
	}()
	return s.bucket.ListPage(ctx, token, pageSize, o)
}

// page returns the entries of one page, in order and with the store's prefix, some of
// which may not be after after.
func (s *Store) page(ctx context.Context, prefix, after string, token []byte) ([]storage.Entry, []byte, error) {
	objects, next, err := s.objects(ctx, prefix, after, "", token)
	if err != nil {
		return nil, nil, err
	}
	entries := make([]storage.Entry, len(objects))
	for i, o := range objects {
		entries[i] = s.driver.Entry(o)
	}
	slices.SortFunc(entries, func(a, b storage.Entry) int { return cmp.Compare(a.Key, b.Key) })
	return entries, next, nil
}

// misfit checks what a reader of the listing relies on, with the store's prefix.
func misfit(ctx context.Context, prefix, last, key string) error {
	switch err := ctx.Err(); {
	case err != nil:
		return nstance.Errorf(nstance.Unavailable, "list %s: %w", prefix, err)
	case !strings.HasPrefix(key, prefix):
		return nstance.Errorf(nstance.Internal, "list %s: the store lists %q, which has another prefix", prefix, key)
	case last != "" && key <= last:
		return nstance.Errorf(nstance.Internal, "list %s: the store lists %q after %q, which is not the order of keys", prefix, key, last)
	}
	return nil
}
