package drain_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/drain/draintest"
	"github.com/stretchr/testify/require"
)

const instance nstance.InstanceID = "web06dx9xy919t3v9kzd2xdsyzb3g"

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// operatorDrain is a voluntary drain for an operator with five minutes to go.
func operatorDrain(generation uint64) nstance.Drain {
	return nstance.Drain{
		Instance:   instance,
		Group:      nstance.GroupKey{Tenant: "default", Group: "web"},
		Generation: generation,
		StartedAt:  noon,
		Deadline:   noon.Add(5 * time.Minute),
		Causes:     []nstance.Cause{{Kind: nstance.CauseRollout}},
		Voluntary:  true,
		Executor:   nstance.ExecutorOperator,
	}
}

func anAck(generation uint64) nstance.Ack {
	return nstance.Ack{Instance: instance, Generation: generation, By: nstance.ExecutorOperator, Outcome: nstance.OutcomeDrained}
}

// started returns a Coordinator with one active drain, and the number of its event.
func started(t *testing.T, d nstance.Drain) (c *drain.Coordinator, at nstance.Seq) {
	t.Helper()
	c = drain.New(nil)
	require.NoError(t, c.Start(t.Context(), d))
	return c, now(t, c)
}

// accepted returns the acknowledgements that were published after an event.
func accepted(t *testing.T, c *drain.Coordinator, after nstance.Seq) (acks []nstance.Ack) {
	t.Helper()
	if n := int(now(t, c) - after); n > 0 {
		for _, e := range nextEvents(t, c, after, n) {
			if e.Ack != nil {
				acks = append(acks, *e.Ack)
			}
		}
	}
	return acks
}

// nextEvents returns the next n events after the given one.
func nextEvents(t *testing.T, c *drain.Coordinator, after nstance.Seq, n int) []nstance.DrainEvent {
	t.Helper()
	var all []nstance.DrainEvent
	for e, err := range c.Watch(t.Context(), "", after) {
		require.NoError(t, err)
		if all = append(all, e); len(all) == n {
			break
		}
	}
	return all
}

// now returns the number of the latest event.
func now(t *testing.T, c *drain.Coordinator) nstance.Seq {
	t.Helper()
	for e, err := range c.Watch(t.Context(), "", 0) {
		require.NoError(t, err)
		if e.Type == nstance.DrainSynced {
			return e.Seq
		}
	}
	return 0
}

