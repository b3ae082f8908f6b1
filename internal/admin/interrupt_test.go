package admin_test

import (
	"cmp"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
)

// script publishes what a server does after a reclaim, with the times of the
// server's clock, which is an hour behind.
func (w *world) script(steps ...func(at func(time.Duration, nstance.Event))) func(id, eventID string) {
	return func(id, eventID string) {
		injected := time.Now().UTC().Add(-time.Hour).Truncate(time.Millisecond)
		notice := &nstance.Notice{Kind: nstance.Reclaim, Source: "rehearsal/x", EventID: eventID, DetectedAt: injected}
		at := func(after time.Duration, e nstance.Event) {
			e.Time, e.Tenant, e.Group = injected.Add(after), "default", "web"
			if e.Instance == "" {
				e.Instance = nstance.InstanceID(id)
			}
			w.event(e)
		}
		at(0, nstance.Event{Type: eventtype.NoticeDetected, Notice: notice})
		at(3*time.Millisecond, nstance.Event{Type: nstance.EventNoticeReceived, Notice: notice})
		for _, step := range steps {
			step(at)
		}
	}
}

type at = func(time.Duration, nstance.Event)

func requested(at at) {
	at(5*time.Millisecond, nstance.Event{Type: nstance.EventReplacementRequested, Instance: webNew, Replaces: webA})
}
func drained(at at) {
	at(6*time.Millisecond, nstance.Event{Type: nstance.EventDrainStarted})
	at(2*time.Second, nstance.Event{Type: nstance.EventDrainAcknowledged, Reason: "drained"})
}
func ready(at at) {
	at(1500*time.Millisecond, nstance.Event{Type: nstance.EventReady, Instance: webNew, Replaces: webA})
}
func deleted(at at) { at(4*time.Second, nstance.Event{Type: nstance.EventDeleted}) }

func rehearsed(t *testing.T, r result) *apiv1.Interruption {
	return message(t, r.out, &apiv1.Interruption{})
}

// after returns how long after the injection something happened; -1: it did not.
func after(i *apiv1.Interruption, at *timestamppb.Timestamp) time.Duration {
	if at == nil {
		return -1
	}
	return at.AsTime().Sub(i.GetDetectedAt().AsTime())
}

func TestRehearsal(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	w.onInject = w.script(requested, drained, ready, deleted)
	r := w.run("interrupt", string(webA), "--wait", "-y", "-o", "json")
	require.Zero(t, r.code, r.errors)
	got := rehearsed(t, r)
	at := func(d time.Duration) *timestamppb.Timestamp {
		return timestamppb.New(got.GetDetectedAt().AsTime().Add(d))
	}
	want := &apiv1.Interruption{
		EventId: "rehearsal-1", Tenant: "default", Group: "web", Instance: string(webA), Rehearsal: true, DetectedAt: at(0), Replacement: string(webNew),
		Notice:     &apiv1.Notice{Kind: string(nstance.Reclaim), Source: "rehearsal/x", EventId: "rehearsal-1", DetectedAt: at(0)},
		ReceivedAt: at(3 * time.Millisecond), ReplacementRequestedAt: at(5 * time.Millisecond), DrainStartedAt: at(6 * time.Millisecond),
		DrainedAt: at(2 * time.Second), DrainOutcome: "drained", ReplacementReadyAt: at(1500 * time.Millisecond), DeletedAt: at(4 * time.Second),
	}
	require.True(t, proto.Equal(want, got), r.out)
	t.Run("tells each stage as it comes", func(t *testing.T) {
		require.Contains(t, r.errors, "0.003s  notice received")
		require.Contains(t, r.errors, "4.000s  deleted")
	})
	t.Run("watches before it injects, and injects once", func(t *testing.T) {
		require.Equal(t, []string{`watch after=false group="web" instance=""`, "interrupt " + string(webA) + " notice=2m0s dry=false"}, w.done())
	})
	t.Run("for people", func(t *testing.T) {
		r := w.run("interrupt", string(webA), "--wait", "-y")
		w.golden("rehearsal.table", r.out)
	})
}

