package drain_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/stretchr/testify/require"
)

// of returns a drain of another instance and tenant.
func of(tenant nstance.TenantID, id nstance.InstanceID, deadline time.Time) nstance.Drain {
	d := operatorDrain(1)
	d.Instance, d.Group.Tenant, d.Deadline = id, tenant, deadline
	return d
}

func TestWatch(t *testing.T) {
	t.Run("begins with a snapshot, earliest deadline first, then synced", func(t *testing.T) {
		c := drain.New(nil)
		late, soon := of("default", "a", noon.Add(time.Hour)), of("default", "b", noon.Add(time.Minute))
		require.NoError(t, c.Start(t.Context(), late))
		require.NoError(t, c.Start(t.Context(), soon))
		events := nextEvents(t, c, 0, 3)
		require.Equal(t, nstance.DrainEvent{Type: nstance.DrainSnapshot, Drain: soon}, events[0])
		require.Equal(t, nstance.DrainEvent{Type: nstance.DrainSnapshot, Drain: late}, events[1])
		require.Equal(t, nstance.DrainSynced, events[2].Type)
		require.NotZero(t, events[2].Seq)
	})
	t.Run("synced comes without drains too", func(t *testing.T) {
		require.Equal(t, nstance.DrainSynced, nextEvents(t, drain.New(nil), 0, 1)[0].Type)
	})
	t.Run("shows one tenant its own drains only", func(t *testing.T) {
		c := drain.New(nil)
		require.NoError(t, c.Start(t.Context(), of("blue", "a", noon)))
		require.NoError(t, c.Start(t.Context(), of("red", "b", noon)))
		var seen []nstance.DrainEventType
		for e, err := range c.Watch(t.Context(), "red", 0) {
			require.NoError(t, err)
			seen = append(seen, e.Type)
			if e.Type == nstance.DrainSynced {
				require.NoError(t, c.End(t.Context(), "a"))
				require.NoError(t, c.End(t.Context(), "b"))
				continue
			}
			require.Equal(t, nstance.TenantID("red"), e.Drain.Group.Tenant)
			if e.Type == nstance.DrainEnded {
				break
			}
		}
		require.Equal(t, []nstance.DrainEventType{nstance.DrainSnapshot, nstance.DrainSynced, nstance.DrainEnded}, seen)
	})
	t.Run("resumes without a snapshot", func(t *testing.T) {
		c, _ := started(t, operatorDrain(1))
		at := now(t, c)
		require.NoError(t, c.Acknowledge(t.Context(), anAck(1)))
		require.NoError(t, c.End(t.Context(), instance))
		events := nextEvents(t, c, at, 2)
		require.Equal(t, nstance.DrainAcknowledged, events[0].Type)
		require.Equal(t, nstance.DrainEnded, events[1].Type)
		require.Equal(t, at+2, events[1].Seq)
	})
	t.Run("starts again after another coordinator's number", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			old, _ := started(t, operatorDrain(1))
			at := now(t, old)
			<-time.After(time.Second)
			c, _ := started(t, operatorDrain(1))
			require.Equal(t, nstance.DrainSnapshot, nextEvents(t, c, at, 1)[0].Type)
		})
	})
	t.Run("a slow one ends with unavailable and delays no other", func(t *testing.T) {
		c := drain.New(&drain.Options{Backlog: 4})
		require.NoError(t, c.Start(t.Context(), operatorDrain(1)))
		var end error
		for _, err := range c.Watch(t.Context(), "", 0) {
			if end = err; err != nil {
				break
			}
			for i := range uint64(6) {
				require.NoError(t, c.Start(t.Context(), operatorDrain(c.Active()[0].Generation+1+i)))
			}
		}
		require.ErrorIs(t, end, nstance.Unavailable)
	})
	t.Run("ends without error with its context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for _, err := range drain.New(nil).Watch(ctx, "", 0) {
				require.NoError(t, err)
			}
			require.Error(t, ctx.Err())
		})
	})
	t.Run("gives each watcher its own copies", func(t *testing.T) {
		c, _ := started(t, operatorDrain(1))
		at := now(t, c)
		require.NoError(t, c.Acknowledge(t.Context(), anAck(1)))
		event := nextEvents(t, c, at, 1)[0]
		event.Ack.Outcome = "scribble"
		event.Drain.Causes[0].Kind = "scribble"
		again := nextEvents(t, c, at, 1)[0]
		require.Equal(t, nstance.OutcomeDrained, again.Ack.Outcome)
		require.Equal(t, operatorDrain(1).Causes, again.Drain.Causes)
	})
}
