package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/pki"
	keepalive "github.com/nstance-go/nstance/internal/session"
	"github.com/nstance-go/nstance/server/internal/ports"
	"github.com/nstance-go/nstance/server/internal/registrar"
)

// Bounds on what one peer may send and hold open.
const (
	maxMessage      = 256 << 10 // bytes of one message
	maxRegistration = 32 << 10  // bytes of a message for registration
	maxHeaders      = 16 << 10  // bytes of one call's headers
	anonymousHeader = 4 << 10   // the same for registration
	smallIO         = 4 << 10   // bytes of a connection's write buffer: there may be ten thousand
	window          = 64 << 10  // bytes that a client may send ahead on one call, or of one message: the least that gRPC has

	// Calls at the same time on one connection: a client that registers makes one,
	// an agent two.
	registrationStreams = 4
	agentStreams        = 8
	peerStreams         = 8
	operatorStreams     = 64

	// strangerIdle is how long a client without a certificate may keep a
	// connection on which it asks nothing.
	strangerIdle = 30 * time.Second
)

// listeners are the server's open ports with what serves them.
type listeners struct {
	log                           *slog.Logger
	registration, operator, agent port
	peer                          port // zero: no other server serves the shard
	web                           net.Listener
	webServer                     *http.Server
	host                          string // this machine's address on the way to others; empty: unknown
}

// grpcPorts returns the ports that are there.
func (l *listeners) grpcPorts() []port {
	all := []port{l.registration, l.operator, l.agent}
	if l.peer.Listener != nil {
		all = append(all, l.peer)
	}
	return all
}

type port struct {
	net.Listener
	grpc *grpc.Server
}

// listen opens every port, or none.
func (s *Server) listen(ctx context.Context) (*listeners, error) {
	bind, limits := s.bind(), s.config.InForce().Shard.Connections
	l := &listeners{log: s.log, host: machineHost()}
	s.gate = ports.NewGate(limits, s.log)
	var opened []net.Listener
	open := func(field string, addr config.ListenAddr, anonymousFor time.Duration, serves func() bool) (net.Listener, error) {
		lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", string(addr))
		if err != nil {
			return nil, listenError("shard.bind."+field, string(addr), err)
		}
		opened = append(opened, s.gate.Listener(ports.Patient(lis, s.log), anonymousFor, serves))
		return opened[len(opened)-1], nil
	}
	var errs [5]error
	l.web, errs[0] = open("http", bind.HTTP, limits.AnonymousAge, nil)
	// A server that does not lead has nothing to tell an agent, and handshakes with a whole
	// fleet would keep it from leading. Who registers may learn where the leader is.
	l.registration.Listener, errs[1] = open("registration", bind.Registration, limits.AnonymousAge, s.knowsLeader)
	l.operator.Listener, errs[2] = open("operator", bind.Operator, limits.Handshake, nil)
	l.agent.Listener, errs[3] = open("agent", bind.Agent, limits.Handshake, s.leads)
	if s.opts.Shared {
		l.peer.Listener, errs[4] = open("peer", bind.Peer, limits.Handshake, nil)
	}
	if err := errors.Join(errs[:]...); err != nil {
		for _, lis := range opened {
			_ = lis.Close()
		}
		return nil, err
	}
	s.grpcServers(l, limits)
	ending := make(chan struct{})
	l.webServer = &http.Server{
		Handler: closeOld(s.pages(ending), limits.AnonymousAge/2), ConnContext: bornAt,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: maxHeaders,
	}
	l.webServer.RegisterOnShutdown(sync.OnceFunc(func() { close(ending) }))
	return l, nil
}

// listenError is no mistake for good: what listens there may end, and the network or the
// name's address may come later than this program.
func listenError(field, addr string, err error) error {
	out := &nstance.Error{
		Code: nstance.Unavailable, Field: field, Msg: fmt.Sprintf("cannot listen on %s: %v", addr, err), Err: err,
		Remedy: "use an address of this machine",
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		out.Remedy = "stop whatever listens there, or choose another port"
	case errors.Is(err, syscall.EACCES):
		out.Code, out.Remedy = nstance.Denied, "use a port above 1023, or grant the right to bind it"
	}
	return out
}

// connectionBorn is the key of when an HTTP connection was accepted.
type connectionBorn struct{}

func bornAt(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, connectionBorn{}, time.Now())
}

