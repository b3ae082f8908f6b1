package server_test

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/spot/spottest"
)

// A skewedMachine is a spot machine with a real agent, a clock that may be wrong,
// and a metadata service.
type skewedMachine struct {
	*agentMachine
	cloud       *spottest.Server
	hookBudgets chan time.Duration // time from the start of the hook to its deadline
	hookMayEnd  chan struct{}      // closed when the hook may end
}

// startSkewedMachine calls before to prepare the metadata service, starts the agent
// and waits until it has read the service.
func (w *world) startSkewedMachine(protocol string, skew time.Duration, before func(*spottest.Server)) *skewedMachine {
	w.Helper()
	g := &skewedMachine{
		agentMachine: w.applyUserData(w.awaitMachine(nstance.DefaultTenant)), hookBudgets: make(chan time.Duration, 10), hookMayEnd: make(chan struct{}),
		cloud: spottest.NewServer(w, &spottest.Options{Protocol: protocol, Spot: true}),
	}
	if before != nil {
		before(g.cloud)
	}
	addrs := w.server.Addresses()
	g.options = agent.Options{
		InstanceID: g.id, RegistrationAddrs: []string{addrs.Registration}, AgentAddrs: []string{addrs.Agent},
		IdentityDir: filepath.Join(g.dir, "identity"), KeysDir: filepath.Join(g.dir, "keys"), RecvDir: filepath.Join(g.dir, "recv"),
		Provider: protocol, MetadataURL: g.cloud.URL, SpotPollInterval: 50 * time.Millisecond,
		Now: func() time.Time { return time.Now().Add(skew) },
		Drain: func(ctx context.Context, d nstance.Drain) (nstance.Outcome, string) {
			g.hookBudgets <- time.Until(d.Deadline)
			select {
			case <-g.hookMayEnd:
			case <-ctx.Done():
			}
			return nstance.OutcomeDrained, ""
		},
	}
	g.start()
	w.awaitEvent(nstance.EventReady, g.id)
	path := imds.AWSAction
	if protocol == imds.GCP {
		path = imds.GCPPreempted
	}
	require.Eventually(w, func() bool { return g.cloud.Requests(path) > 1 }, eventually, time.Millisecond)
	return g
}

// awaitHook waits for the hook and checks its time: between least and most.
func (g *skewedMachine) awaitHook(least, most time.Duration) {
	g.w.Helper()
	left := receive(g.w.T, g.hookBudgets)
	require.Greater(g.w, left, least)
	require.LessOrEqual(g.w, left, most)
	close(g.hookMayEnd)
	g.w.awaitEvent(nstance.EventDeleteRequested, g.id)
}

