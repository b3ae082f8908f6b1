package admin_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func TestDrainAck(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	w.instances[string(webB)].Drain.Executor = string(nstance.ExecutorOperator)
	t.Run("says what happened", func(t *testing.T) {
		r := w.run("drain", "ack", string(webB), "--generation", "1")
		require.Zero(t, r.code, r.errors)
		require.Equal(t, []string{"acknowledge " + string(webB) + ` generation=1 drained delete=false ""`}, w.done())
		r = w.run("drain", "ack", string(webB), "--generation", "1", "--failed", "--reason", "a disruption budget", "-o", "json")
		require.Zero(t, r.code, r.errors)
		require.JSONEq(t, `{}`, r.out, "what the API answers")
		require.Equal(t, []string{"acknowledge " + string(webB) + ` generation=1 failed delete=false "a disruption budget"`}, w.done())
	})
	t.Run("needs the generation", func(t *testing.T) {
		r := w.run("drain", "ack", string(webB))
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, "generation")
	})
	t.Run("a dry run says whether it would count", func(t *testing.T) {
		require.Zero(t, w.run("drain", "ack", string(webB), "--generation", "1", "--dry-run").code)
		require.Equal(t, 6, w.run("drain", "ack", string(webB), "--generation", "2", "--dry-run").code)
		require.Equal(t, 3, w.run("drain", "ack", string(webA), "--generation", "1", "--dry-run").code)
		w.set(func() { w.instances[string(webB)].Drain.Executor = string(nstance.ExecutorAgent) })
		require.Equal(t, 4, w.run("drain", "ack", string(webB), "--generation", "1", "--dry-run").code)
		require.Empty(t, w.done())
	})
}

// TestDrainWatch: an executor is told of each drain that is its own, of what changes about it and
// of its end, once, whatever it could not see for a while.
func TestDrainWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	now := time.Now().UTC().Truncate(time.Millisecond)
	drain := func(id nstance.InstanceID, generation uint64, left time.Duration, causes ...string) *nstance.Drain {
		d := &nstance.Drain{
			Instance: id, Group: nstance.GroupKey{Tenant: "default", Group: "web"}, Generation: generation, Executor: nstance.ExecutorOperator, StartedAt: now, Deadline: now.Add(left),
		}
		for _, text := range causes {
			d.Causes = append(d.Causes, nstance.Cause{Kind: nstance.CauseRequest, Message: text})
		}
		return d
	}
	send := func(typ nstance.EventType, d *nstance.Drain) {
		w.event(nstance.Event{Type: typ, Tenant: "default", Group: "web", Instance: d.Instance, Drain: d})
	}
	there := func(state nstance.State, d *nstance.Drain) {
		w.set(func() {
			w.instances[string(d.Instance)].State, w.instances[string(d.Instance)].Drain = string(state), wire.Drain(d)
		})
	}
	there(nstance.Draining, drain(webB, 1, time.Hour, "a"))
	there(nstance.Deleting, drain(dbA, 1, time.Hour)) // over
	r := w.start(t, "drain", "watch", "-o", "json")
	told := func(change string, id nstance.InstanceID, generation uint64) {
		t.Helper()
		var got struct {
			Change string
			Drain  json.RawMessage
		}
		require.NoError(t, json.Unmarshal([]byte(r.next()), &got))
		d := message(t, string(got.Drain), &apiv1.Drain{})
		require.Equal(t, []any{change, string(id), generation}, []any{got.Change, d.GetInstance(), d.GetGeneration()})
	}
	told("requested", webB, 1)
	people := w.start(t, "drain", "watch")
	require.Regexp(t, `Z +requested +default/web +`+string(webB)+` +generation 1 until 20\S+ by the operator, request \(a\)$`, people.next())
	people.stop()
	require.Zero(t, people.ended())
	w.watching(t)
	send(nstance.EventDrainTightened, drain(webB, 1, time.Hour, "a", "b"))
	told("tightened", webB, 1)
	send(nstance.EventDrainTightened, drain(webB, 1, time.Hour, "a", "b")) // says nothing new
	send(nstance.EventDrainTightened, drain(webB, 1, time.Minute, "a", "b"))
	told("tightened", webB, 1)
	send(nstance.EventDrainStarted, drain(webB, 2, time.Hour, "c"))
	told("requested", webB, 2)
	other := drain(webB, 2, time.Hour, "c")
	other.Executor = nstance.ExecutorAgent
	send(nstance.EventDrainReassigned, other)
	told("reassigned", webB, 2)
	send(nstance.EventDrainCancelled, other) // no business of this executor
	send(nstance.EventDrainStarted, drain(webA, 1, time.Hour))
	told("requested", webA, 1)
	send(nstance.EventDrainCancelled, drain(webA, 1, time.Hour))
	told("cancelled", webA, 1)
	for _, id := range []nstance.InstanceID{webA, webB} {
		send(nstance.EventDrainStarted, drain(id, 3, time.Hour))
		told("requested", id, 3)
	}

	w.set(func() { w.fail["GetShardStatus"] = nstance.Errorf(nstance.Unavailable, "no leader") })
	w.disconnect()
	require.Eventually(t, func() bool { return strings.Contains(r.errs.String(), "no leader") }, time.Minute, time.Millisecond)
	there(nstance.Draining, drain(webA, 3, time.Hour))
	w.set(func() { delete(w.instances, string(webB)) })
	for range 100 { // more than the server keeps
		w.event(numbered(0))
	}
	w.set(func() { delete(w.fail, "GetShardStatus") })
	told("ended", webB, 3)
	w.watching(t)
	send(nstance.EventDeleteRequested, drain(webA, 3, time.Hour))
	told("ended", webA, 3)
	r.stop()
	require.Zero(t, r.ended())
}
