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

func (c *Cloud) routes() *http.ServeMux {
	const vm, storage = "/nodes/{node}/qemu/{vmid}", "/nodes/{node}/storage/{storage}"
	table := map[string]route{
		"GET /version":                               {"", false, c.version},
		"GET /nodes":                                 {"", false, c.listNodes},
		"GET /nodes/{node}/status":                   {"", false, c.nodeStatus},
		"GET /cluster/resources":                     {"type", false, c.resources},
		"GET /cluster/nextid":                        {"vmid", false, c.nextID},
		"GET /cluster/status":                        {"", false, c.clusterStatus},
		"GET /access/permissions":                    {"path userid", false, c.permissions},
		"GET " + vm + "/config":                      {"current snapshot", false, c.getConfig},
		"PUT " + vm + "/resize":                      {"disk size digest skiplock", true, c.resize},
		"GET /cluster/mapping/pci":                   {"check-node", false, c.listMappings},
		"POST " + vm + "/config":                     {configParams, true, c.setConfig},
		"POST " + vm + "/clone":                      {"newid name description pool snapname storage format full target bwlimit", true, c.clone},
		"DELETE " + vm:                               {"purge destroy-unreferenced-disks skiplock", true, c.destroy},
		"GET " + vm + "/status/current":              {"", false, c.current},
		"POST " + vm + "/status/start":               {"skiplock timeout stateuri machine", true, c.start},
		"POST " + vm + "/status/stop":                {"skiplock timeout keepActive overrule-shutdown", true, c.stop},
		"POST " + vm + "/status/shutdown":            {"skiplock timeout forceStop keepActive", true, c.shutdown},
		"POST " + vm + "/status/suspend":             {"skiplock todisk statestorage", true, c.suspend},
		"GET /nodes/{node}/tasks/{upid}/status":      {"", false, c.taskStatus},
		"GET /nodes/{node}/tasks/{upid}/log":         {"start limit download", false, c.taskLog},
		"GET " + storage + "/content":                {"content vmid", false, c.listContent},
		"POST " + storage + "/upload":                {"content filename checksum checksum-algorithm tmpfilename", false, c.upload},
		"DELETE " + storage + "/content/{volume...}": {"delay", false, c.deleteContent},
	}
	mux := http.NewServeMux()
	for _, name := range slices.Sorted(maps.Keys(table)) {
		method, path, _ := strings.Cut(name, " ")
		mux.HandleFunc(method+" /api2/json"+path, func(w http.ResponseWriter, r *http.Request) {
			c.o.Faults.Serve(w, r, name, func(w http.ResponseWriter, r *http.Request) { c.serve(w, r, table[name]) })
		})
	}
	mux.HandleFunc("POST /api2/json/access/ticket", c.ticket)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		c.answer(w, nil, refuse(501, "Method '%s %s' not implemented", r.Method, strings.TrimPrefix(r.URL.Path, "/api2/json")))
	})
	return mux
}

// ServeHTTP answers calls of the API below /api2/json.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.mux.ServeHTTP(w, r) }

func (c *Cloud) serve(w http.ResponseWriter, r *http.Request, to route) {
	cl, err := c.authenticate(r)
	if err == nil {
		err = cl.decode(w, to.params)
	}
	if err == nil {
		err = c.reach(r.PathValue("node"), to.write)
	}
	if err != nil {
		c.answer(w, nil, err)
		return
	}
	data, err := to.handler(cl)
	c.answer(w, data, err)
}

// reach refuses what needs a node or a quorum that is not there.
func (c *Cloud) reach(name string, write bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.nodes[name]; name != "" && n == nil {
		return refuse(500, "hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known", name, name)
	} else if n != nil && n.offline {
		return unreachable()
	}
	if write && !c.quorum {
		return refuse(500, "cluster not ready - no quorum?")
	}
	return nil
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
func (c *Cloud) answer(w http.ResponseWriter, data any, err error) {
	status, reason, body := 200, "OK", map[string]any{"data": data}
	if err != nil {
		e, ok := errors.AsType[*refusal](err)
		if !ok {
			e = &refusal{status: 500, msg: err.Error()}
		}
		status, reason = e.status, e.msg
		if !c.o.NoMessage {
			body["message"] = e.msg + "\n"
		}
		if e.errors != nil {
			body["errors"] = e.errors
		}
		if status == 403 {
			c.mu.Lock()
			c.denied = append(c.denied, e.msg)
			c.mu.Unlock()
		}
	}
	b, err := json.Marshal(body)
	if err != nil {
		panic(err) // all data is made here
	}
	if status > 501 {
		b = nil
	}
	c.write(w, status, reason, b)
}

// write sends an answer with a reason of our own, which net/http does not do.
func (c *Cloud) write(w http.ResponseWriter, status int, reason string, body []byte) {
	reason, _, _ = strings.Cut(reason, "\n")
	h, ok := w.(http.Hijacker)
	if status == 200 || c.o.NoReason || !ok {
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
