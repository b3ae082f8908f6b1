package shards

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// TestDiffering: what differs from a list is asked for: another node, a record that can be
// read again, what is not listed, and what is not known.
func TestDiffering(t *testing.T) {
	s := New(Options{})
	for id, i := range map[nstance.InstanceID]*apiv1.Instance{
		"same": {State: "ready"}, "unreadable": {State: "ready", Conditions: []string{wire.Unreadable}}, "unlisted": {}, "node": {}, "drifted": {},
	} {
		s.putInstance(id, i)
	}
	differ := s.differing(map[nstance.InstanceID]*apiv1.Instance{
		"same": {State: "ready"}, "unreadable": {State: "ready"}, "node": {NodeProviderId: "nstance:///node"}, "new": {State: "pending"}, "drifted": {Conditions: []string{"drifted"}},
	})
	require.Equal(t, []nstance.InstanceID{"new", "node", "unlisted", "unreadable"}, slices.Sorted(maps.Keys(differ)), "reports change other conditions")
}

// TestResync: what no event said is found within ten minutes. A list that fails ends the connection.
func TestResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		s.putInstance("i", &apiv1.Instance{Id: "i", State: "ready"})
		api := &fakeAPI{instances: map[string]*apiv1.Instance{"i": {Id: "i", State: "ready"}}}
		ended := make(chan error, 1)
		go func() { ended <- s.resync(t.Context(), api) }()
		<-time.After(resync)
		synctest.Wait()
		require.Empty(t, s.stale)
		api.mu.Lock()
		api.instances["i"] = &apiv1.Instance{Id: "i", State: "draining"}
		api.mu.Unlock()
		<-time.After(resync)
		synctest.Wait()
		require.Equal(t, map[nstance.InstanceID]bool{"i": true}, s.stale)
		require.NotEmpty(t, s.wake)
		away := nstance.Errorf(nstance.Unavailable, "away")
		api.mu.Lock()
		api.fail = []error{away}
		api.mu.Unlock()
		require.ErrorIs(t, <-ended, away)
	})
}

// A quietAPI has watches that say nothing.
type quietAPI struct{ *fakeAPI }

// A quietStream ends with its context.
type quietStream[T any] struct {
	grpc.ClientStream
	ctx context.Context
}

func (s quietStream[T]) Recv() (*T, error) {
	<-s.ctx.Done()
	return nil, s.ctx.Err()
}

func (quietAPI) WatchGroups(ctx context.Context, _ *apiv1.WatchGroupsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[apiv1.WatchGroupsResponse], error) {
	return quietStream[apiv1.WatchGroupsResponse]{ctx: ctx}, nil
}

func (quietAPI) WatchInstanceEvents(ctx context.Context, _ *apiv1.WatchInstanceEventsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[apiv1.WatchInstanceEventsResponse], error) {
	return quietStream[apiv1.WatchInstanceEventsResponse]{ctx: ctx}, nil
}

// TestQuietWatches: while watches say nothing the copy is kept as it is listed, and what was asked for
// before there was a connection is asked.
func TestQuietWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		s.ask("before")
		api := quietAPI{&fakeAPI{instances: map[string]*apiv1.Instance{"before": {Id: "before", Group: "web"}, "i": {Id: "i", Group: "web", State: "ready"}}}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.copy(ctx, api, true) }()
		synctest.Wait()
		require.Len(t, s.Instances("web"), 1)
		<-time.After(resync)
		synctest.Wait()
		require.Len(t, s.Instances("web"), 2)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

// TestInstancesAreTold: each change of a copy is told with the instance's group, also its end.
func TestInstancesAreTold(t *testing.T) {
	told := map[nstance.InstanceID]nstance.GroupID{}
	s := New(Options{InstanceChanged: func(id nstance.InstanceID, group nstance.GroupID) { told[id] = group }})
	want := map[nstance.InstanceID]nstance.GroupID{"i": "web"}
	s.replaceInstances(t.Context(), map[nstance.InstanceID]*apiv1.Instance{"i": {Id: "i", Group: "web"}})
	require.Equal(t, want, told)
	for _, answer := range []*apiv1.Instance{{Id: "i", Group: "web", State: "ready"}, {Id: "i", Conditions: []string{wire.Unreadable}}, nil} {
		clear(told)
		before, _ := s.Instance("i")
		conditions := before.GetConditions()
		api := &fakeAPI{instances: map[string]*apiv1.Instance{}}
		if answer != nil {
			api.instances["i"] = answer
		}
		require.NoError(t, s.fetchAll(t.Context(), api, []nstance.InstanceID{"i"}))
		require.Equal(t, want, told)
		require.Equal(t, conditions, before.GetConditions(), "a copy is not changed")
	}
	require.Empty(t, s.Instances("web"))
	s.putInstance("j", &apiv1.Instance{Id: "j", Group: "api"})
	require.Empty(t, s.Instances("web"))
}

