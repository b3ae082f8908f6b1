// Package peers connects the servers of a shard: standbys hold a stream to the
// leader, on which it announces its renewals of the lease.
package peers

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/pki"
	keepalive "github.com/nstance-go/nstance/internal/session"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

const (
	// maxStandbys bounds how many other servers of the shard are remembered.
	maxStandbys = 64
	// maxText bounds what another server says of itself, in bytes.
	maxText = 256
	// maxMessage bounds one announcement, in bytes.
	maxMessage = 256 << 10
	// bufferSize is that of a connection, in bytes.
	bufferSize = 4 << 10
	// dialTimeout is how long another server may take to accept a connection. The
	// lease is read meanwhile.
	dialTimeout = 5 * time.Second
	// standbyMemory is how many TTLs a standby is remembered after this side ended its
	// stream: a server that released the lease leaves it to the others for as long.
	standbyMemory = 2
)

// Options configure Peers. All fields are required.
type Options struct {
	Cluster     nstance.ClusterID
	Shard       nstance.ShardID
	Version     string                           // of this server
	TTL         func() time.Duration             // of the lease
	Address     func() string                    // where operators reach this server
	Certificate func() (*tls.Certificate, error) // of this server
	Pool        func() *x509.CertPool            // of authorities
	Log         *slog.Logger

	// Announcements returns what the leader announces. Fails with Unavailable while
	// this server does not lead.
	Announcements func(ctx context.Context) (iter.Seq[lease.Announcement], error)
}

// Peers are the other servers of the shard. They also serve nstance.v1.PeerService.
type Peers struct {
	apiv1.UnimplementedPeerServiceServer
	Options
	id string // random, new with every process

	mu            sync.Mutex         // guards what follows
	standbys      map[string]standby // by the ID that each has chosen
	addressFailed bool               // this process has failed to take the movable address
	listensTo     string             // ID of the leader; empty: none
}

// standby is another server, as the leader knows it.
type standby struct {
	streams       int       // open now
	addressFailed bool      // it has failed to take the movable address
	endedHere     time.Time // when this side ended its last stream; zero: it did
	since         time.Time // of its first stream
	address       string    // operator API address, as it says
	version       string    // of its software, as it says
}

// New returns the peers of one process.
func New(opts Options) *Peers {
	return &Peers{Options: opts, id: rand.Text(), standbys: map[string]standby{}}
}

// Watch implements the RPC. Its end never means the end of the leader: it comes only
// after the lease was released.
func (p *Peers) Watch(req *apiv1.WatchRequest, stream grpc.ServerStreamingServer[apiv1.WatchResponse]) error {
	ctx := stream.Context()
	announcements, err := p.Announcements(ctx)
	if err != nil {
		return err
	}
	leave, err := p.join(req)
	if err != nil {
		return err
	}
	defer func() { leave(ctx.Err() == nil) }()
	for a := range announcements {
		m := &apiv1.WatchResponse{Epoch: a.Epoch, Version: string(a.Version), WriteId: a.WriteID, Released: a.Released}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// join registers a standby until leave is called, which says whether this side ended
// the stream.
func (p *Peers) join(req *apiv1.WatchRequest) (leave func(endedHere bool), err error) {
	id := req.GetServer()
	if id == "" || len(id) > 64 {
		return nil, nstance.FieldError("server", "name the process, in 1 to 64 bytes", "is %d bytes long", len(id))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetAbsent()
	b, known := p.standbys[id]
	if !known && len(p.standbys) >= maxStandbys {
		return nil, nstance.Errorf(nstance.Throttled, "%d servers stand by already", len(p.standbys))
	}
	if !known {
		b.since = time.Now()
	}
	b.streams++
	b.addressFailed, b.address, b.version = req.GetAddressFailed(), clip.Text(req.GetAddress(), maxText), clip.Text(req.GetVersion(), maxText)
	p.standbys[id] = b
	return func(endedHere bool) { p.leave(id, endedHere) }, nil
}

func (p *Peers) leave(id string, endedHere bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.standbys[id]
	b.streams--
	b.endedHere = time.Time{}
	if endedHere {
		b.endedHere = time.Now()
	}
	p.standbys[id] = b
	p.forgetAbsent()
}

// forgetAbsent needs the lock.
func (p *Peers) forgetAbsent() {
	limit := time.Now().Add(-standbyMemory * p.TTL())
	for id, b := range p.standbys {
		if b.streams == 0 && b.endedHere.Before(limit) {
			delete(p.standbys, id)
		}
	}
}

// HasStandby reports whether another server is there that would lead. It does not
// block.
func (p *Peers) HasStandby() bool { return p.count(func(standby) bool { return true }) > 0 }

// HasRelief reports whether a standby is connected that has never failed to take the
// movable address.
func (p *Peers) HasRelief() bool {
	return p.count(func(b standby) bool { return b.streams > 0 && !b.addressFailed }) > 0
}

// List returns the connected standbys, in the order of their addresses.
func (p *Peers) List() []*apiv1.Standby {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*apiv1.Standby
	for id, b := range p.standbys {
		if b.streams > 0 {
			out = append(out, &apiv1.Standby{Server: id, Address: b.address, Version: b.version, AddressFailed: b.addressFailed, Since: wire.Time(b.since)})
		}
	}
	slices.SortFunc(out, func(a, b *apiv1.Standby) int {
		return cmp.Or(cmp.Compare(a.GetAddress(), b.GetAddress()), cmp.Compare(a.GetServer(), b.GetServer()))
	})
	return out
}

func (p *Peers) count(is func(standby) bool) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetAbsent()
	for _, b := range p.standbys {
		if is(b) {
			n++
		}
	}
	return n
}

// SetAddressFailed records that this process has failed to take the movable address.
// It is never reset: a leader stops only for a standby that has never failed.
func (p *Peers) SetAddressFailed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addressFailed = true
}

func (p *Peers) hasAddressFailed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.addressFailed
}

