package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/test/flood"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// TestUnfinishedRequestsAreBounded: what clients send of requests that they do not
// complete is bounded, and other clients are served meanwhile.
func TestUnfinishedRequestsAreBounded(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	w := newWorld(t, setup{webSize: 5})
	ids := w.awaitMachines(5)
	works := func(t *testing.T, id nstance.InstanceID) {
		t.Helper()
		w.connectReady(id)
		_, err := w.admin().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
	}
	settled := func(t *testing.T, u *flood.Unfinished, attempted, most int) {
		t.Helper()
		last := -1
		require.Eventually(t, func() bool {
			still := last == u.Sent()
			last = u.Sent()
			return still && last > most && u.Held() <= most
		}, eventually, 200*time.Millisecond)
		require.Greater(t, attempted, 2*most)
	}
	t.Run("of anonymous clients", func(t *testing.T) {
		var u flood.Unfinished
		defer u.Close()
		const conns, calls, size = 240, 4, 30 << 10
		for i := range conns {
			require.NoError(t, u.Start(t.Context(), flood.Calls{
				From: net.IPv4(127, 0, 1, byte(i%12+1)), Addr: w.server.Addresses().Registration, TLS: pki.ClientTLS(w.keys.Identity.Pool(), nil, zone, cluster),
				Method: apiv1.RegistrationService_RegisterAgent_FullMethodName, Count: calls, Size: size, Piece: 16 << 10,
			}))
		}
		settled(t, &u, conns*calls*size, 5*mib)
		works(t, ids[0])
	})
	t.Run("of anonymous clients with little each", func(t *testing.T) {
		var u flood.Unfinished
		defer u.Close()
		const conns, calls = 240, 4 // three times the bound with 6 KiB for each call
		for i := range conns {
			require.NoError(t, u.Start(t.Context(), unfinishedRegistrations(w, net.IPv4(127, 0, 1, byte(i%12+1)), calls)))
		}
		requireSent(t, &u)
		works(t, ids[1])
	})
	t.Run("of many anonymous clients with one each", func(t *testing.T) {
		var u flood.Unfinished
		defer u.Close()
		const conns = 750
		for i := range conns {
			require.NoError(t, u.Start(t.Context(), unfinishedRegistrations(w, net.IPv4(127, 0, byte(2+i/250), byte(1+i%250)), 1)))
		}
		requireSent(t, &u)
		works(t, ids[2])
	})
	t.Run("of one operator", func(t *testing.T) {
		var u flood.Unfinished
		defer u.Close()
		h := w.registerClient(nstance.RoleOperator, "blue")
		const conns, calls, size = 8, 64, 200 << 10
		for range conns {
			require.NoError(t, u.Start(t.Context(), unfinishedPlans(h, calls, size)))
		}
		settled(t, &u, conns*calls*(60<<10), 5*mib)
		works(t, ids[3])
	})
	t.Run("of all operators of a tenant", func(t *testing.T) {
		var u flood.Unfinished
		defer u.Close()
		const clients, calls, size = 6, 64, 200 << 10
		for range clients {
			h := w.registerClient(nstance.RoleOperator, "blue")
			require.NoError(t, u.Start(t.Context(), unfinishedPlans(h, calls, size)))
		}
		settled(t, &u, clients*calls*(60<<10), 9*mib)
		works(t, ids[4])
	})
}

// requireSent waits until nothing more is sent.
func requireSent(t *testing.T, u *flood.Unfinished) {
	t.Helper()
	sent := -1
	require.Eventually(t, func() bool {
		still := sent == u.Sent()
		sent = u.Sent()
		return still && sent > 0
	}, eventually, 200*time.Millisecond)
}

// unfinishedRegistrations are calls of which little is sent.
func unfinishedRegistrations(w *world, from net.IP, calls int) flood.Calls {
	return flood.Calls{
		From: from, Addr: w.server.Addresses().Registration, TLS: pki.ClientTLS(w.keys.Identity.Pool(), nil, zone, cluster),
		Method: apiv1.RegistrationService_RegisterAgent_FullMethodName, Count: calls, Size: 2, Piece: 1,
	}
}

