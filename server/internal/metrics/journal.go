package metrics

import (
	"cmp"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nstance-go/nstance"
)

// Event counts an entry of the journal.
func (m *Metrics) Event(e nstance.Event) {
	m.events.WithLabelValues(string(e.Type)).Inc()
	switch e.Type {
	case nstance.EventNoticeReceived:
		if e.Notice != nil {
			m.notices.WithLabelValues(string(e.Notice.Kind), source(e.Notice.Source)).Inc()
			m.warned(e)
		}
	case nstance.EventDrainAcknowledged:
		m.drains.WithLabelValues(cmp.Or(e.Reason, "acknowledged")).Inc()
	case nstance.EventDrainCutShort:
		m.drains.WithLabelValues("cut_short").Inc()
	case nstance.EventDrainCancelled:
		m.drains.WithLabelValues("cancelled").Inc()
	}
	m.losses.hear(e)
}

// warned measures the time that a notice leaves.
func (m *Metrics) warned(e nstance.Event) {
	if n := e.Notice; !n.Deadline.IsZero() {
		m.warnings.WithLabelValues(string(n.Kind), source(n.Source)).Observe(max(0, n.Deadline.Sub(e.Time)).Seconds())
	}
}

// sources are those that agents report. What else a stolen identity calls
// itself must not make a metric each.
var sources = map[string]bool{"aws": true, "gcp": true, "azure": true, "proxmox": true, "local": true, "rehearsal": true}

func source(s string) string {
	if name, _, _ := strings.Cut(s, "/"); sources[name] {
		return name
	}
	return "other"
}

// losses time how long a lost member takes to be replaced.
type losses struct {
	requested *prometheus.HistogramVec
	ready     *prometheus.HistogramVec

	mu      sync.Mutex
	lost    map[nstance.InstanceID]loss // by the member that is lost
	replace map[nstance.InstanceID]loss // by its replacement
}

// A loss is when and why a member was lost.
type loss struct {
	at  time.Time
	why string
}

// maxLosses bounds how many are remembered at once. Beyond it, and after a day,
// the oldest are not timed any more.
const (
	maxLosses  = 20_000
	lossMemory = 24 * time.Hour
)

func newLosses() *losses {
	return &losses{
		requested: histogram("replacement_requested_seconds", "From the news of a member's loss to the request for its replacement, by cause: notice, gone, unhealthy.", slow, "cause"),
		ready:     histogram("replacement_ready_seconds", "From the news of a member's loss until its replacement is ready, by cause: notice, gone, unhealthy.", slow, "cause"),
		lost:      map[nstance.InstanceID]loss{}, replace: map[nstance.InstanceID]loss{},
	}
}

func (l *losses) hear(e nstance.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch e.Type {
	case nstance.EventNoticeReceived:
		l.begin(e, "notice")
	case nstance.EventMachineGone:
		l.begin(e, "gone")
	case nstance.EventUnhealthy:
		l.begin(e, "unhealthy")
	case nstance.EventReplacementRequested:
		if from, ok := l.lost[e.Replaces]; ok {
			l.requested.WithLabelValues(from.why).Observe(since(e, from))
			remember(l.replace, e.Instance, from, e.Time)
			delete(l.lost, e.Replaces)
		}
	case nstance.EventReady:
		if from, ok := l.replace[e.Instance]; ok {
			l.ready.WithLabelValues(from.why).Observe(since(e, from))
			delete(l.replace, e.Instance)
		}
	case nstance.EventDrainCancelled: // it is not lost
		delete(l.lost, e.Instance)
	case nstance.EventDeleted:
		delete(l.replace, e.Instance)
	}
}

func (l *losses) begin(e nstance.Event, why string) {
	if _, known := l.lost[e.Instance]; !known {
		remember(l.lost, e.Instance, loss{e.Time, why}, e.Time)
	}
}

func since(e nstance.Event, from loss) float64 { return max(0, e.Time.Sub(from.at)).Seconds() }

// remember adds an entry, and makes room for it where there is none.
func remember(m map[nstance.InstanceID]loss, id nstance.InstanceID, l loss, now time.Time) {
	if len(m) >= maxLosses {
		for id, old := range m {
			if now.Sub(old.at) > lossMemory {
				delete(m, id)
			}
		}
	}
	if len(m) < maxLosses {
		m[id] = l
	}
}
