package storage

import (
	"context"
	"net/url"

	"github.com/nstance-go/nstance"
)

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