func TestStart(t *testing.T) {
	t.Run("announces the drain", func(t *testing.T) {
		c := drain.New(nil)
		at := now(t, c)
		require.NoError(t, c.Start(t.Context(), operatorDrain(1)))
		require.Equal(t, []nstance.DrainEvent{{Seq: at + 1, Type: nstance.DrainRequested, Drain: operatorDrain(1)}}, nextEvents(t, c, at, 1))
		require.Equal(t, []nstance.Drain{operatorDrain(1)}, c.Active())
	})
	t.Run("is idempotent within a generation", func(t *testing.T) {
		c, _ := started(t, operatorDrain(1))
		at := now(t, c)
		require.NoError(t, c.Start(t.Context(), operatorDrain(1)))
		require.Equal(t, at, now(t, c))
	})
	t.Run("an earlier deadline tightens", func(t *testing.T) {
		c, _ := started(t, operatorDrain(1))
		at := now(t, c)
		sooner := operatorDrain(1)
		sooner.Deadline = noon.Add(time.Minute)
		require.NoError(t, c.Start(t.Context(), sooner))
		require.Equal(t, []nstance.DrainEvent{{Seq: at + 1, Type: nstance.DrainTightened, Drain: sooner}}, nextEvents(t, c, at, 1))
		require.Equal(t, []nstance.Drain{sooner}, c.Active())
	})
	t.Run("a later deadline is ignored", func(t *testing.T) {
		c, _ := started(t, operatorDrain(1))
		at := now(t, c)
		later := operatorDrain(1)
		later.Deadline = noon.Add(time.Hour)
		require.NoError(t, c.Start(t.Context(), later))
		require.Equal(t, at, now(t, c))
		require.Equal(t, []nstance.Drain{operatorDrain(1)}, c.Active())
	})
	t.Run("becomes involuntary, never voluntary again", func(t *testing.T) {
		c, _ := started(t, operatorDrain(1))
		doomed := operatorDrain(1)
		doomed.Voluntary = false
		require.NoError(t, c.Start(t.Context(), doomed))
		at := now(t, c)
		require.NoError(t, c.Start(t.Context(), operatorDrain(1)))
		require.Equal(t, at, now(t, c))
		require.Equal(t, []nstance.Drain{doomed}, c.Active())
	})
	t.Run("a cordon becomes a drain, never a cordon again", func(t *testing.T) {
		cordon := operatorDrain(1)
		cordon.CordonOnly = true
		c, _ := started(t, cordon)
		at := now(t, c)
		require.NoError(t, c.Start(t.Context(), operatorDrain(1)))
		require.Equal(t, []nstance.DrainEvent{{Seq: at + 1, Type: nstance.DrainTightened, Drain: operatorDrain(1)}}, nextEvents(t, c, at, 1))
		require.NoError(t, c.Start(t.Context(), cordon))
		require.Equal(t, at+1, now(t, c))
		require.Equal(t, []nstance.Drain{operatorDrain(1)}, c.Active())
		c, at = started(t, cordon)
		require.NoError(t, c.Start(t.Context(), cordon))
		require.Equal(t, at, now(t, c))
		require.Equal(t, []nstance.Drain{cordon}, c.Active())
	})
	t.Run("an involuntary one that is repeated publishes nothing", func(t *testing.T) {
		doomed := operatorDrain(1)
		doomed.Voluntary = false
		c, at := started(t, doomed)
		require.NoError(t, c.Start(t.Context(), doomed))
		require.Equal(t, at, now(t, c))
	})
	t.Run("one that failed moves to another executor", func(t *testing.T) {
		c, _ := started(t, operatorDrain(1))
		failed := anAck(1)
		failed.Outcome = nstance.OutcomeFailed
		require.NoError(t, c.Acknowledge(t.Context(), failed))
		other := operatorDrain(1)
		other.Executor = nstance.ExecutorAgent
		require.NoError(t, c.Start(t.Context(), other))
		require.Equal(t, []nstance.Drain{other}, c.Active())
	})
	t.Run("takes the latest causes", func(t *testing.T) {
		c, _ := started(t, operatorDrain(1))
		other := operatorDrain(1)
		other.Causes = append(other.Causes, nstance.Cause{Kind: nstance.CauseNotice, EventID: "e1"})
		require.NoError(t, c.Start(t.Context(), other))
		require.Equal(t, other.Causes, c.Active()[0].Causes)
	})
	t.Run("moves to another executor, and only it acknowledges from then on", func(t *testing.T) {
		c, from := started(t, operatorDrain(1))
		at := now(t, c)
		other := operatorDrain(1)
		other.Executor = nstance.ExecutorAgent
		require.NoError(t, c.Start(t.Context(), other))
		require.Equal(t, []nstance.DrainEvent{{Seq: at + 1, Type: nstance.DrainReassigned, Drain: other}}, nextEvents(t, c, at, 1))
		require.ErrorIs(t, c.Acknowledge(t.Context(), anAck(1)), nstance.Denied)
		require.Empty(t, accepted(t, c, from))
		ack := anAck(1)
		ack.By = nstance.ExecutorAgent
		require.NoError(t, c.Acknowledge(t.Context(), ack))
		require.Equal(t, []nstance.Ack{ack}, accepted(t, c, from))
	})
	t.Run("a failure counts again under another executor", func(t *testing.T) {
		c, from := started(t, operatorDrain(1))
		failed := anAck(1)
		failed.Outcome = nstance.OutcomeFailed
		require.NoError(t, c.Acknowledge(t.Context(), failed))
		other := operatorDrain(1)
		other.Executor = nstance.ExecutorAgent
		require.NoError(t, c.Start(t.Context(), other))
		require.Nil(t, nextEvents(t, c, 0, 1)[0].Ack, "an acknowledgement does not outlive its executor")
		failed.By = nstance.ExecutorAgent
		require.NoError(t, c.Acknowledge(t.Context(), failed))
		require.Len(t, accepted(t, c, from), 2)
	})
	t.Run("stays with the executor that has completed it", func(t *testing.T) {
		c, from := started(t, operatorDrain(1))
		require.NoError(t, c.Acknowledge(t.Context(), anAck(1)))
		other := operatorDrain(1)
		other.Executor = nstance.ExecutorAgent
		at := now(t, c)
		require.NoError(t, c.Start(t.Context(), other))
		require.Equal(t, at, now(t, c))
		require.Equal(t, []nstance.Ack{anAck(1)}, accepted(t, c, from))
	})
	t.Run("a newer generation replaces an older one, with its own deadline", func(t *testing.T) {
		c, _ := started(t, operatorDrain(1))
		at := now(t, c)
		next := operatorDrain(2)
		next.Deadline = noon.Add(time.Hour)
		require.NoError(t, c.Start(t.Context(), next))
		require.Equal(t, []nstance.DrainEvent{{Seq: at + 1, Type: nstance.DrainRequested, Drain: next}}, nextEvents(t, c, at, 1))
		require.Equal(t, []nstance.Drain{next}, c.Active())
	})
	t.Run("an older generation is a conflict", func(t *testing.T) {
		c, _ := started(t, operatorDrain(3))
		require.ErrorIs(t, c.Start(t.Context(), operatorDrain(2)), nstance.Conflict)
		require.Equal(t, []nstance.Drain{operatorDrain(3)}, c.Active())
	})
	t.Run("a generation that was cancelled or has ended is a conflict", func(t *testing.T) {
		c, _ := started(t, operatorDrain(1))
		require.NoError(t, c.Cancel(t.Context(), instance, 1))
		require.ErrorIs(t, c.Start(t.Context(), operatorDrain(1)), nstance.Conflict)
		require.NoError(t, c.Start(t.Context(), operatorDrain(3)))
		of, ok := c.Of(instance)
		require.True(t, ok)
		require.Equal(t, operatorDrain(3), of)
		require.NoError(t, c.End(t.Context(), instance))
		require.ErrorIs(t, c.Start(t.Context(), operatorDrain(3)), nstance.Conflict)
		require.Empty(t, c.Active())
		_, ok = c.Of(instance)
		require.False(t, ok)
	})
	t.Run("does not keep the caller's causes", func(t *testing.T) {
		d := operatorDrain(1)
		c, _ := started(t, d)
		d.Causes[0].Kind = "scribble"
		c.Active()[0].Causes[0].Kind = "scribble"
		nextEvents(t, c, 0, 1)[0].Drain.Causes[0].Kind = "scribble"
		of, ok := c.Of(instance)
		require.True(t, ok)
		of.Causes[0].Kind = "scribble"
		require.Equal(t, []nstance.Drain{operatorDrain(1)}, c.Active())
	})
	t.Run("a disconnected executor is none", func(t *testing.T) {
		d := operatorDrain(1)
		d.Executor = ""
		c, _ := started(t, d)
		require.Equal(t, nstance.ExecutorNone, c.Active()[0].Executor)
	})
}

