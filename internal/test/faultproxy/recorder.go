package faultproxy

import (
	"bytes"
	"io"
	"net/http"
	"sync"
)

// A Recorder answers requests and keeps them.
type Recorder struct {
	Answer http.HandlerFunc

	mu   sync.Mutex
	seen []*http.Request
}

// ServeHTTP implements http.Handler.
func (s *Recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	s.mu.Lock()
	s.seen = append(s.seen, r)
	s.mu.Unlock()
	s.Answer(w, r)
}

// Requests returns the requests since the last call.
func (s *Recorder) Requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}
