package ec2test

import (
	"encoding/xml"
	"io"
	"net/http"
	"net/url"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// The services, as credential scopes call them.
const (
	compute   = "ec2"
	balancing = "elasticloadbalancing"
	identity  = "sts"
)

// The API versions, by which the services are distinguished, and their namespaces.
var (
	services   = map[string]string{"2016-11-15": compute, "2015-12-01": balancing, "2011-06-15": identity}
	namespaces = map[string]string{
		compute:   "http://ec2.amazonaws.com/doc/2016-11-15/",
		balancing: "http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/",
		identity:  "https://sts.amazonaws.com/doc/2011-06-15/",
	}
)

const maxRequestBytes = 2 << 20

// A call is one request that is being answered.
type call struct {
	service, action string
	now             time.Time
	requestID       string
}

// An action is what one API operation does.
type action struct {
	service string
	serve   func(*gateway, call, *parameter) (any, error)
}

// A gateway answers calls: it checks who may make them, and hands them to the parts of
// the cloud.
type gateway struct {
	o           *Options
	mu          *sync.Mutex // held while an action runs
	actions     map[string]action
	jsonActions map[string]jsonAction
	shifts      *shifts
}

// dryRunner is an input with the parameter DryRun.
type dryRunner interface{ dry() bool }

// DryRun is part of the input of most actions.
type dryRun struct{ DryRun bool }

func (d dryRun) dry() bool { return d.DryRun }

// permitted is an input whose action needs more permissions than its own.
type permitted interface{ permissions() []string }

// resourceCounter is an input whose action is also throttled by how many
// resources it asks for.
type resourceCounter interface{ resources() int }

// operation makes an action of a method, which runs under the cloud's lock.
func operation[In, Out any](service string, do func(call, *In) (*Out, error)) action {
	return action{service, func(g *gateway, on call, p *parameter) (any, error) {
		in := new(In)
		d := decoder{}
		if service != compute {
			d.member = "member"
		}
		if err := d.decodeInput(p, in); err != nil {
			return nil, err
		}
		if err := g.authorize(on, in); err != nil {
			return nil, err
		}
		if dry, ok := any(in).(dryRunner); ok && dry.dry() {
			return nil, refuse("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
		}
		if n, ok := any(in).(resourceCounter); ok && !g.o.Buckets.takeResources(on, n.resources()) {
			return nil, throttled()
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		return do(on, in)
	}}
}

func (d decoder) decodeInput(p *parameter, in any) error {
	return d.decode(p, "", reflect.ValueOf(in).Elem())
}

// authorize applies the policy of the caller.
func (g *gateway) authorize(on call, in any) error {
	if on.service == identity {
		return nil // "No permissions are required" (GetCallerIdentity, AWS STS API Reference)
	}
	needs := []string{on.service + ":" + on.action}
	if more, ok := in.(permitted); ok {
		needs = append(needs, more.permissions()...)
	}
	for _, need := range needs {
		if !g.o.permits(need) {
			if on.service != compute {
				return refuse("AccessDenied", "User is not authorized to perform: %s", need)
			}
			return refuse("UnauthorizedOperation", "You are not authorized to perform this operation. User is not authorized to perform: %s", need)
		}
	}
	return nil
}

func (o *Options) permits(action string) bool {
	return o.Permitted == nil || slices.ContainsFunc(o.Permitted, func(pattern string) bool {
		ok, err := path.Match(pattern, action)
		return ok && err == nil
	})
}

// ServeHTTP answers one call.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.gateway.serve(w, r) }

func (g *gateway) serve(w http.ResponseWriter, r *http.Request) {
	if g.serveShifts(w, r) {
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequestBytes))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	target, _, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	if _, ok := jsonServices[target]; ok && r.Method == http.MethodPost {
		g.serveJSON(w, r, body)
		return
	}
	form, err := url.ParseQuery(string(body))
	if err != nil || r.Method != http.MethodPost {
		writeError(w, compute, refuse("MalformedQueryString", "The query string contains a syntax error"))
		return
	}
	if r.URL.Path != "" && r.URL.Path != "/" {
		http.NotFound(w, r)
		return
	}
	g.o.Faults.Serve(w, r, form.Get("Action"), func(w http.ResponseWriter, r *http.Request) {
		g.answer(w, r, form, body)
	})
}

func (g *gateway) answer(w http.ResponseWriter, r *http.Request, form url.Values, body []byte) {
	on := call{action: form.Get("Action"), now: time.Now(), requestID: newRequestID()}
	var known bool
	if on.service, known = services[form.Get("Version")]; !known {
		writeError(w, compute, refuse("NoSuchVersion", "The requested version (%s) of service AmazonEC2 does not exist", form.Get("Version")))
		return
	}
	out, err := g.do(on, r, form, body)
	if err != nil {
		writeError(w, on.service, err)
		return
	}
	writeXML(w, http.StatusOK, response{on, out})
}

func (g *gateway) do(on call, r *http.Request, form url.Values, body []byte) (any, error) {
	if err := g.authenticate(on.service, r, body, on.now); err != nil {
		return nil, err
	}
	a, known := g.actions[on.action]
	if !known || a.service != on.service {
		return nil, refuse("InvalidAction", "The action %s is not valid for this web service.", on.action)
	}
	if !g.o.Buckets.take(on, form) {
		return nil, throttled()
	}
	p, err := parseQuery(form)
	if err != nil {
		return nil, err
	}
	return a.serve(g, on, p)
}

func throttled() error { return refuse("RequestLimitExceeded", "Request limit exceeded.") }

// A response is the answer of an action in the form of its service.
type response struct {
	on  call
	out any
}

// MarshalXML writes the envelope around the answer: EC2 puts the request's ID
// first, the others wrap the answer and put it last.
func (r response) MarshalXML(e *xml.Encoder, _ xml.StartElement) error {
	root := xml.StartElement{
		Name: xml.Name{Local: r.on.action + "Response"},
		Attr: []xml.Attr{{Name: xml.Name{Local: "xmlns"}, Value: namespaces[r.on.service]}},
	}
	var body any = struct {
		RequestID string `xml:"requestId"`
		Out       inline
	}{r.on.requestID, inline{r.out}}
	if r.on.service != compute {
		body = struct {
			Result   named
			Metadata struct {
				RequestID string `xml:"RequestId"`
			} `xml:"ResponseMetadata"`
		}{named{r.on.action + "Result", r.out}, struct {
			RequestID string `xml:"RequestId"`
		}{r.on.requestID}}
	}
	return e.EncodeElement(body, root)
}

// inline writes the fields of a struct without an element around them.
type inline struct{ v any }

func (i inline) MarshalXML(e *xml.Encoder, _ xml.StartElement) error {
	v := reflect.Indirect(reflect.ValueOf(i.v))
	for n := range v.NumField() {
		name, options, _ := strings.Cut(v.Type().Field(n).Tag.Get("xml"), ",")
		if options == "omitempty" && v.Field(n).IsZero() {
			continue
		}
		outer, inner, nested := strings.Cut(name, ">")
		field := v.Field(n).Interface()
		if nested {
			field = items{inner, field}
		}
		if err := e.EncodeElement(field, xml.StartElement{Name: xml.Name{Local: outer}}); err != nil {
			return err
		}
	}
	return nil
}

// items writes a list, also an empty one.
type items struct {
	name string
	list any
}

func (l items) MarshalXML(e *xml.Encoder, start xml.StartElement) error {
	if err := e.EncodeToken(start); err != nil {
		return err
	}
	list := reflect.ValueOf(l.list)
	for i := range list.Len() {
		if err := e.EncodeElement(list.Index(i).Interface(), xml.StartElement{Name: xml.Name{Local: l.name}}); err != nil {
			return err
		}
	}
	return e.EncodeToken(start.End())
}

// named writes a value as an element of that name.
type named struct {
	name string
	v    any
}

func (n named) MarshalXML(e *xml.Encoder, _ xml.StartElement) error {
	return e.EncodeElement(n.v, xml.StartElement{Name: xml.Name{Local: n.name}})
}
