package imds

// maxCounted bounds the paths that Requests can tell apart, since clients
// choose them.
const maxCounted = 256

// A fault answers requests with a status instead of the value.
type fault struct {
	status int
	left   int // requests still to fail; negative: all
}

// Fail answers the next n requests with status; a negative n means until
// Recover. With paths, only requests for one of them count, each path on its
// own. Long polls that hang are answered at once.
func (s *Server) Fail(status, n int, paths ...string) {
	if len(paths) == 0 {
		paths = []string{""}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range paths {
		s.faults[path] = &fault{status: status, left: n}
	}
	s.wake()
}

// Recover ends every fault.
func (s *Server) Recover() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.faults)
}

// takeFault uses up one failure for a request of path.
func (s *Server) takeFault(path string) (status int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range []string{path, ""} {
		if f := s.faults[key]; f.active() {
			f.left--
			return f.status, true
		}
	}
	return 0, false
}

// broken reports whether the next request of path would fail.
func (s *Server) broken(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults[path].active() || s.faults[""].active()
}

func (f *fault) active() bool { return f != nil && f.left != 0 }

// Requests returns how many requests for path have arrived, the failed ones
// included; for an empty path, how many in all.
func (s *Server) Requests(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[path]
}

func (s *Server) count(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[""]++
	if _, known := s.requests[path]; path != "" && (known || len(s.requests) < maxCounted) {
		s.requests[path]++
	}
}
