// Package journaltest checks that a journal.Journal keeps its promises, one subtest for
// each.
//
// The first subtest, smoke, appends one event and reads it. If it fails, no other one is
// run. A call that does not return within 10 seconds is a failure with its name. After 20
// seconds of such waits, or of a run in which a subtest has failed, the rest is skipped.
//
// Subtests run one after the other; some call their journal concurrently.
package journaltest

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
	"github.com/nstance-go/nstance/journal"
)

// A Factory returns an empty journal for one subtest, with room for 200 events. The suite
// runs it; its owner closes it with t.Cleanup.
type Factory func(t *testing.T) journal.Journal

const callLimit = 10 * time.Second

// Run checks every promise of journal.Journal.
func Run(t *testing.T, open Factory) { runWithin(t, open, callLimit) }

func runWithin(t *testing.T, open Factory, limit time.Duration) {
	r := conformance.NewRun(limit)
	with := func(check func(*testing.T, recorded)) func(*testing.T, *conformance.Calls) {
		return func(t *testing.T, c *conformance.Calls) {
			j := recorded{open(t), c, 0}
			ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
			ended := make(chan error, 1)
			go func() { ended <- j.Run(ctx) }()
			j.awaitRun(t)
			check(t, j)
			stop()
			select {
			case err := <-ended:
				require.NoError(t, err, "Run, after its context has ended")
			case <-time.After(limit):
				require.Fail(t, "Run hangs: it has not returned after its context has ended")
			}
		}
	}
	if !r.Smoke(t, with(smoke)) {
		return
	}
	for _, p := range promises {
		r.Test(t, p.name, with(p.check))
	}
}

var promises = []struct {
	name  string
	check func(*testing.T, recorded)
}{
	{"what was appended is read at once, in order", inOrder},
	{"numbers are the journal's own, and grow", numbers},
	{"an event comes back as it was", whole},
	{"a filter chooses by every field", filters},
	{"times are compared by the second", seconds},
	{"of more than the limit the oldest or the newest come", limits},
	{"a page goes on after the last number", pages},
	{"a notice is listed once, the latest first", notices},
	{"many append and read at the same time", together},
	{"a healthy journal has no problems and loses nothing", healthy},
	{"a read ends with its context, and is never empty for it", cancelled},
}

// recorded is a journal whose reads are bounded and recorded.
type recorded struct {
	journal.Journal
	calls *conformance.Calls
	first nstance.Seq // of the event that shows that it runs; reads begin after it
}

// awaitRun appends an event and reads until it is there: then Run is under way.
func (r *recorded) awaitRun(t *testing.T) {
	t.Helper()
	r.Append(event("begin"))
	for began := time.Now(); ; {
		found, err := r.Events(t.Context(), journal.Filter{})
		if err == nil && len(found) == 1 && found[0].Reason == "begin" && found[0].Seq > 0 {
			r.first = found[0].Seq
			return
		}
		if err != nil || time.Since(began) > r.calls.Run().Limit() {
			t.Fatalf("%s: the event that was appended was due, with a number", r.calls.Last())
		}
		runtime.Gosched()
	}
}

func (r recorded) Events(ctx context.Context, f journal.Filter) ([]nstance.Event, error) {
	f.After = max(f.After, r.first)
	return conformance.Call(ctx, r.calls, fmt.Sprintf("Events(%+v)", f), func(ctx context.Context) ([]nstance.Event, error) {
		return r.Journal.Events(ctx, f)
	})
}

func (r recorded) Notices(ctx context.Context, f journal.Filter) ([]journal.NoticeEntry, error) {
	return conformance.Call(ctx, r.calls, fmt.Sprintf("Notices(%+v)", f), func(ctx context.Context) ([]journal.NoticeEntry, error) {
		return r.Journal.Notices(ctx, f)
	})
}

var begin = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// event returns a simple event with this reason.
func event(reason string) nstance.Event {
	return nstance.Event{Time: begin, Type: nstance.EventReady, Tenant: "default", Group: "web", Instance: "i1", Reason: reason}
}

// reasons returns those of the events that f chooses.
func (r recorded) reasons(t *testing.T, f journal.Filter) (out []string) {
	t.Helper()
	found, err := r.Events(t.Context(), f)
	require.NoError(t, err)
	for _, e := range found {
		out = append(out, e.Reason)
	}
	return out
}

