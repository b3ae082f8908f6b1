package imds

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Paths of the gcp protocol.
const (
	GCPUserData         = "computeMetadata/v1/instance/attributes/user-data"
	GCPInstanceID       = "computeMetadata/v1/instance/id"
	GCPPreemptible      = "computeMetadata/v1/instance/scheduling/preemptible"
	GCPPreempted        = "computeMetadata/v1/instance/preempted"
	GCPMaintenanceEvent = "computeMetadata/v1/instance/maintenance-event"
	GCPStopState        = "computeMetadata/v1/instance/shutdown-details/stop-state"
)

const (
	flavorHeader = "Metadata-Flavor"
	flavor       = "Google"
	noEvent      = "NONE"
)

func gcpDefaults(o Options) map[string]string {
	v := map[string]string{
		GCPInstanceID:                      orElse(o.InstanceID, "1234567890123456789"),
		GCPPreemptible:                     upper(o.Spot),
		GCPPreempted:                       upper(false),
		GCPMaintenanceEvent:                noEvent,
		"computeMetadata/v1/instance/name": orElse(o.InstanceID, "local"),
		"computeMetadata/v1/instance/zone": "projects/1/zones/" + o.Zone,
	}
	if o.UserData != nil {
		v[GCPUserData] = string(o.UserData)
	}
	return v
}

func upper(b bool) string {
	if b {
		return "TRUE"
	}
	return "FALSE"
}

// serveGCP wants the flavor header and refuses what came through a proxy, so
// that a browser or an open proxy on the machine cannot be made to read it.
func (s *Server) serveGCP(w http.ResponseWriter, r *http.Request, path string) {
	w.Header().Set(flavorHeader, flavor)
	w.Header().Set("Server", "Metadata Server for VM")
	w.Header().Set("Content-Type", "application/text")
	switch {
	case r.Header.Get(flavorHeader) != flavor || r.Header.Get("X-Forwarded-For") != "":
		w.WriteHeader(http.StatusForbidden)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.WriteHeader(http.StatusMethodNotAllowed)
	default:
		s.serveGCPValue(w, r, path)
	}
}

func (s *Server) serveGCPValue(w http.ResponseWriter, r *http.Request, path string) {
	s.arm(path)
	query := r.URL.Query()
	if query.Get("wait_for_change") == "true" {
		if !s.awaitChange(r.Context(), path, query) {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.date(w)
		// The service may have been broken while the poll hung on it.
		if status, ok := s.takeFault(path); ok {
			w.WriteHeader(status)
			return
		}
		s.arm(path)
	}
	body, found, _ := s.lookup(path)
	if !found {
		body, found = s.list(path)
	}
	w.Header().Set("Etag", etag(body))
	if !found {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	io.WriteString(w, body) //nolint:errcheck // the client left
}

// awaitChange waits until path no longer has the tag that the client saw last,
// or the client's own timeout, or the client's departure. Without a tag it
// waits for a change from now on; a missing key is answered at once. It
// returns false for a malformed query.
func (s *Server) awaitChange(ctx context.Context, path string, query url.Values) bool {
	if sec := query.Get("timeout_sec"); sec != "" {
		n, err := strconv.Atoi(sec)
		if err != nil || n < 0 {
			return false
		}
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, time.Duration(n)*time.Second)
		defer stop()
	}
	body, found, changed := s.lookup(path)
	last := query.Get("last_etag")
	if last == "" {
		last = etag(body)
	}
	for found && etag(body) == last && !s.broken(path) {
		select {
		case <-ctx.Done():
			return true
		case <-changed:
		}
		body, found, changed = s.lookup(path)
	}
	return true
}

// arm notes a read of the maintenance key. Google fills the key only for
// guests that have read it since the last event (Compute Engine docs, "Query
// metadata server for maintenance event notices").
func (s *Server) arm(path string) {
	if path != GCPMaintenanceEvent {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = true
}
