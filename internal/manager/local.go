package manager

import (
	"context"
	"errors"
	"net/url"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage/secret"
)

// Field is the setting that names a source, as errors call it.
const Field = "shard.secrets.source"

// Schemes of the sources that need no client.
const (
	SchemeStore = "store" // the cluster's storage, where nstance-admin secret puts them
	SchemeEnv   = "env"
	SchemeFile  = "file"
)

// OpenLocal opens env://PREFIX_ and file:///directory, and returns nil for store:, which
// every server has. Other schemes are Invalid here. It reads no secret yet.
func OpenLocal(_ context.Context, rawURL string) (src secret.Source, err error) {
	if rawURL == SchemeStore+":" {
		return nil, nil
	}
	const remedy = "use store:, env://PREFIX_ or file:///directory"
	u, err := url.Parse(rawURL)
	switch {
	case err != nil:
		return nil, Invalid(remedy, "is not a URL") // it may hold a secret
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "":
		return nil, Invalid(remedy, "%s takes no user, query or fragment", u.Scheme)
	case u.Scheme == SchemeEnv && u.Path == "":
		src, err = secret.Env(u.Host)
	case u.Scheme == SchemeFile && u.Host == "":
		src, err = secret.Dir(u.Path)
	default:
		return nil, Invalid(remedy, "is none of store:, env://PREFIX_ and file:///directory")
	}
	if e, ok := errors.AsType[*nstance.Error](err); ok {
		e.Field = Field
	}
	return src, err
}
