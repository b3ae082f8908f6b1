package reconcile_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// bySources returns an interruption as the agent and as the event bus announce it.
func bySources(agentDeadline, busDeadline time.Duration) (agent, bus nstance.Notice) {
	now := time.Now()
	agent = nstance.Notice{Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot", EventID: "agent", Deadline: now.Add(agentDeadline), DetectedAt: now}
	bus = nstance.Notice{Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot/eventbridge", EventID: "bus", Deadline: now.Add(busDeadline), DetectedAt: now}
	return agent, bus
}

// announce sends a notice and returns how often it was acknowledged.
func (w *world) announce(id nstance.InstanceID, n nstance.Notice) *atomic.Int32 {
	acks := new(atomic.Int32)
	r, _ := w.leader()
	r.Observe(nstance.Noticed{ID: id, Notice: n, Ack: func() { acks.Add(1) }})
	return acks
}

func (w *world) freshRecord(id nstance.InstanceID) records.Instance {
	w.t.Helper()
	rec, err := w.r.Admin().Internals().Records().Refresh(w.ctx, id)
	require.NoError(w.t, err)
	return rec
}

// TestTwoSources: what two sources announce of one interruption is one, by the event ID
// of the first and with the earlier deadline.
func TestTwoSources(t *testing.T) {
	agent, bus := func() nstance.Notice { a, _ := bySources(2*time.Minute, 0); return a }, func() nstance.Notice { _, b := bySources(0, 110*time.Second); return b }
	for name, order := range map[string][2]func() nstance.Notice{"the agent first": {agent, bus}, "the event bus first": {bus, agent}} {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
				w.withholdDrainAcks()
				id := w.ready()[0]
				first, second := order[0](), order[1]()
				one := w.announce(id, first)
				two := w.announce(id, second)
				w.advance(5 * time.Second)
				require.Equal(t, []int32{1, 1}, []int32{one.Load(), two.Load()})
				rec := w.freshRecord(id)
				require.Len(t, rec.Notices, 1)
				require.Equal(t, first.EventID, rec.Notices[0].EventID)
				require.WithinDuration(t, bus().Deadline.Add(-5*time.Second), rec.Notices[0].Deadline, time.Second, "the earlier one")
				require.Len(t, rec.Drain.Causes, 1)
				require.Equal(t, 1, w.count(nstance.EventNoticeReceived, id))
				require.Equal(t, 1, w.count(nstance.EventReplacementRequested, ""), "one replacement")
				require.EqualValues(t, 1, w.announce(id, first).Load(), "repeated: at once")
				require.EqualValues(t, 1, w.announce(id, second).Load())
			})
		})
	}
}

// TestTwoSourcesAfterTakeover: the next leader knows the event from the record.
func TestTwoSourcesAfterTakeover(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.withholdDrainAcks()
		id := w.ready()[0]
		agent, bus := bySources(20*time.Minute, 20*time.Minute)
		w.announce(id, bus)
		w.advance(time.Second)
		w.changeLeader(webGroup(2))
		require.EqualValues(t, 1, w.announce(id, agent).Load(), "its consequence is durable")
		require.Len(t, w.freshRecord(id).Notices, 1)
		require.Equal(t, 1, w.count(nstance.EventNoticeReceived, id))
	})
}

// TestTwoInterruptions: the next interruption of a machine that was not terminated is
// another one, whichever source announces it.
func TestTwoInterruptions(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.withholdDrainAcks()
		id := w.ready()[0]
		agent, bus := bySources(2*time.Minute, 5*time.Minute)
		w.announce(id, agent)
		w.announce(id, bus)
		w.advance(time.Second)
		require.Len(t, w.freshRecord(id).Notices, 2)
		require.Equal(t, 2, w.count(nstance.EventNoticeReceived, id))
	})
}

// TestOneOfTwoIsWithdrawn: the machine is drained for the other one, and the record goes on
// to have both.
func TestOneOfTwoIsWithdrawn(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.withholdDrainAcks()
		id := w.ready()[0]
		reclaim, _ := bySources(20*time.Minute, 0)
		scaledIn := nstance.Notice{Kind: nstance.Terminate, Source: "aws/autoscaling", EventID: "scaled in"}
		w.announce(id, reclaim)
		w.announce(id, scaledIn)
		w.advance(time.Second)
		reclaim.Cancelled = true
		w.announce(id, reclaim)
		w.advance(time.Second)
		rec := w.freshRecord(id)
		require.Equal(t, "scaled in", rec.Notices[0].EventID)
		require.NotNil(t, rec.Drain)
		life := ledger.Open(rec, "")
		all := life.Interruptions()
		require.Len(t, all, 2)
		require.Equal(t, reclaim.EventID, all[0].Notice.EventID)
		require.True(t, all[0].Withdrawn)
		require.Empty(t, all[0].DrainOutcome, "its drain goes on")
		require.False(t, all[1].Withdrawn)
	})
}

