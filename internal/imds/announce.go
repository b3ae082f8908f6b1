package imds

import (
	"encoding/base64"
	"encoding/json"
	"time"
)

// An Event is one scheduled maintenance event of the machine.
type Event struct {
	ID          string
	Code        string // aws: such as system-reboot; gcp: such as MIGRATE_ON_HOST_MAINTENANCE; azure: such as Redeploy
	State       string // aws: active, completed or canceled; empty: active
	Description string
	NotBefore   time.Time
	NotAfter    time.Time
	Resources   []string // azure: names of the machines that it is for; nil: this one
}

// Reclaim announces that the capacity is taken back. On aws action is
// terminate, stop or hibernate, and a zero deadline leaves the time out; gcp
// says neither action nor time; on azure the event is Preempt, and a zero
// deadline says that it has started. A second call changes the announcement.
func (s *Server) Reclaim(action string, deadline time.Time) {
	if s.opts.Protocol == Azure {
		e := s.azureEvent(azureEventID, "Preempt", "The capacity is needed elsewhere.", deadline)
		s.azure(func(a *azureState) { a.reclaim = &e })
		return
	}
	if s.opts.Protocol == GCP {
		s.set(GCPPreempted, upper(true), true)
		return
	}
	notice := struct {
		Action string `json:"action"`
		Time   string `json:"time,omitempty"`
	}{Action: action, Time: stamp(deadline)}
	s.set(AWSAction, encode(notice), true)
}

// Withdraw takes the reclaim back. Nothing happens if there is none.
func (s *Server) Withdraw() {
	if s.opts.Protocol == Azure {
		s.azure(func(a *azureState) { a.reclaim = nil })
		return
	}
	if s.opts.Protocol == GCP {
		s.set(GCPPreempted, upper(false), true)
		return
	}
	s.set(AWSAction, "", false)
}

// Rebalance announces that a reclaim has become likely; the zero time takes it back.
// On azure only versions later than AzureEventsVersion show it. On gcp nothing
// happens: that cloud recommends nothing.
func (s *Server) Rebalance(t time.Time) {
	switch s.opts.Protocol {
	case Azure:
		s.azure(func(a *azureState) { a.rebalance = s.azureRebalance(t) })
		return
	case GCP:
		return
	}
	notice := struct {
		NoticeTime string `json:"noticeTime"`
	}{stamp(t)}
	s.set(AWSRebalance, encode(notice), !t.IsZero())
}

// Maintenance replaces the scheduled maintenance: none takes all of it back.
// On gcp only the first event's Code shows, and only if the guest has read the
// key since the last event.
func (s *Server) Maintenance(events ...Event) {
	if s.opts.Protocol == Azure {
		var list []azureEvent
		for _, e := range events {
			list = append(list, s.azureEvent(e.ID, e.Code, e.Description, e.NotBefore, e.Resources...))
		}
		s.azure(func(a *azureState) { a.maintenance = list })
		return
	}
	if s.opts.Protocol == GCP {
		s.maintenanceGCP(events)
		return
	}
	type entry struct{ NotBefore, Code, Description, EventId, NotAfter, State string } // the cloud's names
	list := []entry{}
	for _, e := range events {
		list = append(list, entry{
			NotBefore:   maintenanceStamp(e.NotBefore),
			Code:        e.Code,
			Description: e.Description,
			EventId:     e.ID,
			NotAfter:    maintenanceStamp(e.NotAfter),
			State:       orElse(e.State, "active"),
		})
	}
	s.set(AWSMaintenance, encode(list), true)
}

func (s *Server) maintenanceGCP(events []Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(events) == 0:
		s.values[GCPMaintenanceEvent] = noEvent
	case s.armed:
		s.values[GCPMaintenanceEvent] = events[0].Code
		s.armed = false
	}
	s.wake()
}

// TargetState sets the state that Auto Scaling moves an aws machine to, such
// as Terminated; empty removes the key.
func (s *Server) TargetState(state string) { s.set(AWSTargetState, state, state != "") }

// StopState sets what a gcp machine is told about its graceful shutdown, such
// as PENDING_STOP; empty removes the key.
func (s *Server) StopState(state string) { s.set(GCPStopState, state, state != "") }

// SetSpot changes what the service says about the machine's market.
func (s *Server) SetSpot(spot bool) {
	if s.opts.Protocol == Azure {
		s.azure(func(a *azureState) { a.spot = spot })
		return
	}
	if s.opts.Protocol == GCP {
		s.set(GCPPreemptible, upper(spot), true)
		return
	}
	s.set(AWSLifeCycle, lifeCycle(spot), true)
}

// SetUserData replaces the user data; nil removes the key.
func (s *Server) SetUserData(data []byte) {
	path, body := AWSUserData, string(data)
	switch s.opts.Protocol {
	case GCP:
		path = GCPUserData
	case Azure:
		path, body = AzureUserData, base64.StdEncoding.EncodeToString(data)
	}
	s.set(path, body, data != nil)
}

// SetRaw publishes body under path, one of this package's constants or any
// other below the protocol's root, well-formed or not.
func (s *Server) SetRaw(path, body string) { s.set(path, body, true) }

// Remove makes path answer 404.
func (s *Server) Remove(path string) { s.set(path, "", false) }

// stamp prints t as the aws spot documents do, in whole seconds of UTC; the
// zero time is empty.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// maintenanceStamp prints t as the aws maintenance documents do, which is not
// RFC 3339 (EC2 user guide, "View scheduled events").
func maintenanceStamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2 Jan 2006 15:04:05") + " GMT"
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings in structs always encode
	}
	return string(b)
}
