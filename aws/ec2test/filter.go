package ec2test

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// The limits of filters ("List and filter your resources", EC2 User Guide).
const (
	maxFilters           = 50
	maxFilterValues      = 200
	maxFilterValueLength = 255
)

type filterInput struct {
	Name   string
	Values []string `q:"Value"`
}

// A filterable has the values of a resource by filter, and nil for a filter
// that its kind does not have.
type filterable map[string][]string

// checkFilters refuses what EC2 refuses, before any resource is looked at.
func checkFilters(filters []filterInput, known []string) error {
	if len(filters) > maxFilters {
		return refuse("FilterLimitExceeded", "The maximum number of filters on a single call is %d", maxFilters)
	}
	values := 0
	for _, f := range filters {
		if f.Name == "" {
			return missing("Filter.Name")
		}
		if !slices.Contains(known, f.Name) && !strings.HasPrefix(f.Name, "tag:") {
			return invalid("The filter '%s' is invalid", f.Name)
		}
		if len(f.Values) == 0 {
			return invalid("The filter '%s' has no values", f.Name)
		}
		for _, v := range f.Values {
			if len(v) > maxFilterValueLength {
				return invalid("The value of filter '%s' is longer than %d characters", f.Name, maxFilterValueLength)
			}
		}
		values = max(values, len(f.Values))
	}
	if values > maxFilterValues {
		return refuse("FilterLimitExceeded", "The maximum number of filter values specified on a single call is %d", maxFilterValues)
	}
	return nil
}

// fits reports whether a resource has one of the values of every filter.
func fits(filters []filterInput, has filterable, tags map[string]string) bool {
	for _, f := range filters {
		values := has[f.Name]
		if key, ok := strings.CutPrefix(f.Name, "tag:"); ok {
			v, set := tags[key]
			if values = nil; set {
				values = []string{v}
			}
		}
		if f.Name == "tag-key" {
			values = slices.Collect(maps.Keys(tags))
		}
		if !slices.ContainsFunc(f.Values, func(pattern string) bool {
			return slices.ContainsFunc(values, func(v string) bool { return matches(pattern, v) })
		}) {
			return false
		}
	}
	return true
}

// matches compares as filters do: * stands for any run of characters, ? for one,
// and a backslash before them for themselves.
func matches(pattern, value string) bool {
	// A value has no separator for path.Match, and [ is an ordinary character.
	escape := strings.NewReplacer("/", "\x00", "[", `\[`)
	ok, err := path.Match(escape.Replace(pattern), strings.ReplaceAll(value, "/", "\x00"))
	return ok && err == nil
}

// byTag reports whether a filter is one of tags.
func byTag(filters []filterInput) bool {
	return slices.ContainsFunc(filters, func(f filterInput) bool { return strings.HasPrefix(f.Name, "tag:") || f.Name == "tag-key" })
}
