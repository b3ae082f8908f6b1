package shards

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/wire"
)

// A groupStream yields messages of a watch, and ends.
type groupStream struct {
	grpc.ClientStream
	messages []*apiv1.WatchGroupsResponse
}

func (s *groupStream) Recv() (*apiv1.WatchGroupsResponse, error) {
	if len(s.messages) == 0 {
		return nil, io.EOF
	}
	next := s.messages[0]
	s.messages = s.messages[1:]
	return next, nil
}

// A watchAPI answers each watch with the next messages, and records after which events it was asked.
type watchAPI struct {
	apiv1.OperatorServiceClient
	groups    []*apiv1.WatchGroupsResponse
	instances []*apiv1.WatchInstanceEventsResponse
	after     uint64
}

func (a *watchAPI) WatchGroups(_ context.Context, r *apiv1.WatchGroupsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[apiv1.WatchGroupsResponse], error) {
	a.after = r.GetAfterSeq()
	return &groupStream{messages: a.groups}, nil
}

func (a *watchAPI) WatchInstanceEvents(_ context.Context, r *apiv1.WatchInstanceEventsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[apiv1.WatchInstanceEventsResponse], error) {
	a.after = r.GetAfterSeq()
	return &snapshotStream{messages: a.instances}, nil
}

func groupSynced(seq uint64) *apiv1.WatchGroupsResponse {
	return &apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Synced{Synced: &apiv1.Synced{Seq: seq}}}
}

func groupSnapshot(name string) *apiv1.WatchGroupsResponse {
	return &apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Snapshot{Snapshot: &apiv1.Group{Group: name}}}
}

func instancesSynced(seq uint64) *apiv1.WatchInstanceEventsResponse {
	return &apiv1.WatchInstanceEventsResponse{Message: &apiv1.WatchInstanceEventsResponse_Synced{Synced: &apiv1.Synced{Seq: seq}}}
}

// groupsOf follows one watch of groups until it ends, and returns after which event it began.
func (s *Shard) groupsOf(t *testing.T, messages ...*apiv1.WatchGroupsResponse) uint64 {
	api := &watchAPI{groups: messages}
	require.ErrorIs(t, s.watchGroups(t.Context(), api), errEnded)
	return api.after
}

// TestWatchOfGroups: a group that was removed while there was no watch is forgotten, and told. The
// next watch begins after the last event, whatever it said.
func TestWatchOfGroups(t *testing.T) {
	var told []nstance.GroupID
	s := New(Options{GroupChanged: func(id nstance.GroupID) { told = append(told, id) }})
	require.Zero(t, s.groupsOf(t, groupSnapshot("web"), groupSnapshot("old"), groupSynced(5)))
	told = nil
	require.EqualValues(t, 5, s.groupsOf(t, groupSnapshot("web"), groupSynced(6)))
	_, known := s.Group("old")
	require.False(t, known)
	require.ElementsMatch(t, []nstance.GroupID{"web", "old"}, told)

	changed := &apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Changed{Changed: &apiv1.GroupChanged{Seq: 7, Group: &apiv1.Group{Group: "new"}}}}
	told = nil
	require.EqualValues(t, 6, s.groupsOf(t, changed))
	require.Equal(t, []nstance.GroupID{"new"}, told)
	_, known = s.Group("new")
	require.True(t, known)
	removed := &apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Removed{Removed: &apiv1.GroupRemoved{Seq: 8, Group: "new"}}}
	require.EqualValues(t, 7, s.groupsOf(t, removed))
	_, known = s.Group("new")
	require.False(t, known)
	require.EqualValues(t, 8, s.groupsOf(t))
}

// TestConnectedOnce: a shard is told as connected once both copies are complete, and not for every
// later snapshot.
func TestConnectedOnce(t *testing.T) {
	connected := 0
	s := New(Options{Connection: func(is bool, _ error) {
		require.True(t, is)
		connected++
	}})
	require.ErrorIs(t, s.watchInstances(t.Context(), &watchAPI{instances: []*apiv1.WatchInstanceEventsResponse{instancesSynced(1)}}, true), errEnded)
	require.Zero(t, connected, "groups are not listed yet")
	s.groupsOf(t, groupSynced(1))
	require.Equal(t, 1, connected)
	s.groupsOf(t, groupSynced(2))
	require.Equal(t, 1, connected)
}

