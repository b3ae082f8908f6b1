package gcetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// An apiError is a refusal, in the form of all Google APIs.
type apiError struct {
	status  int
	domain  string
	reason  string
	message string
}

func refuse(status int, reason, format string, args ...any) *apiError {
	return &apiError{status: status, domain: "global", reason: reason, message: fmt.Sprintf(format, args...)}
}

func invalidField(field, value, format string, args ...any) *apiError {
	return refuse(http.StatusBadRequest, "invalid", "Invalid value for field '%s': '%s'. %s", field, value, fmt.Sprintf(format, args...))
}

func notFound(path string) *apiError {
	return refuse(http.StatusNotFound, "notFound", "The resource '%s' was not found", path)
}

// ServeHTTP implements [http.Handler].
func (e *apiError) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	type item struct {
		Message string `json:"message"`
		Domain  string `json:"domain"`
		Reason  string `json:"reason"`
	}
	body := map[string]any{"error": map[string]any{
		"code": e.status, "message": e.message, "errors": []item{{e.message, e.domain, e.reason}},
	}}
	writeJSON(w, e.status, body)
}

// Refuse returns what answers a call with a refusal, for [testcloud.Fault].
func Refuse(status int, reason, message string) http.HandlerFunc {
	return refuse(status, reason, "%s", message).ServeHTTP
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a caller that is gone needs no answer
}

// A call is one request to a method of the API.
type call struct {
	r       *http.Request
	query   url.Values
	zone    string
	name    string // of the resource
	body    []byte
	request string // its requestId
}

// A route is one method of the API.
type route struct {
	method   string // as in the discovery document, without compute.
	pattern  string // HTTP method and path below the project
	query    []string
	allow    []string // permissions, of which {resource} is checked
	mutation bool
	serve    func(*call) (any, *apiError)
}

var listQuery = []string{"filter", "maxResults", "orderBy", "pageToken"}

func (c *Cloud) routes() {
	const instances = "/zones/{zone}/instances"
	const negs, groups = "/zones/{zone}/networkEndpointGroups/{name}", "/zones/{zone}/instanceGroups/{name}"
	request := []string{"requestId"}
	c.mux = http.NewServeMux()
	for _, r := range []route{
		{"instances.insert", "POST " + instances, request, nil, true, c.insert},
		{"instances.list", "GET " + instances, listQuery, []string{"compute.instances.list"}, false, c.listInstances},
		{"instances.get", "GET " + instances + "/{name}", nil, []string{"compute.instances.get"}, false, c.get},
		{"instances.delete", "DELETE " + instances + "/{name}", []string{"requestId", "noGracefulShutdown"}, []string{"compute.instances.delete"}, true, c.delete},
		{"instances.stop", "POST " + instances + "/{name}/stop", []string{"requestId", "noGracefulShutdown", "discardLocalSsd"}, []string{"compute.instances.stop"}, true, c.stop},
		{"instances.start", "POST " + instances + "/{name}/start", request, []string{"compute.instances.start"}, true, c.start},
		{"instances.suspend", "POST " + instances + "/{name}/suspend", []string{"requestId", "discardLocalSsd"}, []string{"compute.instances.suspend"}, true, c.suspend},
		{"instances.resume", "POST " + instances + "/{name}/resume", request, []string{"compute.instances.resume"}, true, c.resume},
		{"instances.getSerialPortOutput", "GET " + instances + "/{name}/serialPort", []string{"port", "start"}, []string{"compute.instances.getSerialPortOutput"}, false, c.serial},
		{"instances.updateNetworkInterface", "PATCH " + instances + "/{name}/updateNetworkInterface", []string{"requestId", "networkInterface"}, []string{"compute.instances.updateNetworkInterface", "compute.subnetworks.use"}, true, c.updateNIC},
		{"zoneOperations.list", "GET /zones/{zone}/operations", listQuery, []string{"compute.zoneOperations.list"}, false, c.listOperations},
		{"zoneOperations.get", "GET /zones/{zone}/operations/{name}", nil, []string{"compute.zoneOperations.get"}, false, c.getOperation},
		{"machineTypes.get", "GET /zones/{zone}/machineTypes/{name}", nil, []string{"compute.machineTypes.get"}, false, c.getType},
		{"images.list", "GET /global/images", listQuery, []string{"compute.images.list"}, false, c.listImages},
		{"subnetworks.get", "GET /regions/{region}/subnetworks/{name}", []string{"views"}, []string{"compute.subnetworks.get"}, false, c.getSubnet},
		{"networkEndpointGroups.attachNetworkEndpoints", "POST " + negs + "/attachNetworkEndpoints", request, []string{"compute.networkEndpointGroups.attachNetworkEndpoints"}, true, c.attach},
		{"networkEndpointGroups.detachNetworkEndpoints", "POST " + negs + "/detachNetworkEndpoints", request, []string{"compute.networkEndpointGroups.detachNetworkEndpoints"}, true, c.detach},
		{"networkEndpointGroups.listNetworkEndpoints", "POST " + negs + "/listNetworkEndpoints", listQuery, []string{"compute.networkEndpointGroups.get"}, false, c.listEndpoints},
		{"instanceGroups.addInstances", "POST " + groups + "/addInstances", request, []string{"compute.instanceGroups.update", "compute.instances.use"}, true, c.addInstances},
		{"instanceGroups.removeInstances", "POST " + groups + "/removeInstances", request, []string{"compute.instanceGroups.update"}, true, c.removeInstances},
		{"instanceGroups.listInstances", "POST " + groups + "/listInstances", listQuery, []string{"compute.instanceGroups.list"}, false, c.listMembers},
	} {
		verb, path, _ := strings.Cut(r.pattern, " ")
		c.mux.HandleFunc(verb+" /compute/v1/projects/{project}"+path, func(w http.ResponseWriter, q *http.Request) {
			c.o.Faults.Serve(w, q, r.method, func(w http.ResponseWriter, q *http.Request) { c.serve(w, q, &r) })
		})
	}
}

