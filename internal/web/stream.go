package web

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	frameInterval = time.Second
	// streamAge is how long one stream lasts. Then the browser opens the next one: no
	// stream needs an exception from shard.connections.anonymous_age.
	streamAge     = 20 * time.Second
	frameTimeout  = 5 * time.Second
	statusTimeout = 5 * time.Second
	maxStreams    = 64
)

// A feed sends the status to any number of streams. It asks for the status once for
// all of them, and for all that read it otherwise.
type feed struct {
	status  func(ctx context.Context) Status
	ending  <-chan struct{}
	streams atomic.Int32

	mu    sync.Mutex
	asked time.Time
	last  *snapshot
}

// A snapshot is a status, and as text in parts that can be compared.
type snapshot struct {
	status   Status
	sections map[string]string // by field of Status, all but the instances
	rows     map[string]string // instances by ID
}

// A frame is one message of a stream: what has changed since the one before. The first
// one of a stream has everything.
type frame struct {
	First    bool                       `json:"first,omitempty"`
	Sections map[string]json.RawMessage `json:"sections"`
	Rows     []json.RawMessage          `json:"rows,omitempty"` // instances that are new or have changed
	Gone     []string                   `json:"gone,omitempty"` // instances
}

func (f *feed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer f.streams.Add(-1)
	if f.streams.Add(1) > maxStreams {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "so many pages are open that this one is not kept up to date", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), streamAge)
	defer cancel()
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(2 * streamAge)) // a connection without deadlines ends as well
	tick := time.NewTicker(frameInterval)
	defer tick.Stop()
	for was := (*snapshot)(nil); ; {
		now, err := f.latest(ctx)
		if err != nil {
			if was == nil {
				cannotShow(w, err)
			}
			return
		}
		_ = rc.SetWriteDeadline(time.Now().Add(frameTimeout)) // likewise
		if write(w, now.since(was)) != nil || rc.Flush() != nil {
			return
		}
		was = now
		select {
		case <-ctx.Done():
			return
		case <-f.ending:
			return
		case <-tick.C:
		}
	}
}

// latest returns a status that is hardly older than the interval.
func (f *feed) latest(ctx context.Context) (*snapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last != nil && time.Since(f.asked) < frameInterval*9/10 {
		return f.last, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusTimeout) // others wait for it too
	defer cancel()
	s, err := newSnapshot(f.status(ctx))
	if err == nil {
		f.last, f.asked = s, time.Now()
	}
	return s, err
}

func newSnapshot(status Status) (*snapshot, error) {
	s := &snapshot{status: status, sections: map[string]string{}, rows: make(map[string]string, len(status.Instances))}
	for _, i := range status.Instances {
		row, err := json.Marshal(i)
		if err != nil {
			return nil, err
		}
		s.rows[i.ID] = string(row)
	}
	status.Instances = nil
	whole, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	var sections map[string]json.RawMessage
	if err := json.Unmarshal(whole, &sections); err != nil {
		return nil, err
	}
	delete(sections, "instances")
	for name, text := range sections {
		s.sections[name] = string(text)
	}
	return s, nil
}

// since returns what has changed. A section that is absent now is null.
func (s *snapshot) since(was *snapshot) *frame {
	f := &frame{Sections: map[string]json.RawMessage{}}
	if was == nil {
		f.First, was = true, &snapshot{}
	}
	for name, text := range s.sections {
		if was.sections[name] != text {
			f.Sections[name] = json.RawMessage(text)
		}
	}
	for name := range was.sections {
		if _, there := s.sections[name]; !there {
			f.Sections[name] = json.RawMessage("null")
		}
	}
	for id, row := range s.rows {
		if was.rows[id] != row {
			f.Rows = append(f.Rows, json.RawMessage(row))
		}
	}
	for id := range was.rows {
		if _, there := s.rows[id]; !there {
			f.Gone = append(f.Gone, id)
		}
	}
	return f
}

func write(w http.ResponseWriter, f *frame) error {
	body, err := json.Marshal(f)
	if err != nil {
		return err
	}
	_, err = w.Write(append(append([]byte("data: "), body...), '\n', '\n'))
	return err
}
