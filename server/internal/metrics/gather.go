package metrics

import (
	"sync"

	dto "github.com/prometheus/client_model/go"
)

// A sharedGatherer gathers once at a time. Callers that come meanwhile share the next
// result: it is never older than their call.
type sharedGatherer struct {
	gather func() ([]*dto.MetricFamily, error)

	mu      sync.Mutex
	next    *gathering // that has not begun; nil: none is waited for
	running bool
}

// A gathering is one result.
type gathering struct {
	done     chan struct{}
	families []*dto.MetricFamily
	err      error
}

// Gather implements prometheus.Gatherer.
func (s *sharedGatherer) Gather() ([]*dto.MetricFamily, error) {
	s.mu.Lock()
	if s.next == nil {
		s.next = &gathering{done: make(chan struct{})}
	}
	mine, run := s.next, !s.running
	s.running = true
	s.mu.Unlock()
	if run {
		go s.run() // ends when nothing is waited for
	}
	<-mine.done
	return mine.families, mine.err
}

// run gathers until nothing is waited for.
func (s *sharedGatherer) run() {
	for {
		s.mu.Lock()
		g := s.next
		s.next = nil
		s.running = g != nil
		s.mu.Unlock()
		if g == nil {
			return
		}
		g.families, g.err = s.gather()
		close(g.done)
	}
}
