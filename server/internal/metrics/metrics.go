// Package metrics shows a shard server to Prometheus. It decorates what the
// server is made of, its storage, its calls to the provider, its journal and its
// ports, and looks at its state when it is asked: nothing else counts anything.
//
// docs/metrics.md lists every metric.
package metrics

import (
	"cmp"
	"math"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/fair"
	"github.com/nstance-go/nstance/internal/webhook"
	"github.com/nstance-go/nstance/server/internal/ports"
)

// Metrics are those of one server. Methods may be called concurrently, and
// none blocks.
type Metrics struct {
	registry *prometheus.Registry
	provider *prometheus.HistogramVec
	storage  *prometheus.HistogramVec
	removed  *prometheus.CounterVec
	requests *prometheus.HistogramVec
	streams  *prometheus.GaugeVec
	events   *prometheus.CounterVec
	notices  *prometheus.CounterVec
	warnings *prometheus.HistogramVec
	drains   *prometheus.CounterVec
	webhooks *prometheus.CounterVec
	losses   *losses
}

// quick are buckets for what takes from a fraction of a millisecond, such as a
// write to memory, to half a minute, the limit of one call; in seconds.
var quick = prometheus.ExponentialBucketsRange(0.0005, 30, 16)

// slow are buckets for what takes from milliseconds to an hour, such as a
// machine's start; in seconds.
var slow = prometheus.ExponentialBucketsRange(0.001, 3600, 20)

// warning are buckets for the time that clouds leave between notice and deadline, from a
// second to an hour; in seconds.
var warning = []float64{1, 5, 10, 20, 30, 60, 90, 120, 300, 600, 1800, 3600}

// New returns the metrics of a server whose state look returns. It is called
// at every scrape, by several at once at times, and must not block.
func New(look func() State) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		provider: histogram("provider_call_seconds", "Time of calls to the provider, by operation and code of the answer: ok, or an error code.", quick, "op", "code"),
		storage:  histogram("storage_call_seconds", "Time of calls to storage, by operation and code of the answer: ok, or an error code.", quick, "op", "code"),
		removed:  counter("storage_removed_total", "Objects removed from storage, by how their keys begin, such as instance or definition.", "prefix"),
		requests: histogram("grpc_request_seconds", "Time of unary requests, by method and code of the answer: ok, or an error code.", quick, "method", "code"),
		streams:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "grpc_streams", Help: "Open streams, by method."}, []string{"method"}),
		events:   counter("events_total", "Entries of the journal, by type.", "type"),
		notices:  counter("notices_total", "Notices received, by kind and source: aws, gcp, azure, proxmox, local, rehearsal or other.", "kind", "source"),
		warnings: histogram("notice_seconds", "From the receipt of a notice until its deadline, the warning that a cloud gives, by kind and source; without deadline it is not counted.", warning, "kind", "source"),
		drains:   counter("drains_total", "Drains that ended, by outcome: drained, failed, cut_short, cancelled.", "outcome"),
		webhooks: counter("webhook_messages_total", "Messages for webhooks, by webhook and result: sent, failed, or dropped because too many waited.", "webhook", "result"),
		losses:   newLosses(),
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.provider, m.storage, m.removed, m.requests, m.streams, m.events, m.notices, m.warnings, m.drains, m.webhooks, m.losses.requested, m.losses.ready, &state{look},
	)
	return m
}

const namespace = "nstance"

func histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, labels)
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

// Bounds on answers that are written at a time, in all and to one source: each is in memory.
const (
	maxScrapes    = 4
	sourceScrapes = 2
	scrapeTimeout = 5 * time.Second // to read an answer; Prometheus waits for 10 s by default
)

// Handler serves the metrics in Prometheus' text format. However many clients there are,
// the server is looked at once at a time, few answers are written at a time, sources take
// turns, and none is refused. A client that reads too slowly loses its connection.
func (m *Metrics) Handler() http.Handler {
	answer := promhttp.HandlerFor(&sharedGatherer{gather: m.registry.Gather}, promhttp.HandlerOpts{})
	scrapes := fair.NewQueue[string](maxScrapes, sourceScrapes, math.MaxInt)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		done, err := scrapes.Acquire(r.Context(), ports.RequestSource(r))
		if err != nil {
			return // the client is gone
		}
		defer done()
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(scrapeTimeout)) // sockets have deadlines
		answer.ServeHTTP(w, r)
	})
}

// Provider notes a call to the provider. It is a provider.Options.Observe.
func (m *Metrics) Provider(op string, code nstance.Code, d time.Duration) {
	m.provider.WithLabelValues(op, label(code)).Observe(d.Seconds())
}

// Webhook counts what became of a message for a webhook.
func (m *Metrics) Webhook(name string, result webhook.Result) {
	m.webhooks.WithLabelValues(name, string(result)).Inc()
}

// label names a code; success has none of its own.
func label(code nstance.Code) string { return cmp.Or(string(code), "ok") }