// Listen yields what the leader h announces, until ctx ends or the stream breaks.
func (p *Peers) Listen(ctx context.Context, h lease.Holder) iter.Seq2[lease.Announcement, error] {
	return func(yield func(lease.Announcement, error) bool) {
		if err := p.receive(ctx, h, yield); err != nil {
			yield(lease.Announcement{}, err)
		}
		p.setListening(h, "")
	}
}

// receive returns nil when the leader has ended the stream, or yield returns false.
func (p *Peers) receive(ctx context.Context, h lease.Holder, yield func(lease.Announcement, error) bool) error {
	conn, err := p.dial(h.Peer)
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := apiv1.NewPeerServiceClient(conn).Watch(ctx, &apiv1.WatchRequest{
		Server: p.id, AddressFailed: p.hasAddressFailed(), Address: p.Address(), Version: p.Version,
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
		p.setListening(h, h.ID)
		a := lease.Announcement{Epoch: m.GetEpoch(), Version: storage.Version(m.GetVersion()), WriteID: m.GetWriteId(), Released: m.GetReleased()}
		if !yield(a, nil) {
			return nil
		}
	}
}

// setListening logs when announcements of a leader begin and end.
func (p *Peers) setListening(h lease.Holder, id string) {
	p.mu.Lock()
	before := p.listensTo
	p.listensTo = id
	p.mu.Unlock()
	switch {
	case id != "" && before != id:
		p.Log.Info("peer stream to the leader opened", "peer", h.Peer, "epoch", h.Epoch)
	case id == "" && before == h.ID:
		p.Log.Info("peer stream to the leader ended, reading the lease instead", "peer", h.Peer, "epoch", h.Epoch)
	}
}

// dial opens a connection to another server of the shard.
func (p *Peers) dial(addr string) (*grpc.ClientConn, error) {
	cert, err := p.Certificate()
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(credentials.NewTLS(pki.ClientTLS(p.Pool(), cert, p.Shard, p.Cluster))),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { // and no proxy
			return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", addr)
		}),
		grpc.WithKeepaliveParams(keepalive.Client()), grpc.WithDisableServiceConfig(),
		grpc.WithReadBufferSize(bufferSize), grpc.WithWriteBufferSize(bufferSize),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	)
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "peer %.64q: %w", addr, err)
	}
	return conn, nil
}

// Connected returns how many standbys hold a stream.
func (p *Peers) Connected() int { return p.count(func(b standby) bool { return b.streams > 0 }) }