func unfinishedPlans(h *client, calls, size int) flood.Calls {
	return flood.Calls{
		From: net.IPv4(127, 0, 0, 1), Addr: h.w.server.Addresses().Operator, TLS: pki.ClientTLS(h.w.keys.Identity.Pool(), h.cert, zone, cluster),
		Method: apiv1.OperatorService_Plan_FullMethodName, Count: calls, Size: size, Piece: 16 << 10,
	}
}

// TestUnreadAnswersAreBounded: a client that asks and does not read loses its connection, and
// others are served meanwhile.
func TestUnreadAnswersAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	for i := range 8 {
		_, err := w.admin().CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Tenant: "blue", Group: fmt.Sprint("large", i), Template: "vm", Size: proto.Int32(0), Vars: map[string]string{"note": strings.Repeat("x", 30<<10)}})
		require.NoError(t, err)
	}
	h := w.registerClient(nstance.RoleOperator, "blue")
	list, err := h.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
	require.NoError(t, err)
	require.Greater(t, proto.Size(list)*64, 9<<20)
	conn := h.openTLS(w.server.Addresses().Operator)
	require.NoError(t, conn.SetDeadline(time.Now().Add(eventually)))
	calls := bytes.NewBuffer(flood.Begin(apiv1.OperatorService_ListGroups_FullMethodName, 64, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	frames := http2.NewFramer(calls, nil)
	for i := range 64 {
		require.NoError(t, frames.WriteData(uint32(2*i+1), true, make([]byte, 5)))
	}
	_, err = conn.Write(calls.Bytes())
	require.NoError(t, err)
	require.NotErrorIs(t, answerPings(conn), os.ErrDeadlineExceeded, "it is still open")
	for range 100 { // what a client reads is forgotten
		_, err = h.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
	}
}

// answerPings keeps a connection until it ends, and returns why. It grants the other end no window.
func answerPings(conn net.Conn) error {
	frames := http2.NewFramer(conn, conn)
	for {
		f, err := frames.ReadFrame()
		if ping, ok := f.(*http2.PingFrame); ok && !ping.IsAck() {
			err = frames.WritePing(true, ping.Data)
		}
		if err != nil {
			return err
		}
	}
}

// TestHandshakesAreBounded: a handshake that does not end takes few bytes.
func TestHandshakesAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{shard: connectionSettings(`"handshake": "5m", "anonymous_age": "5m"`)})
	for name, addr := range map[string]string{"registration": w.server.Addresses().Registration, "operator": w.server.Addresses().Operator, "agent": w.server.Addresses().Agent} {
		t.Run(name, func(t *testing.T) {
			conn := newAnonymousClient(t, "").dial(addr)
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(eventually)))
			_, err := conn.Write(flood.UnfinishedHello())
			require.NoError(t, err)
			_, _ = conn.Write(append([]byte{22, 3, 1, 0x3f, 0xff}, make([]byte, 0x3fff)...))
			_, err = io.Copy(io.Discard, conn)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it is still open")
		})
	}
}

// openCall begins a call, sends nothing of its message, and returns the error that ends it.
func openCall(ctx context.Context, conn *grpc.ClientConn, method string) error {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err == nil {
		err = stream.RecvMsg(&apiv1.ListGroupsResponse{})
	}
	return wire.ErrorOf(err)
}

