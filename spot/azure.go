package spot

import (
	"context"
	"iter"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
)

// AzureBaseURL is the metadata service of Azure.
const AzureBaseURL = "http://169.254.169.254"

const (
	azureCompute = "metadata/instance/compute?api-version=2021-02-01&format=json"
	azureEvents  = "metadata/scheduledevents?api-version=2020-07-01"
)

// firstEvents is how long the first answer may take: asking turns the service on,
// which takes up to two minutes ("Scheduled Events for Linux VMs"). Reads that give
// up before are repeated.
const firstEvents = 20 * time.Second

// Azure detects what Azure intends for this machine: eviction of spot capacity,
// deletion and maintenance, from the scheduled events. It acknowledges none of
// them. It is safe for concurrent use.
type Azure struct {
	o      Options
	rounds rounds
	primed atomic.Bool // the service of events has answered
}

var _ nstance.SpotDetector = (*Azure)(nil)

// NewAzure returns a detector without asking the service anything. Fails with
// Invalid for options that make no sense; nil is allowed.
func NewAzure(o *Options) (*Azure, error) {
	resolved, err := o.resolve(AzureBaseURL)
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
	return err == nil && self.interruptible(), err
}

// Watch yields notices and errors until ctx ends. Each watch begins afresh and
// yields what stands already.
//
// A Preempt event is a Reclaim and a Terminate event a Terminate, both with the
// earliest start as their deadline, which stays when the event has started. Freeze,
// Reboot and Redeploy are Maintenance. Events of other machines, which reach every
// member of an availability set, are not this machine's. An event that vanishes is
// withdrawn. An error is yielded once as long as it lasts.
func (a *Azure) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return watch(ctx, &a.o, &a.rounds, &azureSource{azure: a, deadlines: map[string]time.Time{}})
}

// Due returns by when the watches under way will have read everything again, if
// they make progress; zero: there is none. It may be called concurrently.
func (a *Azure) Due() time.Time { return a.rounds.due(a.o.PollInterval) }

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
	azure     *Azure
	name      string               // of this machine, as events call it; empty: not known yet
	deadlines map[string]time.Time // of events that have not started, by ID
}

func (s *azureSource) read(ctx context.Context) (reading, error) {
	if s.name == "" {
		self, err := s.azure.self(ctx)
		if err != nil {
			return reading{}, err
		}
		s.name = self.Name
	}
	timeout := requestTimeout
	if !s.azure.primed.Load() {
		timeout = firstEvents
	}
	got, err := s.azure.get(ctx, azureEvents, timeout)
	if err != nil {
		return reading{}, err
	}
	s.azure.primed.Store(true)
	found, err := parseAzureEvents(got.body, s.name, s.deadlines)
	if err != nil {
		return reading{found: found, at: got.at}, nstance.Errorf(nstance.Internal, "/%s: %w", azureEvents, err)
	}
	s.forget(found)
	return reading{found: found, at: got.at}, nil
}

// forget drops the deadlines of events that are over.
func (s *azureSource) forget(found []nstance.Notice) {
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
		method: http.MethodGet, path: path, header: map[string]string{"Metadata": "true"}, timeout: timeout,
	})
	if err != nil {
		return answer{}, err
	}
	return got, got.check(path)
}
