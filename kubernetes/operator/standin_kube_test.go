//go:build kube

package operator_test

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/session"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// A standInShard answers operators in the place of a shard: its instances and groups are what
// a test says, and it records what it is asked for. Operators register at a real one of the
// same name.
type standInShard struct {
	apiv1.UnimplementedOperatorServiceServer
	*world
	address string

	mu        sync.Mutex
	seq       uint64
	instances map[string]*apiv1.Instance
	groups    map[string]*apiv1.Group
	watchers  map[chan *apiv1.Event]bool
	claimed   []*apiv1.ClaimStandbyRequest
	released  []*apiv1.ReleaseStandbyRequest
	acks      []*apiv1.AcknowledgeDrainedRequest
	lost      bool // answers to claims are lost
}

// standInShard starts a shard for a Cluster c, with groups standby and reserve that have warm pools.
func (w *world) standInShard() *standInShard {
	w.Helper()
	registration := w.shards.Start("a", 0)
	s := &standInShard{
		world: w, instances: map[string]*apiv1.Instance{}, watchers: map[chan *apiv1.Event]bool{},
		groups: map[string]*apiv1.Group{},
	}
	for _, group := range []string{"standby", "reserve"} {
		s.groups[group] = &apiv1.Group{Group: group, WarmPool: &apiv1.WarmPool{Size: 2}, Standby: 2, Parked: 2}
	}
	cert, err := w.shards.Keys().Identity.Server("a", shardtest.ID, time.Hour, time.Now())
	require.NoError(w, err)
	serve := func() (*tls.Certificate, error) { return cert, nil }
	creds := credentials.NewTLS(pki.ServerTLS(serve, w.shards.Keys().Identity.Pool(), nstance.RoleOperator))
	server := grpc.NewServer(grpc.Creds(creds), grpc.KeepaliveEnforcementPolicy(session.Enforcement()))
	apiv1.RegisterOperatorServiceServer(server, s)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(w, err)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	w.Cleanup(func() {
		server.Stop()
		running.Wait()
	})
	s.address = listener.Addr().String()
	w.nonce(w.shards.OperatorNonce())
	w.kubeconfig()
	w.start()
	nc := w.clusterAt(infrav1.Shard{Name: "a", Address: s.address, RegistrationAddress: registration.Registration()})
	until(w, nc, func(nc *infrav1.NstanceCluster) bool {
		return isTrue(nc, infrav1.ConditionShardsConnected) && isTrue(nc, infrav1.ConditionNodesReached)
	}, "shards and nodes are reached")
	return s
}

// put changes an instance, and reports an event of that type.
func (s *standInShard) put(i *apiv1.Instance, what nstance.EventType) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	s.instances[i.GetId()] = proto.CloneOf(i)
	e := &apiv1.Event{Seq: s.seq, Time: timestamppb.Now(), Type: string(what), Instance: i.GetId(), Group: i.GetGroup(), Drain: i.GetDrain()}
	for w := range s.watchers {
		w <- e
	}
}

func (s *standInShard) claims() (nodes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.claimed {
		nodes = append(nodes, c.GetNode())
	}
	return nodes
}

func (s *standInShard) releases() (nodes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.released {
		nodes = append(nodes, r.GetNode())
	}
	return nodes
}

// gaveBack reports whether the stand-by machine of a node was given back, and no other. An
// operator whose cache is old says it again.
func (s *standInShard) gaveBack(node string) bool {
	return slices.Equal(slices.Compact(s.releases()), []string{node})
}

// GetShardStatus implements apiv1.OperatorServiceServer.
func (s *standInShard) GetShardStatus(context.Context, *apiv1.GetShardStatusRequest) (*apiv1.GetShardStatusResponse, error) {
	return &apiv1.GetShardStatusResponse{}, nil
}

// ListInstances implements apiv1.OperatorServiceServer.
func (s *standInShard) ListInstances(context.Context, *apiv1.ListInstancesRequest) (*apiv1.ListInstancesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := &apiv1.ListInstancesResponse{}
	for _, i := range s.instances {
		resp.Instances = append(resp.Instances, proto.CloneOf(i))
	}
	return resp, nil
}

// GetInstance implements apiv1.OperatorServiceServer.
func (s *standInShard) GetInstance(_ context.Context, r *apiv1.GetInstanceRequest) (*apiv1.GetInstanceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.instances[r.GetId()]; i != nil {
		return &apiv1.GetInstanceResponse{Instance: proto.CloneOf(i)}, nil
	}
	return nil, status.Error(codes.NotFound, "no such instance")
}