// closeOld makes a connection of that age end with the answer, before the gate
// ends it during one.
func closeOld(next http.Handler, age time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if born, ok := r.Context().Value(connectionBorn{}).(time.Time); ok && time.Since(born) > age {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) grpcServers(l *listeners, limits config.Connections) {
	common := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxHeaderListSize(maxHeaders),
		grpc.ReadBufferSize(0), grpc.WriteBufferSize(smallIO), // TLS reads ahead itself, a record
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window),
		grpc.ConnectionTimeout(limits.Handshake),
		grpc.KeepaliveParams(keepalive.Server()), grpc.KeepaliveEnforcementPolicy(keepalive.Enforcement()),
	}
	common = s.telemetry.observed(common)
	open := grpc.Creds(ports.Closable(credentials.NewTLS(pki.RegistrationTLS(s.keys.Certificate)), nil))
	short := keepalive.Server()
	short.MaxConnectionIdle = min(strangerIdle, limits.AnonymousAge)
	short.MaxConnectionAge, short.MaxConnectionAgeGrace = limits.AnonymousAge/2, limits.AnonymousAge/4
	l.registration.grpc = grpc.NewServer(append(common[:len(common):len(common)], open, grpc.KeepaliveParams(short), grpc.MaxConcurrentStreams(registrationStreams),
		grpc.MaxRecvMsgSize(maxRegistration), grpc.MaxHeaderListSize(anonymousHeader), grpc.InTapHandle(s.tapRegistration), grpc.ChainUnaryInterceptor(counted))...)
	apiv1.RegisterRegistrationServiceServer(l.registration.grpc, registrar.Service{Register: s.register})

	guarded := append(common[:len(common):len(common)], grpc.InTapHandle(s.tap), grpc.ChainUnaryInterceptor(counted, s.unary), grpc.ChainStreamInterceptor(s.stream))
	mutual := func(streams uint32, roles ...nstance.Role) []grpc.ServerOption {
		own := slices.Clone(guarded)
		return append(own, grpc.MaxConcurrentStreams(streams), grpc.Creds(ports.Closable(credentials.NewTLS(pki.Changing(func() *tls.Config {
			return pki.ServerTLS(s.keys.Certificate, s.keys.Identity.Pool(), roles...)
		})), s.checkInUse)))
	}
	// An agent opens one stream in hours: remembering its headers costs memory, and saves nothing.
	l.agent.grpc = grpc.NewServer(append(mutual(agentStreams, nstance.RoleAgent), grpc.HeaderTableSize(0))...)
	apiv1.RegisterAgentServiceServer(l.agent.grpc, agentService{})
	l.operator.grpc = grpc.NewServer(mutual(operatorStreams, nstance.RoleOperator, nstance.RoleAdmin)...)
	apiv1.RegisterOperatorServiceServer(l.operator.grpc, s.operators)
	if l.peer.Listener != nil {
		l.peer.grpc = s.peerPort(common)
	}
}

// peerPort returns what serves the other servers of the shard.
func (s *Server) peerPort(common []grpc.ServerOption) *grpc.Server {
	creds := ports.Closable(credentials.NewTLS(pki.Changing(func() *tls.Config {
		return pki.PeerTLS(s.keys.Certificate, s.keys.Identity.Pool(), s.own.Shard.ID, s.own.Cluster.ID)
	})), nil)
	g := grpc.NewServer(append(common[:len(common):len(common)], grpc.Creds(creds), grpc.MaxConcurrentStreams(peerStreams),
		grpc.InTapHandle(s.tapPeer), grpc.ChainStreamInterceptor(s.peerStream))...)
	apiv1.RegisterPeerServiceServer(g, s.peers)
	return g
}

// serve serves every port until shutdown has stopped them.
func (l *listeners) serve() {
	var wg sync.WaitGroup
	for _, p := range l.grpcPorts() {
		wg.Go(func() {
			if err := p.grpc.Serve(p.Listener); err != nil {
				l.log.Error("port closed", "addr", p.Addr().String(), "err", err)
			}
		})
	}
	wg.Go(func() {
		if err := l.webServer.Serve(l.web); !errors.Is(err, http.ErrServerClosed) {
			l.log.Error("port closed", "addr", l.web.Addr().String(), "err", err)
		}
	})
	wg.Wait()
}

// shutdown stops accepting at once and gives calls in flight until limit.
func (l *listeners) shutdown(limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var wg sync.WaitGroup
	for _, p := range l.grpcPorts() {
		wg.Go(func() {
			defer context.AfterFunc(ctx, p.grpc.Stop)()
			p.grpc.GracefulStop()
		})
	}
	wg.Go(func() {
		if l.webServer.Shutdown(ctx) != nil {
			_ = l.webServer.Close()
		}
	})
	wg.Wait()
}

// close closes ports that were never served.
func (l *listeners) close() {
	for _, p := range l.grpcPorts() {
		_ = p.Close() // nothing has used it
	}
	_ = l.web.Close()
}
