package storage

import (
	"context"
	"net/url"
	"strings"

	"github.com/nstance-go/nstance"
)

// An Opener opens the stores that a program is linked with by their URLs, as Open
// does and storage/blob.Open, which links the clients of all clouds. Nil is Open.
type Opener func(ctx context.Context, rawURL string) (Store, error)

// Open calls the opener.
func (o Opener) Open(ctx context.Context, rawURL string) (Store, error) {
	if o == nil {
		return Open(ctx, rawURL)
	}
	return o(ctx, rawURL)
}

// OpenReadOnly opens what Open does for reading only, as OpenReadOnly and
// ReadOnly have it.
func (o Opener) OpenReadOnly(ctx context.Context, rawURL string) (Store, error) {
	if scheme, _, _ := strings.Cut(rawURL, ":"); o == nil || scheme == "file" || scheme == "mem" {
		return OpenReadOnly(ctx, rawURL)
	}
	s, err := o(ctx, rawURL)
	if err != nil {
		return nil, err
	}
	return ReadOnly(s), nil
}

// Open opens the store that a URL names: file:///dir for a Dir, mem:// for a
// new Memory. Other schemes belong to adapters and are Invalid here.
func Open(ctx context.Context, rawURL string) (Store, error) {
	path, err := locate(ctx, rawURL)
	switch {
	case err != nil:
		return nil, err
	case path == "":
		return NewMemory(), nil
	}
	return OpenDir(path, nil)
}

// locate returns the directory that a URL names, or "" for memory.
func locate(ctx context.Context, rawURL string) (path string, err error) {
	const field, remedy = "storage.url", "use file:///absolute/directory or mem://"
	if err := ctx.Err(); err != nil {
		return "", nstance.Errorf(nstance.Unavailable, "open storage: %w", err)
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return "", nstance.FieldError(field, remedy, "is not a URL") // the URL may hold a secret
	}
	switch {
	case u.Scheme != "file" && u.Scheme != "mem":
		return "", nstance.FieldError(field, remedy, "scheme %q is not known here", u.Scheme)
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return "", nstance.FieldError(field, remedy, "%s takes no user, query or fragment", u.Scheme)
	case u.Host != "":
		return "", nstance.FieldError(field, "write three slashes: file:///directory", "names a host, %q", u.Host)
	case u.Scheme == "mem" && u.Path == "" && u.Opaque == "":
		return "", nil
	case u.Scheme == "mem" || u.Path == "" || u.Path == "/":
		return "", nstance.FieldError(field, remedy, "path %q is not valid", u.Path+u.Opaque)
	}
	return u.Path, nil
}
