package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"iter"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
	keepalive "github.com/nstance-go/nstance/internal/session"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server/internal/ports"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// maxStandbys bounds how many other servers of the shard are remembered.
const maxStandbys = 64

// peers is what this server knows of the other servers of its shard. While it
// leads they hold a stream to it, by which they hear of its renewals; while
// another leads it holds one itself.
type peers struct {
	s  *Server
	id string // random, new with every process

	mu       sync.Mutex         // guards what follows
	standbys map[string]standby // by the ID that each has given itself
	failed   bool               // this process has failed to take the movable address
	hears    string             // the holder that is being heard; empty: none
}

// standby is one of the others, as the leader knows it.
type standby struct {
	streams int       // that it holds now
	failed  bool      // it has failed to take the movable address
	left    time.Time // when its last stream was ended by this side: it is there, and goes first
	since   time.Time // when it was heard first
	address string    // operator API address, as it says
	version string    // of its software, as it says
}

// maxSaid bounds what is kept of a word that another server says, in bytes.
const maxSaid = 256

func newPeers(s *Server) *peers {
	return &peers{s: s, id: rand.Text(), standbys: map[string]standby{}}
}

// peerService serves nstance.v1.PeerService.
type peerService struct {
	apiv1.UnimplementedPeerServiceServer
	s *Server
}

// Watch implements the RPC. It ends only after the lease was given back, so
// that nobody takes its end for that of the leader.
func (p peerService) Watch(req *apiv1.WatchRequest, stream grpc.ServerStreamingServer[apiv1.WatchResponse]) error {
	holder, ok := p.s.elector.(interface {
		Announcements(ctx context.Context) iter.Seq[lease.Announcement]
	})
	if p.s.term.Load() == nil || !ok {
		return p.s.standingBy()
	}
	leave, err := p.s.peers.join(req)
	if err != nil {
		return err
	}
	ctx := stream.Context()
	defer func() { leave(ctx.Err() == nil) }()
	for a := range holder.Announcements(ctx) {
		m := &apiv1.WatchResponse{Epoch: a.Epoch, Version: string(a.Version), WriteId: a.WriteID, Released: a.Released}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// join takes note of a standby until leave is called, which says whether it was
// this side that ended the stream.
func (p *peers) join(req *apiv1.WatchRequest) (leave func(here bool), err error) {
	id := req.GetServer()
	if id == "" || len(id) > 64 {
		return nil, nstance.FieldError("server", "name the process, in 1 to 64 bytes", "is %d bytes long", len(id))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget()
	b, known := p.standbys[id]
	if !known && len(p.standbys) >= maxStandbys {
		return nil, nstance.Errorf(nstance.Throttled, "%d servers stand by already", len(p.standbys))
	}
	if !known {
		b.since = time.Now()
	}
	b.streams++
	b.failed, b.address, b.version = req.GetAddressFailed(), said(req.GetAddress()), said(req.GetVersion())
	p.standbys[id] = b
	return func(here bool) { p.leave(id, here) }, nil
}

func said(s string) string { return wire.Cut(s, maxSaid) }

func (p *peers) leave(id string, here bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.standbys[id]
	b.streams--
	b.left = time.Time{}
	if here {
		b.left = time.Now()
	}
	p.standbys[id] = b
	p.forget()
}

// forget drops those who are not there any more. It needs p.mu.
func (p *peers) forget() {
	const priority = 2 // ttl, for which who gave the lease back leaves it to others
	limit := time.Now().Add(-priority * p.s.config().Shard.Election.TTL)
	for id, b := range p.standbys {
		if b.streams == 0 && b.left.Before(limit) {
			delete(p.standbys, id)
		}
	}
}

// known reports whether another server is there that would lead. It does not
// block.
func (p *peers) known() bool { return p.count(func(standby) bool { return true }) > 0 }

// relief reports whether a server stands by that has never failed to take the
// movable address.
func (p *peers) relief() bool {
	return p.count(func(b standby) bool { return b.streams > 0 && !b.failed }) > 0
}

// list returns those who stand by now, in the order of their addresses.
func (p *peers) list() []*apiv1.Standby {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*apiv1.Standby
	for id, b := range p.standbys {
		if b.streams > 0 {
			out = append(out, &apiv1.Standby{Server: id, Address: b.address, Version: b.version, AddressFailed: b.failed, Since: wire.Time(b.since)})
		}
	}
	slices.SortFunc(out, func(a, b *apiv1.Standby) int {
		return cmp.Or(cmp.Compare(a.GetAddress(), b.GetAddress()), cmp.Compare(a.GetServer(), b.GetServer()))
	})
	return out
}

func (p *peers) count(is func(standby) bool) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget()
	for _, b := range p.standbys {
		if is(b) {
			n++
		}
	}
	return n
}

// fail notes that this process has failed to take the movable address. It is
// never forgotten: a leader gives up only for one that has never failed.
func (p *peers) fail() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = true
}

func (p *peers) hasFailed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// listen yields what the holder announces, until ctx ends or the stream breaks.
func (p *peers) listen(ctx context.Context, h lease.Holder) iter.Seq2[lease.Announcement, error] {
	return func(yield func(lease.Announcement, error) bool) {
		if err := p.hear(ctx, h, yield); err != nil {
			yield(lease.Announcement{}, err)
		}
		p.hearing(h, "")
	}
}

// hear returns nil when the holder has ended the stream, or nobody wants to
// hear more.
func (p *peers) hear(ctx context.Context, h lease.Holder, yield func(lease.Announcement, error) bool) error {
	conn, err := p.dial(h.Peer)
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := apiv1.NewPeerServiceClient(conn).Watch(ctx, &apiv1.WatchRequest{
		Server: p.id, AddressFailed: p.hasFailed(), Address: p.s.advertised().Operator, Version: Version,
	})
	if err != nil {
		return wire.ErrorOf(err)
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return wire.ErrorOf(err)
		}
		p.hearing(h, h.ID)
		a := lease.Announcement{Epoch: m.GetEpoch(), Version: storage.Version(m.GetVersion()), WriteID: m.GetWriteId(), Released: m.GetReleased()}
		if !yield(a, nil) {
			return nil
		}
	}
}

