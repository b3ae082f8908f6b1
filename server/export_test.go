package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/internal/ports"
)

// Hasten shortens the intervals at which a server polls, and calls filePassed, if
// not nil, after each pass over machines' files.
func Hasten(o *Options, filePassed func()) {
	o.intervals = intervals{filePass: 20 * time.Millisecond, collectorCheck: 20 * time.Millisecond, campaign: 50 * time.Millisecond, ledgerLinger: 20 * time.Millisecond, firstRates: time.Hour, drillCheck: 20 * time.Millisecond, filePassed: filePassed}
}

// HastenRates has a server read interruption rates as soon as it leads. It is called after
// Hasten.
func HastenRates(o *Options) { o.intervals.firstRates = time.Millisecond }

// Access is the table of the roles that may call each RPC.
func Access() map[string][]nstance.Role { return access }

// Reads reports whether a call changes nothing.
func Reads(method string) bool { return reads[method] }

// Admit is the check before every call: it admits or refuses a verified
// certificate (DER).
func Admit(s *Server, der []byte, method string) error {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{cert}}}
	ctx := peer.NewContext(context.Background(), &peer.Peer{AuthInfo: ports.NewConnection(credentials.TLSInfo{State: state}, nil)})
	id, t, err := s.precheck(ctx, method)
	if err != nil {
		return err
	}
	_, err = s.admit(s.verify(ctx, t, id), method)
	return err
}

// ConnectChecked serves a session of an agent whose certificate was already
// checked.
func ConnectChecked(s *Server, id nstance.Identity, stream grpc.BidiStreamingServer[apiv1.ConnectRequest, apiv1.ConnectResponse]) error {
	ctx := context.WithValue(stream.Context(), callerKey{}, &caller{id, s.term.Load()})
	return agentService{}.Connect(checkedStream{stream, ctx})
}

type checkedStream struct {
	grpc.BidiStreamingServer[apiv1.ConnectRequest, apiv1.ConnectResponse]
	ctx context.Context
}

func (s checkedStream) Context() context.Context { return s.ctx }

// GroupsKnown reports whether every group has been looked up at least once.
func GroupsKnown(s *Server) bool {
	t := s.term.Load()
	if t == nil {
		return false
	}
	known := t.reconciler.Groups()
	return len(known) > 0 && !slices.ContainsFunc(known, func(g reconcile.GroupView) bool {
		return strings.HasSuffix(g.Pending, "it is being looked for")
	})
}

// Render renders the user data of a new machine.
func Render(s *Server, req reconcile.RenderRequest) (reconcile.Rendered, error) {
	return bootstrap{s, s.term.Load()}.Render(context.Background(), req)
}

// HasExecutor reports whether an operator carries out the tenant's drains.
func HasExecutor(s *Server, tenant nstance.TenantID) bool {
	t, err := s.leading()
	return err == nil && t.drains.HasExecutor(tenant)
}

// AdminWatches returns how many watches administrators hold open.
func AdminWatches(s *Server) int { return s.operators.AdminWatches() }

// Standbys returns the number of other servers with a peer stream to s.
func Standbys(s *Server) int { return s.peers.Connected() }

// Relief reports whether one of them never failed to take the address.
func Relief(s *Server) bool { return s.peers.HasRelief() }

// AttentionKinds are the kinds in the attention list.
func AttentionKinds() (kinds []string) {
	for _, kind := range attentionKinds() {
		kinds = append(kinds, string(kind))
	}
	return kinds
}

// Problems is the attention list as texts, also while s does not lead.
func Problems(s *Server) []string { return attention.Problems(attention.Plain(s.attention())) }

// NotLeading is the entry of the attention list that tells why s cannot lead.
func NotLeading(s *Server) (why []string) {
	for _, a := range s.attention() {
		if a.Kind == attentionNotLeading {
			why = append(why, a.Why)
		}
	}
	return why
}
