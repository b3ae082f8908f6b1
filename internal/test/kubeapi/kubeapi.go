// Package kubeapi is a Kubernetes API server in memory for tests of what clients print and
// count. It knows no rules: it keeps objects as they are written, and watches are silent.
// What a cluster does is tested with real servers, see package kubetest.
package kubeapi

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// An API server. Methods may be called concurrently.
type API struct {
	URL string

	mu      sync.Mutex
	objects map[string]object // by path
}

// kinds returns those that nstance-operator asks for, by group and version, each by the
// name of its resource.
func kinds() map[string]map[string]string {
	return map[string]map[string]string{
		"v1":                              {"events": "Event", "namespaces": "Namespace", "nodes": "Node", "pods": "Pod", "secrets": "Secret"},
		"admissionregistration.k8s.io/v1": {"validatingwebhookconfigurations": "ValidatingWebhookConfiguration"},
		"coordination.k8s.io/v1":          {"leases": "Lease"},
		"events.k8s.io/v1":                {"events": "Event"},
		"cluster.x-k8s.io/v1beta2":        {"clusters": "Cluster", "machines": "Machine", "machinepools": "MachinePool"},
		"infrastructure.cluster.x-k8s.io/v1beta1": {
			"nstanceclusters": "NstanceCluster", "nstancemachines": "NstanceMachine", "nstancemachinepools": "NstanceMachinePool",
			"nstancemachinetemplates": "NstanceMachineTemplate", "nstanceshardgroups": "NstanceShardGroup", "spotprotections": "SpotProtection",
		},
	}
}

// Start returns a server that runs until the test ends.
func Start(t *testing.T) *API {
	t.Helper()
	a := &API{objects: map[string]object{}}
	s := httptest.NewServer(a)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	a.URL = s.URL
	return a
}

// Kubeconfig is a file's content that leads to the server.
func (a *API) Kubeconfig() []byte {
	return []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "a"}}],
		"clusters": [{"name": "a", "cluster": {"server": "` + a.URL + `"}}]}`)
}

// Put keeps an object, which is JSON, at a path.
func (a *API) Put(at, json string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.objects[at] = object{kind: "application/json", body: []byte(json)}
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if known := discovery(r.URL.Path); known != nil {
		answer(w, http.StatusOK, known)
		return
	}
	q := r.URL.Query()
	switch {
	case q.Get("sendInitialEvents") != "": // clients then list and watch
		answer(w, http.StatusUnprocessableEntity, failure("Invalid", http.StatusUnprocessableEntity))
	case q.Get("watch") != "":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // nothing changes
	case r.Method == http.MethodGet:
		a.get(w, r)
	default:
		a.write(w, r)
	}
}

// discovery answers what kinds there are, nil for another question.
func discovery(at string) map[string]any {
	groups, all := []any{}, kinds()
	for _, gv := range slices.Sorted(maps.Keys(all)) {
		group, version := path.Split(gv)
		prefix := "/apis/"
		if group == "" {
			prefix = "/api/"
		}
		if at == prefix+gv {
			resources := []any{}
			for resource, kind := range all[gv] {
				resources = append(resources, map[string]any{"name": resource, "kind": kind, "namespaced": true, "verbs": []string{"get", "list", "watch", "create", "update", "patch", "delete"}})
			}
			return map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": gv, "resources": resources}
		}
		if group != "" {
			v := map[string]any{"groupVersion": gv, "version": version}
			groups = append(groups, map[string]any{"name": strings.TrimSuffix(group, "/"), "versions": []any{v}, "preferredVersion": v})
		}
	}
	switch at {
	case "/api":
		return map[string]any{"kind": "APIVersions", "versions": []string{"v1"}}
	case "/apis":
		return map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
	}
	return nil
}

// get answers an object or, of a collection, a list.
func (a *API) get(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o, ok := a.objects[r.URL.Path]; ok {
		o.send(w, http.StatusOK)
		return
	}
	if !collection(r.URL.Path) {
		answer(w, http.StatusNotFound, failure("NotFound", http.StatusNotFound))
		return
	}
	items := []any{}
	for at, o := range a.objects {
		if path.Base(path.Dir(at)) == path.Base(r.URL.Path) && o.kind == "application/json" {
			items = append(items, json.RawMessage(o.body))
		}
	}
	answer(w, http.StatusOK, map[string]any{"metadata": map[string]any{"resourceVersion": "1"}, "items": items})
}

// collection reports whether a path ends with the name of a resource.
func collection(at string) bool {
	for _, known := range kinds() {
		if known[path.Base(at)] != "" {
			return true
		}
	}
	return false
}

// write keeps what is sent. A patch changes nothing.
func (a *API) write(w http.ResponseWriter, r *http.Request) {
	sent, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	o := object{kind: r.Header.Get("Content-Type"), body: sent}
	at, code := r.URL.Path, http.StatusOK
	a.mu.Lock()
	defer a.mu.Unlock()
	switch r.Method {
	case http.MethodPatch:
		o = a.objects[at]
	case http.MethodPost:
		at, code = path.Join(at, o.name()), http.StatusCreated
		a.objects[at] = o
	default:
		a.objects[at] = o
	}
	o.send(w, code)
}

// An object is kept as it was sent.
type object struct {
	kind string // of its encoding
	body []byte
}

func (o object) send(w http.ResponseWriter, code int) {
	w.Header().Set("Content-Type", o.kind)
	w.WriteHeader(code)
	_, _ = w.Write(o.body)
}

// name returns the object's name.
func (o object) name() string {
	if message, ok := bytes.CutPrefix(o.body, []byte("k8s\x00")); ok {
		return string(field(field(field(message, 2), 1), 1)) // runtime.Unknown.raw, metadata, name
	}
	var v struct {
		Metadata struct{ Name string }
	}
	_ = json.Unmarshal(o.body, &v)
	return v.Metadata.Name
}

// field returns the first field of a message with that number and a length.
func field(message []byte, number protowire.Number) []byte {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil
		}
		message = message[size:]
		if n == number && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			return value
		}
		if size = protowire.ConsumeFieldValue(n, kind, message); size < 0 {
			return nil
		}
		message = message[size:]
	}
	return nil
}

func failure(reason string, code int) map[string]any {
	return map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": reason}
}

func answer(w http.ResponseWriter, code int, v map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}
