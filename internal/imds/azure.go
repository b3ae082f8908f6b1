package imds

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"time"
)

// Paths of the azure protocol. Each needs a query with an api-version.
const (
	AzureCompute  = "metadata/instance/compute"
	AzureUserData = "metadata/instance/compute/userData"
	AzureEvents   = "metadata/scheduledevents"
)

// azureEventID is of the one event that takes the machine. Azure's are UUIDs.
const azureEventID = "602d9444-d2cd-49c7-8624-8643e7171297"

// AzureEventsVersion is the version of the events that has no rebalance
// recommendations. Azure serves those on the same path in a later version ("Spot
// Rebalance Recommendation signals", Azure documentation).
const AzureEventsVersion = "2020-07-01"

const azureRebalanceID = "6b8f7c0a-1f0b-4b0c-9a3e-0c6f3a5d2e41"

// azureState is what the documents are made of.
type azureState struct {
	spot        bool
	incarnation int
	reclaim     *azureEvent
	rebalance   *azureEvent
	maintenance []azureEvent

	events, laterEvents string    // the document in the two versions
	enabledAt           time.Time // of the scheduled events; zero: no request yet
}

// azureEvent is one entry of the document ("Scheduled Events for Linux VMs", Azure
// documentation).
type azureEvent struct {
	EventID     string   `json:"EventId"`
	EventStatus string   `json:"EventStatus"`
	EventType   string   `json:"EventType"`
	Resource    string   `json:"ResourceType"`
	Resources   []string `json:"Resources"`
	NotBefore   string   `json:"NotBefore"`
	Description string   `json:"Description"`
	Source      string   `json:"EventSource"`
	Duration    int      `json:"DurationInSeconds"`
}

// azureTime writes a time as the document does; none: the event has started.
func azureTime(t time.Time) (status, notBefore string) {
	if t.IsZero() {
		return "Started", ""
	}
	return "Scheduled", t.UTC().Format(http.TimeFormat)
}

func (s *Server) azureEvent(id, kind, description string, at time.Time, resources ...string) azureEvent {
	status, notBefore := azureTime(at)
	if len(resources) == 0 {
		resources = []string{s.azureName()}
	}
	return azureEvent{
		EventID: id, EventStatus: status, EventType: kind, Resource: "VirtualMachine",
		Resources: resources, NotBefore: notBefore, Description: description, Source: "Platform", Duration: -1,
	}
}

// azureRebalance returns the recommendation, nil for the zero time.
func (s *Server) azureRebalance(t time.Time) *azureEvent {
	if t.IsZero() {
		return nil
	}
	e := s.azureEvent(azureRebalanceID, "RebalanceRecommendation", "A reclaim has become likely.", t)
	return &e
}

func (s *Server) azureName() string { return orElse(s.opts.InstanceID, "local") }

// azure changes what the documents say, and writes them anew.
func (s *Server) azure(change func(*azureState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.azureNow)
	s.azureNow.incarnation++
	priority := "Regular"
	if s.azureNow.spot {
		priority = "Spot"
	}
	s.values[AzureCompute] = encode(map[string]any{
		"azEnvironment": "AzurePublicCloud", "location": "local", "name": s.azureName(), "zone": s.opts.Zone,
		"priority": priority, "vmId": "5c0d55a7-c407-4ed6-bf7d-ddb810267c85", "vmSize": "local", "osType": "Linux",
	})
	events := []azureEvent{}
	if e := s.azureNow.reclaim; e != nil {
		events = append(events, *e)
	}
	events = append(events, s.azureNow.maintenance...)
	s.azureNow.events = s.azureDocument(events)
	if e := s.azureNow.rebalance; e != nil {
		events = append(events, *e)
	}
	s.azureNow.laterEvents = s.azureDocument(events)
	s.values[AzureEvents] = s.azureNow.events
	s.wake()
}

// azureDocument needs s.mu.
func (s *Server) azureDocument(events []azureEvent) string {
	return encode(map[string]any{"DocumentIncarnation": s.azureNow.incarnation, "Events": events})
}

func azureDefaults(o Options) map[string]string {
	v := map[string]string{}
	if o.UserData != nil {
		v[AzureUserData] = base64.StdEncoding.EncodeToString(o.UserData)
	}
	return v
}

var azureVersion = regexp.MustCompile(`^20\d\d-\d\d-\d\d$`)

// serveAzure wants the header and a version, and refuses what came through a proxy
// ("Azure Instance Metadata Service", Azure documentation).
func (s *Server) serveAzure(w http.ResponseWriter, r *http.Request, path string) {
	w.Header().Set("Server", "IMDS/150.870.65.1854")
	switch {
	case r.Header.Get("Metadata") != "true" || r.Header.Get("X-Forwarded-For") != "" || !azureVersion.MatchString(r.URL.Query().Get("api-version")):
		w.WriteHeader(http.StatusBadRequest)
		return
	case r.Method == http.MethodPost && path == AzureEvents:
		w.WriteHeader(s.startAzureEvents(r))
		return
	case r.Method != http.MethodGet:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	case path == AzureEvents && !s.awaitAzureEvents(r.Context()):
		return // the client left
	}
	body, found, _ := s.lookup(path)
	if !found {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if path == AzureEvents && r.URL.Query().Get("api-version") > AzureEventsVersion {
		body = s.inLaterVersion(body)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Write([]byte(body)) //nolint:errcheck // the client left
}

// inLaterVersion returns the document in a later version, unless SetRaw replaced it.
func (s *Server) inLaterVersion(body string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if body == s.azureNow.events {
		return s.azureNow.laterEvents
	}
	return body
}

// awaitAzureEvents waits until the scheduled events are on, and reports whether they are
// before ctx ends: the first request turns them on.
func (s *Server) awaitAzureEvents(ctx context.Context) bool {
	s.mu.Lock()
	if s.azureNow.enabledAt.IsZero() {
		s.azureNow.enabledAt = time.Now().Add(s.opts.EnablementDelay)
	}
	wait := time.Until(s.azureNow.enabledAt)
	s.mu.Unlock()
	if wait <= 0 {
		return true
	}
	enabled := time.NewTimer(wait)
	defer enabled.Stop()
	select {
	case <-enabled.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// startAzureEvents starts the events that a request acknowledges, and returns the status
// of the answer. An event that has started already may be acknowledged again, and the
// acknowledgement of a recommendation changes nothing. One acknowledgement starts the
// event for every machine that it names.
func (s *Server) startAzureEvents(r *http.Request) int {
	var body struct {
		StartRequests []struct{ EventId string }
	}
	if json.NewDecoder(io.LimitReader(r.Body, 64<<10)).Decode(&body) != nil || len(body.StartRequests) == 0 {
		return http.StatusBadRequest
	}
	status := http.StatusOK
	s.azure(func(a *azureState) {
		for _, request := range body.StartRequests {
			if !a.start(request.EventId) {
				status = http.StatusBadRequest
			}
		}
	})
	return status
}

// start starts the event and reports whether there is one with that ID.
func (a *azureState) start(id string) bool {
	if e := a.reclaim; e != nil && e.EventID == id {
		e.EventStatus, e.NotBefore = azureTime(time.Time{})
		return true
	}
	for i := range a.maintenance {
		if e := &a.maintenance[i]; e.EventID == id {
			e.EventStatus, e.NotBefore = azureTime(time.Time{})
			return true
		}
	}
	return a.rebalance != nil && a.rebalance.EventID == id
}