// hearing logs when listening to a holder begins and ends to work.
func (p *peers) hearing(h lease.Holder, id string) {
	p.mu.Lock()
	was := p.hears
	p.hears = id
	p.mu.Unlock()
	switch {
	case id != "" && was != id:
		p.s.log.Info("the leader tells of its renewals", "peer", h.Peer, "epoch", h.Epoch)
	case id == "" && was == h.ID:
		p.s.log.Info("the leader is not heard any more, its lease is read instead", "peer", h.Peer, "epoch", h.Epoch)
	}
}

// dial opens a connection to another server of the shard, as one.
func (p *peers) dial(addr string) (*grpc.ClientConn, error) {
	cert, err := p.s.keys.Certificate()
	if err != nil {
		return nil, err
	}
	conf := p.s.config()
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(credentials.NewTLS(pki.ClientTLS(p.s.keys.Identity.Pool(), cert, conf.Shard.ID, conf.Cluster.ID))),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { // and no proxy
			return (&net.Dialer{Timeout: peerDial}).DialContext(ctx, "tcp", addr)
		}),
		grpc.WithKeepaliveParams(keepalive.Client()), grpc.WithDisableServiceConfig(),
		grpc.WithReadBufferSize(smallIO), grpc.WithWriteBufferSize(smallIO),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	)
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "peer %.64q: %w", addr, err)
	}
	return conn, nil
}

// peerDial is how long the other server may take to accept a connection. The
// lease is read all the while.
const peerDial = 5 * time.Second

// peerPort returns what serves the other servers of the shard.
func (s *Server) peerPort(common []grpc.ServerOption) *grpc.Server {
	conf := s.config()
	creds := ports.Closable(credentials.NewTLS(pki.Changing(func() *tls.Config {
		return pki.PeerTLS(s.keys.Certificate, s.keys.Identity.Pool(), conf.Shard.ID, conf.Cluster.ID)
	})))
	g := grpc.NewServer(append(common[:len(common):len(common)], grpc.Creds(creds), grpc.MaxConcurrentStreams(peerStreams), grpc.StreamInterceptor(s.peerStream))...)
	apiv1.RegisterPeerServiceServer(g, peerService{s: s})
	return g
}

// peerStream admits other servers of the shard, which TLS has verified, to what
// the table says.
func (s *Server) peerStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	id, err := ports.IdentityOf(ss.Context())
	if err == nil && !slices.Contains(access[info.FullMethod], id.Role) {
		err = nstance.Errorf(nstance.Denied, "role %s may not call %s", id.Role, info.FullMethod)
	}
	if err != nil {
		return wire.Status(err)
	}
	return wire.Status(s.expiry.Serve(ss.Context(), id, func(ctx context.Context) error { return next(srv, &calledStream{ss, ctx}) }))
}