func TestStartRefuses(t *testing.T) {
	for field, corrupt := range map[string]func(*nstance.Drain){
		"instance_id": func(d *nstance.Drain) { d.Instance = "" },
		"generation":  func(d *nstance.Drain) { d.Generation = 0 },
		"deadline":    func(d *nstance.Drain) { d.Deadline = time.Time{} },
		"executor":    func(d *nstance.Drain) { d.Executor = "butler" },
	} {
		t.Run(field, func(t *testing.T) {
			d := operatorDrain(1)
			corrupt(&d)
			err := drain.New(nil).Start(t.Context(), d)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, field)
		})
	}
}

func TestAcknowledge(t *testing.T) {
	t.Run("is published", func(t *testing.T) {
		c, from := started(t, operatorDrain(1))
		at := now(t, c)
		ack := anAck(1)
		require.NoError(t, c.Acknowledge(t.Context(), ack))
		require.Equal(t, []nstance.DrainEvent{{Seq: at + 1, Type: nstance.DrainAcknowledged, Drain: operatorDrain(1), Ack: &ack}}, nextEvents(t, c, at, 1))
		require.Equal(t, []nstance.Ack{ack}, accepted(t, c, from))
	})
	t.Run("keeps the drain until it ends", func(t *testing.T) {
		c, _ := started(t, operatorDrain(1))
		require.NoError(t, c.Acknowledge(t.Context(), anAck(1)))
		require.Len(t, c.Active(), 1)
	})
	t.Run("not found when the instance is not draining", func(t *testing.T) {
		c := drain.New(nil)
		require.ErrorIs(t, c.Acknowledge(t.Context(), anAck(1)), nstance.NotFound)
		for _, over := range []func(*drain.Coordinator) error{
			func(c *drain.Coordinator) error { return c.Cancel(t.Context(), instance, 1) },
			func(c *drain.Coordinator) error { return c.End(t.Context(), instance) },
		} {
			c, from := started(t, operatorDrain(1))
			require.NoError(t, over(c))
			require.ErrorIs(t, c.Acknowledge(t.Context(), anAck(1)), nstance.NotFound)
			require.Empty(t, accepted(t, c, from))
		}
	})
	t.Run("conflict for another generation", func(t *testing.T) {
		c, from := started(t, operatorDrain(2))
		require.ErrorIs(t, c.Acknowledge(t.Context(), anAck(1)), nstance.Conflict)
		require.ErrorIs(t, c.Acknowledge(t.Context(), anAck(3)), nstance.Conflict)
		require.Empty(t, accepted(t, c, from))
	})
	t.Run("invalid for an unknown outcome", func(t *testing.T) {
		c, from := started(t, operatorDrain(1))
		ack := anAck(1)
		ack.Outcome = "splendid"
		require.ErrorIs(t, c.Acknowledge(t.Context(), ack), nstance.Invalid)
		require.Empty(t, accepted(t, c, from))
	})
	t.Run("invalid for a drain that is blocked and to be deleted", func(t *testing.T) {
		c, from := started(t, operatorDrain(1))
		ack := anAck(1)
		ack.Outcome, ack.Delete = nstance.OutcomeBlocked, true
		require.ErrorIs(t, c.Acknowledge(t.Context(), ack), nstance.Invalid)
		require.Empty(t, accepted(t, c, from))
	})
	t.Run("publishes a failure once, whatever its message, and each new obstacle", func(t *testing.T) {
		c, from := started(t, operatorDrain(1))
		for _, say := range []struct {
			outcome nstance.Outcome
			message string
			events  int
		}{
			{nstance.OutcomeBlocked, "budget a", 1}, {nstance.OutcomeBlocked, "budget a", 1}, {nstance.OutcomeBlocked, "budget b", 2},
			{nstance.OutcomeFailed, "first", 3}, {nstance.OutcomeFailed, "second", 3}, {nstance.OutcomeBlocked, "budget b", 4},
		} {
			ack := anAck(1)
			ack.Outcome, ack.Message = say.outcome, say.message
			require.NoError(t, c.Acknowledge(t.Context(), ack))
			require.Len(t, accepted(t, c, from), say.events, "%s %s", say.outcome, say.message)
		}
	})
	t.Run("cuts a long message between characters", func(t *testing.T) {
		c, from := started(t, operatorDrain(1))
		ack := anAck(1)
		ack.Message = "x" + strings.Repeat("é", 200) + "\xff"
		require.NoError(t, c.Acknowledge(t.Context(), ack))
		require.Equal(t, 255, len(accepted(t, c, from)[0].Message))
		require.True(t, utf8.ValidString(accepted(t, c, from)[0].Message))
	})
}

