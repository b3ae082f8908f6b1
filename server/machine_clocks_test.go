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
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/spot/spottest"
)

// A guest is a real agent on a spot machine whose clock may be wrong. Its cloud
// announces through a real metadata service.
type guest struct {
	*machine
	cloud  *spottest.Server
	drains chan time.Duration // how much time the hook gets
	empty  chan struct{}      // closed: the hook may end
}

// guest starts the agent once before has prepared the metadata service, and
// waits until that has been read.
func (w *world) guest(protocol string, skew time.Duration, before func(*spottest.Server)) *guest {
	w.Helper()
	g := &guest{
		machine: w.unpack(w.machine(nstance.DefaultTenant)), drains: make(chan time.Duration, 10), empty: make(chan struct{}),
		cloud: spottest.NewServer(w, &spottest.Options{Protocol: protocol, Spot: true}),
	}
	if before != nil {
		before(g.cloud)
	}
	addrs := w.server.Addresses()
	g.o = agent.Options{
		InstanceID: g.id, RegistrationAddrs: []string{addrs.Registration}, AgentAddrs: []string{addrs.Agent},
		IdentityDir: filepath.Join(g.dir, "identity"), KeysDir: filepath.Join(g.dir, "keys"), RecvDir: filepath.Join(g.dir, "recv"),
		Provider: protocol, MetadataURL: g.cloud.URL, SpotPollInterval: 50 * time.Millisecond,
		Now: func() time.Time { return time.Now().Add(skew) },
		Drain: func(ctx context.Context, d nstance.Drain) (nstance.Outcome, string) {
			g.drains <- time.Until(d.Deadline)
			select {
			case <-g.empty:
			case <-ctx.Done():
			}
			return nstance.OutcomeDrained, ""
		},
	}
	g.start()
	w.await(nstance.EventReady, g.id)
	path := imds.AWSAction
	if protocol == imds.GCP {
		path = imds.GCPPreempted
	}
	require.Eventually(w, func() bool { return g.cloud.Requests(path) > 1 }, eventually, time.Millisecond)
	return g
}

// drained waits for the hook and checks that it gets between least and most.
func (g *guest) drained(least, most time.Duration) {
	g.w.Helper()
	left := receive(g.w.T, g.drains)
	require.Greater(g.w, left, least)
	require.LessOrEqual(g.w, left, most)
	close(g.empty)
	g.w.await(nstance.EventDeleteRequested, g.id)
}

func TestNoticesOfMachinesWithWrongClocks(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	// What a busy test machine may lose of the time left.
	const slack = 15 * time.Second
	clocks := map[string]time.Duration{
		"right": 0, "45 s slow": -45 * time.Second, "3 min slow": -3 * time.Minute, "3 min fast": 3 * time.Minute, "17 h fast": 17 * time.Hour,
	}
	for name, skew := range clocks {
		t.Run("aws/"+name, func(t *testing.T) {
			w := newWorld(t, setup{size: 1})
			g := w.guest(imds.AWS, skew, nil)
			announced := time.Now()
			g.cloud.Reclaim("terminate", announced.Add(2*time.Minute))
			received := w.await(nstance.EventNoticeReceived, g.id)
			require.WithinDuration(t, announced.Add(2*time.Minute), received.Notice.Deadline, slack)
			require.WithinDuration(t, announced, received.Notice.DetectedAt, slack)
			g.drained(110*time.Second-slack, 110*time.Second)
		})
		t.Run("gcp/"+name, func(t *testing.T) {
			w := newWorld(t, setup{size: 1})
			g := w.guest(imds.GCP, skew, nil)
			g.cloud.Reclaim("", time.Time{})
			g.drained(20*time.Second-slack, 20*time.Second)
			received := w.await(nstance.EventNoticeReceived, g.id)
			require.Zero(t, received.Notice.Deadline)
			require.WithinDuration(t, received.Time, received.Notice.DetectedAt, slack)
		})
		t.Run("aws/left over/"+name, func(t *testing.T) {
			w := newWorld(t, setup{size: 1})
			g := w.guest(imds.AWS, skew, func(cloud *spottest.Server) {
				cloud.Reclaim("terminate", time.Now().Add(-time.Minute))
			})
			g.cloud.Reclaim("terminate", time.Now().Add(2*time.Minute))
			g.drained(110*time.Second-slack, 110*time.Second)
			require.Equal(t, 1, w.count(nstance.EventNoticeReceived), "what failed before the agent began is not believed")
		})
		t.Run("aws/late/"+name, func(t *testing.T) {
			w := newWorld(t, setup{size: 1})
			g := w.guest(imds.AWS, skew, nil)
			asked := w.gets(g.id)
			g.cloud.Reclaim("terminate", time.Now().Add(-5*time.Second))
			require.Eventually(t, func() bool { return w.gets(g.id) > asked }, eventually, time.Millisecond, "the machine may be gone")
			g.drained(20*time.Second-slack, 20*time.Second)
		})
	}
}

// gets returns how often the provider was asked about one machine.
func (w *world) gets(id nstance.InstanceID) (n int) {
	for c := range slices.Values(w.cloud.Calls()) {
		if c.Op == simcloud.OpGet && c.ID == id {
			n++
		}
	}
	return n
}

func TestRepeatedDeadlines(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)
	notice := func(left time.Duration) *apiv1.Notice {
		n := wire.Notice(reclaim("e1", -17*time.Hour)) // by a clock that decides nothing
		n.SinceDetected, n.TimeLeft = durationpb.New(time.Second), durationpb.New(left)
		return n
	}
	tell := func(left time.Duration) {
		k.answered(k.notices(notice(left)))
	}
	tell(time.Minute)
	tell(time.Minute - 1500*time.Millisecond)
	tell(2 * time.Minute)
	k.answered(k.reportWith(notice(time.Minute - 1500*time.Millisecond)))
	require.Equal(t, 1, w.count(nstance.EventNoticeDetected), "measurements of one deadline differ a little")
	tell(20 * time.Second)
	w.await(nstance.EventDrainTightened, id)
	require.Equal(t, 1, w.count(nstance.EventDrainTightened), "a deadline only comes earlier")
	require.WithinDuration(t, time.Now().Add(20*time.Second), w.record(nstance.DefaultTenant, "web", id).Drain.Deadline, eventually)
}

// TestDroppedNoticeStaysDropped: the cloud did not follow up, and the machine goes
// on showing what it has announced.
func TestDroppedNoticeStaysDropped(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)
	api := w.admin()
	n := wire.Notice(reclaim("e1", 0))
	n.SinceDetected, n.TimeLeft = durationpb.New(13*time.Minute), durationpb.New(-11*time.Minute)
	k.notices(n)
	w.await(nstance.EventDrainCancelled, id) // the provider was asked and says that the machine runs
	for range 2 {
		k.answered(k.reportWith(n))
		require.NotContains(t, w.instance(api, id).GetConditions(), "notice:reclaim")
		k = k.holder.connect()
		k.answered(k.notices(n))
		require.NotContains(t, w.instance(api, id).GetConditions(), "notice:reclaim")
	}
	require.Equal(t, 1, w.count(nstance.EventNoticeReceived))
	require.Equal(t, 1, w.count(nstance.EventDrainStarted))
}