func smoke(t *testing.T, j recorded) {
	j.Append(event("one"))
	found, err := j.Events(t.Context(), journal.Filter{})
	if err != nil || len(found) != 1 || found[0].Reason != "one" || found[0].Seq == 0 {
		t.Fatalf("%s: the event that was appended was due, with a number", j.calls.Last())
	}
}

func inOrder(t *testing.T, j recorded) {
	var want []string
	for i := range 60 {
		want = append(want, strconv.Itoa(i))
		j.Append(event(want[i]))
		if i%20 == 0 {
			require.Equal(t, want, j.reasons(t, journal.Filter{}), "what was appended before a read is in it")
		}
	}
	require.Equal(t, want, j.reasons(t, journal.Filter{}))
}

func numbers(t *testing.T, j recorded) {
	for range 5 {
		e := event("numbered by its sender")
		e.Seq = 77
		j.Append(e)
	}
	found, err := j.Events(t.Context(), journal.Filter{})
	require.NoError(t, err)
	require.Len(t, found, 5)
	last := nstance.Seq(0)
	for _, e := range found {
		require.Greater(t, e.Seq, last)
		last = e.Seq
	}
}

func whole(t *testing.T, j recorded) {
	e := nstance.Event{
		Time: begin.Add(123456789), Type: nstance.EventNoticeReceived, Tenant: "t1", Group: "web", Instance: "i1", Replaces: "i0",
		Reason: "why", Code: nstance.Capacity, Error: "the cloud's words: ✓ \" \n",
		Notice: &nstance.Notice{EventID: "n1", Kind: nstance.Reclaim, Action: "terminate", Deadline: begin.Add(time.Minute)},
		Drain:  &nstance.Drain{Instance: "i1", Generation: 3, Deadline: begin.Add(time.Hour), Executor: nstance.ExecutorAgent, Causes: []nstance.Cause{{Kind: nstance.CauseNotice, EventID: "n1"}}},
	}
	j.Append(e)
	found, err := j.Events(t.Context(), journal.Filter{})
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.True(t, e.Time.Equal(found[0].Time), "%s, not %s", found[0].Time, e.Time)
	e.Time, e.Seq = found[0].Time, found[0].Seq
	require.Equal(t, e, found[0])
}

func filters(t *testing.T, j recorded) {
	all := []nstance.Event{
		{Reason: "plain"}, {Reason: "tenant", Tenant: "t2"}, {Reason: "group", Group: "g2"}, {Reason: "instance", Instance: "i2"},
		{Reason: "replaces", Replaces: "i3"}, {Reason: "type", Type: nstance.EventAlarm}, {Reason: "notice", Notice: &nstance.Notice{EventID: "n2"}},
		{Reason: "time", Time: begin.Add(time.Hour)},
	}
	for i := range all {
		if all[i].Time.IsZero() {
			all[i].Time = begin
		}
		if all[i].Type == "" {
			all[i].Type = nstance.EventReady
		}
		j.Append(all[i])
	}
	found, err := j.Events(t.Context(), journal.Filter{})
	require.NoError(t, err)
	require.Len(t, found, len(all))
	middle := found[3].Seq
	for name, c := range map[string]struct {
		f    journal.Filter
		want []string
	}{
		"Tenant":   {journal.Filter{Tenant: "t2"}, []string{"tenant"}},
		"Group":    {journal.Filter{Group: "g2"}, []string{"group"}},
		"Instance": {journal.Filter{Instance: "i2"}, []string{"instance"}},
		"Any":      {journal.Filter{Any: []nstance.InstanceID{"i9", "i2"}}, []string{"instance"}},
		"Replaces": {journal.Filter{Replaces: []nstance.InstanceID{"i3", "i9"}}, []string{"replaces"}},
		"EventID":  {journal.Filter{EventID: "n2"}, []string{"notice"}},
		"Types":    {journal.Filter{Types: []nstance.EventType{nstance.EventAlarm, nstance.EventDeleted}}, []string{"type"}},
		"Since":    {journal.Filter{Since: begin.Add(time.Minute)}, []string{"time"}},
		"Until":    {journal.Filter{Until: begin.Add(time.Minute), Limit: 2}, []string{"plain", "tenant"}},
		"After":    {journal.Filter{After: middle, Limit: 2}, []string{"replaces", "type"}},
		"Before":   {journal.Filter{Before: middle}, []string{"plain", "tenant", "group"}},
		"together": {journal.Filter{Tenant: "t2", Group: "g2"}, nil},
		"no match": {journal.Filter{Instance: "i9"}, nil},
	} {
		require.Equal(t, c.want, j.reasons(t, c.f), name)
	}
}

