package server_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/server"
)

// connectionSettings is the shard setting "connections".
func connectionSettings(format string, args ...any) string {
	return fmt.Sprintf(`"connections": {`+format+`},`, args...)
}

// ports returns every port of the world's server.
func (w *world) ports() map[string]string {
	a := w.server.Addresses()
	ports := map[string]string{"http": a.HTTP, "registration": a.Registration, "operator": a.Operator, "agent": a.Agent}
	if a.Peer != "" {
		ports["peer"] = a.Peer
	}
	return ports
}

// An anonymousClient opens connections and sends nothing.
type anonymousClient struct {
	*testing.T
	sourceIP string // empty: any
	mu       sync.Mutex
	open     int
	conns    []net.Conn
	wg       sync.WaitGroup
}

func newAnonymousClient(t *testing.T, from string) *anonymousClient {
	s := &anonymousClient{T: t, sourceIP: from}
	t.Cleanup(s.closeAll)
	return s
}

func (s *anonymousClient) dial(addr string) net.Conn {
	d := net.Dialer{Timeout: eventually}
	if s.sourceIP != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(s.sourceIP)}
	}
	conn, err := d.DialContext(s.Context(), "tcp", addr)
	require.NoError(s, err)
	return conn
}

// openSilent opens a connection and counts it until the server closes it.
func (s *anonymousClient) openSilent(addr string) {
	conn := s.dial(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns, s.open = append(s.conns, conn), s.open+1
	s.wg.Go(func() {
		_, _ = io.Copy(io.Discard, conn) // returns when the server closes it
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
	})
}

func (s *anonymousClient) countOpen() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

func (s *anonymousClient) closeAll() {
	s.mu.Lock()
	for _, conn := range s.conns {
		conn.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.wg.Wait()
}

// openRepeatedly opens connections until stop.
func (s *anonymousClient) openRepeatedly(addr string) (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(s.sourceIP)}}
			if conn, err := d.DialContext(ctx, "tcp", addr); err == nil {
				defer conn.Close()
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond): // leaves time for handshakes of clients
			}
		}
	}()
	return sync.OnceFunc(func() { cancel(); <-done })
}

func TestSilentConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{
		shard: connectionSettings(`"handshake": "1s", "anonymous_age": "1s"`),
		opts:  server.Options{Shared: true, Bind: server.Addresses{Peer: "127.0.0.1:0"}},
	})
	for name, addr := range w.ports() {
		t.Run(name, func(t *testing.T) {
			conn := newAnonymousClient(t, "").dial(addr)
			defer conn.Close()
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(eventually)))
			_, err := io.Copy(io.Discard, conn)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it is still open")
		})
		if name == "http" {
			continue // this port has no TLS
		}
		t.Run(name+", during a handshake", func(t *testing.T) {
			conn := newAnonymousClient(t, "").dial(addr)
			defer conn.Close()
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(eventually)))
			cfg := pki.ClientTLS(w.keys.Identity.Pool(), nil, zone, cluster)
			cfg.NextProtos = []string{"h2"}
			if err := tls.Client(conn, cfg).HandshakeContext(t.Context()); err != nil {
				return // refused without certificate
			}
			_, err := io.Copy(io.Discard, conn) // the HTTP/2 preface is never sent
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it is still open")
		})
	}
}

// A call whose request is never sent keeps its connection open.
func TestHalfOpenCalls(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	half := func(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
		desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
		return conn.NewStream(ctx, desc, apiv1.RegistrationService_RegisterAgent_FullMethodName)
	}
	t.Run("end with their connection", func(t *testing.T) {
		w := newWorld(t, setup{shard: connectionSettings(`"anonymous_age": "400ms"`)})
		const conns, each = 8, 16
		ended := make(chan error, conns*each)
		for range conns {
			conn := w.newClient().dial(w.server.Addresses().Registration)
			for range each {
				go func() {
					call, err := half(t.Context(), conn)
					if err == nil {
						err = call.RecvMsg(&apiv1.RegisterAgentResponse{})
					}
					ended <- err
				}()
			}
		}
		for range conns * each {
			require.Error(t, receive(t, ended))
		}
		nonce, machine := w.userDataNonce(w.awaitMachine("blue")), w.newClient()
		require.Eventually(t, func() bool { // a busy machine may need longer than the age
			_, err := machine.register(nonce)
			return err == nil
		}, eventually, 5*time.Millisecond)
	})
	t.Run("are few at once on one connection", func(t *testing.T) {
		w := newWorld(t, setup{})
		conn := w.newClient().dial(w.server.Addresses().Registration)
		began := make(chan context.CancelFunc, 16)
		for range cap(began) {
			ctx, cancel := context.WithCancel(t.Context())
			t.Cleanup(cancel)
			go func() {
				if _, err := half(ctx, conn); err == nil {
					began <- cancel
				}
			}()
		}
		var open []context.CancelFunc
		for range 4 {
			open = append(open, receive(t, began))
		}
		require.Empty(t, began)
		open[0]() // frees one call
		receive(t, began)
	})
}

