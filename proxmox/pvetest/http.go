package pvetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// maxBody is the largest body of an ordinary call (pve-http-server, AnyEvent.pm).
const maxBody = 512 << 10

// A call is one call of the API after authentication.
type call struct {
	*http.Request
	user   string // user@realm or user@realm!token
	acl    []ACL  // nil: everything
	params map[string]string
	file   []byte // of an upload
	name   string // of that file
}

// A refusal is an answer with an error.
type refusal struct {
	status int
	msg    string
	errors map[string]string
}

func (r *refusal) Error() string { return r.msg }

func refuse(status int, format string, args ...any) error {
	return &refusal{status: status, msg: fmt.Sprintf(format, args...)}
}

func invalid(param, msg string) error {
	return &refusal{status: 400, msg: "Parameter verification failed.", errors: map[string]string{param: msg}}
}

func denied(path string, privileges ...string) error {
	return refuse(403, "Permission check failed (%s, %s)", path, strings.Join(privileges, "|"))
}

// unreachable is how a node's proxy answers for a node that it cannot reach: no
// body at all (pve-http-server, AnyEvent.pm proxy_request).
func unreachable() error { return &refusal{status: 595, msg: "No route to host"} }

// A route is one method of the API with the parameters that it has.
type route struct {
	params  string // names with spaces between; a trailing * means any that begin so
	write   bool   // it changes the cluster's file system
	handler func(*call) (any, error)
}

// A gateway answers calls: it checks who may make them, and hands them to the parts of the
// cloud.
type gateway struct {
	o       *Options
	mu      *sync.Mutex // held while a handler runs
	access  *accessControl
	cluster *cluster
	mux     *http.ServeMux
}

func (c *Cloud) routes(inventory *inventory, configs *editor, devices *deviceSet, clones *cloner, power *powerSwitch) map[string]route {
	const vm, storage = "/nodes/{node}/qemu/{vmid}", "/nodes/{node}/storage/{storage}"
	return map[string]route{
		"GET /version":                               {"", false, inventory.version},
		"GET /nodes":                                 {"", false, inventory.nodes},
		"GET /nodes/{node}/status":                   {"", false, inventory.nodeStatus},
		"GET /cluster/resources":                     {"type", false, inventory.resources},
		"GET /cluster/nextid":                        {"vmid", false, c.fleet.nextID},
		"GET /cluster/status":                        {"", false, inventory.clusterStatus},
		"GET /access/permissions":                    {"path userid", false, permissions},
		"GET " + vm + "/config":                      {"current snapshot", false, configs.get},
		"PUT " + vm + "/resize":                      {"disk size digest skiplock", true, configs.resize},
		"GET /cluster/mapping/pci":                   {"check-node", false, devices.list},
		"POST " + vm + "/config":                     {configParams, true, configs.set},
		"POST " + vm + "/clone":                      {"newid name description pool snapname storage format full target bwlimit", true, clones.clone},
		"DELETE " + vm:                               {"purge destroy-unreferenced-disks skiplock", true, power.destroy},
		"GET " + vm + "/status/current":              {"", false, power.current},
		"POST " + vm + "/status/start":               {"skiplock timeout stateuri machine", true, power.start},
		"POST " + vm + "/status/stop":                {"skiplock timeout keepActive overrule-shutdown", true, power.stop},
		"POST " + vm + "/status/shutdown":            {"skiplock timeout forceStop keepActive", true, power.shutdown},
		"POST " + vm + "/status/suspend":             {"skiplock todisk statestorage", true, power.suspend},
		"GET /nodes/{node}/tasks/{upid}/status":      {"", false, c.tasks.status},
		"GET /nodes/{node}/tasks/{upid}/log":         {"start limit download", false, c.tasks.lines},
		"GET " + storage + "/content":                {"content vmid", false, c.storage.listContent},
		"POST " + storage + "/upload":                {"content filename checksum checksum-algorithm tmpfilename", false, c.storage.upload},
		"DELETE " + storage + "/content/{volume...}": {"delay", false, c.storage.deleteContent},
	}
}

// newGateway returns the gateway to these handlers.
func newGateway(c *Cloud, table map[string]route) *gateway {
	g := &gateway{o: c.o, mu: &c.mu, access: c.access, cluster: c.cluster, mux: http.NewServeMux()}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		method, path, _ := strings.Cut(name, " ")
		g.mux.HandleFunc(method+" /api2/json"+path, func(w http.ResponseWriter, r *http.Request) {
			g.o.Faults.Serve(w, r, name, func(w http.ResponseWriter, r *http.Request) { g.serve(w, r, table[name]) })
		})
	}
	g.mux.HandleFunc("POST /api2/json/access/ticket", func(w http.ResponseWriter, r *http.Request) {
		data, err := g.access.issue(w, r)
		g.answer(w, data, err)
	})
	g.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		g.answer(w, nil, refuse(501, "Method '%s %s' not implemented", r.Method, strings.TrimPrefix(r.URL.Path, "/api2/json")))
	})
	return g
}

