package spottest

import (
	"net/http/httptest"
	"testing"

	"github.com/nstance-go/nstance/internal/imds"
)

// Options describe the machine of a Server: the protocol (aws, gcp or azure),
// whether tokens are required, whether the machine is spot.
type Options = imds.Options

// An Event is one scheduled maintenance event.
type Event = imds.Event

// A Server is a metadata service on a socket of 127.0.0.1. Beside the methods of
// Cloud it can announce everything else that its cloud can, and fail single
// requests: see its embedded methods.
type Server struct {
	*imds.Server
	URL string // without a trailing slash: a detector's base URL
}

var _ Cloud = (*Server)(nil)

// NewServer starts a service that ends with the test. nil means aws with
// optional tokens.
func NewServer(t testing.TB, o *Options) *Server {
	t.Helper()
	cloud := imds.New(o)
	web := httptest.NewServer(cloud)
	t.Cleanup(func() {
		// Long polls would keep Close waiting until they time out.
		web.CloseClientConnections()
		web.Close()
	})
	return &Server{Server: cloud, URL: web.URL}
}

// Corrupt replaces the document about a reclaim with an unreadable one.
func (s *Server) Corrupt() {
	switch s.Protocol() {
	case imds.GCP:
		s.SetRaw(imds.GCPPreempted, "<html>")
	case imds.Azure:
		s.SetRaw(imds.AzureEvents, `{"Events":`)
	default:
		s.SetRaw(imds.AWSAction, `{"action":`)
	}
}

// Break makes every read fail, including long polls under way.
func (s *Server) Break() { s.Fail(503, -1) }

// Restore ends Break.
func (s *Server) Restore() { s.Recover() }