func TestAnonymousConnectionsDoNotBlockClients(t *testing.T) {
	t.Parallel()
	const limit = 20
	serve := func(t *testing.T, settings string) (w *world, first *agentSession) {
		w = newWorld(t, setup{
			webSize: 1, shard: connectionSettings(`"handshake": "5m", "anonymous_age": "5m", ` + settings),
			opts: server.Options{Shared: true, Bind: server.Addresses{Peer: "127.0.0.1:0"}},
		})
		return w, w.connectReady(w.awaitMachine("blue"))
	}
	// works makes the first calls of each kind of client.
	works := func(t *testing.T, w *world, first *agentSession) {
		t.Helper()
		first.awaitAck(first.sendReport()) // an open session stays
		w.connectReady(w.awaitMachine(nstance.DefaultTenant))
		_, err := w.admin().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, w.getPage("/healthz").StatusCode)
	}
	t.Run("clients from an address that holds its maximum of connections", func(t *testing.T) {
		w, first := serve(t, fmt.Sprintf(`"per_source": %d`, limit))
		s := newAnonymousClient(t, "127.0.0.1")
		for _, addr := range w.ports() {
			for range 2 * limit {
				s.openSilent(addr)
			}
		}
		require.Eventually(t, func() bool { return s.countOpen() <= limit }, eventually, time.Millisecond)
		require.Equal(t, limit, s.countOpen(), "at all ports together")
		works(t, w, first)
	})
	t.Run("one address that opens connections repeatedly", func(t *testing.T) {
		w, first := serve(t, `"per_source": 200`)
		s := newAnonymousClient(t, "127.0.0.1")
		for _, addr := range w.ports() {
			defer s.openRepeatedly(addr)()
		}
		works(t, w, first)
	})
	t.Run("many addresses that hold all connections", func(t *testing.T) {
		w, first := serve(t, `"per_source": 10, "anonymous": 100`)
		var all []*anonymousClient
		for i := range 30 {
			s := newAnonymousClient(t, fmt.Sprintf("127.0.1.%d", i+1))
			all = append(all, s)
			for range 5 {
				s.openSilent(w.server.Addresses().Agent)
			}
		}
		total := func() (n int) {
			for _, s := range all {
				n += s.countOpen()
			}
			return n
		}
		require.Eventually(t, func() bool { return total() <= 100 }, eventually, time.Millisecond)
		works(t, w, first)
	})
	t.Run("anonymous clients above the total limit", func(t *testing.T) {
		w, first := serve(t, `"max": 50`)
		s := newAnonymousClient(t, "127.0.0.1")
		for range 100 {
			s.openSilent(w.server.Addresses().Agent)
		}
		require.Eventually(t, func() bool { return s.countOpen() < 50 }, eventually, time.Millisecond)
		works(t, w, first)
	})
}

func TestConnectionsPerClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 12, shard: connectionSettings(`"per_source": 4, "anonymous": 8, "per_client": 3`)})
	t.Run("a fleet behind one address fits", func(t *testing.T) {
		require.Eventually(t, func() bool { return w.countEvents(nstance.EventCreated) == 13 }, eventually, time.Millisecond)
		var all []*agentSession
		for _, m := range w.cloud.Machines() {
			all = append(all, w.registerAgent(m.ID).connect())
		}
		require.Len(t, all, 13)
		for _, k := range all {
			k.awaitAck(k.sendReport())
		}
	})
	t.Run("one client keeps its newest few connections", func(t *testing.T) {
		var ended atomic.Int32
		watch := func(h *client) apiv1.OperatorService_WatchGroupsClient {
			stream, err := h.operatorAPI().WatchGroups(t.Context(), &apiv1.WatchGroupsRequest{})
			require.NoError(t, err)
			_, err = stream.Recv()
			require.NoError(t, err)
			return stream
		}
		op, other := w.registerClient(nstance.RoleOperator, "blue"), w.registerClient(nstance.RoleOperator, "blue")
		kept := watch(other)
		for range 10 {
			stream := watch(op)
			go func() {
				if err := untilError(stream.Recv); !errors.Is(err, context.Canceled) {
					ended.Add(1)
				}
			}()
		}
		require.Eventually(t, func() bool { return ended.Load() == 7 }, eventually, time.Millisecond)
		require.NoError(t, kept.Context().Err())
		_, err := other.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
	})
}
