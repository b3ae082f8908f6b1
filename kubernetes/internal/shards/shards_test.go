package shards_test

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/kubernetes/internal/shards"
)

// eventually is the deadline of conditions that normally hold at once.
const eventually = time.Minute

// A follower follows one shard for a test.
type follower struct {
	*testing.T
	*shards.Shard
	server *shardtest.Shard
	drains *drain.Coordinator

	mu        sync.Mutex
	connected bool
	lost      int
	gone      []nstance.InstanceID
}

func follow(t *testing.T, size int) *follower {
	f := &follower{T: t, server: shardtest.New(t).Start("a", size), drains: drain.New(nil)}
	key, cred := f.server.RegisterOperator()
	id := shards.Identity{Cluster: shardtest.ID, Tenant: nstance.DefaultTenant, Key: key, Chain: cred.Chain, Roots: cred.Roots}
	f.Shard = shards.New(shards.Options{
		Name: "a", Servers: func() []string { return []string{f.server.Operator()} }, Identity: func() shards.Identity { return id }, Drains: f.drains, Connection: f.connection,
		Gone: func(id nstance.InstanceID, _ string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.gone = append(f.gone, id)
		},
	})
	f.SetExecutor(true)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.Shard.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return f
}

func (f *follower) connection(connected bool, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.connected = connected; !connected {
		f.lost++
	}
}

func (f *follower) timesLost() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost
}

// eventually waits until a condition holds.
func (f *follower) eventually(holds func() bool, what string) {
	f.Helper()
	require.Eventually(f, holds, eventually, 5*time.Millisecond, what)
}

// inState returns the copies of instances in a state.
func (f *follower) inState(state nstance.State) (out []nstance.InstanceID) {
	for _, i := range f.Instances("web") {
		if i.GetState() == string(state) {
			out = append(out, nstance.InstanceID(i.GetId()))
		}
	}
	return out
}

func (f *follower) scale(size int32) {
	f.Helper()
	api, err := f.API()
	require.NoError(f, err)
	_, err = api.UpdateGroup(f.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: &size})
	require.NoError(f, err)
}

func TestFollow(t *testing.T) {
	f := follow(t, 2)
	f.eventually(func() bool { return f.Synced() && len(f.inState(nstance.Ready)) == 2 }, "the copy has both as ready")
	g, ok := f.Group("web")
	require.True(t, ok)
	require.Equal(t, int32(2), g.GetSize())

	f.scale(3)
	f.eventually(func() bool {
		g, _ := f.Group("web")
		return g.GetSize() == 3 && len(f.inState(nstance.Ready)) == 3
	}, "a change is seen without asking")
}

// TestFollowAfterRestart has what changed while nobody watched found.
func TestFollowAfterRestart(t *testing.T) {
	f := follow(t, 3)
	f.eventually(func() bool { return len(f.inState(nstance.Ready)) == 3 }, "ready")
	gone := f.inState(nstance.Ready)[0]
	f.server.Stop()
	f.eventually(func() bool { return f.timesLost() > 0 }, "the loss is noticed")
	_, err := f.API()
	require.ErrorIs(t, err, nstance.Unavailable)
	require.Len(t, f.Instances("web"), 3, "the copy is kept")
	require.NoError(t, f.server.Cloud.Reclaim(gone, 0))
	f.server.Restart()
	f.eventually(func() bool {
		_, known := f.Instance(gone)
		return !known && len(f.inState(nstance.Ready)) == 3
	}, "the lost one is forgotten, its replacement known")
	f.eventually(func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.connected
	}, "the return is told, though the copy was complete before")
}

// TestMirrorDrains has the shard's drains mirrored: started, withdrawn while
// nobody watched, and ended.
func TestMirrorDrains(t *testing.T) {
	f := follow(t, 2)
	f.eventually(func() bool { return len(f.inState(nstance.Ready)) == 2 }, "ready")
	lost := f.inState(nstance.Ready)[0]
	require.NoError(t, f.server.Cloud.Reclaim(lost, time.Minute))
	var d nstance.Drain
	f.eventually(func() (ok bool) { d, ok = f.drains.Of(lost); return ok }, "the drain is mirrored")
	require.Equal(t, nstance.ExecutorOperator, d.Executor)
	require.False(t, d.Voluntary)
	require.NotEmpty(t, d.ProviderID)

	f.server.Restart()
	f.eventually(func() bool { return f.timesLost() > 0 }, "the loss is noticed")
	again, ok := f.drains.Of(lost)
	require.True(t, ok, "a restart changes nothing")
	require.Equal(t, d.Generation, again.Generation)

	f.eventually(func() bool {
		api, err := f.API()
		if err != nil {
			return false
		}
		_, err = api.AcknowledgeDrained(t.Context(), &apiv1.AcknowledgeDrainedRequest{
			Id: string(lost), Generation: d.Generation, Outcome: string(nstance.OutcomeDrained),
		})
		return err == nil
	}, "acknowledged")
	f.eventually(func() bool { _, ok := f.drains.Of(lost); return !ok }, "the mirrored drain ends with the deletion")
	f.eventually(func() bool { _, known := f.Instance(lost); return !known }, "and the copy with the instance")
}