func seconds(t *testing.T, j recorded) {
	for i := range 4 {
		e := event(strconv.Itoa(i))
		e.Time = begin.Add(time.Duration(i) * 700 * time.Millisecond) // 0.0, 0.7, 1.4, 2.1
		j.Append(e)
	}
	require.Equal(t, []string{"2", "3"}, j.reasons(t, journal.Filter{Since: begin.Add(1900 * time.Millisecond)}))
	require.Equal(t, []string{"0", "1"}, j.reasons(t, journal.Filter{Until: begin.Add(1900 * time.Millisecond)}))
}

func limits(t *testing.T, j recorded) {
	for i := range 150 {
		j.Append(event(strconv.Itoa(i)))
	}
	require.Equal(t, []string{"0", "1"}, j.reasons(t, journal.Filter{Limit: 2}))
	require.Equal(t, []string{"148", "149"}, j.reasons(t, journal.Filter{Limit: 2, Newest: true}), "the oldest of them first")
	require.Len(t, j.reasons(t, journal.Filter{}), 100, "without a limit")
	require.Len(t, j.reasons(t, journal.Filter{Limit: journal.MaxLimit + 1}), 150)
}

func pages(t *testing.T, j recorded) {
	for i := range 50 {
		j.Append(event(strconv.Itoa(i)))
	}
	seen, after := 0, nstance.Seq(0)
	for {
		page, err := j.Events(t.Context(), journal.Filter{After: after, Limit: 7})
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		for _, e := range page {
			require.Equal(t, strconv.Itoa(seen), e.Reason)
			seen++
		}
		after = page[len(page)-1].Seq
	}
	require.Equal(t, 50, seen)
}

func notices(t *testing.T, j recorded) {
	about := func(id nstance.InstanceID, eventID string) {
		e := event("notice")
		e.Instance, e.Notice = id, &nstance.Notice{EventID: eventID, Kind: nstance.Reclaim}
		j.Append(e)
	}
	about("i1", "n1")
	about("i2", "n1")
	about("i1", "n1")
	j.Append(event("no notice"))
	about("i1", "n2")
	about("i1", "n1")
	names := func(f journal.Filter) (out []string) {
		found, err := j.Notices(t.Context(), f)
		require.NoError(t, err)
		for _, n := range found {
			require.NotZero(t, n.Seq)
			out = append(out, string(n.Instance)+" "+n.EventID)
		}
		return out
	}
	require.Equal(t, []string{"i1 n2", "i2 n1", "i1 n1"}, names(journal.Filter{}))
	require.Equal(t, []string{"i1 n2", "i2 n1"}, names(journal.Filter{Limit: 2}))
	require.Equal(t, []string{"i2 n1"}, names(journal.Filter{Instance: "i2"}))
}

func together(t *testing.T, j recorded) {
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 25 {
				e := event(strconv.Itoa(i))
				e.Instance = nstance.InstanceID(strconv.Itoa(w))
				j.Append(e)
				if found, err := j.Events(t.Context(), journal.Filter{Instance: e.Instance}); err != nil || len(found) != i+1 {
					t.Errorf("%d events, error %v: a reader finds what it has appended itself, %d events", len(found), err, i+1)
					return
				}
			}
		})
	}
	wg.Wait()
}

func healthy(t *testing.T, j recorded) {
	for range 100 {
		j.Append(event("x"))
	}
	require.Len(t, j.reasons(t, journal.Filter{}), 100)
	require.Empty(t, j.Problems())
	require.Zero(t, j.Dropped())
}

func cancelled(t *testing.T, j recorded) {
	j.Append(event("one"))
	ended, end := context.WithCancel(t.Context())
	end()
	if found, err := j.Journal.Events(ended, journal.Filter{After: j.first}); err == nil {
		require.Len(t, found, 1, "an answer that is no error is whole")
	}
	require.Equal(t, []string{"one"}, j.reasons(t, journal.Filter{}))
}
