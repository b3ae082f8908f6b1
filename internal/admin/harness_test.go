package admin_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/feed"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/session"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/storage"
)

const (
	cluster = nstance.ClusterID("prod")
	shard   = nstance.ShardID("eu1a")
)

// Instances with IDs that stay the same.
const (
	webA   = nstance.InstanceID("web0400000001r010000000000004")
	webB   = nstance.InstanceID("web0400000001r010000000000008")
	webNew = nstance.InstanceID("web0400000001r01000000000000c")
	dbA    = nstance.InstanceID("dbs0400000001r01000000000000g")
	gone   = nstance.InstanceID("web0400000001r01000000000000m")
)

// A world is a shard's server as nstance-admin sees it: its registration and
// operator services behind real sockets and certificates, with answers that
// the test decides.
type world struct {
	apiv1.UnimplementedOperatorServiceServer
	apiv1.UnimplementedRegistrationServiceServer
	t            testing.TB
	keys         *keyring.Keys
	operator     string // addresses
	registration string
	dir          string // an identity
	hub          *feed.Feed[*apiv1.Event]

	mu        sync.Mutex
	groups    []*apiv1.Group
	instances map[string]*apiv1.Instance
	orphans   []*apiv1.Orphan
	console   []byte
	stories   map[string][]*apiv1.Event
	pageSize  int              // of events
	fail      map[string]error // by method
	calls     []string         // what changes things
	callers   []string         // serials of the certificates that were shown
	retired   string           // serial of the certificate that watchers are asked to renew
	used      map[string]string
	kick      chan struct{} // closed to end all watches
	onInject  func(id, eventID string)
	config    *apiv1.GetConfigStatusResponse
	problems  []string
	plan      func(*apiv1.PlanRequest) *apiv1.PlanResponse
	touched   chan struct{}  // closed when set has changed something
	version   uint64         // of the groups
	asks      map[string]int // calls by method
	standby   bool
	leader    string        // whom it names as a standby
	asked     proto.Message // the last request that describes something
	hang      chan struct{} // not nil: calls wait for it
	onStatus  func()        // before GetShardStatus answers
	phases    []string      // of the identity keys
	refusals  []error       // of the next calls of RotateKey
	requests  []proto.Message
	rates     []*apiv1.InterruptionRate
	change    func(*apiv1.Credential) // of each certificate that is given
	status    func(*apiv1.GetShardStatusResponse)
	reclaims  []*apiv1.Interruption // nil: one of webB
	written   string                // the configuration; empty: one without settings
	unchanged bool                  // changes change nothing
	life      *apiv1.Life           // of every instance
	unread    []string              // what the ledger cannot read
	listSize  int                   // of a page of groups, instances, orphans and operators; 0: all of them
	endless   bool                  // the ledger's second page leads to itself
	omitted   int32                 // groups that an answer has no room for
	cut       func()                // ends the next watch of groups within its snapshot
	forgets   bool                  // a watch of groups that is resumed begins anew
}

func newWorld(t testing.TB) *world {
	keys, err := keyring.Bootstrap(t.Context(), vault.New(storage.NewMemory(), nil), time.Now().Add(-30*24*time.Hour))
	require.NoError(t, err)
	return newWorldWith(t, keys)
}

func newWorldWith(t testing.TB, keys *keyring.Keys) *world {
	w := &world{
		t: t, keys: keys, hub: feed.New[*apiv1.Event](64), instances: map[string]*apiv1.Instance{},
		stories: map[string][]*apiv1.Event{}, pageSize: 1000, fail: map[string]error{}, used: map[string]string{}, kick: make(chan struct{}),
		touched: make(chan struct{}), asks: map[string]int{},
		config: &apiv1.GetConfigStatusResponse{Digest: "sha256:abc"},
	}
	cert, err := keys.Identity.Server(shard, cluster, time.Hour, time.Now())
	require.NoError(t, err)
	get := func() (*tls.Certificate, error) { return cert, nil }
	w.operator = w.serve(pki.ServerTLS(get, keys.Identity.Pool(), nstance.RoleAdmin, nstance.RoleOperator), func(s *grpc.Server) {
		apiv1.RegisterOperatorServiceServer(s, w)
	})
	w.registration = w.serve(pki.RegistrationTLS(get), func(s *grpc.Server) { apiv1.RegisterRegistrationServiceServer(s, w) })
	w.dir = filepath.Join(t.TempDir(), "identity")
	require.NoError(t, admin.SaveIdentity(w.dir, w.identity(time.Now())))
	return w
}

