package imds

import (
	"encoding/base64"
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

// azureState is what the documents are made of.
type azureState struct {
	spot        bool
	incarnation int
	reclaim     *azureEvent
	maintenance []azureEvent
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

func (s *Server) azureEvent(id, kind, description string, at time.Time) azureEvent {
	status, notBefore := azureTime(at)
	return azureEvent{
		EventID: id, EventStatus: status, EventType: kind, Resource: "VirtualMachine",
		Resources: []string{s.azureName()}, NotBefore: notBefore, Description: description, Source: "Platform", Duration: -1,
	}
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
	events := s.azureNow.maintenance
	if s.azureNow.reclaim != nil {
		events = append([]azureEvent{*s.azureNow.reclaim}, events...)
	}
	if events == nil {
		events = []azureEvent{}
	}
	s.values[AzureEvents] = encode(map[string]any{"DocumentIncarnation": s.azureNow.incarnation, "Events": events})
	s.wake()
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
	case r.Method != http.MethodGet:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, found, _ := s.lookup(path)
	if !found {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Write([]byte(body)) //nolint:errcheck // the client left
}
