// Package spottest is the contract of nstance.SpotDetector as tests: each
// promise of the interface is a named subtest of Run. A detector's own test is
// a few lines that build it over a Cloud and call Run.
//
// Server is a Cloud that speaks the metadata protocols of aws, gcp and azure on a
// real socket. A detector with another protocol brings a small Cloud of its own;
// examples/custom-detector shows one.
//
// The first subtest, smoke, asks Interruptible and watches until one announcement
// arrives. If it fails, no other one is run. A wait for a call or for a notice ends
// after 10 seconds with a failure that names it. After 20 seconds of such waits, or of a
// run in which a subtest has failed, the rest is skipped.
//
// A [Server] is safe for concurrent use.
package spottest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
)

// A Cloud controls what a detector reads. Its methods are called by one goroutine
// at a time and have taken effect when they return.
type Cloud interface {
	// SetSpot says whether the machine is spot capacity.
	SetSpot(spot bool)

	// Reclaim announces that the capacity is taken back, with the action and
	// the deadline if this cloud has them. While an announcement stands, it changes
	// that one. After Withdraw it is a second event, whose ID may be another one.
	Reclaim(action string, deadline time.Time)

	// Withdraw removes the announcement, readable or not.
	Withdraw()

	// Corrupt puts an unreadable announcement where one would be, in the place of the
	// present one if there is one.
	Corrupt()

	// Break makes every read fail, as in an outage, until Restore.
	Break()
	Restore()
}

// A Restarter is a Cloud whose detectors can be made again, as after a restart of the
// agent: with one the suite finds an event ID that differs from process to process. Return
// it as the Cloud of a Factory, such as [Restartable]. Like a Cloud it is used by one
// goroutine at a time.
type Restarter interface {
	// Again returns a new detector of the same cloud.
	Again(t *testing.T) nstance.SpotDetector
}

// Restartable returns cloud as one whose detectors detect makes.
func Restartable(cloud Cloud, detect func(t *testing.T) nstance.SpotDetector) Cloud {
	return restartable{cloud, detect}
}

type restartable struct {
	Cloud
	detect func(t *testing.T) nstance.SpotDetector
}

func (r restartable) Again(t *testing.T) nstance.SpotDetector { return r.detect(t) }

// A Factory makes a new detector and the cloud it reads, for one subtest: spot
// capacity, nothing announced. The detector should poll about every 10 ms.
type Factory func(t *testing.T) (nstance.SpotDetector, Cloud)

const waitLimit = 10 * time.Second // generous, for a loaded machine

// Run checks the detectors that factory makes against every promise of
// nstance.SpotDetector.
func Run(t *testing.T, factory Factory) { runWithin(t, factory, waitLimit) }

func runWithin(t *testing.T, factory Factory, limit time.Duration) {
	r := conformance.NewRun(limit)
	with := func(check func(*testing.T, recorded, Cloud)) func(*testing.T, *conformance.Calls) {
		return func(t *testing.T, c *conformance.Calls) {
			d, cloud := factory(t)
			check(t, recorded{d, c}, recordedCloud{cloud, c})
		}
	}
	if !r.Smoke(t, with(smoke)) {
		return
	}
	for _, p := range promises {
		r.Test(t, p.name, with(p.check))
	}
}

type promise struct {
	name  string
	check func(*testing.T, recorded, Cloud)
}

var promises = []promise{
	{"interruptible returns the cloud's answer", interruptible},
	{"interruptible: an error is not a no", interruptibleError},
	{"interruptible returns when the context ends", interruptibleEnds},
	{"a notice is yielded as it appears", appears},
	{"a standing notice is yielded when the watch begins", stands},
	{"an announcement is yielded once", once},
	{"an announcement has one identity whenever it is seen", identity},
	{"an announcement has one identity for every detector", restarted},
	{"an announcement that changes is yielded again", changes},
	{"a withdrawn announcement is yielded as cancelled", withdrawn},
	{"a deadline past when the watch begins is not yielded", past},
	{"a deadline past when it appears is yielded", late},
	{"a watch goes on after an error", errorDoesNotEnd},
	{"an error never withdraws a notice", errorKeeps},
	{"an unreadable announcement is an error and withdraws nothing", garbled},
	{"a watch ends when the context ends", ends},
	{"a watch ends when its reader leaves", leaves},
	{"several watches see the same", several},
}