// WatchInstanceEvents implements apiv1.OperatorServiceServer.
func (s *standInShard) WatchInstanceEvents(_ *apiv1.WatchInstanceEventsRequest, stream grpc.ServerStreamingServer[apiv1.WatchInstanceEventsResponse]) error {
	events := make(chan *apiv1.Event, 1000)
	s.mu.Lock()
	var snapshot []*apiv1.Instance
	for _, i := range s.instances {
		snapshot = append(snapshot, proto.CloneOf(i))
	}
	seq := s.seq
	s.watchers[events] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, events)
	}()
	for _, i := range snapshot {
		if err := stream.Send(&apiv1.WatchInstanceEventsResponse{Message: &apiv1.WatchInstanceEventsResponse_Snapshot{Snapshot: i}}); err != nil {
			return err
		}
	}
	if err := stream.Send(&apiv1.WatchInstanceEventsResponse{Message: &apiv1.WatchInstanceEventsResponse_Synced{Synced: &apiv1.Synced{Seq: seq}}}); err != nil {
		return err
	}
	for {
		select {
		case e := <-events:
			if err := stream.Send(&apiv1.WatchInstanceEventsResponse{Message: &apiv1.WatchInstanceEventsResponse_Event{Event: e}}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// WatchGroups implements apiv1.OperatorServiceServer. The groups do not change.
func (s *standInShard) WatchGroups(_ *apiv1.WatchGroupsRequest, stream grpc.ServerStreamingServer[apiv1.WatchGroupsResponse]) error {
	s.mu.Lock()
	var groups []*apiv1.Group
	for _, g := range s.groups {
		groups = append(groups, proto.CloneOf(g))
	}
	s.mu.Unlock()
	for _, g := range groups {
		if err := stream.Send(&apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Snapshot{Snapshot: g}}); err != nil {
			return err
		}
	}
	if err := stream.Send(&apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Synced{Synced: &apiv1.Synced{}}}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

// ClaimStandby implements apiv1.OperatorServiceServer.
func (s *standInShard) ClaimStandby(_ context.Context, r *apiv1.ClaimStandbyRequest) (*apiv1.ClaimStandbyResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := slices.ContainsFunc(s.claimed, func(c *apiv1.ClaimStandbyRequest) bool {
		return c.GetGroup() == r.GetGroup() && c.GetNode() == r.GetNode() && c.GetEventId() == r.GetEventId()
	})
	if !known { // else it is repeated, as an operator that was ended in between does
		s.claimed = append(s.claimed, proto.CloneOf(r))
	}
	if s.lost {
		return nil, status.Error(codes.Unavailable, "connection reset by peer")
	}
	now := time.Now()
	return &apiv1.ClaimStandbyResponse{
		Claim:  &apiv1.StandbyClaim{Node: r.GetNode(), EventId: r.GetEventId(), Since: timestamppb.New(now), Until: timestamppb.New(now.Add(r.GetDuration().AsDuration()))},
		Parked: 1, Unchanged: known,
	}, nil
}

// ReleaseStandby implements apiv1.OperatorServiceServer.
func (s *standInShard) ReleaseStandby(_ context.Context, r *apiv1.ReleaseStandbyRequest) (*apiv1.ReleaseStandbyResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = append(s.released, proto.CloneOf(r))
	return &apiv1.ReleaseStandbyResponse{}, nil
}

// AcknowledgeDrained implements apiv1.OperatorServiceServer.
func (s *standInShard) AcknowledgeDrained(_ context.Context, r *apiv1.AcknowledgeDrainedRequest) (*apiv1.AcknowledgeDrainedResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acks = append(s.acks, proto.CloneOf(r))
	return &apiv1.AcknowledgeDrainedResponse{}, nil
}

// CreateGroup implements apiv1.OperatorServiceServer. It accepts every group, and makes none.
func (s *standInShard) CreateGroup(_ context.Context, req *apiv1.CreateGroupRequest) (*apiv1.CreateGroupResponse, error) {
	return &apiv1.CreateGroupResponse{Group: &apiv1.Group{Group: req.GetGroup(), Size: req.GetSize(), Owner: req.GetOwner()}}, nil
}