func TestRehearsalEnds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		id    nstance.InstanceID
		steps []func(at at)
		check func(t *testing.T, r *apiv1.Interruption)
	}{
		"when the drain was cut short": {webA, []func(at){requested, func(at at) {
			at(time.Second, nstance.Event{Type: nstance.EventDrainCutShort})
		}, ready, deleted}, func(t *testing.T, r *apiv1.Interruption) { require.Equal(t, "cut short", r.GetDrainOutcome()) }},
		"without a drain": {webA, []func(at){requested, ready, deleted}, func(t *testing.T, r *apiv1.Interruption) { require.Nil(t, r.GetDrainedAt()) }},
		"when the replacement is late": {webA, []func(at){requested, deleted, ready}, func(t *testing.T, r *apiv1.Interruption) {
			require.NotNil(t, r.GetReplacementReadyAt())
		}},
		"with the second replacement, if the first fails": {webA, []func(at){requested, deleted, func(at at) {
			at(time.Second, nstance.Event{Type: nstance.EventReplacementRequested, Instance: gone, Replaces: webA})
			at(2*time.Second, nstance.Event{Type: nstance.EventReady, Instance: gone})
		}}, func(t *testing.T, r *apiv1.Interruption) {
			require.EqualValues(t, gone, r.GetReplacement())
			require.Equal(t, 5*time.Millisecond, after(r, r.GetReplacementRequestedAt()))
		}},
		"without a replacement, if none is needed": {webA, []func(at){deleted}, func(t *testing.T, r *apiv1.Interruption) {
			require.Empty(t, r.GetReplacement())
		}},
		"for an instance on demand": {dbA, []func(at){deleted}, func(t *testing.T, r *apiv1.Interruption) { require.Empty(t, r.GetReplacement()) }},
		"whatever happened before": {webA, []func(at){func(at at) {
			at(-time.Minute, nstance.Event{Type: nstance.EventDrainCutShort})
			at(-time.Minute, nstance.Event{Type: nstance.EventReplacementRequested, Instance: gone, Replaces: webA})
		}, requested, ready, deleted}, func(t *testing.T, r *apiv1.Interruption) {
			require.EqualValues(t, webNew, r.GetReplacement())
			require.Nil(t, r.GetDrainedAt())
		}},
		"whatever another notice says": {webA, []func(at at){func(at at) {
			at(time.Millisecond, nstance.Event{Type: nstance.EventNoticeIgnored, Reason: "on_rebalance is ignore", Notice: &nstance.Notice{Kind: nstance.Rebalance, EventID: "of the cloud"}})
		}, requested, ready, deleted}, func(t *testing.T, r *apiv1.Interruption) {
			require.Equal(t, "rehearsal-1", r.GetEventId())
			require.Empty(t, r.GetIgnored())
		}},
		"drained, although its deadline passes then": {webA, []func(at at){requested, drained, func(at at) {
			at(3*time.Second, nstance.Event{Type: nstance.EventDrainCutShort})
		}, ready, deleted}, func(t *testing.T, r *apiv1.Interruption) { require.Equal(t, "drained", r.GetDrainOutcome()) }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).populate()
			w.groups[1].Ready = 3
			w.instances[string(dbA)].Tenant, w.instances[string(dbA)].Group = "default", "web"
			w.onInject = w.script(tc.steps...)
			r := w.run("interrupt", string(tc.id), "--wait", "-y", "-o", "json")
			require.Zero(t, r.code, r.errors)
			tc.check(t, rehearsed(t, r))
		})
	}
}

// TestRehearsalThroughMetadata: the agent names the notice, and no other one is taken for it.
func TestRehearsalThroughMetadata(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	w.onInject = func(id, _ string) {
		w.script(func(at at) {
			at(time.Millisecond, nstance.Event{Type: nstance.EventNoticeReceived, Notice: &nstance.Notice{Kind: nstance.Rebalance, EventID: "of the cloud"}})
		}, requested, ready, deleted)(id, "agent-1")
	}
	r := w.run("interrupt", string(webA), "--through-metadata", "--wait", "-y", "-o", "json")
	require.Zero(t, r.code, r.errors)
	require.Equal(t, "agent-1", rehearsed(t, r).GetEventId())
}

// TestRehearsalWhoseGroupIsRemoved: there is nothing to wait for any more.
func TestRehearsalWhoseGroupIsRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	w.onInject = w.script(func(at at) {
		w.set(func() { w.groups = w.groups[:1] })
		deleted(at)
	})
	r := w.run("interrupt", string(webA), "--wait", "-y", "-o", "json")
	require.Zero(t, r.code, r.errors)
	require.NotNil(t, rehearsed(t, r).GetDeletedAt())
}

func TestRehearsalThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	w.onInject = w.script(requested, deleted)
	t.Run("is unavailable after the limit, and reports what there was", func(t *testing.T) {
		r := w.run("interrupt", string(webA), "--wait", "-y", "-o", "json", "--wait-timeout", "5s")
		require.Equal(t, 5, r.code)
		require.Contains(t, r.errors, "replacement ready is still missing")
		got := rehearsed(t, r)
		require.Nil(t, got.GetReplacementReadyAt())
		require.Equal(t, 4*time.Second, after(got, got.GetDeletedAt()))
	})
	t.Run("goes on without us when interrupted", func(t *testing.T) {
		r := w.start(t, "interrupt", string(webA), "--wait", "-y")
		require.Eventually(t, func() bool { return strings.Contains(r.errs.String(), "deleted") }, time.Minute, time.Millisecond)
		r.stop()
		require.Equal(t, 1, r.ended())
		require.Contains(t, r.errs.String(), "goes on at the server")
	})
	t.Run("is not injected twice when the injection fails", func(t *testing.T) {
		w.done()
		w.set(func() { w.fail["Interrupt"] = nstance.Errorf(nstance.Unavailable, "not durable yet") })
		r := w.run("interrupt", string(webA), "--wait", "-y")
		require.Equal(t, 5, r.code)
		require.Empty(t, r.out)
	})
}

func TestRehearsalSurvivesALostStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	notice := w.script(requested)
	w.onInject = func(id, eventID string) {
		notice(id, eventID)
		w.event(nstance.Event{Type: nstance.EventAlarm, Tenant: "default", Group: "web", Instance: webB})
	}
	r := w.start(t, "interrupt", string(webA), "--wait", "-y", "-o", "json")
	require.Eventually(t, func() bool { return strings.Contains(r.errs.String(), "replacement requested") }, time.Minute, time.Millisecond)
	w.set(func() { w.fail["GetShardStatus"] = nstance.Errorf(nstance.Unavailable, "no leader") })
	w.disconnect()
	require.Eventually(t, func() bool { return strings.Contains(r.errs.String(), "no leader") }, time.Minute, time.Millisecond)

	// What happens meanwhile is pushed out of the server's memory, but stays in
	// its journal.
	now := time.Now().UTC()
	w.event(nstance.Event{Time: now, Type: nstance.EventDrainAcknowledged, Reason: "drained", Tenant: "default", Group: "web", Instance: webA})
	w.event(nstance.Event{Time: now, Type: nstance.EventReady, Tenant: "default", Group: "web", Instance: webNew, Replaces: webA})
	w.event(nstance.Event{Time: now, Type: nstance.EventDeleted, Tenant: "default", Group: "web", Instance: webA})
	w.set(func() {
		w.instances[string(webNew)] = instanceMessage(webNew, "ready")
		w.instances[string(webA)].State = "deleted"
	})
	for range 100 {
		w.event(numbered(0))
	}
	w.set(func() { delete(w.fail, "GetShardStatus") })
	require.Zero(t, r.ended(), r.errs.String())
	var out strings.Builder
	for line := range r.lines {
		out.WriteString(line)
	}
	got := message(t, out.String(), &apiv1.Interruption{})
	require.Equal(t, "drained", got.GetDrainOutcome())
	require.NotNil(t, got.GetReplacementReadyAt())
}