func TestOnlyTheExecutorAcknowledges(t *testing.T) {
	all := []nstance.Executor{nstance.ExecutorOperator, nstance.ExecutorAgent, nstance.ExecutorNone, ""}
	for _, executor := range all {
		for _, by := range all {
			t.Run(fmt.Sprintf("%q for a drain of %q", by, executor), func(t *testing.T) {
				d, ack := operatorDrain(1), anAck(1)
				d.Executor, ack.By = executor, by
				c, from := started(t, d)
				err := c.Acknowledge(t.Context(), ack)
				if by == executor && by != nstance.ExecutorNone && by != "" {
					require.NoError(t, err)
					require.Len(t, accepted(t, c, from), 1)
					return
				}
				require.ErrorIs(t, err, nstance.Denied)
				require.Empty(t, accepted(t, c, from))
			})
		}
	}
}

func TestValidAcknowledgements(t *testing.T) {
	drained := anAck(1)
	failed := anAck(1)
	failed.Outcome = nstance.OutcomeFailed
	giveUp := failed
	giveUp.Delete = true
	blocked := func(why string) nstance.Ack {
		a := anAck(1)
		a.Outcome, a.Message = nstance.OutcomeBlocked, why
		return a
	}
	for name, c := range map[string]struct{ said, counted []nstance.Ack }{
		"a repeat changes nothing":                  {[]nstance.Ack{drained, drained}, []nstance.Ack{drained}},
		"a failure does not end it":                 {[]nstance.Ack{failed, drained}, []nstance.Ack{failed, drained}},
		"a failure counts once":                     {[]nstance.Ack{failed, failed}, []nstance.Ack{failed}},
		"a failure may be made final":               {[]nstance.Ack{failed, giveUp}, []nstance.Ack{failed, giveUp}},
		"one that is blocked goes on":               {[]nstance.Ack{blocked("a"), blocked("a"), blocked("b"), blocked(""), drained}, []nstance.Ack{blocked("a"), blocked("b"), blocked(""), drained}},
		"a blocked one fails, and goes on":          {[]nstance.Ack{blocked("a"), failed, failed, blocked("a")}, []nstance.Ack{blocked("a"), failed, blocked("a")}},
		"nothing blocks what is done":               {[]nstance.Ack{drained, blocked("a")}, []nstance.Ack{drained}},
		"nothing counts after drained":              {[]nstance.Ack{drained, failed, giveUp}, []nstance.Ack{drained}},
		"nothing counts after the executor gave up": {[]nstance.Ack{giveUp, drained, failed}, []nstance.Ack{giveUp}},
	} {
		t.Run(name, func(t *testing.T) {
			co, from := started(t, operatorDrain(1))
			at := now(t, co)
			for _, a := range c.said {
				require.NoError(t, co.Acknowledge(t.Context(), a))
			}
			require.Equal(t, c.counted, accepted(t, co, from))
			require.Equal(t, at+nstance.Seq(len(c.counted)), now(t, co))
		})
	}
}

