package main

import (
	"crypto/tls"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/bench/internal/rig"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/session"
)

// A floorServer only sends the same messages of the same size to every agent and waits
// for the same answers. It measures the lower bound.
type floorServer struct {
	apiv1.UnimplementedAgentServiceServer
	begin      *apiv1.FilesBegin
	data       map[string][]byte
	chunkBytes int

	mu        sync.Mutex
	nextRound chan struct{} // closed and replaced to wake all waiters
}

func newFloorServer(r *rig.Rig) (p *floorServer, addr string, stop func(), err error) {
	cert, err := r.Keys.Identity.Server(rig.Zone, rig.Cluster, time.Hour, time.Now())
	if err != nil {
		return nil, "", nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", nil, err
	}
	p = &floorServer{nextRound: make(chan struct{}), chunkBytes: 64 << 10}
	cfg := pki.ServerTLS(func() (*tls.Certificate, error) { return cert, nil }, r.Keys.Identity.Pool(), nstance.RoleAgent)
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)), grpc.KeepaliveParams(session.Server()),
		grpc.KeepaliveEnforcementPolicy(session.Enforcement()), grpc.ReadBufferSize(4<<10), grpc.WriteBufferSize(4<<10))
	apiv1.RegisterAgentServiceServer(g, p)
	go g.Serve(ln) //nolint:errcheck // it ends with stop
	return p, ln.Addr().String(), g.Stop, nil
}

// wakeAll wakes all goroutines that wait.
func (p *floorServer) wakeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.nextRound)
	p.nextRound = make(chan struct{})
}

func (p *floorServer) next() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nextRound
}

// Connect implements the RPC.
func (p *floorServer) Connect(stream grpc.BidiStreamingServer[apiv1.ConnectRequest, apiv1.ConnectResponse]) error {
	next := p.next()
	if err := stream.Send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Welcome{Welcome: &apiv1.Welcome{}}}); err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil { // the agent's report
		return err
	}
	for {
		select {
		case <-next:
		case <-stream.Context().Done():
			return nil
		}
		next = p.next()
		if err := p.sendRound(stream); err != nil {
			return err
		}
	}
}

func (p *floorServer) sendRound(stream grpc.BidiStreamingServer[apiv1.ConnectRequest, apiv1.ConnectResponse]) error {
	if err := stream.Send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_FilesBegin{FilesBegin: p.begin}}); err != nil {
		return err
	}
	wanted, err := stream.Recv()
	if err != nil {
		return err
	}
	for _, digest := range wanted.GetFilesWanted().GetDigests() {
		data := p.data[digest]
		for at := 0; at < len(data); at += p.chunkBytes {
			chunk := &apiv1.FileChunk{Digest: digest, Offset: int64(at), Data: data[at:min(at+p.chunkBytes, len(data))]}
			if err := stream.Send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_FileChunk{FileChunk: chunk}}); err != nil {
				return err
			}
		}
	}
	err = stream.Send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_FilesCommit{FilesCommit: &apiv1.FilesCommit{Hash: p.begin.GetHash()}}})
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}
