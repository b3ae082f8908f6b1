package storagetest

import (
	"testing"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
	"github.com/nstance-go/nstance/storage"
)

// smoke writes one object, reads, replaces, lists and deletes it.
func smoke(t *testing.T, c *conformance.Calls, s storage.Store) {
	due := func(as bool, what string) {
		t.Helper()
		if !as {
			t.Fatalf("%s: %s was due", c.Last(), what)
		}
	}
	v, err := s.PutIfAbsent(t.Context(), key, []byte("one"))
	due(err == nil && v != "", "a version")
	obj, err := s.Get(t.Context(), key)
	due(err == nil && string(obj.Data) == "one" && obj.Key == key && obj.Version == v, "what was written, with its key and version "+string(v))
	next, err := s.PutIfMatch(t.Context(), key, []byte("two"), v)
	due(err == nil && next != "" && next != v, "a new version")
	count := 0
	for e, err := range s.List(t.Context(), "", "") {
		if count++; err != nil || e.Key != key {
			t.Fatalf("List(prefix \"\", after \"\") yielded key %q, error %v: only %q was due", e.Key, err, key)
		}
	}
	due(count == 1, "one entry")
	due(s.DeleteIfMatch(t.Context(), key, next) == nil, "no error")
	_, err = s.Get(t.Context(), key)
	due(nstance.CodeOf(err) == nstance.NotFound, "NotFound after the deletion")
}
