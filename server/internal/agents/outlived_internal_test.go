package agents

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
)

// A sleepyShard has the record of one stand-by instance.
type sleepyShard struct {
	*fakeShard
	recs *records.Records
}

func (s sleepyShard) Records() *records.Records { return s.recs }

// TestWokenBeforeItStopped: a session goes on where its machine is woken before it has
// stopped. It is asked for a renewal then, and proves nothing from then on, whatever
// becomes of the machine.
func TestWokenBeforeItStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id, err := nstance.NewInstanceID("web", time.Now())
		require.NoError(t, err)
		recs := records.New(storage.NewMemory(), "s1", nil)
		_, err = recs.Create(t.Context(), records.Instance{ID: id, Tenant: "default", Group: "web"})
		require.NoError(t, err)
		setStandby := func(standby records.Standby) {
			_, err := recs.Update(t.Context(), id, func(rec *records.Instance) error {
				rec.Standby = &standby
				return nil
			})
			require.NoError(t, err)
		}
		s, d := newSlowAgent(t)
		close(d.Read)
		s.agents = &Agents{Options: Options{Now: time.Now}, shard: sleepyShard{&fakeShard{}, recs}, sessions: newSessions(func(nstance.Fact) {})}
		s.id, s.identity.Serial = id, "01"
		require.NoError(t, s.agents.sessions.begin(s))
		relay := func(kind nstance.DrainEventType) {
			s.agents.relayDrain(nstance.DrainEvent{Type: kind, Drain: nstance.Drain{Instance: id, Executor: nstance.ExecutorAgent}})
			synctest.Wait()
		}
		setStandby(records.Standby{Mode: nstance.ParkStopped, Phase: nstance.Parking})
		relay(nstance.DrainRequested)
		require.NotNil(t, d.Sent[0].GetDrain(), "it runs still")

		setStandby(records.Standby{Mode: nstance.ParkStopped, Phase: nstance.Waking, Serial: "01"})
		relay(nstance.DrainCancelled)
		require.Len(t, d.Sent, 2)
		require.NotNil(t, d.Sent[1].GetRenewal())
		require.Zero(t, d.Sent[1].GetRenewal().GetWithin().AsDuration())
		setStandby(records.Standby{Mode: nstance.ParkStopped, Phase: nstance.Parking})
		relay(nstance.DrainRequested)
		require.False(t, s.handle(&apiv1.ConnectRequest{Number: 1, Message: &apiv1.ConnectRequest_Report{Report: &apiv1.HealthReport{}}}))
		synctest.Wait()
		require.Len(t, d.Sent, 3)
		require.EqualValues(t, 1, d.Sent[2].GetAcknowledgement().GetReport(), "and nothing else: the renewal is asked for once")
		require.True(t, s.handle(&apiv1.ConnectRequest{Number: 2, Message: &apiv1.ConnectRequest_Goodbye{Goodbye: &apiv1.Goodbye{}}}))
		s.cancel(nil)
	})
}

// TestRelayedDrains: the agent is told of the drains that it carries out, those of a snapshot
// too, which is what a watcher that was behind begins with.
func TestRelayedDrains(t *testing.T) {
	command := func(m *apiv1.ConnectResponse) bool { return m.GetDrain() != nil }
	cancel := func(m *apiv1.ConnectResponse) bool { return m.GetDrainCancel() != nil }
	for kind, want := range map[nstance.DrainEventType]func(*apiv1.ConnectResponse) bool{
		nstance.DrainSnapshot: command, nstance.DrainRequested: command, nstance.DrainTightened: command, nstance.DrainReassigned: command,
		nstance.DrainCancelled: cancel, nstance.DrainSynced: nil, nstance.DrainAcknowledged: nil, nstance.DrainEnded: nil,
	} {
		synctest.Test(t, func(t *testing.T) {
			s, d := newSlowAgent(t)
			close(d.Read)
			s.agents = &Agents{Options: Options{Now: time.Now}, shard: sleepyShard{&fakeShard{}, records.New(storage.NewMemory(), "s1", nil)}, sessions: newSessions(func(nstance.Fact) {})}
			s.id = testID(t)
			require.NoError(t, s.agents.sessions.begin(s))
			for _, executor := range []nstance.Executor{nstance.ExecutorOperator, nstance.ExecutorNone, nstance.ExecutorAgent} {
				s.agents.relayDrain(nstance.DrainEvent{Type: kind, Drain: nstance.Drain{Instance: s.id, Executor: executor}})
			}
			s.agents.relayDrain(nstance.DrainEvent{Type: kind, Drain: nstance.Drain{Instance: "unknown", Executor: nstance.ExecutorAgent}})
			synctest.Wait()
			if want == nil {
				require.Empty(t, d.Sent, kind)
			} else {
				require.Len(t, d.Sent, 1, kind)
				require.True(t, want(d.Sent[0]), kind)
			}
			s.cancel(nil)
		})
	}
}
