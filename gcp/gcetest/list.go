package gcetest

import (
	"cmp"
	"encoding/base64"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// maxPage is the most that a page holds, and what it holds when the caller does
// not say, by the API's documentation of maxResults.
const maxPage = 500

// A resource is something that lists show and filters look at.
type resource interface {
	listName() string
	// field returns a field's value by its path, and whether there is such a field.
	field(path string) (value string, known bool)
}

// list answers with the requested page.
func (o *Options) list(q *call, kind string, all []resource) (any, *apiError) {
	size, matches, refused := o.listing(q)
	if refused != nil {
		return nil, refused
	}
	slices.SortFunc(all, func(a, b resource) int { return cmp.Compare(a.listName(), b.listName()) })
	after, err := base64.RawURLEncoding.DecodeString(q.query.Get("pageToken"))
	if err != nil {
		return nil, invalidField("pageToken", q.query.Get("pageToken"), "")
	}
	from, _ := slices.BinarySearchFunc(all, string(after)+"\x00", func(r resource, name string) int { return cmp.Compare(r.listName(), name) })
	if len(after) == 0 {
		from = 0
	}
	out := page{Kind: kind, ID: "projects/" + o.Project, SelfLink: "https://www.googleapis.com" + q.r.URL.Path}
	scanned, last := 0, ""
	for _, r := range all[from:] {
		if len(out.Items) == size || o.ScanPages && scanned == size {
			out.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(last))
			break
		}
		scanned++
		last = r.listName()
		ok, refused := matches(r)
		if refused != nil {
			return nil, refused
		}
		if ok {
			out.Items = append(out.Items, shown(r))
		}
	}
	return out, nil
}

// listing reads the parameters of a list.
func (o *Options) listing(q *call) (int, func(resource) (bool, *apiError), *apiError) {
	size := maxPage
	if s := q.query.Get("maxResults"); s != "" {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil || n > maxPage {
			return 0, nil, invalidField("maxResults", s, "Acceptable values are 0 to 500, inclusive.")
		}
		if n > 0 {
			size = int(n)
		}
	}
	if order := q.query.Get("orderBy"); order != "" && order != "name" {
		return 0, nil, invalidField("orderBy", order, "Only name is known here.")
	}
	matches, err := parseFilter(q.query.Get("filter"))
	return min(size, o.PageSize), matches, err
}

func shown(r resource) any {
	if m, ok := r.(*machine); ok {
		return &m.instance
	}
	return r
}

func badFilter(filter string) *apiError {
	return refuse(http.StatusBadRequest, "invalid", "Invalid value for field 'filter': '%s'. Invalid list filter expression.", filter)
}

// A term is one comparison of a filter in the form of AIP-160.
type term struct {
	path, op, value string
}

var (
	aipTerm    = regexp.MustCompile(`^\s*\(?\s*([A-Za-z][\w.-]*)\s*(!=|=|:)\s*("(?:[^"\\]|\\.)*"|\*|[^\s()"]+)\s*\)?\s*(?:AND\b)?`)
	legacyTerm = regexp.MustCompile(`^([A-Za-z][\w.-]*)\s+(eq|ne)\s+(?:"([^"]*)"|'([^']*)'|(\S+))$`)
)

// parseFilter reads a filter: comparisons that must all be true, or one
// comparison with a regular expression.
func parseFilter(filter string) (func(resource) (bool, *apiError), *apiError) {
	if m := legacyTerm.FindStringSubmatch(filter); m != nil {
		re, err := regexp.Compile("^(?:" + m[3] + m[4] + m[5] + ")$")
		if err != nil {
			return nil, badFilter(filter)
		}
		return func(r resource) (bool, *apiError) {
			v, known := r.field(m[1])
			if !known {
				return false, badFilter(filter)
			}
			return re.MatchString(v) == (m[2] == "eq"), nil
		}, nil
	}
	var terms []term
	for rest := strings.TrimSpace(filter); rest != ""; {
		m := aipTerm.FindStringSubmatch(rest)
		if m == nil {
			return nil, badFilter(filter)
		}
		value := m[3]
		if strings.HasPrefix(value, `"`) {
			value = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(value[1 : len(value)-1])
		}
		terms = append(terms, term{m[1], m[2], value})
		rest = strings.TrimSpace(rest[len(m[0]):])
	}
	return func(r resource) (bool, *apiError) {
		for _, t := range terms {
			v, known := r.field(t.path)
			if !known {
				return false, badFilter(filter)
			}
			if !t.holds(v) {
				return false, nil
			}
		}
		return true, nil
	}, nil
}

// holds compares a value, of which an absent one is empty.
func (t term) holds(value string) bool {
	switch {
	case t.op == ":" && t.value == "*":
		return value != ""
	case t.op == ":":
		return strings.Contains(strings.ToLower(value), strings.ToLower(t.value))
	}
	return (value == t.value) == (t.op == "=")
}
