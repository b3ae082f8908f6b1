package server_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"github.com/nstance-go/nstance/internal/version"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// A countingStore counts a server's reads of the lease.
type countingStore struct {
	*storagetest.Faulty
	leaseReads atomic.Int64
}

func (c *countingStore) Get(ctx context.Context, key string) (storage.Object, error) {
	if key == layout.LeaseKey(zone) {
		c.leaseReads.Add(1)
	}
	return c.Faulty.Get(ctx, key)
}

// A serverPair is two servers of one shard: first leads, second is standby.
type serverPair struct {
	first, second *world
	mem           *storage.Memory
	secondStore   *countingStore
	cloud         *simcloud.Cloud
}

// newServerPair starts both. advertise is the first server's advertised peer
// address. Empty means its own address.
func newServerPair(t *testing.T, settings string, advertise string) *serverPair {
	t.Helper()
	c := &serverPair{mem: storage.NewMemory(), cloud: simcloud.New(nil)}
	t.Cleanup(c.cloud.Close)
	c.secondStore = &countingStore{Faulty: storagetest.NewFaulty(c.mem)}
	shared := server.Options{Shared: true, Bind: server.Addresses{Peer: "127.0.0.1:0"}}
	first := shared
	first.Advertise.Peer = advertise
	c.first = newWorld(t, setup{store: c.mem, provider: c.cloud.At("a"), shard: settings, opts: first})
	c.second = newWorld(t, setup{store: c.secondStore, provider: c.cloud.At("b"), shard: settings, opts: shared, noWait: true})
	return c
}

// awaitPeerStream waits until the second server has a peer stream to the first.
func (c *serverPair) awaitPeerStream() {
	c.first.Helper()
	require.Eventually(c.first, func() bool { return server.Standbys(c.first.server) == 1 }, eventually, time.Millisecond)
}

// awaitRenewals waits for further renewals of the lease.
func (c *serverPair) awaitRenewals(times int) {
	c.first.Helper()
	for was := c.leaseVersion(); times > 0; times-- {
		require.Eventually(c.first, func() bool { return c.leaseVersion() != was }, eventually, 10*time.Millisecond)
		was = c.leaseVersion()
	}
}

func (c *serverPair) leaseVersion() storage.Version {
	obj, err := c.mem.Get(c.first.Context(), layout.LeaseKey(zone))
	require.NoError(c.first, err)
	return obj.Version
}

// A cuttableRelay forwards connections to a port and can be cut. It keeps its own port all
// the while: another test could take it.
type cuttableRelay struct {
	addr   string
	target atomic.Pointer[string]

	mu    sync.Mutex
	isCut bool
	conns []net.Conn
	wg    sync.WaitGroup
}

func newCuttableRelay(t *testing.T) *cuttableRelay {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &cuttableRelay{addr: lis.Addr().String()}
	r.wg.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.copyBothWays(conn) })
		}
	})
	t.Cleanup(func() { lis.Close(); r.cut(); r.wg.Wait() })
	return r
}

func (r *cuttableRelay) copyBothWays(near net.Conn) {
	far, err := net.Dial("tcp", *r.target.Load())
	if err != nil {
		near.Close()
		return
	}
	r.mu.Lock()
	r.conns = append(r.conns, near, far)
	if r.isCut {
		r.closeAll()
	}
	r.mu.Unlock()
	r.wg.Go(func() { io.Copy(far, near); far.Close() })
	io.Copy(near, far)
	near.Close()
}

func (r *cuttableRelay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isCut = true
	r.closeAll()
}

func (r *cuttableRelay) restore() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isCut = false
}

