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
	"sync"
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

func (c *Cloud) routes(catalog *catalog, launcher *launcher, power *powerSwitch, network *network, balancer *balancer) []route {
	const instances = "/zones/{zone}/instances"
	const negs, groups = "/zones/{zone}/networkEndpointGroups/{name}", "/zones/{zone}/instanceGroups/{name}"
	request := []string{"requestId"}
	return []route{
		{"instances.insert", "POST " + instances, request, nil, true, launcher.insert},
		{"instances.list", "GET " + instances, listQuery, []string{"compute.instances.list"}, false, c.fleet.list},
		{"instances.get", "GET " + instances + "/{name}", nil, []string{"compute.instances.get"}, false, c.fleet.get},
		{"instances.delete", "DELETE " + instances + "/{name}", []string{"requestId", "noGracefulShutdown"}, []string{"compute.instances.delete"}, true, power.delete},
		{"instances.stop", "POST " + instances + "/{name}/stop", []string{"requestId", "noGracefulShutdown", "discardLocalSsd"}, []string{"compute.instances.stop"}, true, power.handler("stop")},
		{"instances.start", "POST " + instances + "/{name}/start", request, []string{"compute.instances.start"}, true, power.handler("start")},
		{"instances.suspend", "POST " + instances + "/{name}/suspend", []string{"requestId", "discardLocalSsd"}, []string{"compute.instances.suspend"}, true, power.handler("suspend")},
		{"instances.resume", "POST " + instances + "/{name}/resume", request, []string{"compute.instances.resume"}, true, power.handler("resume")},
		{"instances.getSerialPortOutput", "GET " + instances + "/{name}/serialPort", []string{"port", "start"}, []string{"compute.instances.getSerialPortOutput"}, false, c.fleet.serial},
		{"instances.updateNetworkInterface", "PATCH " + instances + "/{name}/updateNetworkInterface", []string{"requestId", "networkInterface"}, []string{"compute.instances.updateNetworkInterface", "compute.subnetworks.use"}, true, network.updateNIC},
		{"zoneOperations.list", "GET /zones/{zone}/operations", listQuery, []string{"compute.zoneOperations.list"}, false, c.operations.list},
		{"zoneOperations.get", "GET /zones/{zone}/operations/{name}", nil, []string{"compute.zoneOperations.get"}, false, c.operations.get},
		{"machineTypes.get", "GET /zones/{zone}/machineTypes/{name}", nil, []string{"compute.machineTypes.get"}, false, catalog.getType},
		{"images.list", "GET /global/images", listQuery, []string{"compute.images.list"}, false, catalog.listImages},
		{"subnetworks.get", "GET /regions/{region}/subnetworks/{name}", []string{"views"}, []string{"compute.subnetworks.get"}, false, network.get},
		{"networkEndpointGroups.attachNetworkEndpoints", "POST " + negs + "/attachNetworkEndpoints", request, []string{"compute.networkEndpointGroups.attachNetworkEndpoints"}, true, balancer.attach},
		{"networkEndpointGroups.detachNetworkEndpoints", "POST " + negs + "/detachNetworkEndpoints", request, []string{"compute.networkEndpointGroups.detachNetworkEndpoints"}, true, balancer.detach},
		{"networkEndpointGroups.listNetworkEndpoints", "POST " + negs + "/listNetworkEndpoints", listQuery, []string{"compute.networkEndpointGroups.get"}, false, balancer.listEndpoints},
		{"instanceGroups.addInstances", "POST " + groups + "/addInstances", request, []string{"compute.instanceGroups.update", "compute.instances.use"}, true, balancer.addInstances},
		{"instanceGroups.removeInstances", "POST " + groups + "/removeInstances", request, []string{"compute.instanceGroups.update"}, true, balancer.removeInstances},
		{"instanceGroups.listInstances", "POST " + groups + "/listInstances", listQuery, []string{"compute.instanceGroups.list"}, false, balancer.listMembers},
	}
}

// A gateway answers calls: it checks who may make them, and hands them to the parts of the
// cloud.
type gateway struct {
	o       *Options
	mu      *sync.Mutex // held while a call is answered
	account *account    // nil: none
	catalog *catalog
	mux     *http.ServeMux

	minute           time.Time
	mutations, reads int // of this minute
}

