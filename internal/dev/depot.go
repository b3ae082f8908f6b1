package dev

import (
	"context"
	"crypto/rand"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
	"github.com/nstance-go/nstance/storage/secret"
)

// A depot is where the truth of the shard is kept.
type depot struct {
	store   storage.Store
	url     string // what other processes call it
	box     *secret.Box
	key     string // of box, encoded; empty: private keys are stored as they are
	foreign bool   // not in the home: to be emptied in the end
}

// keyVariable hands the key to servers.
const keyVariable = "NSTANCE_SECRET_KEY"

// openDepot opens what Options.Storage names, or the home's own directory.
// Elsewhere it takes a folder that was never used before, and private keys are
// sealed.
func openDepot(ctx context.Context, o *Options, h *home) (*depot, error) {
	d, err := openStore(ctx, o, h)
	if err == nil {
		_, err = lease.Prepare(ctx, d.store, shardID)
	}
	return d, err
}

func openStore(ctx context.Context, o *Options, h *home) (*depot, error) {
	if o.Storage == "" {
		store, err := storage.OpenDir(h.storageDir(), nil)
		u := url.URL{Scheme: "file", Path: filepath.ToSlash(h.storageDir())}
		return &depot{store: store, url: u.String()}, err
	}
	where, err := within(o.Storage, "nstance-dev-"+strings.ToLower(rand.Text()[:10]))
	if err != nil {
		return nil, err
	}
	open := o.Open
	if open == nil {
		open = storage.Open
	}
	store, err := open(ctx, where)
	if err != nil {
		return nil, err
	}
	key := secret.NewKey()
	box, err := secret.NewBox(key)
	return &depot{store: store, url: where, box: box, key: key.Encode(), foreign: true}, err
}

// within returns the URL of a folder in a store.
func within(rawURL, folder string) (string, error) {
	const field = "storage"
	u, err := url.Parse(rawURL)
	switch {
	case err != nil:
		return "", nstance.FieldError(field, "use s3://bucket, gs://bucket, azblob://container or file:///directory", "is not a URL") // it may hold a secret
	case u.Scheme == "mem":
		return "", nstance.FieldError(field, "leave it out, or name a store that several processes can reach", "mem:// is in one process only")
	case u.Scheme == "file":
		u.Path = path.Join(u.Path, folder)
	default:
		q := u.Query()
		q.Set("prefix", path.Join(q.Get("prefix"), folder))
		u.RawQuery = q.Encode()
	}
	return u.String(), nil
}

// sweepLimit is how long emptying a store may take.
const sweepLimit = time.Minute

// close removes what was stored elsewhere. All writers must have ended.
func (d *depot) close() error {
	if !d.foreign {
		return nil
	}
	if u, err := url.Parse(d.url); err == nil && u.Scheme == "file" {
		return os.RemoveAll(filepath.FromSlash(u.Path))
	}
	ctx, cancel := context.WithTimeout(context.Background(), sweepLimit)
	defer cancel()
	if err := d.sweep(ctx); err != nil {
		return nstance.Errorf(nstance.Unavailable, "objects of this run stay behind in storage: %w", err)
	}
	return nil
}

// sweep deletes all objects.
func (d *depot) sweep(ctx context.Context) error {
	var all []storage.Entry
	for e, err := range d.store.List(ctx, "", "") {
		if err != nil {
			return err
		}
		all = append(all, e)
	}
	for _, e := range all {
		if err := d.store.DeleteIfMatch(ctx, e.Key, e.Version); err != nil && nstance.CodeOf(err) != nstance.NotFound {
			return err
		}
	}
	return nil
}