// TestRenewalRequest: a certificate that a server wants renewed at once is renewed within a minute:
// not by all operators in the same moment.
func TestRenewalRequest(t *testing.T) {
	var within []time.Duration
	s := New(Options{Renew: func(d time.Duration) { within = append(within, d) }})
	for _, d := range []time.Duration{0, time.Hour} {
		renewal := &apiv1.RenewalRequest{Within: durationpb.New(d)}
		s.groupsOf(t, &apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Renewal{Renewal: renewal}})
		api := &watchAPI{instances: []*apiv1.WatchInstanceEventsResponse{{Message: &apiv1.WatchInstanceEventsResponse_Renewal{Renewal: renewal}}}}
		require.ErrorIs(t, s.watchInstances(t.Context(), api, true), errEnded)
	}
	require.Equal(t, []time.Duration{renewalSpread, renewalSpread, time.Hour, time.Hour}, within)
}

// TestExecutorChanges: the watch begins again when the role of the operator changes, and only then.
func TestExecutorChanges(t *testing.T) {
	s, restarts := New(Options{}), 0
	s.SetExecutor(true) // before Run
	s.restart = func(error) { restarts++ }
	for _, c := range []struct {
		executor bool
		want     int
	}{{true, 0}, {false, 1}, {false, 1}, {true, 2}} {
		s.SetExecutor(c.executor)
		require.Equal(t, c.want, restarts)
	}
}

// TestNodeOfDrain: a drain names the whole provider ID of the Node where the copy has it: other
// clusters have machines whose own ID is the same.
func TestNodeOfDrain(t *testing.T) {
	s := New(Options{Drains: drain.New(nil)})
	start := func(id nstance.InstanceID) nstance.Drain {
		d := nstance.Drain{Instance: id, ProviderID: "104", Generation: 1, Executor: nstance.ExecutorOperator, Deadline: time.Now().Add(time.Hour)}
		s.observe(t.Context(), nstance.Event{Type: nstance.EventDrainStarted, Instance: id, Drain: &d})
		got, ok := s.opts.Drains.Of(id)
		require.True(t, ok)
		return got
	}
	s.putInstance("i", &apiv1.Instance{Id: "i", ProviderId: "104", NodeProviderId: "proxmox://pve/104"})
	require.Equal(t, "proxmox://pve/104", start("i").ProviderID)
	require.Equal(t, "104", start("unknown").ProviderID)
}

// An endAPI says how an instance has ended.
type endAPI struct {
	apiv1.OperatorServiceClient
	state  nstance.State
	events []*apiv1.Event
	err    error
}

func (a endAPI) GetInstance(context.Context, *apiv1.GetInstanceRequest, ...grpc.CallOption) (*apiv1.GetInstanceResponse, error) {
	if a.err != nil {
		return nil, a.err
	}
	return &apiv1.GetInstanceResponse{Instance: &apiv1.Instance{Id: "i", State: string(a.state)}, Events: a.events}, nil
}

// TestEnd: how an instance has ended, and why. One that has not is asked for: the copy lacks it.
func TestEnd(t *testing.T) {
	event := func(typ nstance.EventType, reason, err string) *apiv1.Event {
		return &apiv1.Event{Type: string(typ), Reason: reason, Error: err}
	}
	away := nstance.Errorf(nstance.Unavailable, "away")
	for name, c := range map[string]struct {
		api   endAPI
		want  *End
		err   error
		asked bool
	}{
		"not known":     {endAPI{err: nstance.Errorf(nstance.NotFound, "no")}, &End{}, nil, false},
		"away":          {endAPI{err: away}, nil, away, false},
		"it lives":      {endAPI{state: nstance.Booting}, nil, nil, true},
		"it is deleted": {endAPI{state: nstance.Deleting}, nil, nil, true},
		"refused": {endAPI{state: nstance.Failed, events: []*apiv1.Event{event(nstance.EventCreateFailed, "capacity", "no m5.large in zone a")}},
			&End{Failed: true, Message: "no m5.large in zone a"}, nil, false},
		"refused, and only why": {endAPI{state: nstance.Failed, events: []*apiv1.Event{event(nstance.EventCreateFailed, "capacity", "")}},
			&End{Failed: true, Message: "capacity"}, nil, false},
		"taken back": {endAPI{state: nstance.Deleted, events: []*apiv1.Event{event(nstance.EventDeleteRequested, "notice: spot interruption", "")}},
			&End{Deleted: true, Cause: nstance.CauseNotice, Message: "notice: spot interruption"}, nil, false},
		"deleted, and why is forgotten": {endAPI{state: nstance.Deleted}, &End{Deleted: true}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Options{})
			_, err := s.End(t.Context(), "i")
			require.ErrorIs(t, err, nstance.Unavailable, "not connected")
			s.api = c.api
			end, err := s.End(t.Context(), "i")
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.want, end)
			require.Equal(t, c.asked, s.stale["i"])
		})
	}
}