func TestNoticesOfMachinesWithWrongClocks(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	// The delay that a busy test machine may add.
	const slack = 15 * time.Second
	clocks := map[string]time.Duration{
		"right": 0, "45 s slow": -45 * time.Second, "3 min slow": -3 * time.Minute, "3 min fast": 3 * time.Minute, "17 h fast": 17 * time.Hour,
	}
	for name, skew := range clocks {
		t.Run("aws/"+name, func(t *testing.T) {
			w := newWorld(t, setup{webSize: 1})
			g := w.startSkewedMachine(imds.AWS, skew, nil)
			announced := time.Now()
			g.cloud.Reclaim("terminate", announced.Add(2*time.Minute))
			received := w.awaitEvent(nstance.EventNoticeReceived, g.id)
			require.WithinDuration(t, announced.Add(2*time.Minute), received.Notice.Deadline, slack)
			require.WithinDuration(t, announced, received.Notice.DetectedAt, slack)
			g.awaitHook(110*time.Second-slack, 110*time.Second)
		})
		t.Run("gcp/"+name, func(t *testing.T) {
			w := newWorld(t, setup{webSize: 1})
			g := w.startSkewedMachine(imds.GCP, skew, nil)
			g.cloud.Reclaim("", time.Time{})
			g.awaitHook(20*time.Second-slack, 20*time.Second)
			received := w.awaitEvent(nstance.EventNoticeReceived, g.id)
			require.Zero(t, received.Notice.Deadline)
			require.WithinDuration(t, received.Time, received.Notice.DetectedAt, slack)
		})
		t.Run("aws/notice before the agent starts/"+name, func(t *testing.T) {
			w := newWorld(t, setup{webSize: 1})
			g := w.startSkewedMachine(imds.AWS, skew, func(cloud *spottest.Server) {
				cloud.Reclaim("terminate", time.Now().Add(-time.Minute))
			})
			g.cloud.Reclaim("terminate", time.Now().Add(2*time.Minute))
			g.awaitHook(110*time.Second-slack, 110*time.Second)
			require.Equal(t, 1, w.countEvents(nstance.EventNoticeReceived), "what failed before the agent began is not believed")
		})
		t.Run("aws/expired notice/"+name, func(t *testing.T) {
			w := newWorld(t, setup{webSize: 1})
			g := w.startSkewedMachine(imds.AWS, skew, nil)
			asked := w.countProviderGets(g.id)
			g.cloud.Reclaim("terminate", time.Now().Add(-5*time.Second))
			require.Eventually(t, func() bool { return w.countProviderGets(g.id) > asked }, eventually, time.Millisecond, "the machine may be gone")
			g.awaitHook(20*time.Second-slack, 20*time.Second)
		})
	}
}

// countProviderGets returns the number of the provider's Gets of one machine.
func (w *world) countProviderGets(id nstance.InstanceID) (n int) {
	for c := range slices.Values(w.cloud.Calls()) {
		if c.Op == simcloud.OpGet && c.ID == id {
			n++
		}
	}
	return n
}

func TestRepeatedDeadlines(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	notice := func(left time.Duration) *apiv1.Notice {
		n := wire.Notice(reclaimNotice("e1", -17*time.Hour)) // the machine's clock is not trusted
		n.SinceDetected, n.TimeLeft = durationpb.New(time.Second), durationpb.New(left)
		return n
	}
	tell := func(left time.Duration) {
		k.awaitAckKeepingOthers(k.sendNotices(notice(left)))
	}
	tell(time.Minute)
	tell(time.Minute - 1500*time.Millisecond)
	tell(2 * time.Minute)
	k.awaitAckKeepingOthers(k.sendReportWith(notice(time.Minute - 1500*time.Millisecond)))
	require.Equal(t, 1, w.countEvents(eventtype.NoticeDetected), "measurements of one deadline differ a little")
	tell(20 * time.Second)
	w.awaitEvent(nstance.EventDrainTightened, id)
	require.Equal(t, 1, w.countEvents(nstance.EventDrainTightened), "a deadline only comes earlier")
	require.WithinDuration(t, time.Now().Add(20*time.Second), w.instanceRecord(nstance.DefaultTenant, "web", id).Drain.Deadline, eventually)
}

// TestDroppedNoticeStaysDropped: the cloud did not act on its notice, and the
// machine still reports it.
func TestDroppedNoticeStaysDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	api := w.admin()
	n := wire.Notice(reclaimNotice("e1", 0))
	n.SinceDetected, n.TimeLeft = durationpb.New(13*time.Minute), durationpb.New(-11*time.Minute)
	k.sendNotices(n)
	w.awaitEvent(nstance.EventDrainCancelled, id) // because the provider answers that the machine runs
	for range 2 {
		k.awaitAckKeepingOthers(k.sendReportWith(n))
		require.NotContains(t, w.instance(api, id).GetConditions(), "notice:reclaim")
		k = k.client.connect()
		k.awaitAckKeepingOthers(k.sendNotices(n))
		require.NotContains(t, w.instance(api, id).GetConditions(), "notice:reclaim")
	}
	require.Equal(t, 1, w.countEvents(nstance.EventNoticeReceived))
	require.Equal(t, 1, w.countEvents(nstance.EventDrainStarted))
}