func (w *world) serve(cfg *tls.Config, register func(*grpc.Server)) string {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(w.t, err)
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)), grpc.UnaryInterceptor(w.unary), grpc.KeepaliveEnforcementPolicy(session.Enforcement()))
	register(s)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(lis) })
	w.t.Cleanup(func() { s.Stop(); wg.Wait() })
	return lis.Addr().String()
}

// identity issues an administrator's identity as of a time.
func (w *world) identity(at time.Time) admin.Identity {
	key := pki.NewKey()
	return admin.Identity{
		Servers: []string{w.operator}, Cluster: cluster, Shard: shard, Key: key,
		Chain: [][]byte{w.issue(key.Public().(ed25519.PublicKey), nstance.RoleAdmin, at)}, Roots: [][]byte{w.keys.Identity.Certificate()},
	}
}

func (w *world) issue(key ed25519.PublicKey, role nstance.Role, at time.Time) []byte {
	issued, err := w.keys.Identity.Issue(keyring.Template{
		Subject: "admin-0123456789abcdef", Tenant: nstance.DefaultTenant, Role: role, Key: key, Lifetime: 24 * time.Hour, Now: at,
	})
	require.NoError(w.t, err)
	return issued.Certificate
}

func (w *world) credential(der []byte) *apiv1.Credential {
	certs, err := pki.ParseCertificates(pki.MarshalCertificates(der))
	require.NoError(w.t, err)
	out := wire.Credential(nstance.Credential{
		Chain: [][]byte{der}, Roots: [][]byte{w.keys.Identity.Certificate()}, Serial: pki.SerialOf(certs[0]), NotAfter: certs[0].NotAfter,
	})
	if w.change != nil {
		w.change(out)
	}
	return out
}

// unary fails a call as the test asks, and classifies errors as a server does.
func (w *world) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	w.mu.Lock()
	err, standby, leader, hang := w.fail[method], w.standby, w.leader, w.hang
	w.callers = append(w.callers, serialOf(ctx))
	w.asks[method]++
	if m, ok := req.(proto.Message); ok {
		w.requests = append(w.requests, m)
	}
	w.mu.Unlock()
	if standby {
		err = &nstance.Error{Code: nstance.Unavailable, Msg: "this server does not lead its shard at present", Leader: leader}
	}
	if err != nil {
		return nil, wire.Status(err)
	}
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	resp, err := next(ctx, req)
	return resp, wire.Status(err)
}

func (w *world) did(call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, call)
}

// done returns what has been changed since the last call.
func (w *world) done() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	calls := w.calls
	w.calls = nil
	return calls
}

func (w *world) set(fn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn()
	w.version++
	close(w.touched)
	w.touched = make(chan struct{})
}

// A result is how a run ended. Progress messages are kept
// apart, since a busy machine makes everything long.
type result struct {
	code                  int
	out, errors, progress string
}

// run runs nstance-admin with the world's identity.
func (w *world) run(args ...string) result { return w.runWith("", args...) }

func (w *world) runWith(stdin string, args ...string) result {
	return run(w.t, strings.NewReader(stdin), map[string]string{"NSTANCE_ADMIN_DIR": w.dir}, args...)
}

func run(t testing.TB, stdin io.Reader, env map[string]string, args ...string) result {
	var out, errs bytes.Buffer
	code := admin.Main(t.Context(), storage.Open, args, stdin, &out, &errs, func(k string) string { return env[k] })
	r := result{code: code, out: out.String()}
	for line := range strings.Lines(errs.String()) {
		if strings.HasSuffix(line, " ...\n") {
			r.progress += line
			continue
		}
		r.errors += line
	}
	return r
}

// page returns a page of a list, and what the next one is called.
func page[T any](w *world, all []T, name string) ([]T, string) {
	from, _ := strconv.Atoi(name)
	to := from + w.listSize
	if w.listSize == 0 || to >= len(all) {
		return all[from:], ""
	}
	return all[from:to], strconv.Itoa(to)
}

// event publishes an event and adds it to its instance's story.
func (w *world) event(e nstance.Event) {
	if e.Time.IsZero() {
		e.Time = time.Now().UTC()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	m := wire.Event(e)
	m.Seq = uint64(w.hub.Publish(wire.Event(e)))
	w.stories[m.GetInstance()] = append(w.stories[m.GetInstance()], m)
}
