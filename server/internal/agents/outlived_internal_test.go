package agents

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/drain"
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
		s.agents = &Agents{Options: Options{Now: time.Now}, shard: sleepyShard{&fakeShard{}, recs}, drains: drain.New(nil), sessions: newSessions(func(nstance.Fact) {})}
		s.id, s.identity.Serial = id, "01"
		require.NoError(t, s.agents.sessions.begin(s))
		require.NoError(t, s.agents.drains.Start(t.Context(), nstance.Drain{Instance: id, Generation: 1, Deadline: time.Now().Add(time.Hour), Executor: nstance.ExecutorAgent}))
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

// TestRelayedDrains: the agent is told of the drain that it carries out now, or that there is
// none, after each event and after a snapshot, which a watcher that was behind begins with.
func TestRelayedDrains(t *testing.T) {
	type state struct {
		drain      *nstance.Drain // that the record has
		generation uint64         // of the record
	}
	of := func(executor nstance.Executor) state {
		return state{&nstance.Drain{Generation: 3, Deadline: time.Now().Add(time.Hour), Executor: executor}, 3}
	}
	for what, c := range map[string]struct {
		state
		commands, cancels uint64 // generation
	}{
		"never drained":         {},
		"drained by the agent":  {state: of(nstance.ExecutorAgent), commands: 3},
		"drained by another":    {state: of(nstance.ExecutorOperator), cancels: 2},
		"the drain has ended":   {state: state{generation: 4}, cancels: 4},
		"its first, by another": {state: state{&nstance.Drain{Generation: 1, Deadline: time.Now().Add(time.Hour)}, 1}},
	} {
		for kind, sent := range map[nstance.DrainEventType]bool{
			nstance.DrainSynced: true, nstance.DrainRequested: true, nstance.DrainTightened: true, nstance.DrainReassigned: true,
			nstance.DrainCancelled: true, nstance.DrainSnapshot: false, nstance.DrainAcknowledged: false, nstance.DrainEnded: false,
		} {
			synctest.Test(t, func(t *testing.T) {
				s, d := newSlowAgent(t)
				close(d.Read)
				recs, drains := records.New(storage.NewMemory(), "s1", nil), drain.New(nil)
				s.agents = &Agents{Options: Options{Now: time.Now}, shard: sleepyShard{&fakeShard{}, recs}, drains: drains, sessions: newSessions(func(nstance.Fact) {})}
				s.id = testID(t)
				_, err := recs.Create(t.Context(), records.Instance{ID: s.id, Tenant: "default", Group: "web", Drain: c.drain, Generation: c.generation})
				require.NoError(t, err)
				if c.drain != nil {
					running := *c.drain
					running.Instance = s.id
					require.NoError(t, drains.Start(t.Context(), running))
				}
				require.NoError(t, s.agents.sessions.begin(s))
				about := nstance.Drain{Executor: nstance.ExecutorAgent}
				if kind != nstance.DrainSynced {
					about.Instance = s.id
				}
				s.agents.relayDrain(nstance.DrainEvent{Type: kind, Drain: about})
				s.agents.relayDrain(nstance.DrainEvent{Type: nstance.DrainRequested, Drain: nstance.Drain{Instance: s.id, Executor: nstance.ExecutorOperator}})
				s.agents.relayDrain(nstance.DrainEvent{Type: nstance.DrainRequested, Drain: nstance.Drain{Instance: "unknown", Executor: nstance.ExecutorAgent}})
				synctest.Wait()
				if !sent || c.commands+c.cancels == 0 {
					require.Empty(t, d.Sent, "%s, %s", what, kind)
				} else {
					require.Len(t, d.Sent, 1, "%s, %s", what, kind)
					require.Equal(t, c.commands, d.Sent[0].GetDrain().GetGeneration(), "%s, %s", what, kind)
					require.Equal(t, c.cancels, d.Sent[0].GetDrainCancel().GetGeneration(), "%s, %s", what, kind)
				}
				s.cancel(nil)
			})
		}
	}
}
