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
	"github.com/nstance-go/nstance/server/config"
)

// connections is a setting of the shard.
func connections(format string, args ...any) string {
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

// A stranger opens connections and says nothing on them.
type stranger struct {
	*testing.T
	from  string // address; empty: any
	mu    sync.Mutex
	open  int
	conns []net.Conn
	wg    sync.WaitGroup
}

func newStranger(t *testing.T, from string) *stranger {
	s := &stranger{T: t, from: from}
	t.Cleanup(s.leave)
	return s
}

func (s *stranger) dial(addr string) net.Conn {
	d := net.Dialer{Timeout: eventually}
	if s.from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(s.from)}
	}
	conn, err := d.DialContext(s.Context(), "tcp", addr)
	require.NoError(s, err)
	return conn
}

// knock opens a connection and follows what becomes of it.
func (s *stranger) knock(addr string) {
	conn := s.dial(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns, s.open = append(s.conns, conn), s.open+1
	s.wg.Go(func() {
		_, _ = io.Copy(io.Discard, conn) // until the server closes it
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
	})
}

func (s *stranger) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

func (s *stranger) leave() {
	s.mu.Lock()
	for _, conn := range s.conns {
		conn.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.wg.Wait()
}

// persist opens connections without end, until stop.
func (s *stranger) persist(addr string) (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(s.from)}}
			if conn, err := d.DialContext(ctx, "tcp", addr); err == nil {
				defer conn.Close()
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond): // a handshake must be possible between two
			}
		}
	}()
	return sync.OnceFunc(func() { cancel(); <-done })
}

func TestSilentConnectionsEnd(t *testing.T) {
	w := newWorld(t, setup{
		shard: connections(`"handshake": "100ms", "anonymous_age": "100ms"`),
		opts:  server.Options{Shared: true, Bind: config.Bind{Peer: "127.0.0.1:0"}},
	})
	for name, addr := range w.ports() {
		t.Run(name, func(t *testing.T) {
			conn := newStranger(t, "").dial(addr)
			defer conn.Close()
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(eventually)))
			_, err := io.Copy(io.Discard, conn)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it is still open")
		})
		if name == "http" {
			continue // no handshake
		}
		t.Run(name+", in the middle of a handshake", func(t *testing.T) {
			conn := newStranger(t, "").dial(addr)
			defer conn.Close()
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(eventually)))
			cfg := pki.ClientTLS(w.keys.Identity.Pool(), nil, zone, cluster)
			cfg.NextProtos = []string{"h2"}
			if err := tls.Client(conn, cfg).HandshakeContext(t.Context()); err != nil {
				return // refused without certificate
			}
			_, err := io.Copy(io.Discard, conn) // the preface of HTTP/2 does not come
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it is still open")
		})
	}
}

// A call whose request never comes keeps its connection busy.
func TestHalfOpenCalls(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	half := func(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
		desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
		return conn.NewStream(ctx, desc, apiv1.RegistrationService_RegisterAgent_FullMethodName)
	}
	t.Run("end with their connection", func(t *testing.T) {
		w := newWorld(t, setup{shard: connections(`"anonymous_age": "400ms"`)})
		const conns, each = 8, 16
		ended := make(chan error, conns*each)
		for range conns {
			conn := w.holder().dial(w.server.Addresses().Registration)
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
		w.agent(w.machine("blue"))
	})
	t.Run("are few at once on one connection", func(t *testing.T) {
		w := newWorld(t, setup{})
		conn := w.holder().dial(w.server.Addresses().Registration)
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
		open[0]() // makes room for one
		receive(t, began)
	})
}

func TestAnonymousConnectionsDisplaceNoClient(t *testing.T) {
	const limit = 20
	serve := func(t *testing.T, settings string) (w *world, first *talk) {
		w = newWorld(t, setup{
			size: 1, shard: connections(`"handshake": "5m", "anonymous_age": "5m", ` + settings),
			opts: server.Options{Shared: true, Bind: config.Bind{Peer: "127.0.0.1:0"}},
		})
		return w, w.ready(w.machine("blue"))
	}
	// works goes through what each kind of client does first.
	works := func(t *testing.T, w *world, first *talk) {
		t.Helper()
		first.acked(first.report()) // a session that is open stays
		w.ready(w.machine(nstance.DefaultTenant))
		_, err := w.admin().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, w.get("/healthz").StatusCode)
	}
	t.Run("one address that holds what it can, and clients from the same", func(t *testing.T) {
		w, first := serve(t, fmt.Sprintf(`"per_source": %d`, limit))
		s := newStranger(t, "127.0.0.1")
		for _, addr := range w.ports() {
			for range 2 * limit {
				s.knock(addr)
			}
		}
		require.Eventually(t, func() bool { return s.count() <= limit }, eventually, time.Millisecond)
		require.Equal(t, limit, s.count(), "at all ports together")
		works(t, w, first)
	})
	t.Run("one address that goes on", func(t *testing.T) {
		w, first := serve(t, `"per_source": 200`)
		s := newStranger(t, "127.0.0.1")
		for _, addr := range w.ports() {
			defer s.persist(addr)()
		}
		works(t, w, first)
	})
	t.Run("many addresses that hold all there is", func(t *testing.T) {
		w, first := serve(t, `"per_source": 10, "anonymous": 100`)
		var all []*stranger
		for i := range 30 {
			s := newStranger(t, fmt.Sprintf("127.0.1.%d", i+1))
			all = append(all, s)
			for range 5 {
				s.knock(w.server.Addresses().Agent)
			}
		}
		total := func() (n int) {
			for _, s := range all {
				n += s.count()
			}
			return n
		}
		require.Eventually(t, func() bool { return total() <= 100 }, eventually, time.Millisecond)
		works(t, w, first)
	})
	t.Run("strangers that use up the connections altogether", func(t *testing.T) {
		w, first := serve(t, `"max": 50`)
		s := newStranger(t, "127.0.0.1")
		for range 100 {
			s.knock(w.server.Addresses().Agent)
		}
		require.Eventually(t, func() bool { return s.count() < 50 }, eventually, time.Millisecond)
		works(t, w, first)
	})
}

func TestConnectionsOfClients(t *testing.T) {
	w := newWorld(t, setup{size: 12, shard: connections(`"per_source": 4, "anonymous": 8, "per_client": 3`)})
	t.Run("a fleet behind one address fits", func(t *testing.T) {
		require.Eventually(t, func() bool { return w.count(nstance.EventCreated) == 13 }, eventually, time.Millisecond)
		var all []*talk
		for _, m := range w.cloud.Machines() {
			all = append(all, w.agent(m.ID).connect())
		}
		require.Len(t, all, 13)
		for _, k := range all {
			k.acked(k.report())
		}
	})
	t.Run("one client holds a few, and the newest", func(t *testing.T) {
		var ended atomic.Int32
		watch := func(h *holder) apiv1.OperatorService_WatchGroupsClient {
			stream, err := h.api().WatchGroups(t.Context(), &apiv1.WatchGroupsRequest{})
			require.NoError(t, err)
			_, err = stream.Recv()
			require.NoError(t, err)
			return stream
		}
		op, other := w.client(nstance.RoleOperator, "blue"), w.client(nstance.RoleOperator, "blue")
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
		_, err := other.api().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
	})
}
