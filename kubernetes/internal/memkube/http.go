package memkube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
)

var errPrecondition = errors.New("precondition failed")

// RoundTrip implements http.RoundTripper.
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if found := discover(r.URL.Path); found != nil {
		return answer(r, http.StatusOK, found), nil
	}
	at, ok := parse(r.URL.Path)
	if !ok {
		return failure(r, apierrors.NewNotFound(corev1.Resource("path"), r.URL.Path)), nil
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	refusal := s.refusal(r)
	if err := r.Context().Err(); err != nil { // there was no answer in time
		return nil, err
	}
	if refusal != nil {
		return failure(r, refusal), nil
	}
	if r.Method == http.MethodGet && at.name == "" {
		return s.listOrWatch(r, at), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	status, out, err := s.serve(r, at, body)
	if err != nil {
		return failure(r, err), nil
	}
	return answer(r, status, shaped(r, out)), nil
}

// serve is called with the server locked.
func (s *Server) serve(r *http.Request, at address, body []byte) (int, object, error) {
	switch r.Method {
	case http.MethodGet:
		o, err := s.get(at)
		return http.StatusOK, o, err
	case http.MethodPost:
		o, err := s.post(r, at, body)
		return http.StatusCreated, o, err
	case http.MethodPut, http.MethodPatch:
		o, err := s.change(r, at, body)
		return http.StatusOK, o, err
	case http.MethodDelete:
		var options metav1.DeleteOptions
		if err := decodeInto(r, body, &options); err != nil {
			return 0, nil, err
		}
		o, err := s.remove(at, options)
		return http.StatusOK, o, err
	}
	return 0, nil, apierrors.NewMethodNotSupported(at.groupResource(), r.Method)
}

func (s *Server) post(r *http.Request, at address, body []byte) (object, error) {
	o, err := decode(r, body)
	if err != nil {
		return nil, err
	}
	if at.sub == "eviction" {
		return s.evict(r, at, body)
	}
	u := unstructured.Unstructured{Object: o}
	if at.name = u.GetName(); at.name == "" {
		at.name = u.GetGenerateName() + strconv.FormatInt(s.version, 10)
		u.SetName(at.name)
	}
	if s.objects[at.path()] != nil {
		return nil, apierrors.NewAlreadyExists(at.groupResource(), at.name)
	}
	o["apiVersion"], o["kind"] = at.apiVersion(), at.kind
	if at.namespace != "" {
		u.SetNamespace(at.namespace)
	}
	if at.status {
		delete(o, "status")
	}
	return s.create(at, o), nil
}

// change makes a change of an object, of its status alone or of all but its status.
func (s *Server) change(r *http.Request, at address, body []byte) (object, error) {
	before, err := s.get(at)
	if err != nil {
		return nil, err
	}
	now, err := patched(r, at, runtime.DeepCopyJSON(before), body)
	if err != nil {
		return nil, err
	}
	is, was := unstructured.Unstructured{Object: now}, unstructured.Unstructured{Object: before}
	if is.GetUID() != was.GetUID() {
		return nil, otherUID(at)
	}
	if v := is.GetResourceVersion(); v != "" && v != was.GetResourceVersion() {
		return nil, apierrors.NewConflict(at.groupResource(), at.name, errors.New("the object has been modified"))
	}
	switch {
	case at.sub == "status":
		changed := runtime.DeepCopyJSON(before)
		changed["status"] = now["status"]
		now = changed
	case at.status:
		if now["status"] = before["status"]; now["status"] == nil {
			delete(now, "status")
		}
	}
	is = unstructured.Unstructured{Object: now}
	is.SetResourceVersion(was.GetResourceVersion())
	is.SetDeletionTimestamp(was.GetDeletionTimestamp())
	return s.replace(at, now), nil
}

func otherUID(at address) error {
	err := apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind(at.kind).GroupKind(), at.name, nil)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid, Field: "metadata.uid"}}
	return err
}

func patched(r *http.Request, at address, now object, body []byte) (object, error) {
	if r.Method == http.MethodPut {
		return decode(r, body)
	}
	var p object
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	switch kind := types.PatchType(r.Header.Get("Content-Type")); kind {
	case types.MergePatchType:
		merge(now, p)
		return now, nil
	case types.StrategicMergePatchType:
		typed, err := scheme.Scheme.New(schema.GroupVersionKind{Group: at.group, Version: at.version, Kind: at.kind})
		if err != nil {
			return nil, err
		}
		return strategicpatch.StrategicMergeMapPatch(now, p, typed)
	case types.ApplyYAMLPatchType:
		apply(now, p)
		return now, nil
	default:
		return nil, fmt.Errorf("patch of type %s", kind)
	}
}

// merge is RFC 7386.
func merge(now, p object) {
	for key, value := range p {
		inner, isObject := value.(object)
		before, wasObject := now[key].(object)
		switch {
		case value == nil:
			delete(now, key)
		case isObject && wasObject:
			merge(before, inner)
		case isObject:
			fresh := object{}
			merge(fresh, inner)
			now[key] = fresh
		default:
			now[key] = value
		}
	}
}

