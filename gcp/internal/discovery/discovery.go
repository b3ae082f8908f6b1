// Package discovery checks requests to the Compute Engine API, and the answers,
// against the API's discovery document: the description from which Google
// generates its clients. It is for tests, and finds the document in the module
// cache, in google.golang.org/api.
package discovery

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// A document is what this package reads of the discovery document.
type document struct {
	ServicePath string              `json:"servicePath"`
	Parameters  map[string]*schema  `json:"parameters"`
	Schemas     map[string]*schema  `json:"schemas"`
	Resources   map[string]resource `json:"resources"`

	methods map[string][]*method // by HTTP method and number of path segments
}

type resource struct {
	Methods   map[string]*method  `json:"methods"`
	Resources map[string]resource `json:"resources"`
}

type method struct {
	ID         string             `json:"id"`
	HTTPMethod string             `json:"httpMethod"`
	FlatPath   string             `json:"flatPath"`
	Parameters map[string]*schema `json:"parameters"`
	Request    *schema            `json:"request"`
	Response   *schema            `json:"response"`

	path *regexp.Regexp
}

// load reads the document once.
var load = sync.OnceValues(func() (*document, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "google.golang.org/api").Output()
	if err != nil {
		return nil, fmt.Errorf("find google.golang.org/api: %w", err)
	}
	raw, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "compute", "v1", "compute-api.json"))
	if err != nil {
		return nil, err
	}
	d := &document{methods: map[string][]*method{}}
	if err := json.Unmarshal(raw, d); err != nil {
		return nil, err
	}
	d.index(d.Resources)
	return d, nil
})

var placeholder = regexp.MustCompile(`\\\{\+?(\w+)\\\}`)

func (d *document) index(resources map[string]resource) {
	for _, r := range resources {
		for _, m := range r.Methods {
			m.path = regexp.MustCompile("^" + placeholder.ReplaceAllString(regexp.QuoteMeta(m.FlatPath), "(?P<$1>[^/]+)") + "$")
			key := fmt.Sprint(m.HTTPMethod, strings.Count(m.FlatPath, "/"))
			d.methods[key] = append(d.methods[key], m)
		}
		d.index(r.Resources)
	}
}

// find returns the method of a request and its path's parameters. A literal
// segment goes before a parameter.
func (d *document) find(r *http.Request) (*method, url.Values) {
	path, ok := strings.CutPrefix(r.URL.Path, "/"+d.ServicePath)
	if !ok {
		return nil, nil
	}
	var found *method
	params := url.Values{}
	for _, m := range d.methods[fmt.Sprint(r.Method, strings.Count(path, "/"))] {
		values := m.path.FindStringSubmatch(path)
		if values == nil || found != nil && m.path.NumSubexp() >= found.path.NumSubexp() {
			continue
		}
		found, params = m, url.Values{}
		for i, name := range m.path.SubexpNames()[1:] {
			params.Set(name, values[i+1])
		}
	}
	return found, params
}

// Handler returns a handler in front of next that fails t for each request and
// each answer that the document does not permit.
func Handler(t testing.TB, next http.Handler) http.Handler {
	t.Helper()
	d, err := load()
	if err != nil {
		t.Fatal(err)
	}
	return d.handler(next, func(err error) { t.Errorf("discovery document: %v", err) })
}

func (d *document) handler(next http.Handler, report func(error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" { // of another service
			next.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the caller is gone
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		m, params := d.find(r)
		if m == nil {
			report(fmt.Errorf("no method is %s %s", r.Method, r.URL.Path))
			next.ServeHTTP(w, r)
			return
		}
		if err := d.checkRequest(m, params, r.URL.Query(), body); err != nil {
			report(fmt.Errorf("request %s: %w\n%s %s\n%s", m.ID, err, r.Method, r.URL, body))
		}
		answer := &recorder{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(answer, r)
		if r.Context().Err() != nil {
			return // the caller is gone, and may have got no answer
		}
		if answer.body.Len() == 0 || w.Header().Get("Content-Type") == "text/html" {
			return // of something that stands between, which a test has put there
		}
		if err := d.checkAnswer(m, answer); err != nil {
			report(fmt.Errorf("answer of %s: %w\n%s", m.ID, err, answer.body.Bytes()))
		}
	})
}

type recorder struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.body.Write(b)
	return r.ResponseWriter.Write(b)
}

func (d *document) checkRequest(m *method, path, query url.Values, body []byte) error {
	for name, values := range path {
		if err := d.checkParameter(m.Parameters[name], "path", name, values); err != nil {
			return err
		}
	}
	for name, values := range query {
		p := m.Parameters[name]
		if p == nil {
			p = d.Parameters[name]
		}
		if err := d.checkParameter(p, "query", name, values); err != nil {
			return err
		}
	}
	if m.Request == nil {
		if len(bytes.TrimSpace(body)) > 0 {
			return errors.New("the method has no body")
		}
		return nil
	}
	return d.checkBody(m.Request, body, m.ID)
}

func (d *document) checkParameter(p *schema, location, name string, values []string) error {
	if p == nil || p.Location != location {
		return fmt.Errorf("no %s parameter %s", location, name)
	}
	if len(values) > 1 && !p.Repeated {
		return fmt.Errorf("parameter %s is given %d times", name, len(values))
	}
	for _, v := range values {
		if err := p.checkText(v); err != nil {
			return fmt.Errorf("parameter %s: %w", name, err)
		}
	}
	return nil
}

func (d *document) checkAnswer(m *method, r *recorder) error {
	switch {
	case r.status == http.StatusOK && m.Response != nil:
		return d.checkBody(m.Response, r.body.Bytes(), "")
	case r.status < 400:
		return fmt.Errorf("status %d", r.status)
	}
	return checkError(r)
}

// checkError checks the form of errors, which all Google APIs share and which
// no discovery document describes.
func checkError(r *recorder) error {
	var body struct {
		Error *struct {
			Code    int              `json:"code"`
			Message string           `json:"message"`
			Status  string           `json:"status"`
			Details []map[string]any `json:"details"`
			Errors  []struct {
				Message      string `json:"message"`
				Domain       string `json:"domain"`
				Reason       string `json:"reason"`
				Location     string `json:"location"`
				LocationType string `json:"locationType"`
			} `json:"errors"`
		} `json:"error"`
	}
	dec := json.NewDecoder(bytes.NewReader(r.body.Bytes()))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&body); err != nil {
		return err
	}
	if e := body.Error; e == nil || e.Code != r.status || e.Message == "" || len(e.Errors) == 0 || e.Errors[0].Reason == "" {
		return errors.New("an error without code, message or reason")
	}
	return nil
}

func (d *document) checkBody(s *schema, body []byte, request string) error {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return err
	}
	return d.check(s, v, "", request)
}
