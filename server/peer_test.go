package server_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
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
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/server/config"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// counted counts what one server asks of the storage.
type counted struct {
	*storagetest.Faulty
	lease atomic.Int64 // reads of the lease
}

func (c *counted) Get(ctx context.Context, key string) (storage.Object, error) {
	if key == storage.LeaseKey(zone) {
		c.lease.Add(1)
	}
	return c.Faulty.Get(ctx, key)
}

// A couple is two servers of one shard: first leads, second stands by.
type couple struct {
	first, second *world
	mem           *storage.Memory
	asks          *counted // of the second
	cloud         *simcloud.Cloud
}

// newCouple starts both. advertise is where others reach the first's peer port;
// empty: where it is.
func newCouple(t *testing.T, settings string, advertise string) *couple {
	t.Helper()
	c := &couple{mem: storage.NewMemory(), cloud: simcloud.New(nil)}
	t.Cleanup(c.cloud.Close)
	c.asks = &counted{Faulty: storagetest.NewFaulty(c.mem)}
	shared := server.Options{Shared: true, Bind: config.Bind{Peer: "127.0.0.1:0"}}
	first := shared
	first.Advertise.Peer = config.DialAddr(advertise)
	c.first = newWorld(t, setup{store: c.mem, over: c.cloud.At("a"), shard: settings, opts: first})
	c.second = newWorld(t, setup{store: c.asks, over: c.cloud.At("b"), shard: settings, opts: shared, quiet: true})
	return c
}

// hears waits until the second server listens to the first.
func (c *couple) hears() {
	c.first.Helper()
	require.Eventually(c.first, func() bool { return server.Standbys(c.first.server) == 1 }, eventually, time.Millisecond)
}

// renewed waits until the lease has been renewed so many times.
func (c *couple) renewed(times int) {
	c.first.Helper()
	for was := c.version(); times > 0; times-- {
		require.Eventually(c.first, func() bool { return c.version() != was }, eventually, 10*time.Millisecond)
		was = c.version()
	}
}

func (c *couple) version() storage.Version {
	obj, err := c.mem.Get(c.first.Context(), storage.LeaseKey(zone))
	require.NoError(c.first, err)
	return obj.Version
}

// A relay is a way to a port that can be cut.
type relay struct {
	addr string
	to   atomic.Pointer[string]

	mu    sync.Mutex
	lis   net.Listener
	conns []net.Conn
	wg    sync.WaitGroup
}

func newRelay(t *testing.T) *relay {
	r := &relay{addr: "127.0.0.1:0"}
	r.mend(t)
	r.addr = r.lis.Addr().String()
	t.Cleanup(func() { r.cut(); r.wg.Wait() })
	return r
}

func (r *relay) mend(t *testing.T) {
	lis, err := net.Listen("tcp", r.addr)
	require.NoError(t, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lis = lis
	r.wg.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.carry(conn) })
		}
	})
}

