// Package web serves a shard's read-only pages: liveness, and a status page. They
// have no authentication, so the page shows what every operator may see; only
// where that is configured it shows the groups and instances of all tenants, and
// what happened last.
package web

import (
	_ "embed"
	"encoding/json"
	"net/http"
	"time"

	"github.com/nstance-go/nstance"
)

// A Status is what the status page shows.
type Status struct {
	Version        string          `json:"version"`
	Cluster        string          `json:"cluster"`
	Shard          string          `json:"shard"`
	Leader         bool            `json:"leader"`                   // this server leads
	LeaderAddress  string          `json:"leader_address,omitempty"` // operator API address of the one that leads; absent: not known
	Epoch          uint64          `json:"epoch,omitempty"`
	Standbys       []Standby       `json:"standbys,omitempty"` // of a leader: the shard's other servers
	Time           time.Time       `json:"time"`
	Groups         []Group         `json:"groups"`
	Instances      []Instance      `json:"instances"`
	InstancesTotal int             `json:"instances_total"` // those that are not shown among them
	Events         []nstance.Event `json:"events"`
	Attention      []Attention     `json:"attention"`
	Summary        bool            `json:"summary,omitempty"` // groups, instances, events, and what needs attention about them, are left out
}

// An Attention is how much of one kind needs attention. What it is about is for
// those who have logged in: nstance-admin status.
type Attention struct {
	Kind   string    `json:"kind"`
	Count  int       `json:"count"`
	Since  time.Time `json:"since,omitzero"` // of the oldest; absent: not known
	Why    string    `json:"why,omitempty"`  // of what concerns the whole shard and every operator may see
	Remedy string    `json:"remedy,omitempty"`
}

// A Standby is a server that would lead if the present leader did not.
type Standby struct {
	Address       string    `json:"address,omitempty"` // operator API address; absent: its version does not tell
	Version       string    `json:"version,omitempty"`
	AddressFailed bool      `json:"address_failed,omitempty"` // it could not take the shard's movable address
	Since         time.Time `json:"since"`                    // when the leader heard it first
}

// A Group is one row of the groups table.
type Group struct {
	Tenant  string   `json:"tenant"`
	Group   string   `json:"group"`
	Size    int      `json:"size"`
	Ready   int      `json:"ready"`
	Booting int      `json:"booting"`
	Leaving int      `json:"leaving"`
	Stale   int      `json:"stale"`
	Holds   []string `json:"holds"`
}

// An Instance is one row of the instances table.
type Instance struct {
	ID         string    `json:"id"`
	Tenant     string    `json:"tenant"`
	Group      string    `json:"group"`
	State      string    `json:"state"`
	Market     string    `json:"market"`
	ProviderID string    `json:"provider_id"`
	CreatedAt  time.Time `json:"created_at"`
	ReportedAt time.Time `json:"reported_at,omitzero"`
	Connected  bool      `json:"connected"`
	CPU        float64   `json:"cpu"`
	Memory     float64   `json:"memory"`
	Deadline   time.Time `json:"deadline,omitzero"` // of its drain
	Note       string    `json:"note,omitempty"`
}

//go:embed status.html
var page []byte

// Handler serves GET and HEAD of
//
//	/             the status page
//	/status.json  what it shows
//	/healthz      200 while the process serves, leading or not
//	/readyz       200 while this server leads its shard, else 503
//
// Both functions are called for each request that needs them, concurrently.
func Handler(status func(r *http.Request) Status, leading func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page)
	})
	mux.HandleFunc("GET /status.json", func(w http.ResponseWriter, r *http.Request) {
		reply(w, http.StatusOK, status(r))
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !leading() {
			reply(w, http.StatusServiceUnavailable, map[string]string{"status": "not leading"})
			return
		}
		reply(w, http.StatusOK, map[string]string{"status": "leading"})
	})
	return guard(mux)
}

// guard keeps the pages from being framed, sniffed, cached or made to load
// anything from elsewhere.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

func reply(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v) // before the header: half a page would look like a whole one
	if err != nil {
		http.Error(w, "the page cannot be shown: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // the peer is gone if this fails
}