func TestSnapshotCarriesTheLastAck(t *testing.T) {
	c, _ := started(t, operatorDrain(1))
	require.Nil(t, nextEvents(t, c, 0, 1)[0].Ack)
	ack := anAck(1)
	require.NoError(t, c.Acknowledge(t.Context(), ack))
	require.NoError(t, c.Start(t.Context(), operatorDrain(1)))
	require.Equal(t, []nstance.DrainEvent{{Type: nstance.DrainSnapshot, Drain: operatorDrain(1), Ack: &ack}}, nextEvents(t, c, 0, 1))

	require.NoError(t, c.Start(t.Context(), operatorDrain(2)))
	require.Nil(t, nextEvents(t, c, 0, 1)[0].Ack, "an acknowledgement does not outlive its generation")
}

func TestCancel(t *testing.T) {
	t.Run("leaves the next generation alone", func(t *testing.T) {
		c, _ := started(t, operatorDrain(2))
		at := now(t, c)
		require.NoError(t, c.Cancel(t.Context(), instance, 1))
		require.Equal(t, []nstance.Drain{operatorDrain(2)}, c.Active())
		require.Equal(t, at, now(t, c))
	})
	t.Run("withdraws the drain", func(t *testing.T) {
		c, _ := started(t, operatorDrain(1))
		at := now(t, c)
		require.NoError(t, c.Cancel(t.Context(), instance, 1))
		require.Empty(t, c.Active())
		require.Equal(t, []nstance.DrainEvent{{Seq: at + 1, Type: nstance.DrainCancelled, Drain: operatorDrain(1)}}, nextEvents(t, c, at, 1))
	})
	t.Run("accepts the generation of the cancel itself", func(t *testing.T) {
		c, _ := started(t, operatorDrain(1))
		require.NoError(t, c.Cancel(t.Context(), instance, 2))
		require.Empty(t, c.Active())
		require.NoError(t, c.Start(t.Context(), operatorDrain(2)))
	})
	t.Run("leaves a newer drain alone", func(t *testing.T) {
		c, _ := started(t, operatorDrain(2))
		require.NoError(t, c.Cancel(t.Context(), instance, 1))
		require.Equal(t, []nstance.Drain{operatorDrain(2)}, c.Active())
	})
	t.Run("is nil when there is none", func(t *testing.T) {
		c := drain.New(nil)
		at := now(t, c)
		require.NoError(t, c.Cancel(t.Context(), instance, 1))
		require.Equal(t, at, now(t, c))
	})
}

func TestEnd(t *testing.T) {
	t.Run("ends the drain, acknowledged or not", func(t *testing.T) {
		c, _ := started(t, operatorDrain(1))
		at := now(t, c)
		require.NoError(t, c.End(t.Context(), instance))
		require.Empty(t, c.Active())
		require.Equal(t, []nstance.DrainEvent{{Seq: at + 1, Type: nstance.DrainEnded, Drain: operatorDrain(1)}}, nextEvents(t, c, at, 1))
	})
	t.Run("is nil when there is none", func(t *testing.T) {
		c := drain.New(nil)
		at := now(t, c)
		require.NoError(t, c.End(t.Context(), instance))
		require.Equal(t, at, now(t, c))
	})
}