func (r *relay) carry(near net.Conn) {
	far, err := net.Dial("tcp", *r.to.Load())
	if err != nil {
		near.Close()
		return
	}
	r.mu.Lock()
	r.conns = append(r.conns, near, far)
	r.mu.Unlock()
	r.wg.Go(func() { io.Copy(far, near); far.Close() })
	io.Copy(near, far)
	near.Close()
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lis.Close()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

func TestStandby(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	t.Run("reads nothing while it hears the leader, and takes over without a look", func(t *testing.T) {
		t.Parallel()
		c := newCouple(t, `"election": {"ttl": "4s"},`, "")
		c.hears()
		c.renewed(1)
		c.asks.Reset()
		looked := c.asks.lease.Load()
		c.renewed(2)
		require.Zero(t, c.asks.Count(""))
		require.NoError(t, c.first.stop())
		c.second.leads()
		require.Equal(t, looked, c.asks.lease.Load())
	})
	t.Run("reads the lease while the stream is broken, takes nothing, and listens again", func(t *testing.T) {
		t.Parallel()
		way := newRelay(t)
		way.to.Store(new("127.0.0.1:1")) // no server listens there
		c := newCouple(t, `"election": {"ttl": "4s"},`, way.addr)
		way.to.Store(new(c.first.server.Addresses().Peer))
		c.hears()
		way.cut()
		before := c.asks.lease.Load()
		require.Eventually(t, func() bool { return c.asks.lease.Load() >= before+5 }, eventually, time.Millisecond)
		require.Equal(t, 503, c.second.get("/readyz").StatusCode)
		require.Equal(t, 200, c.first.get("/readyz").StatusCode)
		way.mend(t)
		c.hears()
		c.renewed(1)
		before = c.asks.lease.Load()
		c.renewed(1)
		require.Equal(t, before, c.asks.lease.Load())
	})
	t.Run("names the leader", func(t *testing.T) {
		c := newCouple(t, "", "")
		c.hears()
		err := c.second.watches(c.second.serverCert(zone, cluster))
		require.ErrorIs(t, err, nstance.Unavailable)
		require.ErrorContains(t, err, "ask the leader, at "+c.first.server.Addresses().Operator)
		h := c.first.client(nstance.RoleAdmin, nstance.DefaultTenant)
		_, err = apiv1.NewOperatorServiceClient(h.dial(c.second.server.Addresses().Operator)).ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.ErrorContains(t, err, "ask the leader, at "+c.first.server.Addresses().Operator)
		named, ok := errors.AsType[*nstance.Error](wire.ErrorOf(err))
		require.True(t, ok)
		require.Equal(t, c.first.server.Addresses().Operator, named.Leader)
	})
	t.Run("is seen at the leader, as the leader is at the standby", func(t *testing.T) {
		c := newCouple(t, "", "")
		c.hears()
		first, second := c.first.server.Addresses().Operator, c.second.server.Addresses().Operator
		got, err := c.first.client(nstance.RoleAdmin, nstance.DefaultTenant).api().GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
		require.NoError(t, err)
		require.Equal(t, first, got.GetLeaderAddress())
		require.Len(t, got.GetStandbys(), 1)
		require.Equal(t, second, got.GetStandbys()[0].GetAddress())
		require.Equal(t, server.Version, got.GetStandbys()[0].GetVersion())
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

// serverCert returns a certificate of the cluster's authority for a server.
func (w *world) serverCert(shard nstance.ShardID, cluster nstance.ClusterID) *tls.Certificate {
	w.Helper()
	cert, err := w.keys.Identity.Server(shard, cluster, time.Hour, time.Now())
	require.NoError(w, err)
	return cert
}

// peer returns the peers' service for a client with the certificate.
func (w *world) peer(cert *tls.Certificate) apiv1.PeerServiceClient {
	h := &holder{w: w, cert: cert}
	return apiv1.NewPeerServiceClient(h.dial(w.server.Addresses().Peer))
}

// watches returns why there is no announcement; nil: there is one.
func (w *world) watches(cert *tls.Certificate) error {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), eventually)
	defer cancel()
	stream, err := w.peer(cert).Watch(ctx, &apiv1.WatchRequest{Server: "test"})
	if err == nil {
		_, err = stream.Recv()
	}
	return wire.ErrorOf(err)
}

func TestPeerPort(t *testing.T) {
	w := newWorld(t, setup{size: 1, opts: server.Options{Shared: true, Bind: config.Bind{Peer: "127.0.0.1:0"}}})
	other, err := registration.NewAuthority(registration.Identity, time.Now())
	require.NoError(t, err)
	foreign, err := other.Server(zone, cluster, time.Hour, time.Now())
	require.NoError(t, err)

	t.Run("lets servers of the shard in", func(t *testing.T) {
		require.NoError(t, w.watches(w.serverCert(zone, cluster)))
	})
	for name, cert := range map[string]*tls.Certificate{
		"strangers":                    nil,
		"servers of another shard":     w.serverCert("s2", cluster),
		"servers of another cluster":   w.serverCert(zone, "c2"),
		"servers of another authority": foreign,
		"agents":                       w.agent(w.machine(nstance.DefaultTenant)).cert,
		"operators":                    w.client(nstance.RoleOperator, "blue").cert,
		"administrators":               w.client(nstance.RoleAdmin, "default").cert,
	} {
		t.Run("does not let in "+name, func(t *testing.T) {
			err := w.watches(cert)
			require.ErrorIs(t, err, nstance.Unavailable)
			require.NotContains(t, err.Error(), "this server", "it was not even asked")
		})
	}
	t.Run("is the only one for servers", func(t *testing.T) {
		h := &holder{w: w, cert: w.serverCert(zone, cluster)}
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
			stream, err := w.peer(w.serverCert(zone, cluster)).Watch(t.Context(), &apiv1.WatchRequest{Server: name})
			require.NoError(t, err)
			_, err = stream.Recv()
			require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid)
		}
	})
	t.Run("tells of the release before the stream ends", func(t *testing.T) {
		stream, err := w.peer(w.serverCert(zone, cluster)).Watch(t.Context(), &apiv1.WatchRequest{Server: "test"})
		require.NoError(t, err)
		first, err := stream.Recv()
		require.NoError(t, err)
		require.EqualValues(t, 1, first.GetEpoch())
		ended := make(chan error, 1)
		go func() { ended <- w.stop() }()
		var last *apiv1.WatchResponse
		for err == nil {
			var m *apiv1.WatchResponse
			if m, err = stream.Recv(); err == nil {
				last = m
			}
		}
		require.ErrorIs(t, err, io.EOF)
		require.True(t, last.GetReleased())
		obj, err := w.store.Get(t.Context(), storage.LeaseKey(zone))
		require.NoError(t, err)
		require.Contains(t, string(obj.Data), `"released":true`)
		require.EqualValues(t, obj.Version, last.GetVersion())
		require.NoError(t, receive(t, ended))
	})
}