// ServeHTTP implements [http.Handler].
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", time.Now().Add(c.o.ClockOffset).UTC().Format(http.TimeFormat))
	if c.account != nil && r.Method == http.MethodPost && r.URL.Path == "/token" {
		c.account.exchange(w, r)
		return
	}
	if _, pattern := c.mux.Handler(r); pattern == "" {
		refuse(http.StatusNotFound, "notFound", "The requested URL %s was not found on this server.", r.URL.Path).ServeHTTP(w, r)
		return
	}
	c.mux.ServeHTTP(w, r)
}

// serve answers one call. The answer is written before c.mu is given back: it
// holds the cloud's own records.
func (c *Cloud) serve(w http.ResponseWriter, r *http.Request, m *route) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 10<<20))
	if err != nil {
		return
	}
	q := &call{r: r, query: r.URL.Query(), zone: r.PathValue("zone"), name: r.PathValue("name"), body: body, request: r.URL.Query().Get("requestId")}
	var answer bytes.Buffer
	c.mu.Lock()
	out, refused := c.answer(q, m)
	if refused == nil {
		err = json.NewEncoder(&answer).Encode(out)
	}
	c.mu.Unlock()
	if err != nil {
		refused = refuse(http.StatusInternalServerError, "backendError", "%v", err)
	}
	if refused != nil {
		refused.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	_, _ = w.Write(answer.Bytes()) // a caller that is gone needs no answer
}

// answer needs c.mu.
func (c *Cloud) answer(q *call, m *route) (any, *apiError) {
	if err := c.authenticate(q.r); err != nil {
		return nil, err
	}
	if err := c.spend(m.mutation); err != nil {
		return nil, err
	}
	if project := q.r.PathValue("project"); project != c.o.Project && !c.sharedImages(project, m) {
		return nil, notFound("projects/" + project)
	}
	if err := checkQuery(q, m); err != nil {
		return nil, err
	}
	if q.zone != "" && !slices.Contains(c.o.Zones, q.zone) {
		return nil, invalidField("zone", q.zone, "Unknown zone.")
	}
	if err := c.permit(q, m.allow...); err != nil {
		return nil, err
	}
	return m.serve(q)
}

func checkQuery(q *call, m *route) *apiError {
	system := []string{"alt", "$alt", "prettyPrint", "fields", "key", "quotaUser"}
	for name := range q.query {
		if !slices.Contains(m.query, name) && !slices.Contains(system, name) {
			return refuse(http.StatusBadRequest, "badRequest", "Invalid JSON payload received. Unknown name \"%s\": Cannot bind query parameter. Field '%s' could not be found in request message.", name, name)
		}
	}
	return checkRequestID(q.request)
}

// spend counts a call against the quota of this minute. It needs c.mu.
func (c *Cloud) spend(mutation bool) *apiError {
	if minute := time.Now().Truncate(time.Minute); !minute.Equal(c.minute) {
		c.minute, c.mutations, c.reads = minute, 0, 0
	}
	metric, used, bound := "Read requests per minute per region", &c.reads, c.o.Reads
	if mutation {
		metric, used, bound = "Mutation requests per minute per region", &c.mutations, c.o.Mutations
	}
	if bound > 0 && *used >= bound {
		return &apiError{http.StatusForbidden, "usageLimits", "rateLimitExceeded",
			fmt.Sprintf("Quota exceeded for quota metric '%s' and limit '%s' of service 'compute.googleapis.com' for consumer 'project_number:1'.", metric, metric)}
	}
	*used++
	return nil
}

// permit refuses a caller that lacks one of the permissions.
func (c *Cloud) permit(q *call, permissions ...string) *apiError {
	if c.o.Permissions == nil {
		return nil
	}
	for _, p := range permissions {
		if !slices.Contains(c.o.Permissions, p) {
			path := strings.TrimPrefix(q.r.URL.Path, "/compute/v1/")
			return refuse(http.StatusForbidden, "forbidden", "Required '%s' permission for '%s'", p, path)
		}
	}
	return nil
}

// decode reads the body of a call strictly.
func decode[T any](q *call, into *T) *apiError {
	dec := json.NewDecoder(bytes.NewReader(q.body))
	dec.DisallowUnknownFields()
	err := dec.Decode(into)
	if err == nil {
		if _, end := dec.Token(); errors.Is(end, io.EOF) {
			return nil
		}
		err = errors.New("unexpected data after the object")
	}
	return refuse(http.StatusBadRequest, "badRequest", "Invalid JSON payload received. %s", strings.TrimPrefix(err.Error(), "json: "))
}
