package server_test

import (
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/testcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// queueShard is a shard of one spot machine on EC2, whose interruptions EventBridge puts
// into a queue.
const queueShard = `{
	"cluster": {"id": "c1"},
	"shard": {
		"id": "s1", "provider": {"kind": "aws", "region": "us-east-1"}, "subnet_pools": {"main": ["subnet-0123456789abcdef0"]},
		"bind": {"http": "127.0.0.1:0", "registration": "127.0.0.1:0", "operator": "127.0.0.1:0", "agent": "127.0.0.1:0"},
		"status_page": {"detail": "full"}
	},
	"images": {"debian": {"owner": "136693071363", "name": "debian-12-amd64-*"}},
	"templates": {"vm": {
		"kind": "web", "arch": "amd64", "image": "debian", "instance_type": "m5.large", "subnet_pool": "main", "market": {"type": "spot"},
		"userdata": {"content": "{{.Nonce}}"}
	}},
	"groups": {"default": {"web": {"template": "vm", "size": 1, "drain_timeout": "3s"}}}
}`

// A queueSite is an AWS account with the provider of a shard.
type queueSite struct {
	*testing.T
	cloud    *ec2test.Cloud
	faults   *testcloud.Faults
	provider *aws.Provider

	mu    sync.Mutex
	boots map[nstance.InstanceID]testcloud.Boot
}

// Start implements testcloud.Hypervisor: machines keep their user data and do nothing.
func (s *queueSite) Start(b testcloud.Boot) (testcloud.Guest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.boots[b.ID] = b
	return idleGuest{}, nil
}

type idleGuest struct{}

func (idleGuest) Announce(string, time.Time) {}
func (idleGuest) Withdraw()                  {}
func (idleGuest) Kill()                      {}

func newQueueSite(t *testing.T) *queueSite {
	s := &queueSite{T: t, faults: &testcloud.Faults{}, boots: map[nstance.InstanceID]testcloud.Boot{}}
	s.cloud = ec2test.New(&ec2test.Options{Hypervisor: s, IDTag: "nstance:instance-id", EventQueue: "nstance", HideAtMost: time.Second, Faults: s.faults})
	api := httptest.NewServer(s.cloud)
	t.Cleanup(func() {
		api.Close()
		require.NoError(t, s.cloud.Close())
	})
	k := ec2test.DefaultCredential
	var err error
	s.provider, err = aws.New(sdk.Config{Region: "us-east-1", Credentials: credentials.NewStaticCredentialsProvider(k.AccessKeyID, k.SecretAccessKey, "")}, &aws.Options{
		Endpoint: api.URL, ELBEndpoint: api.URL, STSEndpoint: api.URL, SQSEndpoint: api.URL, InterruptionQueue: s.cloud.QueueURL("nstance"),
	})
	require.NoError(t, err)
	return s
}

// world starts a server. store is nil for a new one.
func (s *queueSite) world(store storage.Store) *world {
	return newWorld(s.T, setup{config: queueShard, provider: s.provider, store: store, noWait: true, opts: server.Options{Kinds: provider.Kinds{aws.Kind()}}})
}

// registered waits for the machine, registers its agent, and returns the machine's handle
// at EC2.
func (s *queueSite) registered(w *world) (nstance.InstanceID, string, *client) {
	s.Helper()
	id := w.awaitEvent(nstance.EventCreated, "").Instance
	var boot testcloud.Boot
	require.Eventually(s, func() bool { // EC2 answers a create before the machine boots
		s.mu.Lock()
		defer s.mu.Unlock()
		var booted bool
		boot, booted = s.boots[id]
		return booted
	}, eventually, 5*time.Millisecond)
	h := w.newClient()
	_, err := h.register(string(boot.UserData))
	require.NoError(s, err)
	return id, boot.Handle, h
}

// emptied waits until every message is deleted from the queue.
func (s *queueSite) emptied() {
	s.Helper()
	require.Eventually(s, func() bool { return len(s.cloud.Messages("nstance")) == 0 }, eventually, 5*time.Millisecond)
}

// interruptions returns those that the server knows, in journal and ledger.
func (w *world) interruptions() []*apiv1.Interruption {
	w.Helper()
	resp, err := w.admin().ListInterruptions(w.Context(), &apiv1.ListInterruptionsRequest{Since: timestamppb.New(time.Now().Add(-time.Hour))})
	require.NoError(w, err)
	return resp.GetInterruptions()
}

// TestInterruptionWithoutAgent: a machine whose agent is not connected is replaced, and
// deleted, when the queue announces its interruption.
func TestInterruptionWithoutAgent(t *testing.T) {
	s := newQueueSite(t)
	w := s.world(nil)
	id, handle, _ := s.registered(w)
	require.NoError(t, s.cloud.Reclaim(handle, time.Hour))
	e := w.awaitEvent(nstance.EventNoticeReceived, id)
	require.Equal(t, "aws/spot/eventbridge", e.Notice.Source)
	next := w.awaitEvent(nstance.EventReplacementRequested, "").Instance
	w.awaitEvent(nstance.EventCreated, next)
	w.awaitEvent(nstance.EventDeleted, id)
	s.emptied()
	require.Len(t, s.cloud.Machines(), 1)
	require.Eventually(t, func() bool { return len(w.interruptions()) == 1 }, eventually, 10*time.Millisecond)
	got := w.interruptions()[0]
	require.Equal(t, []string{string(id), string(next), e.Notice.EventID}, []string{got.GetInstance(), got.GetReplacement(), got.GetEventId()})
}

// TestInterruptionOfBothSources: agent and queue announce one interruption.
func TestInterruptionOfBothSources(t *testing.T) {
	for name, agentFirst := range map[string]bool{"the agent first": true, "the queue first": false} {
		t.Run(name, func(t *testing.T) {
			s := newQueueSite(t)
			w := s.world(nil)
			id, handle, h := s.registered(w)
			k := h.connect()
			k.awaitAckKeepingOthers(k.sendReport())
			n := reclaimNotice("aws/spot/terminate@2026-11-24T12:00:00Z", 100*time.Second)
			n.Source = "aws/spot"
			announce := func() { k.awaitAck(k.sendNotice(n)) }
			reclaim := func() {
				require.NoError(t, s.cloud.Reclaim(handle, time.Hour))
				s.emptied()
			}
			if agentFirst {
				announce()
				reclaim()
			} else {
				reclaim()
				announce()
			}
			w.awaitEvent(nstance.EventDeleted, id)
			require.Equal(t, 1, w.countEvents(eventtype.NoticeDetected))
			require.Equal(t, 1, w.countEvents(nstance.EventNoticeReceived))
			require.Equal(t, 1, w.countEvents(nstance.EventReplacementRequested))
			require.Eventually(t, func() bool { return len(w.interruptions()) > 0 }, eventually, 10*time.Millisecond)
			got := w.interruptions()
			require.Len(t, got, 1)
			require.Equal(t, agentFirst, got[0].GetEventId() == n.EventID)
		})
	}
}

// TestQueueAfterCrash: a server that ends between a message and its consequence loses
// nothing: the next one receives the message.
func TestQueueAfterCrash(t *testing.T) {
	s := newQueueSite(t)
	store := storagetest.NewFaulty(storage.NewMemory())
	w := s.world(store)
	id, handle, _ := s.registered(w)
	store.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: layout.InstanceKey(zone, nstance.DefaultTenant, "web", id), Times: -1, Err: nstance.Errorf(nstance.Unavailable, "no storage")})
	require.NoError(t, s.cloud.Reclaim(handle, time.Hour))
	w.awaitEvent(nstance.EventNoticeReceived, id)
	require.NoError(t, w.stopServer())
	require.Len(t, s.cloud.Messages("nstance"), 1, "its consequence is not durable")
	store.ClearFaults()

	next := s.world(store)
	next.awaitEvent(nstance.EventNoticeReceived, id)
	next.awaitEvent(nstance.EventDeleted, id)
	s.emptied()
}

// TestUnreadableQueue: the server goes on, and reports it.
func TestUnreadableQueue(t *testing.T) {
	s := newQueueSite(t)
	var refusals []testcloud.Fault
	for range 1000 {
		refusals = append(refusals, testcloud.Fault{Answer: ec2test.QueueRefusal("AccessDenied", "no permission")})
	}
	s.faults.Next("ReceiveMessage", refusals...)
	w := s.world(nil)
	id, handle, _ := s.registered(w)
	require.Eventually(t, func() bool { return len(listAttention(t, w.admin())["notices"]) == 1 }, eventually, 10*time.Millisecond)
	require.Contains(t, listAttention(t, w.admin())["notices"][0].GetWhy(), "no permission")
	require.Less(t, s.faults.Calls()["ReceiveMessage"], 20, "it is read with backoff")
	s.faults.Clear()
	require.NoError(t, s.cloud.Reclaim(handle, time.Hour))
	w.awaitEvent(nstance.EventDeleted, id)
}