// TestUnreadableIsKept has the copy of an instance kept whose record cannot be read, and
// its node left alone: the machine may run. Only a deletion says that it is gone.
func TestUnreadableIsKept(t *testing.T) {
	f := follow(t, 2)
	f.eventually(func() bool { return len(f.inState(nstance.Ready)) == 2 }, "ready")
	hidden, deleted := f.inState(nstance.Ready)[0], f.inState(nstance.Ready)[1]
	api, err := f.API()
	require.NoError(t, err)
	_, err = api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(deleted), NoDrain: true})
	require.NoError(t, err)
	f.eventually(func() bool { _, known := f.Instance(deleted); return !known && len(f.inState(nstance.Ready)) == 2 }, "the deletion is seen")
	before, _ := f.Instance(hidden)
	f.server.Stop()
	f.server.Damage(hidden)
	f.server.Restart()
	f.eventually(func() bool {
		i, _ := f.Instance(hidden)
		return slices.Contains(i.GetConditions(), wire.Unreadable)
	}, "the condition is seen")
	now, _ := f.Instance(hidden)
	require.Equal(t, before.GetNodeProviderId(), now.GetNodeProviderId())
	require.Equal(t, before.GetState(), now.GetState())
	require.Contains(t, f.Instances("web"), now)
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Contains(t, f.gone, deleted)
	require.NotContains(t, f.gone, hidden)
}

// A proxy passes connections on to a server, and counts those that are open.
type proxy struct {
	net.Listener
	mu        sync.Mutex
	open, all int
	clients   []net.Conn
}

func proxyTo(t *testing.T, server string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{Listener: l}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.clients = append(p.clients, client)
			p.mu.Unlock()
			running.Go(func() { p.pass(client, server) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for _, client := range p.clients {
			_ = client.Close()
		}
		p.mu.Unlock()
		running.Wait()
	})
	return p
}

func (p *proxy) pass(client net.Conn, server string) {
	p.count(1)
	defer p.count(-1)
	defer client.Close()
	conn, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer conn.Close()
	go func() { // it ends with conn
		_, _ = io.Copy(client, conn)
		_ = client.Close()
	}()
	_, _ = io.Copy(conn, client)
}

func (p *proxy) count(by int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open += by
	p.all += max(by, 0)
}

func (p *proxy) counts() (open, all int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open, p.all
}

// TestReplacedConnections: a connection that another one replaces is closed.
func TestReplacedConnections(t *testing.T) {
	server := shardtest.New(t).Start("a", 0)
	p := proxyTo(t, server.Operator())
	key, cred := server.RegisterOperator()
	id := shards.Identity{Cluster: shardtest.ID, Tenant: nstance.DefaultTenant, Key: key, Chain: cred.Chain, Roots: cred.Roots}
	s := shards.New(shards.Options{Name: "a", Servers: func() []string { return []string{p.Addr().String()} }, Identity: func() shards.Identity { return id }})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	defer running.Wait()
	defer cancel()
	for range 3 {
		require.Eventually(t, func() bool { _, err := s.API(); return err == nil && s.Synced() }, eventually, 5*time.Millisecond)
		_, before := p.counts()
		s.Reconnect()
		require.Eventually(t, func() bool { open, all := p.counts(); return all > before && open == 1 }, eventually, 5*time.Millisecond)
	}
}

// TestReconnect: connecting again, with another identity or to other servers, is no loss.
func TestReconnect(t *testing.T) {
	f := follow(t, 1)
	f.eventually(func() bool { return f.Synced() && len(f.inState(nstance.Ready)) == 1 }, "ready")
	for range 3 {
		former, err := f.API()
		require.NoError(t, err)
		f.Reconnect()
		f.eventually(func() bool { now, err := f.API(); return err == nil && now != former }, "it connects again")
	}
	f.scale(2)
	f.eventually(func() bool { return len(f.inState(nstance.Ready)) == 2 }, "it follows")
	require.Zero(t, f.timesLost())
}