func newGateway(c *Cloud, catalog *catalog, routes []route) *gateway {
	g := &gateway{o: c.o, mu: &c.mu, catalog: catalog, mux: http.NewServeMux()}
	if g.o.Account != "" {
		g.account = newAccount(g.o.Account)
	}
	for _, r := range routes {
		verb, path, _ := strings.Cut(r.pattern, " ")
		g.mux.HandleFunc(verb+" /compute/v1/projects/{project}"+path, func(w http.ResponseWriter, q *http.Request) {
			g.o.Faults.Serve(w, q, r.method, func(w http.ResponseWriter, q *http.Request) { g.serve(w, q, &r) })
		})
	}
	return g
}

// ServeHTTP implements [http.Handler].
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g := c.gateway
	w.Header().Set("Date", time.Now().Add(g.o.ClockOffset).UTC().Format(http.TimeFormat))
	if g.account != nil && r.Method == http.MethodPost && r.URL.Path == "/token" {
		g.account.exchange(w, r)
		return
	}
	if _, pattern := g.mux.Handler(r); pattern == "" {
		refuse(http.StatusNotFound, "notFound", "The requested URL %s was not found on this server.", r.URL.Path).ServeHTTP(w, r)
		return
	}
	g.mux.ServeHTTP(w, r)
}

// serve answers one call. The answer is written before the lock is given back: it
// holds the cloud's own records.
func (g *gateway) serve(w http.ResponseWriter, r *http.Request, m *route) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 10<<20))
	if err != nil {
		return
	}
	q := &call{r: r, query: r.URL.Query(), zone: r.PathValue("zone"), name: r.PathValue("name"), body: body, request: r.URL.Query().Get("requestId")}
	var answer bytes.Buffer
	g.mu.Lock()
	out, refused := g.answer(q, m)
	if refused == nil {
		err = json.NewEncoder(&answer).Encode(out)
	}
	g.mu.Unlock()
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

func (g *gateway) answer(q *call, m *route) (any, *apiError) {
	if err := g.authenticate(q.r); err != nil {
		return nil, err
	}
	if err := g.spend(m.mutation); err != nil {
		return nil, err
	}
	if project := q.r.PathValue("project"); project != g.o.Project && !g.catalog.sharedImages(project, m) {
		return nil, notFound("projects/" + project)
	}
	if err := checkQuery(q, m); err != nil {
		return nil, err
	}
	if q.zone != "" && !slices.Contains(g.o.Zones, q.zone) {
		return nil, invalidField("zone", q.zone, "Unknown zone.")
	}
	if err := g.o.permit(q, m.allow...); err != nil {
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

// spend counts a call against the quota of this minute.
func (g *gateway) spend(mutation bool) *apiError {
	if minute := time.Now().Truncate(time.Minute); !minute.Equal(g.minute) {
		g.minute, g.mutations, g.reads = minute, 0, 0
	}
	metric, used, bound := "Read requests per minute per region", &g.reads, g.o.Reads
	if mutation {
		metric, used, bound = "Mutation requests per minute per region", &g.mutations, g.o.Mutations
	}
	if bound > 0 && *used >= bound {
		return &apiError{http.StatusForbidden, "usageLimits", "rateLimitExceeded",
			fmt.Sprintf("Quota exceeded for quota metric '%s' and limit '%s' of service 'compute.googleapis.com' for consumer 'project_number:1'.", metric, metric)}
	}
	*used++
	return nil
}

// permit refuses a caller that lacks one of the permissions.
func (o *Options) permit(q *call, permissions ...string) *apiError {
	if o.Permissions == nil {
		return nil
	}
	for _, p := range permissions {
		if !slices.Contains(o.Permissions, p) {
			path := strings.TrimPrefix(q.r.URL.Path, "/compute/v1/")
			return refuse(http.StatusForbidden, "forbidden", "Required '%s' permission for '%s'", p, path)
		}
	}
	return nil
}

// decode reads the body of a call strictly.
func decode(q *call, into any) *apiError {
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