// TestCallsAreRefusedBeforeTheirMessage: identity, role, revocation and budget are checked
// when a call begins, and the client's connections end where its identity has.
func TestCallsAreRefusedBeforeTheirMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1, config: replaceOnce(t, fmt.Sprintf(configuration, "", 1), `"templates": {`, `"tenants": {
		"red": {"requests_per_second": 0.1, "request_burst": 1}}, "templates": {`)})
	const method = apiv1.OperatorService_ListGroups_FullMethodName
	t.Run("of another role", func(t *testing.T) {
		conn := w.registerClient(nstance.RoleOperator, "blue").dial(w.server.Addresses().Operator)
		require.ErrorIs(t, openCall(t.Context(), conn, apiv1.OperatorService_Freeze_FullMethodName), nstance.Denied)
	})
	t.Run("with a deadline that is far away: its connection is closed", func(t *testing.T) {
		conn := w.registerClient(nstance.RoleOperator, "blue").dial(w.server.Addresses().Operator)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.Error(t, openCall(ctx, conn, apiv1.OperatorService_Freeze_FullMethodName))
		limit, done := context.WithTimeout(t.Context(), eventually)
		defer done()
		require.True(t, conn.WaitForStateChange(limit, connectivity.Ready))
	})
	t.Run("beyond the tenant's budget", func(t *testing.T) {
		h := w.registerClient(nstance.RoleOperator, "red")
		_, err := h.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
		requireFieldError(t, openCall(t.Context(), h.dial(w.server.Addresses().Operator), method), nstance.Throttled, "tenants.red.requests_per_second")
	})
	t.Run("of a revoked operator", func(t *testing.T) {
		h := w.registerClient(nstance.RoleOperator, "blue")
		idle := h.openIdle(w.server.Addresses().Operator)
		conn := h.dial(w.server.Addresses().Operator)
		_, err := apiv1.NewOperatorServiceClient(conn).ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
		w.revoke(h)
		require.ErrorIs(t, openCall(t.Context(), conn, method), nstance.Denied)
		receive(t, idle)
		require.ErrorIs(t, openCall(t.Context(), h.dial(w.server.Addresses().Operator), method), nstance.Denied, "it may connect to be told so")
	})
	t.Run("of an operator whose record is gone", func(t *testing.T) {
		h := w.registerClient(nstance.RoleOperator, "blue")
		require.NoError(t, removeRecord(w.store, layout.OperatorKey("blue", h.identity().Subject)))
		conn := h.dial(w.server.Addresses().Operator)
		_, err := apiv1.NewOperatorServiceClient(conn).ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)
		require.ErrorIs(t, openCall(t.Context(), conn, method), nstance.NotFound)
	})
	t.Run("of a deleted instance", func(t *testing.T) {
		id := w.awaitMachine(nstance.DefaultTenant)
		h := w.registerAgent(id)
		idle := h.openIdle(w.server.Addresses().Agent)
		_, err := w.admin().DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(id), NoDrain: true})
		require.NoError(t, err)
		w.awaitEvent(nstance.EventDeleted, id)
		receive(t, idle)
		require.ErrorIs(t, openCall(t.Context(), h.dial(w.server.Addresses().Agent), apiv1.AgentService_RenewCertificate_FullMethodName), nstance.NotFound)
	})
}

// openTLS opens a connection with the client's certificate.
func (h *client) openTLS(addr string) *tls.Conn {
	cfg := pki.ClientTLS(h.w.keys.Identity.Pool(), h.cert, zone, cluster)
	cfg.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", addr, cfg)
	require.NoError(h.w, err)
	h.w.Cleanup(func() { conn.Close() })
	return conn
}

// openIdle opens a connection with the client's certificate and sends no request. The
// channel is closed when the server has closed it.
func (h *client) openIdle(addr string) <-chan struct{} {
	conn := h.openTLS(addr)
	var out bytes.Buffer
	out.WriteString(http2.ClientPreface)
	_ = http2.NewFramer(&out, nil).WriteSettings()
	_, err := conn.Write(out.Bytes())
	require.NoError(h.w, err)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		fr := http2.NewFramer(conn, conn)
		for {
			f, err := fr.ReadFrame()
			if err != nil {
				return
			}
			if ping, ok := f.(*http2.PingFrame); ok && !ping.IsAck() { // else it would soon be closed as dead
				_ = fr.WritePing(true, ping.Data)
			}
		}
	}()
	return closed
}