// TestWithdrawalBySource: any source that announced an event can withdraw it, also to a
// leader that knows it from the record alone.
func TestWithdrawalBySource(t *testing.T) {
	for name, c := range map[string]struct{ agentFirst, agentWithdraws, takeover bool }{
		"the first":                     {true, true, false},
		"the second":                    {false, true, false},
		"the event bus":                 {true, false, false},
		"the second, to another leader": {false, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
				w.withholdDrainAcks()
				id := w.ready()[0]
				agent, bus := bySources(20*time.Minute, 20*time.Minute)
				first, second, withdrawn := agent, bus, agent
				if !c.agentFirst {
					first, second = bus, agent
				}
				if !c.agentWithdraws {
					withdrawn = bus
				}
				w.announce(id, first)
				w.announce(id, second)
				w.advance(time.Second)
				require.Contains(t, w.in(nstance.Draining), id)
				if c.takeover {
					w.stopLeader()
					w.startLeader(webGroup(2))
					w.advance(5 * time.Second)
				}
				withdrawn.Cancelled = true
				acks := w.announce(id, withdrawn)
				w.advance(time.Minute)
				require.EqualValues(t, 1, acks.Load())
				require.Contains(t, w.ready(), id)
				require.Empty(t, w.freshRecord(id).Notices)
			})
		})
	}
}

// TestLoneDrainOfOtherSource: the agent reports a drain by its own event ID, also if the
// event bus was first.
func TestLoneDrainOfOtherSource(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.withholdDrainAcks()
		id := w.ready()[0]
		agent, bus := bySources(2*time.Minute, 2*time.Minute)
		w.announce(id, bus)
		w.announce(id, agent)
		w.r.Observe(nstance.DrainedWithoutServer{ID: id, EventID: agent.EventID, Outcome: nstance.OutcomeDrained})
		w.advance(time.Second)
		require.Contains(t, w.first(nstance.EventDrainedWithoutServer, func(nstance.Event) bool { return true }).Reason, bus.EventID)
	})
}

// TestAdviceOfTwoSources: a recommendation and planned maintenance are one each too, and
// can be withdrawn by either source.
func TestAdviceOfTwoSources(t *testing.T) {
	for name, agent := range map[string]nstance.Notice{"rebalance": rebalance("agent"), "maintenance": retirement(time.Time{})} {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
				id := w.ready()[0]
				if agent.Kind == nstance.Maintenance {
					agent.NotBefore = time.Now().Add(72 * time.Hour)
				}
				bus := agent
				bus.EventID, bus.Source, bus.Action = "bus", agent.Source+"/eventbridge", "OTHER_WORD"
				w.announce(id, bus)
				w.announce(id, agent)
				w.advance(time.Second)
				require.Equal(t, 1, w.count(nstance.EventNoticeIgnored, id))
				require.Len(t, w.freshRecord(id).Advice, 1)
				agent.Cancelled = true
				acks := w.announce(id, agent)
				w.advance(time.Second)
				require.EqualValues(t, 1, acks.Load())
				require.Empty(t, w.freshRecord(id).Advice)
			})
		})
	}
}

// TestAdviceOfSourceThatDoesNotRepeat: it is acknowledged when it is durable, and the
// next leader acts on it.
func TestAdviceOfSourceThatDoesNotRepeat(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		faulty := storagetest.NewFaulty(w.store)
		w.wrap = func(o *leaderEnv) { o.store = faulty }
		w.changeLeader(webGroup(3))
		before := w.ready()
		faulty.Inject(instanceWrites(storagetest.Refuse))
		n := retirement(time.Now().Add(72 * time.Hour))
		n.DetectedAt = time.Now()
		acks := w.announce(before[0], n)
		again := w.announce(before[0], n)
		w.advance(5 * time.Second)
		require.Zero(t, acks.Load()+again.Load(), "not durable yet")
		faulty.ClearFaults()
		w.advance(time.Minute)
		require.Equal(t, []int32{1, 1}, []int32{acks.Load(), again.Load()})

		w.changeLeader(webGroup(3))
		w.advance(47 * time.Hour)
		require.Equal(t, before, w.ready())
		w.advance(2 * time.Hour)
		require.NotContains(t, w.ready(), before[0])
		w.requireMembers(3)
	})
}

// TestDroppedNoticeOfOtherSource: an interruption that the cloud did not carry out stays
// dropped, though the other source still reports it.
func TestDroppedNoticeOfOtherSource(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		require.NoError(t, w.r.Admin().Freeze(w.ctx, web, "keep the member"))
		id := w.ready()[0]
		agent, bus := bySources(2*time.Minute, 2*time.Minute)
		w.announce(id, bus)
		w.announce(id, agent)
		w.advance(30 * time.Minute)
		require.EqualValues(t, 1, w.announce(id, agent).Load())
		w.advance(time.Second)
		require.Empty(t, w.freshRecord(id).Notices)
		require.Equal(t, 1, w.count(nstance.EventNoticeReceived, id))
	})
}