// TestLeaderAddress is the way of the address through two servers.
func TestLeaderAddress(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	const address = "10.0.0.100"
	c := newCouple(t, `"election": {"ttl": "1s"}, "leader_address": "`+address+`",`, "")
	at := func(name string) func() bool {
		return func() bool { have, _ := c.cloud.AddressAt(address); return have == name }
	}
	require.Eventually(t, at("a"), eventually, time.Millisecond)
	c.hears()

	c.cloud.ReleaseAddress(address)
	c.first.await(nstance.EventAlarm, "")
	require.Eventually(t, at("a"), eventually, time.Millisecond, "it is taken again")

	c.cloud.Inject(simcloud.Fault{Op: simcloud.OpTakeAddress, ID: "a", Times: -1, Code: nstance.Denied})
	c.cloud.ReleaseAddress(address)
	require.Eventually(t, func() bool { return c.first.shown("leader_address").Count > 0 }, eventually, time.Millisecond)
	require.Eventually(t, at("b"), eventually, time.Millisecond, "a standby may do better")
	c.second.leads()
	require.Equal(t, 503, c.first.get("/readyz").StatusCode)
	require.Zero(t, c.second.shown("leader_address"))
	require.Eventually(t, func() bool { return server.Standbys(c.second.server) == 1 }, eventually, time.Millisecond)
	require.False(t, server.Relief(c.second.server), "the other has failed before")
}

func TestLeaderAddressNeedsTheAbility(t *testing.T) {
	var conf source
	conf.set(fmt.Sprintf(configuration, `"leader_address": "10.0.0.100",`, 0), nil)
	cloud := simcloud.New(nil)
	defer cloud.Close()
	_, err := server.New(t.Context(), storage.NewMemory(), struct{ nstance.Provider }{cloud}, conf.read, nil)
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, "shard.leader_address: provider sim has no addresses that move")
}