// countedReads counts the reads of a store below a prefix.
type countedReads struct {
	storage.Store
	prefix string
	mu     sync.Mutex
	reads  int
}

func (s *countedReads) Get(ctx context.Context, key string) (storage.Object, error) {
	s.mu.Lock()
	if strings.HasPrefix(key, s.prefix) {
		s.reads++
	}
	s.mu.Unlock()
	return s.Store.Get(ctx, key)
}

func (s *countedReads) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

// TestRefusedCallsCostNoRead: neither a throttled nor a revoked caller makes the server
// read storage at each call.
func TestRefusedCallsCostNoRead(t *testing.T) {
	t.Parallel()
	store := &countedReads{Store: storage.NewMemory(), prefix: "operator/"}
	w := newWorld(t, setup{store: store, config: replaceOnce(t, fmt.Sprintf(configuration, "", 0), `"templates": {`, `"tenants": {
		"red": {"requests_per_second": 0.1, "request_burst": 5}}, "templates": {`)})
	h := w.registerClient(nstance.RoleOperator, "red")
	const connections, calls, own = 20, 8, 10 // own: what the server reads again by itself meanwhile
	flood := func(code nstance.Code) (reads, served int) {
		before := store.count()
		for range connections {
			api := h.operatorAPI()
			for range calls {
				if _, err := api.ListGroups(t.Context(), &apiv1.ListGroupsRequest{}); !errors.Is(wire.ErrorOf(err), code) {
					served++
				}
			}
		}
		return store.count() - before, served
	}
	start := time.Now()
	reads, served := flood(nstance.Throttled)
	require.LessOrEqual(t, served, 5+int(time.Since(start).Seconds())/10+1)
	require.LessOrEqual(t, reads, connections+served+own, "each connection, and each call within the budget")
	w.revoke(h)
	reads, served = flood(nstance.Denied)
	require.Zero(t, served)
	require.LessOrEqual(t, reads, own, "neither each call nor each connection")
}

// TestClientsLeaveConnections: clients that hold all connections give way to those with
// fewer.
func TestClientsLeaveConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 2, shard: connectionSettings(`"max": 40, "per_client": 30`)})
	for _, id := range w.awaitMachines(2) {
		h := w.registerAgent(id)
		for range 30 {
			h.openIdle(w.server.Addresses().Agent)
		}
	}
	for range 10 {
		k := w.registerClient(nstance.RoleOperator, "blue")
		_, err := k.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
	}
	w.connectReady(w.awaitMachine("blue"))
}

// TestAgentCallsAreLimited: reconnecting does not multiply what an agent may ask for.
func TestAgentCallsAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 2})
	ids := w.awaitMachines(2)
	h := w.registerAgent(ids[0])
	served, start := 0, time.Now()
	for range 10 {
		conn := h.dial(w.server.Addresses().Agent)
		for range 20 {
			_, err := apiv1.NewAgentServiceClient(conn).RenewCertificate(t.Context(), &apiv1.RenewCertificateRequest{})
			if err == nil || !strings.Contains(err.Error(), "calls too often") {
				served++
			}
		}
	}
	require.LessOrEqual(t, served, 60+int(time.Since(start).Seconds())+1)
	w.connectReady(ids[1])
}

// TestPeerCallsAreLimited: likewise those of another server.
func TestPeerCallsAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{opts: server.Options{Shared: true, Bind: server.Addresses{Peer: "127.0.0.1:0"}}})
	peer := w.peerService(w.issueServerCert(zone, cluster))
	call := func() error {
		stream, err := peer.Watch(t.Context(), &apiv1.WatchRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return wire.ErrorOf(err)
	}
	require.ErrorIs(t, call(), nstance.Invalid)
	require.Eventually(t, func() bool { return errors.Is(call(), nstance.Throttled) }, eventually, time.Millisecond)
}

