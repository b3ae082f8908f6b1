// Package backup copies the storage of a cluster into an archive and back, and makes a copy
// that was made by other means a storage of its own.
//
// A restored storage differs from what was copied: docs/design/033-restored-storage.md
package backup

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/storage"
)

const (
	// format is the version of archives that this program writes and reads.
	format = 1

	objectFolder = "objects/"
	manifestName = "manifest.json" // the last entry: an archive that was cut off has none

	// width is how many objects are read or written at a time.
	width = 32
)

// A Manifest says what an archive holds.
type Manifest struct {
	Format   int               `json:"format"`
	Cluster  nstance.ClusterID `json:"cluster,omitempty"`
	Location string            `json:"location,omitempty"` // of the storage; empty: not known
	Began    time.Time         `json:"began"`
	Ended    time.Time         `json:"ended"`
	Objects  int               `json:"objects"`
	Bytes    int64             `json:"bytes"`
	SHA256   string            `json:"sha256"` // of all objects, with their keys
}

// Write writes the objects of a storage into an archive, while servers run. What records name,
// such as definitions, is read after them: it is deleted only an hour after no object names it.
// Fails with Conflict when keys were rotated meanwhile, and NotFound when no cluster is there.
func Write(ctx context.Context, from storage.Store, to io.Writer, now func() time.Time) (Manifest, error) {
	keys, err := from.Get(ctx, layout.ClusterLeaseKey)
	if err != nil {
		return Manifest{}, fmt.Errorf("read the keys of the cluster: %w", err)
	}
	catalogue, err := parseCatalogue(keys.Data)
	if err != nil {
		return Manifest{}, err
	}
	zipped := gzip.NewWriter(to)
	w := &writer{from: from, tar: tar.NewWriter(zipped), sum: sha256.New(), manifest: Manifest{
		Format: format, Cluster: catalogue.cluster(), Location: storage.LocationOf(from), Began: now().UTC(),
	}}
	for _, part := range parts() {
		if err := w.copyPart(ctx, part); err != nil {
			return Manifest{}, err
		}
	}
	if err := unrotated(ctx, from, keys.Version); err != nil {
		return Manifest{}, err
	}
	w.manifest.Ended, w.manifest.SHA256 = now().UTC(), hex.EncodeToString(w.sum.Sum(nil))
	data, err := json.Marshal(w.manifest)
	if err == nil {
		err = errors.Join(w.put(manifestName, data), w.tar.Close(), zipped.Close())
	}
	return w.manifest, err
}

// unrotated fails with Conflict unless the catalogue of keys is the one that was read first.
func unrotated(ctx context.Context, from storage.Store, before storage.Version) error {
	obj, err := from.Get(ctx, layout.ClusterLeaseKey)
	if err == nil && obj.Version != before {
		return &nstance.Error{Code: nstance.Conflict, Msg: "the cluster's keys were changed while they were copied", Remedy: "repeat it"}
	}
	return err
}

// A writer writes one archive.
type writer struct {
	from     storage.Store
	tar      *tar.Writer
	sum      hash.Hash
	manifest Manifest
}

// copyPart copies the objects of one part, in the order of their keys.
func (w *writer) copyPart(ctx context.Context, p part) error {
	var batch []string
	for entry, err := range w.from.List(ctx, p.prefix, "") {
		if err != nil {
			return err
		}
		if p.has(entry.Key) {
			batch = append(batch, entry.Key)
		}
		if len(batch) == width {
			if err := w.copy(ctx, batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
	return w.copy(ctx, batch)
}

// copy copies objects; those that have gone since are left out.
func (w *writer) copy(ctx context.Context, keys []string) error {
	found := make([]*storage.Object, len(keys))
	tasks, ctx := errgroup.WithContext(ctx)
	for i, key := range keys {
		tasks.Go(func() error {
			obj, err := w.from.Get(ctx, key)
			if err == nil {
				found[i] = &obj
			}
			if errors.Is(err, nstance.NotFound) {
				return nil
			}
			return err
		})
	}
	if err := tasks.Wait(); err != nil {
		return err
	}
	for _, obj := range found {
		if obj == nil {
			continue
		}
		addObject(w.sum, obj.Key, obj.Data)
		w.manifest.Objects++
		w.manifest.Bytes += int64(len(obj.Data))
		if err := w.put(objectFolder+obj.Key, obj.Data); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) put(name string, data []byte) error {
	err := w.tar.WriteHeader(&tar.Header{Name: name, Size: int64(len(data)), Mode: 0o600, ModTime: w.manifest.Began})
	if err == nil {
		_, err = w.tar.Write(data)
	}
	return err
}

// addObject adds an object to the digest of an archive.
func addObject(sum hash.Hash, key string, data []byte) {
	fmt.Fprintf(sum, "%s %d\n", key, len(data))
	sum.Write(data)
}
