package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
)

// Options of Restore and Replace.
type Options struct {
	// KeepGrants keeps operators and nonces as they were copied. Without it none is
	// accepted any more: the copy does not know which were revoked, or used, since.
	KeepGrants bool
	DryRun     bool // check everything, and change nothing
}

// A Result is what Restore and Replace have done.
type Result struct {
	Manifest  Manifest                   `json:"manifest,omitzero"` // of the archive; zero: there is none
	Shards    map[nstance.ShardID]uint64 `json:"shards"`            // the epoch after which the next term of each begins
	Operators int                        `json:"operators"`         // that must register again
	Objects   int                        `json:"objects"`           // written
}

// Restore writes an archive into an empty storage. It may be repeated until it succeeds: the
// catalogue of keys, without which no server starts, is written last. Fails with Invalid when
// the archive is damaged, and Conflict when the storage holds anything else.
func Restore(ctx context.Context, archive io.ReadSeeker, to storage.Store, o Options) (Result, error) {
	found, err := inspect(archive)
	if err == nil {
		err = checkEmpty(ctx, to, found.keys)
	}
	if err != nil || o.DryRun {
		return found.result(o), err
	}
	if _, err := archive.Seek(0, io.SeekStart); err != nil {
		return found.result(o), err
	}
	if err := writeObjects(ctx, archive, to, o); err != nil {
		return found.result(o), err
	}
	for shard, epoch := range found.next {
		if err := raise(ctx, to, shard, epoch); err != nil {
			return found.result(o), err
		}
	}
	data, err := found.catalogue.moved(storage.LocationOf(to), o.KeepGrants)
	if err == nil {
		err = putOnce(ctx, to, layout.ClusterLeaseKey, data)
	}
	return found.result(o), err
}

// writeObjects writes the objects of an archive that a restored storage has.
func writeObjects(ctx context.Context, archive io.Reader, to storage.Store, o Options) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.SetLimit(width)
	_, err := eachObject(archive, func(key string, data []byte) error {
		if strings.HasPrefix(key, leasePrefix) || grants(key) && !o.KeepGrants {
			return nil
		}
		tasks.Go(func() error { return putOnce(ctx, to, key, data) })
		return ctx.Err()
	})
	if failed := tasks.Wait(); failed != nil {
		return failed
	}
	return err
}

func (i *inventory) result(o Options) Result {
	out := i.census.result(o)
	out.Manifest = i.manifest
	return out
}

// putOnce writes an object, or finds it written by an earlier attempt.
func putOnce(ctx context.Context, to storage.Store, key string, data []byte) error {
	standing, err := records.PutOnce(ctx, to, key, data)
	if err == nil && !bytes.Equal(standing, data) {
		return nstance.Errorf(nstance.Conflict, "%s is in the storage already, and is another one", key)
	}
	return err
}

// checkEmpty fails with Conflict when a storage holds what an interrupted restore of the archive
// cannot have written.
func checkEmpty(ctx context.Context, to storage.Store, keys map[string]bool) error {
	for entry, err := range to.List(ctx, "", "") {
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(entry.Key, probePrefix):
		case !keys[entry.Key] || entry.Key == layout.ClusterLeaseKey:
			return &nstance.Error{Code: nstance.Conflict, Msg: "the storage is not empty: it has " + entry.Key, Remedy: "restore into an empty one"}
		}
	}
	return nil
}

// An inventory is what an archive holds.
type inventory struct {
	manifest  Manifest
	catalogue catalogue
	keys      map[string]bool
	*census
}

// inspect reads a whole archive, and fails with Invalid unless it is complete.
func inspect(archive io.Reader) (*inventory, error) {
	found := &inventory{keys: map[string]bool{}, census: newCensus()}
	sum, size := sha256.New(), int64(0)
	manifest, err := eachObject(archive, func(key string, data []byte) (err error) {
		addObject(sum, key, data)
		size += int64(len(data))
		found.keys[key] = true
		if key == layout.ClusterLeaseKey {
			found.catalogue, err = parseCatalogue(data)
		}
		return errors.Join(err, found.count(storage.Object{Key: key, Data: data}))
	})
	switch {
	case err != nil:
		return found, err
	case manifest.Objects != len(found.keys) || manifest.Bytes != size || manifest.SHA256 != hex.EncodeToString(sum.Sum(nil)):
		return found, damaged("its objects are not those that were written")
	case found.catalogue == nil:
		return found, damaged("it has no keys of a cluster")
	}
	for shard := range found.epochs {
		found.keys[layout.LeaseKey(shard)] = true // which Restore writes
	}
	found.manifest = manifest
	found.choose()
	return found, nil
}

func damaged(format string, args ...any) error {
	return &nstance.Error{Code: nstance.Invalid, Msg: "the backup is damaged: " + fmt.Sprintf(format, args...), Remedy: "use another one"}
}

// eachObject calls do for the objects of an archive, and returns its manifest.
func eachObject(archive io.Reader, do func(key string, data []byte) error) (m Manifest, err error) {
	zipped, err := gzip.NewReader(archive)
	if err != nil {
		return m, damaged("%v", err)
	}
	r := tar.NewReader(zipped)
	for {
		h, err := r.Next()
		if err != nil {
			return m, damaged("it ends before its manifest: %v", err)
		}
		data, err := io.ReadAll(io.LimitReader(r, storage.MaxObjectSize+1))
		if err != nil {
			return m, damaged("%s: %v", h.Name, err)
		}
		key, object := strings.CutPrefix(h.Name, objectFolder)
		if !object && h.Name == manifestName {
			return readManifest(data)
		}
		if err := storage.ValidateKey(key); !object || err != nil || len(data) > storage.MaxObjectSize {
			return m, damaged("%q is no object", h.Name)
		}
		if err := do(key, data); err != nil {
			return m, err
		}
	}
}

func readManifest(data []byte) (m Manifest, err error) {
	if err := json.Unmarshal(data, &m); err != nil {
		return m, damaged("its manifest: %v", err)
	}
	if m.Format > format {
		return m, &nstance.Error{Code: nstance.Invalid, Msg: "the backup has a format that this program does not know", Remedy: "use a newer program"}
	}
	return m, nil
}
