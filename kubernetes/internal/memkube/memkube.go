// Package memkube is a Kubernetes API server in memory, for tests in virtual time: it is
// reached through an http.RoundTripper, and has no sockets. It knows the rules that
// controllers rely on: versions and conflicts, UIDs, finalizers, status subresources,
// watches, evictions within disruption budgets and grace periods of pods. What it does not
// know, such as schemas, admission and roles, is tested with real servers, see package kubetest.
package memkube

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
)

// A Server is an API server. Its methods may be called concurrently.
type Server struct {
	mu      sync.Mutex
	refuse  func(*http.Request) error // nil: none is
	version int64
	objects map[string]object // by path
	log     []event
	changed chan struct{} // closed at the next change
}

// An object is one of any kind, as JSON.
type object = map[string]any

// An event is a change of an object; before and now are nil where there is none.
type event struct {
	version     int64
	of          resource
	before, now object
}

// New returns a server without objects.
func New() *Server {
	return &Server{objects: map[string]object{}, changed: make(chan struct{})}
}

// Config returns a configuration whose clients reach the server without a limit of their own.
func (s *Server) Config() *rest.Config {
	return &rest.Config{Host: "http://memory", Transport: s, QPS: -1}
}

// Refuse has an error of each request but watches be its answer, unless it is nil. The function
// may be called concurrently.
func (s *Server) Refuse(answer func(*http.Request) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = answer
}

func (s *Server) refusal(r *http.Request) error {
	s.mu.Lock()
	refuse := s.refuse
	s.mu.Unlock()
	if refuse == nil || r.URL.Query().Get("watch") != "" {
		return nil
	}
	return refuse(r)
}

// Put stores an object as it is, status and all, in place of what has its name. It is for tests.
func (s *Server) Put(obj runtime.Object) {
	at, o := s.locate(obj)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.create(at, o)
}

func (s *Server) locate(obj runtime.Object) (address, object) {
	o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		panic(err)
	}
	of := resourceOf(obj)
	o["apiVersion"], o["kind"] = of.apiVersion(), of.kind
	u := unstructured.Unstructured{Object: o}
	return address{resource: of, namespace: u.GetNamespace(), name: u.GetName()}, o
}

// Change changes the object of a path such as /api/v1/nodes/n, status and all, and reports
// whether there is one. It is for tests.
func (s *Server) Change(path string, change func(object map[string]any)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, _ := parse(path)
	before := s.objects[at.path()]
	if before == nil {
		return false
	}
	now := runtime.DeepCopyJSON(before)
	change(now)
	s.replace(at, now)
	return true
}

// Remove removes the object of a path at once, whatever its finalizers, and reports whether there
// was one. It is for tests.
func (s *Server) Remove(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, _ := parse(path)
	if s.objects[at.path()] == nil {
		return false
	}
	s.forget(at)
	return true
}

// Objects returns the objects whose path begins with a prefix, by path. They must not be changed.
func (s *Server) Objects(prefix string) map[string]map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]map[string]any{}
	for path, o := range s.objects {
		if strings.HasPrefix(path, prefix) {
			out[path] = o
		}
	}
	return out
}

// Changed returns what is closed at the next change.
func (s *Server) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// get is called with the server locked.
func (s *Server) get(at address) (object, error) {
	if o := s.objects[at.path()]; o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(at.groupResource(), at.name)
}

// create is called with the server locked.
func (s *Server) create(at address, o object) object {
	u := unstructured.Unstructured{Object: o}
	if u.GetUID() == "" {
		u.SetUID(uuid.NewUUID())
	}
	if made := u.GetCreationTimestamp(); made.IsZero() {
		u.SetCreationTimestamp(metav1.Now())
	}
	u.SetGeneration(1)
	return s.store(at, o)
}

// replace stores a changed object, or forgets one that is being deleted once its last
// finalizer is gone. It is called with the server locked.
func (s *Server) replace(at address, o object) object {
	before, u := s.objects[at.path()], unstructured.Unstructured{Object: o}
	if equal(before, o) {
		return before
	}
	if u.GetDeletionTimestamp() != nil && len(u.GetFinalizers()) == 0 && at.plural != "pods" {
		s.forget(at)
		return o
	}
	if !equal(before["spec"], o["spec"]) {
		u.SetGeneration(u.GetGeneration() + 1)
	}
	return s.store(at, o)
}

func (s *Server) store(at address, o object) object {
	s.version++
	(&unstructured.Unstructured{Object: o}).SetResourceVersion(strconv.FormatInt(s.version, 10))
	s.publish(event{s.version, at.resource, s.objects[at.path()], o})
	s.objects[at.path()] = o
	return o
}

// forget is called with the server locked.
func (s *Server) forget(at address) {
	s.version++
	before := s.objects[at.path()]
	delete(s.objects, at.path())
	last := maps.Clone(before)
	u := unstructured.Unstructured{Object: runtime.DeepCopyJSON(last)}
	u.SetResourceVersion(strconv.FormatInt(s.version, 10))
	s.publish(event{s.version, at.resource, u.Object, nil})
}

func (s *Server) publish(e event) {
	s.log = append(s.log, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// remove deletes an object as its options say. It is called with the server locked.
func (s *Server) remove(at address, o metav1.DeleteOptions) (object, error) {
	now, err := s.get(at)
	if err != nil {
		return nil, err
	}
	u := unstructured.Unstructured{Object: now}
	if p := o.Preconditions; p != nil && p.UID != nil && *p.UID != u.GetUID() {
		return nil, apierrors.NewConflict(at.groupResource(), at.name, errPrecondition)
	}
	if p := o.Preconditions; p != nil && p.ResourceVersion != nil && *p.ResourceVersion != u.GetResourceVersion() {
		return nil, apierrors.NewConflict(at.groupResource(), at.name, errPrecondition)
	}
	if at.plural == "pods" {
		return s.terminate(at, now, o.GracePeriodSeconds), nil
	}
	if len(u.GetFinalizers()) == 0 {
		s.forget(at)
		return now, nil
	}
	if u.GetDeletionTimestamp() != nil {
		return now, nil
	}
	changed := unstructured.Unstructured{Object: runtime.DeepCopyJSON(now)}
	at0 := metav1.Now()
	changed.SetDeletionTimestamp(&at0)
	changed.SetDeletionGracePeriodSeconds(new(int64))
	return s.store(at, changed.Object), nil
}

// sorted returns the objects of a resource in the order of their paths. It is called with the
// server locked.
func (s *Server) sorted(of resource, namespace string) (out []object) {
	for _, path := range slices.Sorted(maps.Keys(s.objects)) {
		at, _ := parse(path)
		if at.resource == of && (namespace == "" || at.namespace == namespace) {
			out = append(out, s.objects[path])
		}
	}
	return out
}

func equal(a, b any) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

// after does something later, in virtual time.
func (s *Server) after(d time.Duration, do func()) {
	time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		do()
	})
}