// TestGoneByEvent: an event that says that an instance is deleted says so of its machine, once more is not
// known.
func TestGoneByEvent(t *testing.T) {
	var gone []string
	s := New(Options{Gone: func(_ nstance.InstanceID, providerID string) { gone = append(gone, providerID) }})
	s.putInstance("i", &apiv1.Instance{Id: "i", NodeProviderId: "cloud:///i"})
	s.observe(t.Context(), nstance.Event{Type: nstance.EventDeleteRequested, Instance: "i"})
	require.Empty(t, gone)
	s.observe(t.Context(), nstance.Event{Type: nstance.EventDeleted, Instance: "i"})
	require.NoError(t, s.fetchAll(t.Context(), &fakeAPI{}, []nstance.InstanceID{"i"}))
	require.Equal(t, []string{"cloud:///i"}, gone)
}

// TestUnlisted: of many instances those that are not listed are asked for one by one, a few at a time.
func TestUnlisted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		var ids []nstance.InstanceID
		for i := range 40 {
			id := nstance.InstanceID(fmt.Sprint("i", i))
			s.putInstance(id, &apiv1.Instance{Id: string(id), Group: "web"})
			ids = append(ids, id)
		}
		api := &slowAPI{fakeAPI: &fakeAPI{instances: map[string]*apiv1.Instance{"i0": {Id: "i0", Group: "web"}}}}
		require.NoError(t, s.fetchAll(t.Context(), api, ids))
		require.Len(t, s.Instances("web"), 1)
		require.Equal(t, refreshWidth, api.most)
	})
}

// A slowAPI answers after a second, and counts questions at the same time.
type slowAPI struct {
	*fakeAPI
	mu        sync.Mutex
	now, most int
}

func (a *slowAPI) GetInstance(ctx context.Context, r *apiv1.GetInstanceRequest, o ...grpc.CallOption) (*apiv1.GetInstanceResponse, error) {
	a.mu.Lock()
	a.now++
	a.most = max(a.most, a.now)
	a.mu.Unlock()
	<-time.After(time.Second)
	a.mu.Lock()
	a.now--
	a.mu.Unlock()
	return a.fakeAPI.GetInstance(ctx, r, o...)
}

// TestThrottled: a server that refuses questions for their rate is asked once a second.
func TestThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		api := &fakeAPI{}
		for range 5 {
			api.fail = append(api.fail, nstance.Errorf(nstance.Throttled, "slow down"))
		}
		s.ask("i")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.refresh(ctx, api) }()
		<-time.After(2*throttleWait + throttleWait/2)
		synctest.Wait()
		require.Len(t, api.fail, 2)
		cancel()
		<-ended
	})
}

// TestLimited: a call that is not answered ends after 20 s.
func TestLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := limited(t.Context(), "/m", nil, nil, nil, func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			<-ctx.Done()
			return ctx.Err()
		})
		require.Error(t, err)
		require.Equal(t, callTimeout, time.Since(began))
	})
}

// TestWatchOfInstances: the next watch begins after the last event, whatever it said.
func TestWatchOfInstances(t *testing.T) {
	s := New(Options{})
	after := func(messages ...*apiv1.WatchInstanceEventsResponse) uint64 {
		api := &watchAPI{instances: messages}
		require.ErrorIs(t, s.watchInstances(t.Context(), api, true), errEnded)
		return api.after
	}
	require.Zero(t, after(instancesSynced(5)))
	event := &apiv1.WatchInstanceEventsResponse{Message: &apiv1.WatchInstanceEventsResponse_Event{Event: &apiv1.Event{Seq: 7, Type: string(nstance.EventAlarm)}}}
	require.EqualValues(t, 5, after(event))
	require.EqualValues(t, 7, after())
}
