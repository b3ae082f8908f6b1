package imds

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
)

// set publishes body under path, or removes path, and wakes the long polls.
func (s *Server) set(path, body string, present bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if present {
		s.values[path] = body
	} else {
		delete(s.values, path)
	}
	s.wake()
}

// wake needs s.mu.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// lookup returns what stands at path, and a channel that closes when anything
// may have changed since.
func (s *Server) lookup(path string) (body string, found bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, found = s.values[path]
	return body, found, s.changed
}

// list returns the names directly below dir, one a line, those that have
// children of their own with a trailing slash, as both clouds print them.
func (s *Server) list(dir string) (string, bool) {
	dir = strings.TrimSuffix(dir, "/") + "/"
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for path := range s.values {
		rest, ok := strings.CutPrefix(path, dir)
		if !ok {
			continue
		}
		if name, _, nested := strings.Cut(rest, "/"); nested {
			rest = name + "/"
		}
		names = append(names, rest)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), "\n"), len(names) > 0
}

// etag depends on the content alone, so that a value that comes back has its
// old tag again.
func etag(body string) string {
	h := fnv.New64a()
	h.Write([]byte(body))
	return fmt.Sprintf("%016x", h.Sum64())
}