func (r *cuttableRelay) closeAll() {
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

// shake makes a handshake without a certificate, which a server refuses only after it.
func shake(addr string) error {
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err == nil {
		err = conn.Close()
	}
	return err
}

func TestStandby(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	t.Run("reads no lease during the peer stream and takes over without a read", func(t *testing.T) {
		t.Parallel()
		c := newServerPair(t, `"election": {"ttl": "4s"},`, "")
		c.awaitPeerStream()
		c.awaitRenewals(1)
		c.secondStore.Reset()
		looked := c.secondStore.leaseReads.Load()
		c.awaitRenewals(2)
		require.Zero(t, c.secondStore.Count(""))
		require.NoError(t, c.first.stopServer())
		c.second.awaitLeading()
		require.Equal(t, looked, c.secondStore.leaseReads.Load())
	})
	t.Run("reads the lease while the stream is broken, does not take over, and reconnects", func(t *testing.T) {
		t.Parallel()
		way := newCuttableRelay(t)
		way.target.Store(new("127.0.0.1:1")) // no server has this port
		c := newServerPair(t, `"election": {"ttl": "4s"},`, way.addr)
		way.target.Store(new(c.first.server.Addresses().Peer))
		c.awaitPeerStream()
		way.cut()
		before := c.secondStore.leaseReads.Load()
		require.Eventually(t, func() bool { return c.secondStore.leaseReads.Load() >= before+5 }, eventually, time.Millisecond)
		require.Equal(t, 503, c.second.getPage("/readyz").StatusCode)
		require.Equal(t, 200, c.first.getPage("/readyz").StatusCode)
		way.restore()
		c.awaitPeerStream()
		c.awaitRenewals(1)
		before = c.secondStore.leaseReads.Load()
		c.awaitRenewals(1)
		require.Equal(t, before, c.secondStore.leaseReads.Load())
	})
	t.Run("closes connections of agents before their handshake, until it leads", func(t *testing.T) {
		c := newServerPair(t, "", "")
		c.awaitPeerStream()
		require.Error(t, shake(c.second.server.Addresses().Agent))
		require.NoError(t, shake(c.second.server.Addresses().Registration)) // names the leader
		require.NoError(t, c.first.stopServer())
		c.second.awaitLeading()
		require.NoError(t, shake(c.second.server.Addresses().Agent))
	})
	t.Run("closes connections of those that register too, while it knows of no leader", func(t *testing.T) {
		inner := storage.NewMemory()
		require.NoError(t, newWorld(t, setup{store: inner}).stopServer())
		store := storagetest.NewFaulty(inner)
		store.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: layout.LeaseKey(zone), Times: -1})
		w := newWorld(t, setup{store: store, noWait: true})
		at := w.server.Addresses()
		require.Error(t, shake(at.Agent))
		require.Error(t, shake(at.Registration))
		require.NoError(t, shake(at.Operator))
		store.ClearFaults()
		w.awaitLeading()
		require.NoError(t, shake(at.Agent))
		require.NoError(t, shake(at.Registration))
	})
	t.Run("names the leader", func(t *testing.T) {
		c := newServerPair(t, "", "")
		c.awaitPeerStream()
		err := c.second.watchPeer(c.second.issueServerCert(zone, cluster))
		require.ErrorIs(t, err, nstance.Unavailable)
		require.ErrorContains(t, err, "ask the leader, at "+c.first.server.Addresses().Operator)
		h := c.first.registerClient(nstance.RoleAdmin, nstance.DefaultTenant)
		_, err = apiv1.NewOperatorServiceClient(h.dial(c.second.server.Addresses().Operator)).ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.ErrorContains(t, err, "ask the leader, at "+c.first.server.Addresses().Operator)
		named, ok := errors.AsType[*nstance.Error](wire.ErrorOf(err))
		require.True(t, ok)
		require.Equal(t, c.first.server.Addresses().Operator, named.Leader)
	})
	t.Run("the leader shows the standby, and the standby the leader", func(t *testing.T) {
		c := newServerPair(t, "", "")
		c.awaitPeerStream()
		first, second := c.first.server.Addresses().Operator, c.second.server.Addresses().Operator
		got, err := c.first.registerClient(nstance.RoleAdmin, nstance.DefaultTenant).operatorAPI().GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
		require.NoError(t, err)
		require.Equal(t, first, got.GetLeaderAddress())
		require.Len(t, got.GetStandbys(), 1)
		require.Equal(t, second, got.GetStandbys()[0].GetAddress())
		require.Equal(t, version.Software, got.GetStandbys()[0].GetVersion())
		require.WithinDuration(t, time.Now(), wire.TimeOf(got.GetStandbys()[0].GetSince()), time.Minute)

		page := c.first.status()
		require.Equal(t, first, page.LeaderAddress)
		require.Len(t, page.Standbys, 1)
		require.Equal(t, second, page.Standbys[0].Address)
		page = c.second.status()
		require.False(t, page.Leader)
		require.Equal(t, first, page.LeaderAddress)
		require.Empty(t, page.Standbys)
	})
}

// issueServerCert returns a certificate of the cluster's authority for a server.
func (w *world) issueServerCert(shard nstance.ShardID, cluster nstance.ClusterID) *tls.Certificate {
	w.Helper()
	cert, err := w.keys.Identity.Server(shard, cluster, time.Hour, time.Now())
	require.NoError(w, err)
	return cert
}

// peerService returns the peer service for a client with the certificate.
func (w *world) peerService(cert *tls.Certificate) apiv1.PeerServiceClient {
	h := &client{w: w, cert: cert}
	return apiv1.NewPeerServiceClient(h.dial(w.server.Addresses().Peer))
}

// watchPeer opens a peer stream and returns nil after the first announcement.
func (w *world) watchPeer(cert *tls.Certificate) error {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), eventually)
	defer cancel()
	stream, err := w.peerService(cert).Watch(ctx, &apiv1.WatchRequest{Server: "test"})
	if err == nil {
		_, err = stream.Recv()
	}
	return wire.ErrorOf(err)
}

