package spot

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
)

// azureBaseURL is the metadata service of Azure.
const azureBaseURL = "http://169.254.169.254"

const (
	azureCompute = "metadata/instance/compute?api-version=2021-02-01&format=json"
	azureEvents  = "metadata/scheduledevents"

	azureEventsVersion = "2020-07-01"

	azureSourceName  = "azure/events"
	azureEventPrefix = azureSourceName + "/"
)

// maxAzureEvents is how many bytes of events are read: the document lists those of all
// machines of a scale set, which has up to a thousand.
const maxAzureEvents = 1 << 20

// azureEventsPath is the document in its default version.
const azureEventsPath = azureEvents + "?api-version=" + azureEventsVersion

var azureHeader = map[string]string{"Metadata": "true"}

var azureVersion = regexp.MustCompile(`^20\d\d-\d\d-\d\d$`)

// enableTimeout bounds the first read: it enables the service, which takes up to
// two minutes ("Scheduled Events for Linux VMs"). Reads that time out are
// repeated.
const enableTimeout = 20 * time.Second

// Azure detects what Azure announces for this machine: eviction of spot capacity,
// deletion and maintenance, from the scheduled events. A watch acknowledges none of
// them: see [Azure.Acknowledge]. It is safe for concurrent use.
type Azure struct {
	o         Options
	lastReads lastReads
	history   history

	eventsEnabled atomic.Bool
}

var _ nstance.SpotDetector = (*Azure)(nil)

// NewAzure returns a detector without asking the service anything. Fails with
// Invalid for options that make no sense; nil is allowed.
func NewAzure(o *Options) (*Azure, error) {
	resolved, err := o.resolve(azureBaseURL)
	if err != nil {
		return nil, err
	}
	return &Azure{o: resolved}, nil
}

// Interruptible reports whether the machine's priority is Spot. It gives up after
// two seconds with Unavailable, or Denied, NotFound or Internal as the service
// answers.
func (a *Azure) Interruptible(ctx context.Context) (bool, error) {
	self, err := a.self(ctx)
	if err == nil && self.Priority == nil {
		err = nstance.Errorf(nstance.Internal, "/%s: no priority", azureCompute)
	}
	return err == nil && self.interruptible(), err
}

// Machine returns what Azure calls this machine: azure/ and its name, which is its own in the
// resource group. It fails like Interruptible.
func (a *Azure) Machine(ctx context.Context) (string, error) {
	self, err := a.self(ctx)
	if err != nil {
		return "", err
	}
	return machineName("azure", azureCompute, []byte(self.Name))
}

// Watch yields notices and errors until ctx ends. Each watch begins without
// history and yields every notice that stands already.
//
// A Preempt event is a Reclaim and a Terminate event a Terminate, both with the
// earliest start as their deadline, which stays when the event has started. Freeze,
// Reboot and Redeploy are Maintenance. A recommendation to rebalance, which has a type
// with that word, is a Rebalance. An event of any other type is skipped, with an error
// that is yielded once. Every member of an availability set or a scale set sees the
// events of all members; those of other machines are ignored. An event that
// disappears is withdrawn. An error is yielded once as long as it lasts.
func (a *Azure) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return func(yield func(nstance.Notice, error) bool) {
		source := &azureSource{azure: a, version: a.o.AzureEventsVersion, deadlines: map[string]time.Time{}}
		watch(ctx, &a.o, &a.lastReads, a.history.take(), source)(yield)
	}
}

// Acknowledge ends the wait for the event that n announces: Azure starts it for every
// machine in n.Machines, the other ones too (StartRequests, "Scheduled Events for Linux
// VMs"). It may be repeated, and it cannot be undone: call it when all of these machines
// are drained.
//
// Fails with Conflict, without any effect, for an event that is over or names other
// machines by now, and as Watch does when the service cannot be read.
func (a *Azure) Acknowledge(ctx context.Context, n nstance.Notice) error {
	id, _ := strings.CutPrefix(n.EventID, azureEventPrefix)
	got, err := a.get(ctx, azureEventsPath, requestTimeout)
	if err != nil {
		return err
	}
	events, err := decodeEvents(got.body)
	if err != nil {
		return nstance.Errorf(nstance.Internal, "/%s: %w", azureEvents, err)
	}
	i := slices.IndexFunc(events, func(e azureEvent) bool { return e.EventID == id })
	switch {
	case i < 0:
		return nstance.Errorf(nstance.Conflict, "event %s is over", n.EventID)
	case !slices.Equal(events[i].Resources, n.Machines):
		return nstance.Errorf(nstance.Conflict, "event %s names other machines by now: %v", n.EventID, events[i].Resources)
	}
	start, _ := json.Marshal(map[string]any{"StartRequests": []any{map[string]string{"EventId": id}}}) // of texts
	got, err = a.o.do(ctx, request{
		method: http.MethodPost, path: azureEventsPath, header: azureHeader, body: string(start), timeout: requestTimeout,
	})
	if err != nil {
		return err
	}
	return got.check(azureEventsPath)
}

