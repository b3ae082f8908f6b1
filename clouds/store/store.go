// Package store opens any store by its URL, for programs that are configured with
// one. It links the clients of all clouds; a program that needs only one imports
// aws/s3, gcp/gcs or azure/blob.
//
// Its functions may be called concurrently, and its stores are safe for concurrent use.
package store

import (
	"context"
	"net/url"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws/s3"
	"github.com/nstance-go/nstance/azure/blob"
	"github.com/nstance-go/nstance/gcp/gcs"
	"github.com/nstance-go/nstance/storage"
)

// Open opens s3://bucket, gs://bucket and azblob://container, with the
// parameters that those packages document, and what storage.Open does:
// file:///directory and mem://. It does not call the bucket: storage.Probe checks
// it.
func Open(ctx context.Context, rawURL string) (storage.Store, error) {
	const field, remedy = "storage.url", "use file:///absolute/directory, s3://bucket, gs://bucket, azblob://container or mem://"
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, nstance.FieldError(field, remedy, "is not a URL") // it may hold a secret
	}
	switch u.Scheme {
	case "file", "mem":
		return storage.Open(ctx, rawURL)
	case s3.Scheme:
		return s3.Open(ctx, rawURL, nil)
	case gcs.Scheme:
		return gcs.Open(ctx, rawURL, nil)
	case blob.Scheme:
		return blob.Open(ctx, rawURL, nil)
	}
	return nil, nstance.FieldError(field, remedy, "scheme %q is unknown", u.Scheme)
}

// OpenReadOnly is Open for reading only; see storage.OpenReadOnly and
// storage.ReadOnly.
func OpenReadOnly(ctx context.Context, rawURL string) (storage.Store, error) {
	if scheme, _, _ := strings.Cut(rawURL, ":"); scheme == "file" || scheme == "mem" {
		return storage.OpenReadOnly(ctx, rawURL)
	}
	s, err := Open(ctx, rawURL)
	if err != nil {
		return nil, err
	}
	return storage.ReadOnly(s), nil
}