// TestGiveUpDrains: of a shard that is not followed any more, drains stay for what the cloud takes
// back or has taken, whatever else wants them.
func TestGiveUpDrains(t *testing.T) {
	for name, c := range map[string]struct {
		causes []nstance.CauseKind
		stays  bool
	}{
		"a rollout":              {[]nstance.CauseKind{nstance.CauseRollout}, false},
		"a notice":               {[]nstance.CauseKind{nstance.CauseNotice}, true},
		"it does not run":        {[]nstance.CauseKind{nstance.CauseGone}, true},
		"a notice to a rollout":  {[]nstance.CauseKind{nstance.CauseRollout, nstance.CauseNotice}, true},
		"no cause that is known": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, d := mirrored(t)
			s.putInstance("i", &apiv1.Instance{Id: "i"})
			s.putInstance("j", &apiv1.Instance{Id: "j"})
			d.Generation, d.Causes = d.Generation+1, nil
			for _, kind := range c.causes {
				d.Causes = append(d.Causes, nstance.Cause{Kind: kind})
			}
			require.NoError(t, s.opts.Drains.Start(t.Context(), d))
			s.GiveUpDrains(t.Context())
			_, stays := s.opts.Drains.Of("i")
			require.Equal(t, c.stays, stays)
		})
	}
}

// TestDifferingFields: each field that changes with an event has the instance asked for, if the
// event was lost.
func TestDifferingFields(t *testing.T) {
	full := func() *apiv1.Instance {
		return &apiv1.Instance{
			Id: "i", Group: "web", State: "ready", ProviderId: "1", NodeProviderId: "sim:///1", Market: "spot", InstanceType: "small", Addresses: []string{"10.0.0.1"},
			Drain: &apiv1.Drain{Generation: 1}, Standby: true, WokenAt: timestamppb.New(time.Unix(1, 0)),
		}
	}
	for name, change := range map[string]func(*apiv1.Instance){
		"state": func(i *apiv1.Instance) { i.State = "draining" }, "provider ID": func(i *apiv1.Instance) { i.ProviderId = "2" },
		"provider ID of the node": func(i *apiv1.Instance) { i.NodeProviderId = "" }, "market": func(i *apiv1.Instance) { i.Market = "on-demand" },
		"instance type": func(i *apiv1.Instance) { i.InstanceType = "large" }, "addresses": func(i *apiv1.Instance) { i.Addresses = nil },
		"the drain": func(i *apiv1.Instance) { i.Drain.Generation = 2 }, "no drain": func(i *apiv1.Instance) { i.Drain = nil },
		"stand-by": func(i *apiv1.Instance) { i.Standby = false }, "woken again": func(i *apiv1.Instance) { i.WokenAt = timestamppb.New(time.Unix(2, 0)) },
		"unreadable": func(i *apiv1.Instance) { i.Conditions = []string{wire.Unreadable} },
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Options{})
			s.putInstance("i", full())
			require.Empty(t, s.differing(map[nstance.InstanceID]*apiv1.Instance{"i": full()}))
			other := full()
			change(other)
			require.Contains(t, s.differing(map[nstance.InstanceID]*apiv1.Instance{"i": other}), nstance.InstanceID("i"))
		})
	}
}