// Due returns when the watches under way will have read every key again, if they
// make progress; zero: there is no watch. It may be called concurrently.
func (a *Azure) Due() time.Time { return a.lastReads.due(a.o.PollInterval) }

// Unreadable returns why keys cannot be read at present, and since when; nil: all can, or
// there is no watch. Notices that they announce meanwhile are missed. It may be called
// concurrently.
func (a *Azure) Unreadable() (since time.Time, err error) { return a.lastReads.unreadable() }

// self returns what the service says of the machine.
func (a *Azure) self(ctx context.Context) (azureSelf, error) {
	got, err := a.get(ctx, azureCompute, requestTimeout)
	if err != nil {
		return azureSelf{}, err
	}
	self, err := parseAzureSelf(got.body)
	if err != nil {
		return azureSelf{}, nstance.Errorf(nstance.Internal, "/%s: %w", azureCompute, err)
	}
	return self, nil
}

// An azureSource reads the events.
type azureSource struct {
	azure       *Azure
	version     string               // of the events
	machineName string               // as in the events; empty: not known yet
	deadlines   map[string]time.Time // of events that have not started, by ID
}

func (*azureSource) noticeSource() string { return azureSourceName }

func (s *azureSource) read(ctx context.Context) (reading, error) {
	if s.machineName == "" {
		self, err := s.azure.self(ctx)
		if err != nil {
			return reading{}, err
		}
		s.machineName = self.Name
	}
	timeout := requestTimeout
	if !s.azure.eventsEnabled.Load() {
		timeout = enableTimeout
	}
	got, err := s.getEvents(ctx, timeout)
	if err != nil {
		return reading{}, err
	}
	s.azure.eventsEnabled.Store(true)
	found, skipped, err := parseAzureEvents(got.body, s.machineName, s.deadlines)
	if err != nil {
		return reading{found: found, at: got.at}, nstance.Errorf(nstance.Internal, "/%s: %w", azureEvents, err)
	}
	if skipped != nil {
		skipped = nstance.Errorf(nstance.Internal, "/%s: %w", azureEvents, skipped)
	}
	s.dropDeadlines(found)
	return reading{found: found, at: got.at, skipped: skipped}, nil
}

// getEvents reads the document. If the service refuses a later version, it is read
// in the default version from then on: only recommendations are missing in that.
func (s *azureSource) getEvents(ctx context.Context, timeout time.Duration) (answer, error) {
	got, err := s.azure.get(ctx, azureEvents+"?api-version="+s.version, timeout)
	if got.status != http.StatusBadRequest || s.version == azureEventsVersion {
		return got, err
	}
	s.azure.o.Log.Warn("scheduled events are not served in this api-version: no rebalance recommendations",
		"version", s.version, "instead", azureEventsVersion)
	s.version = azureEventsVersion
	return s.getEvents(ctx, timeout)
}

// dropDeadlines drops the deadlines of events that have ended.
func (s *azureSource) dropDeadlines(found []nstance.Notice) {
	standing := map[string]bool{}
	for _, n := range found {
		standing[n.EventID] = true
	}
	for id := range s.deadlines {
		if !standing[id] {
			delete(s.deadlines, id)
		}
	}
}

func (a *Azure) get(ctx context.Context, path string, timeout time.Duration) (answer, error) {
	got, err := a.o.do(ctx, request{
		method: http.MethodGet, path: path, header: azureHeader, timeout: timeout, limit: maxAzureEvents,
	})
	if err != nil {
		return answer{}, err
	}
	return got, got.check(path)
}