// TestRehearsalOfAGroup interrupts two members at once: the second is not drained in
// time.
func TestRehearsalOfAGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	interrupted := func(cut bool, slow time.Duration) func(id, eventID string) {
		return func(id, eventID string) {
			next, pace := webNew, time.Second
			if id == string(webB) {
				next, pace = gone, slow
			}
			begin := time.Now().UTC().Add(-time.Hour).Truncate(time.Millisecond)
			notice := &nstance.Notice{Kind: nstance.Reclaim, Source: "rehearsal/x", EventID: eventID, DetectedAt: begin, Deadline: begin.Add(2 * time.Minute)}
			for _, e := range []nstance.Event{
				{Type: nstance.EventNoticeReceived, Notice: notice}, {Type: nstance.EventReplacementRequested, Instance: next, Replaces: nstance.InstanceID(id)},
				{Type: nstance.EventDrainStarted}, {Type: nstance.EventDrainAcknowledged, Reason: "drained"}, {Type: nstance.EventReady, Instance: next}, {Type: nstance.EventDeleted},
			} {
				if cut && id == string(webB) && e.Type == nstance.EventDrainAcknowledged {
					e = nstance.Event{Type: nstance.EventDrainCutShort}
				}
				e.Instance = cmp.Or(e.Instance, nstance.InstanceID(id))
				begin = begin.Add(pace)
				e.Time, e.Tenant, e.Group = begin, "default", "web"
				w.event(e)
			}
		}
	}
	t.Run("reports each instance and each stage", func(t *testing.T) {
		w.set(func() { w.onInject = interrupted(false, 2*time.Second) })
		for _, form := range []string{"table", "json"} {
			r := w.run("interrupt", "--group", "web", "--count", "2", "--wait", "-y", "-o", form)
			require.Zero(t, r.code, r.errors)
			w.golden("rehearsal-group."+form, r.out)
			require.Contains(t, r.errors, "4.000s  "+string(webA)+"  drain over: drained")
		}
		require.Contains(t, w.done(), "interrupt 2 of default/web force=false reclaim notice=2m0s dry=false")
	})
	for name, events := range map[string]func(id, eventID string){"was cut short": interrupted(true, 2*time.Second), "ended too late": interrupted(false, time.Minute)} {
		t.Run("fails with code 1 if a drain "+name, func(t *testing.T) {
			w.set(func() { w.onInject = events })
			r := w.run("interrupt", "--group", "web", "--count", "2", "--force", "--wait", "-y", "-o", "json")
			require.Equal(t, 1, r.code)
			require.Contains(t, r.errors, "1 of 2 instances missed the deadline")
			var got struct {
				Missed []nstance.InstanceID `json:"missed"`
			}
			require.NoError(t, json.Unmarshal([]byte(r.out), &got))
			require.Equal(t, []nstance.InstanceID{webB}, got.Missed)
			w.done()
		})
	}
	t.Run("fails with code 5 if something is missing", func(t *testing.T) {
		w.set(func() { w.onInject = w.script(requested, deleted) })
		r := w.run("interrupt", "--group", "web", "--count", "2", "--wait", "-y", "--wait-timeout", "5s")
		require.Equal(t, 5, r.code)
		require.Contains(t, r.errors, "replacement ready is still missing for")
		w.done()
	})
	t.Run("ends with a notice that the group ignores", func(t *testing.T) {
		w.set(func() {
			w.onInject = func(id, eventID string) {
				w.event(nstance.Event{
					Type: nstance.EventNoticeIgnored, Tenant: "default", Group: "web", Instance: nstance.InstanceID(id), Reason: "on_rebalance is ignore",
					Notice: &nstance.Notice{Kind: nstance.Rebalance, EventID: eventID, DetectedAt: time.Now().UTC()},
				})
			}
		})
		r := w.run("interrupt", "--group", "web", "--count", "2", "--kind", "rebalance", "--wait", "-y")
		require.Zero(t, r.code, r.errors)
		require.Contains(t, r.errors, "notice ignored: on_rebalance is ignore")
		require.Equal(t, "interrupt 2 of default/web force=false rebalance notice=2m0s dry=false", w.done()[1])
	})
	for name, tc := range map[string]struct {
		args []string
		code int
		says string
	}{
		"needs a confirmation":            {[]string{"--group", "web", "--count", "2"}, 2, "this interrupts 2 members of group default/web, which has 1 ready of 3"},
		"plans in a dry run":              {[]string{"--group", "web", "--dry-run"}, 0, ""},
		"needs a group that exists":       {[]string{"--group", "wbe", "-y"}, 3, "no group"},
		"takes a group or an instance":    {[]string{"--group", "web", string(webA), "-y"}, 2, "is set beside an instance"},
		"takes a count of a group only":   {[]string{string(webA), "--count", "2", "-y"}, 2, "--group: is missing"},
		"knows the kinds of notices":      {[]string{"--group", "web", "--kind", "storm", "-y"}, 2, "reclaim, rebalance"},
		"does not wait unless told to do": {[]string{"--group", "web", "--count", "2", "-y"}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := w.run(append([]string{"interrupt"}, tc.args...)...)
			require.Equal(t, tc.code, r.code, r.errors)
			require.Contains(t, r.errors, tc.says)
		})
	}
}
