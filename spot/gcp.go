package spot

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
)

// gcpBaseURL is the metadata service of Compute Engine. It is an address, because
// the resolver of a preempted machine may already be down.
const gcpBaseURL = "http://169.254.169.254"

const (
	gcpRoot        = "computeMetadata/v1/instance/"
	gcpName        = gcpRoot + "name"
	gcpPreemptible = gcpRoot + "scheduling/preemptible"
	gcpPreempted   = gcpRoot + "preempted"
	gcpMaintenance = gcpRoot + "maintenance-event"
	gcpUpcoming    = gcpRoot + "upcoming-maintenance"
	gcpStopState   = gcpRoot + "shutdown-details/stop-state"
)

// The header that Google demands of every request, and has on every answer.
const (
	gcpFlavor      = "Metadata-Flavor"
	gcpFlavorValue = "Google"
)

// longPoll is how long the service is asked to wait for a change. After a silent
// loss of the connection, as in a live migration, the watch misses changes for
// this long plus requestTimeout. That must stay well below the 30 s that a
// preempted machine has.
const longPoll = 10 * time.Second

// GCP detects what Compute Engine announces for this machine: preemption, host
// maintenance and graceful shutdown. It asks the service to wait for changes,
// so that a preemption is seen at once. It is safe for concurrent use.
type GCP struct {
	o         Options
	lastReads lastReads
	history   history

	known atomic.Bool // the service is Google's, or a good imitation: what it does not find is not there
}

var _ nstance.SpotDetector = (*GCP)(nil)

// NewGCP returns a detector without asking the service anything. Fails with
// Invalid for options that make no sense; nil is allowed.
func NewGCP(o *Options) (*GCP, error) {
	resolved, err := o.resolve(gcpBaseURL)
	if err != nil {
		return nil, err
	}
	return &GCP{o: resolved}, nil
}

// Interruptible reports whether the machine is preemptible, which spot
// machines are too. It gives up after two seconds with Unavailable, or Denied,
// NotFound or Internal as the service answers.
func (g *GCP) Interruptible(ctx context.Context) (bool, error) {
	a, err := g.get(ctx, gcpPreemptible, requestTimeout)
	if err != nil {
		return false, err
	}
	yes, err := parseBool(a.body)
	if err != nil {
		return false, nstance.Errorf(nstance.Internal, "/%s: %w", gcpPreemptible, err)
	}
	return yes, nil
}

// Machine returns what Google calls this machine: gcp/ and its name, which is its own in the
// zone. It fails like Interruptible.
func (g *GCP) Machine(ctx context.Context) (string, error) {
	got, err := g.get(ctx, gcpName, requestTimeout)
	if err != nil {
		return "", err
	}
	return machineName("gcp", gcpName, got.body)
}

// Watch yields notices and errors until ctx ends. Each watch begins without
// history and yields every notice that stands already.
//
// A preemption is a Reclaim. The cloud gives no time, so there is no deadline.
// Live migration is a Maintenance, and so is maintenance that is scheduled for a time
// (upcoming-maintenance), which is its NotBefore; maintenance that ends the machine, and
// graceful shutdown, are a Stop. A value that goes back to normal cancels its
// notice. An error is yielded once as long as it lasts.
func (g *GCP) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return func(yield func(nstance.Notice, error) bool) {
		watch(ctx, &g.o, &g.lastReads, g.history.take(),
			&gcpKey{gcp: g, path: gcpPreempted, source: "gcp/preempted", parse: parsePreempted},
			&gcpKey{gcp: g, path: gcpMaintenance, source: "gcp/maintenance", parse: parseMaintenanceEvent},
			&gcpKey{gcp: g, path: gcpUpcoming, query: "alt=json", source: "gcp/upcoming-maintenance", parse: parseUpcoming, absent: sayNothing},
			&gcpKey{gcp: g, path: gcpStopState, source: "gcp/shutdown", parse: parseStopState},
		)(yield)
	}
}

// Due returns when the watches under way will have read every key again, if they
// make progress; zero: there is no watch. It may be called concurrently.
func (g *GCP) Due() time.Time { return g.lastReads.due(g.o.PollInterval) }

// Unreadable returns why keys cannot be read at present, and since when; nil: all can, or
// there is no watch. Notices that they announce meanwhile are missed. It may be called
// concurrently.
func (g *GCP) Unreadable() (since time.Time, err error) { return g.lastReads.unreadable() }

// A gcpKey reads one path repeatedly. The first read, which also enables the
// maintenance key, returns at once. Later reads wait for a value with another
// tag than the last one, so that no change between two reads is lost.
type gcpKey struct {
	gcp    *GCP
	path   string
	query  string // of every read; may be empty
	source string // of the notices
	parse  func([]byte) ([]nstance.Notice, error)
	absent func(body []byte) bool // whether an answer of any status says that there is nothing; nil: none does
	etag   string                 // empty: the next read does not wait
}

func (k *gcpKey) noticeSource() string { return k.source }

func (k *gcpKey) read(ctx context.Context) (reading, error) {
	query, timeout := k.query, requestTimeout
	if k.etag != "" {
		query, timeout = strings.TrimPrefix(k.query+"&"+waitFor(k.etag), "&"), longPoll+requestTimeout
	}
	path := k.path
	if query != "" {
		path += "?" + query
	}
	a, err := k.gcp.get(ctx, path, timeout)
	switch {
	case errors.Is(err, nstance.NotFound), k.absent != nil && k.absent(a.body):
		// A missing key has no tag to wait on: poll until it appears.
		k.etag = ""
		return reading{at: a.at}, k.gcp.identify(ctx, a)
	case err != nil:
		return reading{}, err
	}
	found, err := k.parse(a.body)
	if err != nil {
		return reading{found: found, at: a.at}, nstance.Errorf(nstance.Internal, "/%s: %w", k.path, err)
	}
	// A service without tags is polled. After the first tag the next read, which
	// waits for a change, starts at once.
	first := k.etag == ""
	k.etag = a.header.Get("Etag")
	return reading{found: found, at: a.at, skipPause: first && k.etag != ""}, nil
}

// identify fails unless the answer is Google's, or the service knows a machine: anything else
// that answers there, such as a proxy, finds no key either.
func (g *GCP) identify(ctx context.Context, a answer) error {
	if g.known.Load() {
		return nil
	}
	var err error
	if a.header.Get(gcpFlavor) != gcpFlavorValue {
		_, err = g.get(ctx, gcpName, requestTimeout)
	}
	if errors.Is(err, nstance.NotFound) {
		return unknownService("Compute Engine")
	}
	g.known.Store(err == nil)
	return err
}

func waitFor(etag string) string {
	return url.Values{
		"wait_for_change": {"true"},
		"last_etag":       {etag},
		"timeout_sec":     {seconds(longPoll)},
	}.Encode()
}

func (g *GCP) get(ctx context.Context, path string, timeout time.Duration) (answer, error) {
	a, err := g.o.do(ctx, request{
		method:  http.MethodGet,
		path:    path,
		header:  map[string]string{gcpFlavor: gcpFlavorValue},
		timeout: timeout,
	})
	if err != nil {
		return answer{}, err
	}
	plain, _, _ := strings.Cut(path, "?")
	return a, a.check(plain)
}
