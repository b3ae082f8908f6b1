package spottest

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/nstance-go/nstance/internal/imds"
)

// Options say what kind of machine a Server belongs to. Nil and zero fields
// mean: aws, tokens optional, on-demand, no user data.
type Options struct {
	Protocol     string // aws, gcp or azure; anything else is served as aws
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

// A Server is a metadata service on a socket of 127.0.0.1. Beside the methods of
// Cloud it can announce everything else that its cloud can, and fail single
// requests. It is safe for concurrent use.
type Server struct {
	URL   string // without a trailing slash: a detector's base URL
	cloud *imds.Server
}

var _ Cloud = (*Server)(nil)

// NewServer starts a service that ends with the test. nil means aws with
// optional tokens.
func NewServer(t testing.TB, o *Options) *Server {
	t.Helper()
	cloud := imds.New((*imds.Options)(o))
	web := httptest.NewServer(cloud)
	t.Cleanup(func() {
		// Long polls would keep Close waiting until they time out.
		web.CloseClientConnections()
		web.Close()
	})
	return &Server{cloud: cloud, URL: web.URL}
}

// Corrupt puts an unreadable document where the one about a reclaim would be.
func (s *Server) Corrupt() {
	switch s.cloud.Protocol() {
	case imds.GCP:
		s.cloud.SetRaw(imds.GCPPreempted, "<html>")
	case imds.Azure:
		s.cloud.SetRaw(imds.AzureEvents, `{"Events":`)
	default:
		s.cloud.SetRaw(imds.AWSAction, `{"action":`)
	}
}

// Break makes every read fail, including long polls under way.
func (s *Server) Break() { s.cloud.Fail(503, -1) }

// Restore ends Break.
func (s *Server) Restore() { s.cloud.Recover() }

// Reclaim announces that the capacity is taken back. On aws action is
// terminate, stop or hibernate, and a zero deadline leaves the time out; gcp
// says neither action nor time; on azure the event is Preempt, and a zero
// deadline says that it has started. A second call changes the announcement.
func (s *Server) Reclaim(action string, deadline time.Time) { s.cloud.Reclaim(action, deadline) }

// Withdraw takes the reclaim back. Nothing happens if there is none.
func (s *Server) Withdraw() { s.cloud.Withdraw() }

// Rebalance announces that a reclaim has become likely; the zero time takes it back.
// On azure only versions later than AzureEventsVersion show it. On gcp nothing
// happens: that cloud recommends nothing.
func (s *Server) Rebalance(t time.Time) { s.cloud.Rebalance(t) }

// Maintenance replaces the scheduled maintenance: none takes all of it back.
// On gcp only the first event's Code shows, and only if the guest has read the
// key since the last event.
func (s *Server) Maintenance(events ...Event) {
	all := make([]imds.Event, len(events))
	for i, e := range events {
		all[i] = imds.Event(e)
	}
	s.cloud.Maintenance(all...)
}

// TargetState sets the state that Auto Scaling moves an aws machine to, such
// as Terminated; empty removes the key.
func (s *Server) TargetState(state string) { s.cloud.TargetState(state) }

// StopState sets what a gcp machine is told about its graceful shutdown, such
// as PENDING_STOP; empty removes the key.
func (s *Server) StopState(state string) { s.cloud.StopState(state) }

// SetSpot changes what the service says about the machine's market.
func (s *Server) SetSpot(spot bool) { s.cloud.SetSpot(spot) }

// SetRaw publishes body under path, any below the protocol's root, well-formed or not.
func (s *Server) SetRaw(path, body string) { s.cloud.SetRaw(path, body) }

// Remove makes path answer 404.
func (s *Server) Remove(path string) { s.cloud.Remove(path) }

// Fail answers the next n requests with status; a negative n means until
// Restore. With paths, only requests for one of them count, each path on its
// own. Long polls that hang are answered at once.
func (s *Server) Fail(status, n int, paths ...string) { s.cloud.Fail(status, n, paths...) }

// Requests returns how many requests for path have arrived, the failed ones
// included; for an empty path, how many in all.
func (s *Server) Requests(path string) int { return s.cloud.Requests(path) }

// ExpireTokens makes every session token issued so far worthless, as when the
// service restarts.
func (s *Server) ExpireTokens() { s.cloud.ExpireTokens() }