// TestCertificatesAreLimited: an agent that comes back with other keys has no more
// certificates signed and logged than a bound.
func TestCertificatesAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{config: configWithFiles(1, "", red, `"web": {}`, `"c": {"kind": "certificate", "certificate": "web"}`, "")})
	h := w.registerAgent(w.awaitMachine(nstance.DefaultTenant))
	lines := func() (n int) {
		for _, o := range w.objectKeys("certlog/s1/") {
			n += strings.Count(o, "\n")
		}
		return n
	}
	refused := false
	for range 40 {
		k := h.connect().newFileAgent()
		k.key = pki.NewKey()
		k.reportFiles()
		begin := k.nextFileMessage(isBegin).GetFilesBegin()
		refused = refused || strings.Contains(begin.GetFiles()[0].GetError(), "more certificates signed")
	}
	require.True(t, refused)
	require.Positive(t, lines())
	require.LessOrEqual(t, lines(), 33)
}

// TestVariablesInCertifiedNames: a tenant's variable does not become a name in a
// certificate, but within the domains that the configuration permits, and never a
// wildcard.
func TestVariablesInCertifiedNames(t *testing.T) {
	t.Parallel()
	config := func(certificate, tenant string) string {
		return fmt.Sprintf(`{
	"cluster": {"id": "c1"},
	"shard": {"id": "s1", "provider": {"kind": "sim"}, "shutdown_timeout": "30s",
		"bind": {"http": "127.0.0.1:0", "registration": "127.0.0.1:0", "operator": "127.0.0.1:0", "agent": "127.0.0.1:0"}},
	"certificates": {"svc": {"common_name": "{{.Vars.service}}.internal", "dns_names": ["{{.Vars.service}}.internal"] %s}},
	"templates": {"vm": {"kind": "web", "arch": "amd64", "instance_type": "small", "userdata": {"content": "{{.Nonce}}"},
		"vars": {"service": "web"}, "files": {"svc.crt": {"kind": "certificate", "certificate": "svc"}}}},
	"tenants": {"shop": {"templates": ["vm"]}, "guest": {"templates": ["vm"] %s}},
	"groups": {"shop": {"pay": {"template": "vm", "size": 0, "vars": {"service": "payments"}}}, "guest": {"g": {"template": "vm", "size": 1}}}
	}`, certificate, tenant)
	}
	names := func(t *testing.T, w *world, service string) (names []string, err error) {
		t.Helper()
		if service != "" {
			_, err := w.registerClient(nstance.RoleOperator, "guest").operatorAPI().UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "g", Vars: &apiv1.Vars{Values: map[string]string{"service": service}}})
			if err != nil {
				return nil, wire.ErrorOf(err)
			}
		}
		k := w.registerAgent(w.awaitMachine("guest")).connect().newFileAgent()
		k.reportFiles()
		begin := k.nextFileMessage(isBegin).GetFilesBegin()
		if text := begin.GetFiles()[0].GetError(); text != "" {
			return nil, nstance.Errorf(nstance.Denied, "%s", text)
		}
		k.finishSet(begin)
		leaf := k.leafCertificate(begin)
		return append(leaf.DNSNames, leaf.Subject.CommonName), nil
	}
	t.Run("the configuration's own are certified", func(t *testing.T) {
		got, err := names(t, newWorld(t, setup{config: config("", "")}), "")
		require.NoError(t, err)
		require.Equal(t, []string{"web.internal", "web.internal"}, got)
	})
	for what, c := range map[string][3]string{
		"without a domain":           {"", "", "payments"},
		"as a wildcard":              {`, "dns_suffix": "internal"`, "", "*"},
		"within another domain":      {`, "dns_suffix": "guest.internal"`, "", "payments"},
		"beyond the tenant's domain": {`, "dns_suffix": "internal"`, `, "certificate_domains": ["guest.internal"]`, "payments"},
	} {
		t.Run("a tenant's is refused "+what, func(t *testing.T) {
			got, err := names(t, newWorld(t, setup{config: config(c[0], c[1])}), c[2])
			require.Error(t, err, "certified as %v", got)
		})
	}
	t.Run("a tenant's is certified within its domain", func(t *testing.T) {
		got, err := names(t, newWorld(t, setup{config: config("", `, "certificate_domains": ["guest.internal"]`)}), "a.guest")
		require.NoError(t, err)
		require.Equal(t, []string{"a.guest.internal", "a.guest.internal"}, got)
	})
}

