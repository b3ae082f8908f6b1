package bucket

import (
	"net/url"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
)

const field = "storage.url"

// A URL is what names a bucket: scheme://bucket?parameters.
type URL struct {
	Bucket string
	Prefix string     // the parameter prefix
	Params url.Values // the others, each with one value that is not empty
}

// ParseURL reads a URL of that scheme with at most these parameters, beside
// prefix. Errors name the parameter and never the URL, which may hold a secret.
func ParseURL(rawURL, scheme string, params ...string) (*URL, error) {
	remedy := "use " + scheme + "://bucket?prefix=a/b"
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != scheme {
		return nil, nstance.FieldError(field, remedy, "is not a %s URL", scheme)
	}
	if u.Host == "" || u.User != nil || u.Fragment != "" || u.Port() != "" || strings.Trim(u.Path, "/") != "" {
		return nil, nstance.FieldError(field, remedy, "names not just a bucket; a folder goes into prefix")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, nstance.FieldError(field, remedy, "has parameters that cannot be read")
	}
	known := append([]string{"prefix"}, params...)
	for name, values := range query {
		switch {
		case !slices.Contains(known, name):
			return nil, nstance.FieldError(field, "use "+strings.Join(known, ", "), "parameter %q is unknown", name)
		case len(values) != 1 || values[0] == "":
			return nil, nstance.FieldError(field, "give it one value or leave it out", "parameter %q", name)
		}
	}
	prefix := query.Get("prefix")
	query.Del("prefix")
	return &URL{Bucket: u.Host, Prefix: prefix, Params: query}, nil
}

// Invalid returns the error of a parameter's value.
func (*URL) Invalid(param, remedy string) error {
	return nstance.FieldError(field, remedy, "parameter %q is not valid", param)
}