// smoke is the least that a detector does.
func smoke(t *testing.T, d recorded, cloud Cloud) {
	if yes, err := d.Interruptible(t.Context()); err != nil || !yes {
		t.Fatalf("%s: true was due", d.calls.Last())
	}
	w := start(t, d)
	cloud.Reclaim("terminate", soon())
	if n := w.notice(t); n.Kind != nstance.Reclaim || n.Cancelled {
		t.Fatalf("%s: a notice of kind %s that is not cancelled was due", d.calls.Last(), nstance.Reclaim)
	}
}

func interruptible(t *testing.T, d recorded, cloud Cloud) {
	for _, want := range []bool{true, false, true} {
		cloud.SetSpot(want)
		got, err := d.Interruptible(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func interruptibleError(t *testing.T, d recorded, cloud Cloud) {
	cloud.Break()
	_, err := d.Interruptible(t.Context())
	require.Error(t, err)
	require.NotEqual(t, nstance.Internal, nstance.CodeOf(err), "an outage must have a code of its own: %v", err)
	cloud.Restore()
	got, err := d.Interruptible(t.Context())
	require.NoError(t, err, "the outage is over")
	require.True(t, got)
}

func interruptibleEnds(t *testing.T, d recorded, _ Cloud) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.Interruptible(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func appears(t *testing.T, d recorded, cloud Cloud) {
	w := start(t, d)
	before := time.Now().Add(-time.Second) // a detector may keep whole seconds
	deadline := soon()
	cloud.Reclaim("terminate", deadline)
	n := w.notice(t)
	require.Equal(t, nstance.Reclaim, n.Kind)
	require.NotEmpty(t, n.Action)
	require.NotEmpty(t, n.Source)
	require.NotEmpty(t, n.EventID)
	require.False(t, n.Cancelled)
	require.WithinRange(t, n.DetectedAt, before, time.Now().Add(time.Second))
	if !n.Deadline.IsZero() {
		require.True(t, deadline.Equal(n.Deadline), "the deadline is the cloud's own: %v, not %v", deadline, n.Deadline)
		require.Equal(t, time.UTC, n.Deadline.Location())
	}
}

func stands(t *testing.T, d recorded, cloud Cloud) {
	cloud.Reclaim("terminate", soon())
	require.Equal(t, nstance.Reclaim, start(t, d).notice(t).Kind)
}

// once lets the detector read several times between the announcement and its withdrawal:
// an error yielded in between shows that it did.
func once(t *testing.T, d recorded, cloud Cloud) {
	w := start(t, d)
	deadline := soon()
	cloud.Reclaim("terminate", deadline)
	first := w.notice(t)
	cloud.Break()
	_ = w.nextError(t)
	cloud.Restore()
	cloud.Withdraw()
	n := w.notice(t)
	require.True(t, n.Cancelled, "yielded again: %s", noticeWords(n))
	require.Equal(t, first.EventID, n.EventID)
	cloud.Reclaim("terminate", deadline)
	n = w.notice(t)
	require.False(t, n.Cancelled, "withdrawn twice: %s", noticeWords(n))
}

func identity(t *testing.T, d recorded, cloud Cloud) {
	cloud.Reclaim("terminate", soon())
	first := start(t, d).notice(t)
	second := start(t, d).notice(t)
	require.Equal(t, first.EventID, second.EventID)
}

func restarted(t *testing.T, d recorded, cloud Cloud) {
	again, ok := cloud.(recordedCloud).cloud.(Restarter)
	if !ok {
		t.Skip("not checked: the cloud is no spottest.Restarter")
	}
	cloud.Reclaim("terminate", soon())
	first := start(t, d).notice(t)
	second := start(t, recorded{again.Again(t), d.calls}).notice(t)
	require.Equal(t, first.EventID, second.EventID, "of a detector that was made anew: the agent may have been restarted")
}

func changes(t *testing.T, d recorded, cloud Cloud) {
	w := start(t, d)
	deadline := soon()
	cloud.Reclaim("terminate", deadline)
	if w.notice(t).Deadline.IsZero() {
		t.Skip("not checked: this cloud announces no deadline that could change")
	}
	earlier := deadline.Add(-time.Minute)
	cloud.Reclaim("terminate", earlier)
	n := w.notice(t)
	require.False(t, n.Cancelled, "the new notice comes before the end of the old one")
	require.True(t, earlier.Equal(n.Deadline))
}

func withdrawn(t *testing.T, d recorded, cloud Cloud) {
	w := start(t, d)
	cloud.Reclaim("terminate", soon())
	standing := w.notice(t)
	cloud.Withdraw()
	n := w.notice(t)
	require.True(t, n.Cancelled)
	require.Equal(t, standing.EventID, n.EventID)
	require.Equal(t, standing.Kind, n.Kind)
}

// past lets the detector read the stale announcement several times: a later reading
// must not take it for new.
func past(t *testing.T, d recorded, cloud Cloud) {
	cloud.Reclaim("terminate", soon().Add(-2*time.Hour))
	w := start(t, d)
	refuse := func(n nstance.Notice) {
		require.Zero(t, n.Deadline, "Watch yielded a notice whose deadline was past when the watch began: %s", noticeWords(n))
		t.Skip("not checked: this cloud announces no deadline that could be stale")
	}
	for range 2 {
		for n := range w.during(t, quietPeriod) {
			refuse(n)
		}
		w.outage(t, cloud, refuse)
	}
	deadline := soon()
	cloud.Reclaim("terminate", deadline)
	require.True(t, deadline.Equal(w.notice(t).Deadline), "the notice after the stale one: %s", d.calls.Last())
}

// late ensures that the watch has started: by its first notice.
func late(t *testing.T, d recorded, cloud Cloud) {
	w := start(t, d)
	cloud.Reclaim("terminate", soon())
	w.notice(t)
	cloud.Withdraw()
	require.True(t, w.notice(t).Cancelled)
	cloud.Reclaim("terminate", soon().Add(-2*time.Hour))
	require.False(t, w.notice(t).Cancelled, "a notice that appears during the watch is not stale")
	w.outage(t, cloud, func(n nstance.Notice) { require.Fail(t, "a late notice was yielded again", "%s", noticeWords(n)) })
	w.quiet(t)
}

func errorDoesNotEnd(t *testing.T, d recorded, cloud Cloud) {
	w := start(t, d)
	cloud.Break()
	require.NotEmpty(t, nstance.CodeOf(w.nextError(t)))
	cloud.Restore()
	cloud.Reclaim("terminate", soon())
	require.Equal(t, nstance.Reclaim, w.notice(t).Kind)
}

func errorKeeps(t *testing.T, d recorded, cloud Cloud) {
	w := start(t, d)
	cloud.Reclaim("terminate", soon())
	standing := w.notice(t)
	cloud.Break()
	_ = w.nextError(t)
	cloud.Restore()
	w.quiet(t)
	cloud.Withdraw()
	n := w.notice(t)
	require.Equal(t, standing.EventID, n.EventID)
	require.True(t, n.Cancelled)
}

func garbled(t *testing.T, d recorded, cloud Cloud) {
	w := start(t, d)
	cloud.Corrupt()
	_ = w.nextError(t)
	deadline := soon()
	cloud.Reclaim("terminate", deadline)
	standing := w.notice(t)
	require.False(t, standing.Cancelled)
	cloud.Corrupt()
	_ = w.nextError(t)
	w.quiet(t)
	cloud.Withdraw()
	n := w.notice(t)
	require.Equal(t, standing.EventID, n.EventID)
	require.True(t, n.Cancelled)
}

func ends(t *testing.T, d recorded, cloud Cloud) {
	ctx, cancel := context.WithCancel(t.Context())
	w := startWith(ctx, t, d)
	cloud.Reclaim("terminate", soon())
	w.notice(t)
	cancel()
	w.ended(t)
}

func leaves(t *testing.T, d recorded, cloud Cloud) {
	cloud.Reclaim("terminate", soon())
	left, limit := make(chan struct{}), d.calls.Run().Limit()
	go func() {
		defer close(left)
		for range d.Watch(t.Context()) { //nolint:errcheck // any first item
			break
		}
	}()
	select {
	case <-left:
	case <-time.After(limit):
		d.calls.Run().Waste(limit)
		t.Fatal("Watch does not return after its loop was left: return when yield returns false")
	}
}

func several(t *testing.T, d recorded, cloud Cloud) {
	a, b := start(t, d), start(t, d)
	cloud.Reclaim("terminate", soon())
	require.Equal(t, a.notice(t).EventID, b.notice(t).EventID)
}

// soon returns a deadline after the end of every subtest, in whole seconds as
// clouds announce them.
func soon() time.Time { return time.Now().UTC().Truncate(time.Second).Add(time.Hour) }