// blockedWrites is a store whose writes below a prefix wait.
type blockedWrites struct {
	storage.Store
	prefix  string
	mu      sync.Mutex
	release chan struct{} // nil: nothing waits
}

func (s *blockedWrites) block() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release = make(chan struct{})
	return sync.OnceFunc(func() { close(s.release) })
}

func (s *blockedWrites) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	s.mu.Lock()
	wait := s.release
	s.mu.Unlock()
	if wait != nil && strings.HasPrefix(key, s.prefix) {
		select {
		case <-wait:
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
	return s.Store.PutIfMatch(ctx, key, data, v)
}

// TestTenantsAreServedBesideOthers: a tenant whose calls all wait for storage keeps no
// other waiting, and is refused calls that would only wait too.
func TestTenantsAreServedBesideOthers(t *testing.T) {
	t.Parallel()
	store := &blockedWrites{Store: storage.NewMemory(), prefix: "groups/"}
	w := newWorld(t, setup{webSize: 1, store: store, config: replaceOnce(t, fmt.Sprintf(configuration, "", 1), `"templates": {`, `"tenants": {"blue": {"templates": ["vm"]}}, "templates": {`)})
	id := w.awaitMachine(nstance.DefaultTenant)
	require.Eventually(t, func() bool { return groupsKnown(w.server) }, eventually, time.Millisecond)
	other := w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI()
	blue := w.registerClient(nstance.RoleOperator, "blue")
	_, err := blue.operatorAPI().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
	require.NoError(t, err)
	release := store.block()
	defer release()
	const calls, served = 200, 16 + 128
	ended := make(chan error, calls)
	for range 4 {
		api := blue.operatorAPI()
		for range calls / 4 {
			go func() {
				_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "db", Vars: &apiv1.Vars{Values: map[string]string{"colour": "green"}}})
				ended <- err
			}()
		}
	}
	for range calls - served {
		require.ErrorIs(t, wire.ErrorOf(receive(t, ended)), nstance.Throttled)
	}
	_, err = other.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
	require.NoError(t, err)
	_, err = other.ListEvents(t.Context(), &apiv1.ListEventsRequest{})
	require.NoError(t, err)
	_, err = other.Plan(t.Context(), &apiv1.PlanRequest{})
	require.NoError(t, err)
	_, err = w.admin().ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
	require.NoError(t, err)
	w.connectReady(id)
	require.Empty(t, ended)
	release()
	for range served {
		require.NoError(t, receive(t, ended))
	}
}

// TestNothingControlsATerminal: what an agent says of its files has no control characters
// in the journal and in answers.
func TestNothingControlsATerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{config: configWithFiles(1, "", red, ``, `"motd": {"kind": "string", "content": "hello"}`, "")})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.registerAgent(id).connect().newFileAgent()
	k.reportFiles()
	begin := k.nextFileMessage(isBegin).GetFilesBegin()
	k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FilesApplied{FilesApplied: &apiv1.FilesApplied{
		Hash: begin.GetHash(), Error: "\x1b[31mgarbage\nof \u009b31m an agent", Files: []*apiv1.FileStatus{{Path: "motd", Error: "\x1b]0;x\x07"}},
	}}})
	e := w.awaitEvent(eventtype.FilesFailed, id)
	require.Equal(t, " [31mgarbage of  31m an agent", e.Error)
	resp, err := w.admin().GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(id)})
	require.NoError(t, err)
	require.NotContains(t, prototext.Format(resp), `\x1b`)
	require.NotContains(t, prototext.Format(resp), `\033`)
}