// apply merges, and conditions by their type.
func apply(now, p object) {
	wanted, _, _ := unstructured.NestedSlice(p, "status", "conditions")
	kept, _, _ := unstructured.NestedSlice(now, "status", "conditions")
	for _, w := range wanted {
		found := false
		for i, k := range kept {
			if k.(object)["type"] == w.(object)["type"] {
				kept[i], found = w, true
			}
		}
		if !found {
			kept = append(kept, w)
		}
	}
	merge(now, p)
	if len(kept) > 0 {
		_ = unstructured.SetNestedSlice(now, kept, "status", "conditions")
	}
}

func decode(r *http.Request, body []byte) (object, error) {
	if !strings.Contains(r.Header.Get("Content-Type"), "protobuf") {
		var o object
		if err := json.Unmarshal(body, &o); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return o, nil
	}
	typed, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
}

func decodeInto(r *http.Request, body []byte, into any) error {
	if len(body) == 0 {
		return nil
	}
	o, err := decode(r, body)
	if err != nil {
		return err
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(o, into)
}

// listOrWatch answers for the objects that selectors choose.
func (s *Server) listOrWatch(r *http.Request, at address) *http.Response {
	q := r.URL.Query()
	chosen, err := selectorOf(q.Get("labelSelector"), q.Get("fieldSelector"))
	if err != nil {
		return failure(r, apierrors.NewBadRequest(err.Error()))
	}
	if q.Get("sendInitialEvents") != "" { // clients then list and watch
		return failure(r, apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("ListOptions").GroupKind(), "", nil))
	}
	if q.Get("watch") != "" {
		return s.watch(r, at, chosen)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []any{}
	for _, o := range s.sorted(at.resource, at.namespace) {
		if chosen(o) {
			items = append(items, shaped(r, o))
		}
	}
	list := object{"apiVersion": at.apiVersion(), "kind": at.kind + "List", "items": items}
	if metadataOnly(r) {
		list["apiVersion"], list["kind"] = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	list["metadata"] = object{"resourceVersion": strconv.FormatInt(s.version, 10)}
	return answer(r, http.StatusOK, list)
}

// watch sends what happens after a version until its request ends.
func (s *Server) watch(r *http.Request, at address, chosen func(object) bool) *http.Response {
	after, _ := strconv.ParseInt(r.URL.Query().Get("resourceVersion"), 10, 64)
	read, write := io.Pipe()
	ctx, cancel := context.WithCancel(r.Context())
	go func() { // it ends with the request
		defer cancel()
		next := 0
		for {
			s.mu.Lock()
			fresh, changed := s.log[next:], s.changed
			next = len(s.log)
			s.mu.Unlock()
			for _, e := range fresh {
				frame := frameOf(r, e, chosen)
				if frame == nil || e.version <= after || e.of != at.resource || at.namespace != "" && namespaceOf(e) != at.namespace {
					continue
				}
				if json.NewEncoder(write).Encode(frame) != nil {
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				_ = write.CloseWithError(ctx.Err())
				return
			}
		}
	}()
	resp := answer(r, http.StatusOK, nil)
	resp.Body = &stream{read, cancel}
	return resp
}

// A stream ends its watch when it is closed.
type stream struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b *stream) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

func namespaceOf(e event) string {
	if e.now == nil {
		return (&unstructured.Unstructured{Object: e.before}).GetNamespace()
	}
	return (&unstructured.Unstructured{Object: e.now}).GetNamespace()
}

// frameOf is what a watch says of an event; nil: nothing.
func frameOf(r *http.Request, e event, chosen func(object) bool) object {
	was, is := e.before != nil && chosen(e.before), e.now != nil && chosen(e.now)
	switch {
	case is && was:
		return object{"type": "MODIFIED", "object": shaped(r, e.now)}
	case is:
		return object{"type": "ADDED", "object": shaped(r, e.now)}
	case was && e.now != nil:
		return object{"type": "DELETED", "object": shaped(r, e.now)}
	case was:
		return object{"type": "DELETED", "object": shaped(r, e.before)}
	}
	return nil
}

func selectorOf(byLabels, byFields string) (func(object) bool, error) {
	l, err := labels.Parse(byLabels)
	if err != nil {
		return nil, err
	}
	f, err := fields.ParseSelector(byFields)
	if err != nil {
		return nil, err
	}
	return func(o object) bool {
		u := unstructured.Unstructured{Object: o}
		if !l.Matches(labels.Set(u.GetLabels())) {
			return false
		}
		set := fields.Set{}
		for _, need := range f.Requirements() {
			set[need.Field], _, _ = unstructured.NestedString(o, strings.Split(need.Field, ".")...)
		}
		return f.Matches(set)
	}, nil
}

func metadataOnly(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
}

// shaped is an object as the request wants it.
func shaped(r *http.Request, o object) object {
	if !metadataOnly(r) {
		return o
	}
	return object{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": o["metadata"]}
}

func answer(r *http.Request, status int, body any) *http.Response {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": []string{"application/json"}}, Body: io.NopCloser(bytes.NewReader(data)), Request: r,
	}
}

func failure(r *http.Request, err error) *http.Response {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		status = apierrors.NewInternalError(err)
	}
	what := status.Status()
	what.Kind, what.APIVersion = "Status", "v1"
	out := answer(r, int(what.Code), what)
	if what.Details != nil && what.Details.RetryAfterSeconds > 0 {
		out.Header.Set("Retry-After", strconv.Itoa(int(what.Details.RetryAfterSeconds)))
	}
	return out
}
