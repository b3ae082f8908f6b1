package operators

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/peer"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/feed"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/test/slowpeer"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/internal/ports"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

type (
	slowWatcher      = slowpeer.Stream[apiv1.WatchInstanceEventsRequest, apiv1.WatchInstanceEventsResponse]
	slowGroupWatcher = slowpeer.Stream[apiv1.WatchGroupsRequest, apiv1.WatchGroupsResponse]
)

// quietTerm returns a term in which nothing happens, and a watcher's stream.
func quietTerm(t *testing.T) (*Term, *slowWatcher, *lease.Lease) {
	store := storage.NewMemory()
	elector, err := lease.New(store, "s1", &lease.Options{TakeAtOnce: true, TTL: records.MaxLeaseTTL})
	require.NoError(t, err)
	granted, err := elector.Campaign(t.Context())
	require.NoError(t, err)
	cloud := simcloud.New(nil)
	t.Cleanup(cloud.Close)
	r, err := reconcile.New(cloud, store, &reconcile.Options{Owner: nstance.Owner{Installation: "i", Cluster: "c1", Shard: "s1"}})
	require.NoError(t, err)
	o := NewService(Options{Issuer: func() string { return "key" }})
	tm := o.NewTerm()
	tm.TermOptions = TermOptions{
		Lease: granted, Reconciler: r.Admin(), Internals: r.Admin().Internals(), Drains: drain.New(nil), Groups: noGroups{}, Log: slog.New(slog.DiscardHandler), Bound: context.WithCancel,
	}
	tm.events, tm.groupFeeds = shortFeeds[watched](), shortFeeds[groupChange]()
	d := slowpeer.New[apiv1.WatchInstanceEventsRequest, apiv1.WatchInstanceEventsResponse](t.Context())
	ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: &ports.Connection{Conn: closing{closed: d.Gone}}})
	d.Ctx = o.WithCaller(ctx, nstance.Identity{Role: nstance.RoleAdmin, Issuer: "key"}, tm)
	return tm, d, elector
}

// noGroups are the groups of a shard that has none.
type noGroups struct{ groupEditor }

func (noGroups) Await(context.Context) error { return nil }

// shortFeeds keep few events for administrators.
func shortFeeds[T any]() *tenantFeeds[T] {
	f := newTenantFeeds[T]()
	f.all = feed.New[T](8)
	return f
}

// closing is a connection of which nothing is known but its end.
type closing struct {
	net.Conn
	closed chan struct{}
}

func (c closing) Close() error { close(c.closed); return nil }

func TestWatcherThatDoesNotRead(t *testing.T) {
	t.Run("is dropped, and delays no other", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tm, d, elector := quietTerm(t)
			ended := make(chan error, 1)
			go func() { ended <- (&Service{}).WatchInstanceEvents(&apiv1.WatchInstanceEventsRequest{}, d) }()
			d.Read <- struct{}{} // the end of the snapshot
			synctest.Wait()
			for range 20 { // more than are kept
				tm.events.publish("default", watched{event: nstance.Event{Type: nstance.EventAlarm}})
			}
			synctest.Wait()
			close(d.Read)
			err := <-ended
			require.ErrorIs(t, err, nstance.Unavailable)
			require.ErrorContains(t, err, "behind")
			require.NoError(t, elector.Resign(t.Context()))
		})
	})
	t.Run("and one of groups likewise", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tm, d, elector := quietTerm(t)
			of := &slowGroupWatcher{Ctx: d.Ctx, Read: d.Read, Gone: d.Gone}
			ended := make(chan error, 1)
			go func() { ended <- (&Service{}).WatchGroups(&apiv1.WatchGroupsRequest{}, of) }()
			of.Read <- struct{}{} // the end of the snapshot
			synctest.Wait()
			for range 20 { // more than are kept
				tm.groupFeeds.publish("default", groupChange{gone: true})
			}
			synctest.Wait()
			close(of.Read)
			err := <-ended
			require.ErrorIs(t, err, nstance.Unavailable)
			require.ErrorContains(t, err, "behind")
			require.NoError(t, elector.Resign(t.Context()))
		})
	})
	t.Run("loses its connection", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, d, elector := quietTerm(t)
			ended := make(chan error, 1)
			began := time.Now()
			go func() { ended <- (&Service{}).WatchInstanceEvents(&apiv1.WatchInstanceEventsRequest{}, d) }()
			<-d.Gone
			require.Equal(t, ports.SendTimeout, time.Since(began))
			require.Error(t, <-ended)
			require.NoError(t, elector.Resign(t.Context()))
		})
	})
	t.Run("keeps no shutdown waiting", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tm, d, elector := quietTerm(t)
			ended := make(chan error, 1)
			go func() { ended <- (&Service{}).WatchInstanceEvents(&apiv1.WatchInstanceEventsRequest{}, d) }()
			d.Read <- struct{}{}
			tm.events.publish("default", watched{event: nstance.Event{Type: nstance.EventAlarm}})
			synctest.Wait() // it is stuck in Send now
			began := time.Now()
			require.NoError(t, elector.Resign(t.Context()))
			require.Error(t, <-ended)
			require.Equal(t, ports.CloseGrace, time.Since(began))
		})
	})
}