// ServeHTTP answers calls of the API below /api2/json.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.gateway.mux.ServeHTTP(w, r) }

func (g *gateway) serve(w http.ResponseWriter, r *http.Request, to route) {
	on, err := g.access.authenticate(r)
	if err == nil {
		err = on.decode(w, to.params)
	}
	var data any
	if err == nil {
		data, err = g.do(on, to)
	}
	g.answer(w, data, err)
}

func (g *gateway) do(on *call, to route) (any, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.cluster.reach(on.PathValue("node"), to.write); err != nil {
		return nil, err
	}
	return to.handler(on)
}

// decode reads the parameters from the query, a form, JSON or an upload, and
// refuses those that the method does not have.
func (r *call) decode(w http.ResponseWriter, names string) error {
	r.params = map[string]string{}
	for key, values := range r.URL.Query() {
		r.params[key] = values[len(values)-1]
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind == "multipart/form-data" {
		if err := r.decodeUpload(); err != nil {
			return err
		}
	} else {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			return refuse(501, "for data too large")
		}
		if err := r.decodeBody(kind, body); err != nil {
			return err
		}
	}
	for key := range r.params {
		if !permitted(key, names) {
			return invalid(key, "property is not defined in schema and the schema does not allow additional properties")
		}
	}
	return nil
}

func (r *call) decodeBody(kind string, body []byte) error {
	if len(body) == 0 {
		return nil
	}
	if kind != "application/json" {
		return refuse(501, "request content type '%s' is not served here", kind)
	}
	var values map[string]any
	if err := json.Unmarshal(body, &values); err != nil {
		return refuse(400, "unable to decode JSON body")
	}
	for key, v := range values {
		switch v := v.(type) {
		case string:
			r.params[key] = v
		case float64:
			r.params[key] = fmt.Sprintf("%v", int64(v))
		case bool:
			r.params[key] = map[bool]string{true: "1", false: "0"}[v]
		default:
			return invalid(key, "type check failed")
		}
	}
	return nil
}

// decodeUpload reads the parts of a form. The file comes after what describes it.
func (r *call) decodeUpload() error {
	parts, err := r.MultipartReader()
	if err != nil {
		return refuse(400, "wrong form")
	}
	for {
		p, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return refuse(400, "wrong form")
		}
		b, err := io.ReadAll(p)
		if err != nil {
			return refuse(400, "wrong form")
		}
		if p.FormName() == "filename" {
			r.name, r.file = p.FileName(), b
			continue
		}
		if r.file != nil {
			return refuse(400, "parameter '%s' after the file", p.FormName())
		}
		r.params[p.FormName()] = string(b)
	}
}

func permitted(key, names string) bool {
	for _, name := range strings.Fields(names) {
		prefix, open := strings.CutSuffix(name, "*")
		if key == name || open && strings.HasPrefix(key, prefix) && strings.Trim(key[len(prefix):], "0123456789") == "" {
			return true
		}
	}
	return false
}

func (r *call) flag(name string) bool { return r.params[name] == "1" }

// answer writes an answer in the API's own form: the message of an error is the
// status line's reason and stands in the body.
func (g *gateway) answer(w http.ResponseWriter, data any, err error) {
	status, reason, body := 200, "OK", map[string]any{"data": data}
	if err != nil {
		e, ok := errors.AsType[*refusal](err)
		if !ok {
			e = &refusal{status: 500, msg: err.Error()}
		}
		status, reason = e.status, e.msg
		if !g.o.NoMessage {
			body["message"] = e.msg + "\n"
		}
		if e.errors != nil {
			body["errors"] = e.errors
		}
		if status == 403 {
			g.mu.Lock()
			g.access.denied = append(g.access.denied, e.msg)
			g.mu.Unlock()
		}
	}
	b, err := json.Marshal(body)
	if err != nil {
		panic(err) // all data is made here
	}
	if status > 501 {
		b = nil
	}
	g.write(w, status, reason, b)
}

// write sends an answer with a reason of our own, which net/http does not do.
func (g *gateway) write(w http.ResponseWriter, status int, reason string, body []byte) {
	reason, _, _ = strings.Cut(reason, "\n")
	h, ok := w.(http.Hijacker)
	if status == 200 || g.o.NoReason || !ok {
		w.Header().Set("Content-Type", "application/json;charset=UTF-8")
		w.WriteHeader(status)
		_, _ = w.Write(body)
		return
	}
	conn, out, err := h.Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(out, "HTTP/1.1 %d %s\r\nContent-Type: application/json;charset=UTF-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", status, reason, len(body), body)
	_ = out.Flush()
}
