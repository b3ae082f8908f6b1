package spottest

import (
	"net/http/httptest"
	"testing"

	"github.com/nstance-go/nstance/internal/imds"
)

// Options say what kind of machine a Server belongs to: the protocol (aws,
// gcp or azure), which tokens it wants, whether the machine is spot.
type Options = imds.Options

// An Event is one scheduled maintenance event.
type Event = imds.Event

// A Server is a metadata service on a socket of 127.0.0.1. Beside what Cloud
// asks for it can announce everything else that its cloud can, and fail in
// detail: see its embedded methods.
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

// Garble replaces what the service says about a reclaim with nonsense.
func (s *Server) Garble() {
	switch s.Protocol() {
	case imds.GCP:
		s.SetRaw(imds.GCPPreempted, "<html>")
	case imds.Azure:
		s.SetRaw(imds.AzureEvents, `{"Events":`)
	default:
		s.SetRaw(imds.AWSAction, `{"action":`)
	}
}

// Break makes every read fail, those that wait included.
func (s *Server) Break() { s.Fail(503, -1) }

// Mend ends Break.
func (s *Server) Mend() { s.Recover() }
