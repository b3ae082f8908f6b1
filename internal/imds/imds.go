// Package imds is a cloud's instance metadata service, spoken over HTTP as the
// real ones speak it: session tokens and their refusals on aws, the flavor
// header, entity tags and long polls on gcp, the scheduled events of azure. It
// serves one machine.
//
// Package provider/local gives every machine it starts a Server of its own,
// and spot/spottest hangs detectors on one, so the package is no test code and
// imports none. The facts are from the EC2 user guide ("Use the Instance
// Metadata Service"), Compute Engine's "About VM metadata", and Azure's "Scheduled
// Events for Linux VMs".
package imds

import (
	"crypto/rand"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"
)

// The protocols.
const (
	AWS   = "aws"   // below /latest
	GCP   = "gcp"   // below /computeMetadata/v1
	Azure = "azure" // below /metadata
)

// Options say what kind of machine the service belongs to. Nil and zero fields
// mean: aws, tokens optional, on-demand, no user data.
type Options struct {
	Protocol     string // AWS, GCP or Azure; anything else is served as AWS
	RequireToken bool   // aws: refuse reads without a session token (IMDSv2 only)
	NoTokens     bool   // aws: know no session tokens (IMDSv1 only); wins over RequireToken
	Spot         bool   // the machine is spot capacity
	UserData     []byte // nil: the key is absent
	InstanceID   string // the cloud's name for the machine; empty: a fixed one
	Zone         string // empty: local-a

	// EnablementDelay is how long azure takes to turn the scheduled events on, from
	// the first request for them: requests wait until then. 0: they are on.
	EnablementDelay time.Duration

	MaxTokenTTL time.Duration    // grant no token for longer than this; 0: six hours, as asked
	Now         func() time.Time // the cloud's clock, also for the Date of each answer; nil: time.Now
}

// A Server answers as the metadata service of one machine. It is an
// http.Handler and safe for concurrent use; New makes one.
type Server struct {
	opts Options

	mu       sync.Mutex
	values   map[string]string // whole path without the leading slash
	changed  chan struct{}     // closed, and replaced, whenever long polls must look again
	faults   map[string]*fault // by path; "" is every path
	requests map[string]int
	secret   []byte // signs session tokens
	armed    bool   // gcp: maintenance-event was read since the last event
	azureNow azureState
}

var _ http.Handler = (*Server)(nil)

// New returns a service that announces nothing yet. nil is allowed.
func New(o *Options) *Server {
	s := &Server{
		changed:  make(chan struct{}),
		values:   map[string]string{},
		faults:   map[string]*fault{},
		requests: map[string]int{},
	}
	if o != nil {
		s.opts = *o
	}
	s.opts.fill()
	switch s.opts.Protocol {
	case GCP:
		maps.Copy(s.values, gcpDefaults(s.opts))
	case Azure:
		maps.Copy(s.values, azureDefaults(s.opts))
		s.azure(func(a *azureState) { a.spot = s.opts.Spot })
	default:
		maps.Copy(s.values, awsDefaults(s.opts))
	}
	s.ExpireTokens()
	return s
}

func (o *Options) fill() {
	if o.Protocol != GCP && o.Protocol != Azure {
		o.Protocol = AWS
	}
	if o.Zone == "" {
		o.Zone = "local-a"
	}
	if o.MaxTokenTTL <= 0 || o.MaxTokenTTL > maxTokenTTL {
		o.MaxTokenTTL = maxTokenTTL
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Protocol returns AWS, GCP or Azure.
func (s *Server) Protocol() string { return s.opts.Protocol }

// ServeHTTP answers one request. Long polls end early when the request's
// context does.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/")
	s.count(path)
	s.date(w)
	if status, ok := s.takeFault(path); ok {
		w.WriteHeader(status)
		return
	}
	switch s.opts.Protocol {
	case GCP:
		s.serveGCP(w, r, path)
	case Azure:
		s.serveAzure(w, r, path)
	default:
		s.serveAWS(w, r, path)
	}
}

// date stamps an answer with the cloud's clock. A long poll is stamped again when
// it ends.
func (s *Server) date(w http.ResponseWriter) {
	w.Header().Set("Date", s.opts.Now().UTC().Format(http.TimeFormat))
}

// ExpireTokens makes every session token issued so far worthless, as when the
// service restarts.
func (s *Server) ExpireTokens() {
	secret := make([]byte, 32)
	rand.Read(secret) // never fails, see crypto/rand
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secret = secret
}