func TestPeerPort(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1, opts: server.Options{Shared: true, Bind: server.Addresses{Peer: "127.0.0.1:0"}}})
	other, err := keyring.NewAuthority(keyring.Identity, time.Now())
	require.NoError(t, err)
	foreign, err := other.Server(zone, cluster, time.Hour, time.Now())
	require.NoError(t, err)

	t.Run("admits servers of the shard", func(t *testing.T) {
		require.NoError(t, w.watchPeer(w.issueServerCert(zone, cluster)))
	})
	for name, cert := range map[string]*tls.Certificate{
		"strangers":                    nil,
		"servers of another shard":     w.issueServerCert("s2", cluster),
		"servers of another cluster":   w.issueServerCert(zone, "c2"),
		"servers of another authority": foreign,
		"agents":                       w.registerAgent(w.awaitMachine(nstance.DefaultTenant)).cert,
		"operators":                    w.registerClient(nstance.RoleOperator, "blue").cert,
		"administrators":               w.registerClient(nstance.RoleAdmin, "default").cert,
	} {
		t.Run("does not admit "+name, func(t *testing.T) {
			err := w.watchPeer(cert)
			require.ErrorIs(t, err, nstance.Unavailable)
			require.NotContains(t, err.Error(), "this server", "no request was made")
		})
	}
	t.Run("other ports do not admit servers", func(t *testing.T) {
		h := &client{w: w, cert: w.issueServerCert(zone, cluster)}
		_, err := apiv1.NewOperatorServiceClient(h.dial(w.server.Addresses().Operator)).ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.Equal(t, codes.Unavailable, status.Code(err), "not let in: %v", err)
		stream, err := apiv1.NewAgentServiceClient(h.dial(w.server.Addresses().Agent)).Connect(t.Context())
		if err == nil {
			_, err = stream.Recv()
		}
		require.Equal(t, codes.Unavailable, status.Code(err), "nor there: %v", err)
	})
	t.Run("requires a client certificate", func(t *testing.T) {
		for _, name := range []string{"", string(make([]byte, 65))} {
			stream, err := w.peerService(w.issueServerCert(zone, cluster)).Watch(t.Context(), &apiv1.WatchRequest{Server: name})
			require.NoError(t, err)
			_, err = stream.Recv()
			require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid)
		}
	})
	t.Run("announces the release before the stream ends", func(t *testing.T) {
		stream, err := w.peerService(w.issueServerCert(zone, cluster)).Watch(t.Context(), &apiv1.WatchRequest{Server: "test"})
		require.NoError(t, err)
		first, err := stream.Recv()
		require.NoError(t, err)
		require.EqualValues(t, 1, first.GetEpoch())
		ended := make(chan error, 1)
		go func() { ended <- w.stopServer() }()
		var last *apiv1.WatchResponse
		for err == nil {
			var m *apiv1.WatchResponse
			if m, err = stream.Recv(); err == nil {
				last = m
			}
		}
		require.ErrorIs(t, err, io.EOF)
		require.True(t, last.GetReleased())
		obj, err := w.store.Get(t.Context(), layout.LeaseKey(zone))
		require.NoError(t, err)
		require.Contains(t, string(obj.Data), `"released":true`)
		require.EqualValues(t, obj.Version, last.GetVersion())
		require.NoError(t, receive(t, ended))
	})
}

// TestLeaderAddress moves the leader's address between two servers.
func TestLeaderAddress(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	const address = "10.0.0.100"
	c := newServerPair(t, `"election": {"ttl": "1s"}, "leader_address": "`+address+`",`, "")
	at := func(name string) func() bool {
		mover := c.cloud.At(name).(nstance.AddressMover)
		return func() bool { here, _ := mover.HoldsAddress(t.Context(), address); return here }
	}
	require.Eventually(t, at("a"), eventually, time.Millisecond)
	c.awaitPeerStream()

	require.NoError(t, c.cloud.At("c").(nstance.AddressMover).TakeAddress(t.Context(), address))
	c.first.awaitEvent(nstance.EventAlarm, "")
	require.Eventually(t, at("a"), eventually, time.Millisecond, "it is accepted again")

	c.cloud.Inject(simcloud.Fault{Op: simcloud.OpTakeAddress, ID: "a", Times: -1, Code: nstance.Denied})
	require.NoError(t, c.cloud.At("c").(nstance.AddressMover).TakeAddress(t.Context(), address))
	require.Eventually(t, func() bool { return c.first.attentionOfKind("leader_address").Count > 0 }, eventually, time.Millisecond)
	require.Eventually(t, at("b"), eventually, time.Millisecond, "a standby may do better")
	require.True(t, c.first.hasEvent(func(e nstance.Event) bool {
		return e.Type == nstance.EventAlarm && e.Code == nstance.Denied && e.Error != ""
	}), "the alarm says what the cloud answered")
	c.second.awaitLeading()
	require.Equal(t, 503, c.first.getPage("/readyz").StatusCode)
	require.Zero(t, c.second.attentionOfKind("leader_address"))
	require.Eventually(t, func() bool { return server.Standbys(c.second.server) == 1 }, eventually, time.Millisecond)
	require.False(t, server.Relief(c.second.server), "the other has failed before")
}

func TestLeaderAddressNeedsProviderAbility(t *testing.T) {
	t.Parallel()
	var conf source
	conf.set(fmt.Sprintf(configuration, `"leader_address": "10.0.0.100",`, 0), nil)
	cloud := simcloud.New(nil)
	defer cloud.Close()
	_, err := server.New(t.Context(), storage.NewMemory(), struct{ nstance.Provider }{cloud}, conf.read, nil)
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, "shard.leader_address: provider sim has no addresses that move")
}