func TestEndedDrainsAreDropped(t *testing.T) {
	c := drain.New(&drain.Options{Backlog: 2})
	for _, id := range []nstance.InstanceID{"a", "b", "c", "d", "e", "f", "g"} {
		d := operatorDrain(1)
		d.Instance = id
		require.NoError(t, c.Start(t.Context(), d))
		require.NoError(t, c.End(t.Context(), id))
	}
	for id, want := range map[nstance.InstanceID]error{"a": nil, "b": nil, "c": nil, "d": nil, "e": nil, "f": nstance.Conflict, "g": nstance.Conflict} {
		d := operatorDrain(1)
		d.Instance = id
		require.ErrorIs(t, c.Start(t.Context(), d), want, "%s", id)
	}
}

func TestExecutorsAreCounted(t *testing.T) {
	var changes []nstance.TenantID
	c := drain.New(nil)
	stop := c.NotifyExecutors(func(tenant nstance.TenantID) { changes = append(changes, tenant) })
	others := 0
	defer c.NotifyExecutors(func(nstance.TenantID) { others++ })()
	require.False(t, c.HasExecutor("default"))
	removeFirst, removeSecond := c.AddExecutor("default"), c.AddExecutor("default")
	removeFirst()
	removeFirst()
	require.True(t, c.HasExecutor("default"), "the second is still there, however often the first leaves")
	require.False(t, c.HasExecutor("other"))
	require.Equal(t, []nstance.TenantID{"default"}, changes, "the first has come")
	removeSecond()
	require.False(t, c.HasExecutor("default"))
	require.Equal(t, []nstance.TenantID{"default", "default"}, changes, "the last has gone")

	remove := c.AddExecutor("")
	require.True(t, c.HasExecutor("other"), "it drains for every tenant")
	remove()
	require.False(t, c.HasExecutor("other"))
	require.Equal(t, []nstance.TenantID{"default", "default", "", ""}, changes)
	stop()
	c.AddExecutor("other")
	require.Len(t, changes, 4)
	require.Equal(t, 5, others, "each caller is told, until it stops")
}

func TestWatcherIsNotExecutor(t *testing.T) {
	c, _ := started(t, operatorDrain(1))
	for e, err := range c.Watch(t.Context(), "default", 0) {
		require.NoError(t, err)
		require.False(t, c.HasExecutor("default"))
		if e.Type == nstance.DrainSynced {
			break
		}
	}
}

func TestLogNamesInstanceAndOutcome(t *testing.T) {
	var out bytes.Buffer
	c := drain.New(&drain.Options{Log: slog.New(slog.NewTextHandler(&out, nil))})
	require.NoError(t, c.Start(t.Context(), operatorDrain(1)))
	require.NoError(t, c.Acknowledge(t.Context(), anAck(1)))
	require.Contains(t, out.String(), "event=requested instance_id="+string(instance))
	require.Contains(t, out.String(), "event=acknowledged instance_id="+string(instance))
	require.Contains(t, out.String(), "outcome=drained")
}

// TestManyAtOnce starts and acknowledges a thousand drains concurrently
// while an operator watches: none may be lost.
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		c := drain.New(nil)
		var operator, starters sync.WaitGroup
		operator.Go(func() { acknowledge(t, c, n) })
		for i := range n {
			starters.Go(func() {
				d := operatorDrain(1)
				d.Instance = nstance.InstanceID(strconv.Itoa(i))
				if err := c.Start(t.Context(), d); err != nil {
					t.Error(err)
				}
			})
		}
		starters.Wait()
		operator.Wait()
		require.Len(t, c.Active(), n)
		for _, e := range nextEvents(t, c, 0, n) {
			require.NotNil(t, e.Ack, e.Drain.Instance)
		}
	})
}

// acknowledge acts as an operator until it has drained n machines.
func acknowledge(t *testing.T, c *drain.Coordinator, n int) {
	done := map[nstance.InstanceID]bool{}
	for e, err := range c.Watch(t.Context(), "default", 0) {
		if err != nil {
			t.Error(err)
			return
		}
		if e.Type != nstance.DrainSnapshot && e.Type != nstance.DrainRequested {
			continue
		}
		a := anAck(e.Drain.Generation)
		a.Instance = e.Drain.Instance
		if err := c.Acknowledge(t.Context(), a); err != nil {
			t.Error(err)
		}
		if done[a.Instance] = true; len(done) == n {
			return
		}
	}
}

func TestCoordinatorKeepsItsPromises(t *testing.T) {
	draintest.Run(t, func(*testing.T) draintest.Subject {
		c := drain.New(nil)
		return draintest.Subject{Coordinator: c, AddExecutor: c.AddExecutor}
	})
}
