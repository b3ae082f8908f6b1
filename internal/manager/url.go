package manager

import (
	"net/url"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
)

// A URL names a source: scheme://place?parameters.
type URL struct {
	Place  string // host and path
	Prefix string // the parameter prefix
	Params url.Values
}

// ParseURL reads a URL of that scheme with at most these parameters beside
// prefix, each with one value. Errors name the parameter and never the URL.
func ParseURL(rawURL, scheme string, params ...string) (*URL, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != scheme || u.Opaque != "" {
		return nil, Invalid("use "+scheme+"://", "is not a %s URL", scheme)
	}
	if u.User != nil || u.Fragment != "" {
		return nil, Invalid("credentials come from the environment", "holds a user or a fragment")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, Invalid("", "has parameters that cannot be read")
	}
	known := append([]string{"prefix"}, params...)
	for name, values := range query {
		switch {
		case !slices.Contains(known, name):
			return nil, Invalid("use "+strings.Join(known, ", "), "parameter %.32q is unknown", name)
		case len(values) != 1 || values[0] == "":
			return nil, Invalid("give it one value or leave it out", "parameter %q", name)
		}
	}
	prefix := query.Get("prefix")
	query.Del("prefix")
	return &URL{Place: u.Host + u.Path, Prefix: prefix, Params: query}, nil
}

// Invalid returns the error of a source that is not named well.
func Invalid(remedy, format string, args ...any) error {
	return nstance.FieldError(Field, remedy, format, args...)
}
