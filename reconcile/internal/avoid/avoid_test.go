package avoid_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/avoid"
)

var (
	now   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	zoneA = avoid.Pool{Zone: "zone-a"}
)

// by returns which instants have come at a time.
func by(now time.Time) func(time.Time) bool {
	return func(at time.Time) bool { return !now.Before(at) }
}

// never is what a clock says that cannot be trusted.
func never(time.Time) bool { return false }

// request has a pool avoided for an hour.
func request(t *testing.T, b *avoid.Book, p avoid.Pool) avoid.Entry {
	t.Helper()
	e, changed, err := b.Check(avoid.Entry{Pool: p, Until: now.Add(time.Hour), Reason: "network trouble", By: "eve"}, now)
	require.NoError(t, err)
	require.True(t, changed)
	b.Put(e)
	return e
}

func TestPool(t *testing.T) {
	p := avoid.Pool{Zone: "zone-a", InstanceType: "small", Market: nstance.Spot}
	require.NoError(t, p.Validate())
	require.Equal(t, "zone=zone-a type=small market=spot", p.String())
	for field, p := range map[string]avoid.Pool{
		"pool": {}, "zone": {Zone: "a b"}, "instance_type": {InstanceType: strings.Repeat("x", 129)}, "market": {Market: "grey"},
	} {
		var refused *nstance.Error
		require.ErrorAs(t, p.Validate(), &refused)
		require.Equal(t, field, refused.Field)
		require.NotEmpty(t, refused.Remedy)
	}
}

func TestTexts(t *testing.T) {
	e := avoid.Entry{Pool: zoneA, Until: now, Reason: "network trouble", By: "eve", Drain: true}
	require.Equal(t, "no machine is made in zone=zone-a, members there are replaced: network trouble (asked for by eve); nstance-admin pool release zone=zone-a ends it", e.Why())
	require.Equal(t, "zone=zone-a until 2026-03-01T12:00:00Z: network trouble (asked for by eve), nstance-admin pool release zone=zone-a ends it", e.Name())
	require.Equal(t, "nstance-admin pool release zone=zone-a", e.Remedy())
	e.Reason = ""
	require.Equal(t, "zone=zone-a: asked for by eve", e.Cause())
	e.By = ""
	require.Equal(t, "zone=zone-a", e.Cause())

	cloud := avoid.Entry{Pool: zoneA, Reason: "zonal shift", Cloud: true}
	require.Equal(t, "no machine is made in zone=zone-a: zonal shift; the cloud ends it", cloud.Why())
	require.Equal(t, "zone=zone-a: zonal shift, the cloud ends it", cloud.Name())
	require.Empty(t, cloud.Remedy())
}

func TestRequests(t *testing.T) {
	var b avoid.Book
	require.Empty(t, b.All())
	for _, d := range []time.Duration{-time.Second, 0, avoid.Longest + 2*time.Minute} {
		_, _, err := b.Check(avoid.Entry{Pool: zoneA, Until: now.Add(d)}, now)
		require.ErrorIs(t, err, nstance.Invalid, d)
	}
	first := request(t, &b, zoneA)
	require.Equal(t, now, first.Since)
	saved := b.Requested()

	again, changed, err := b.Check(avoid.Entry{Pool: zoneA, Until: first.Until.Add(30 * time.Second), Reason: "network trouble", By: "eve"}, now.Add(time.Second))
	require.NoError(t, err)
	require.False(t, changed, "a call whose answer was lost")
	require.Equal(t, first, again)

	longer, changed, err := b.Check(avoid.Entry{Pool: zoneA, Until: now.Add(2 * time.Hour), Drain: true}, now.Add(time.Minute))
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, now, longer.Since, "it goes on")
	b.Put(longer)
	require.Equal(t, []avoid.Entry{longer}, b.Requested())
	require.Equal(t, []avoid.Entry{first}, saved, "a copy does not change")

	found, known, err := b.Find(zoneA)
	require.NoError(t, err)
	require.True(t, known)
	require.Equal(t, longer, found)
	b.Remove(zoneA)
	_, known, err = b.Find(zoneA)
	require.NoError(t, err)
	require.False(t, known)
}

func TestRequestsAreBounded(t *testing.T) {
	var b avoid.Book
	for i := range 64 {
		request(t, &b, avoid.Pool{Zone: strings.Repeat("z", i+1)})
	}
	_, _, err := b.Check(avoid.Entry{Pool: zoneA, Until: now.Add(time.Hour)}, now)
	require.ErrorIs(t, err, nstance.Conflict)
	_, changed, err := b.Check(avoid.Entry{Pool: avoid.Pool{Zone: "z"}, Until: now.Add(2 * time.Hour)}, now)
	require.NoError(t, err)
	require.True(t, changed, "one that is avoided already")
}

func TestShift(t *testing.T) {
	var b avoid.Book
	shift := nstance.ZoneShift{Zone: "zone-a"}
	changes, changed := b.Shift([]nstance.ZoneShift{shift, shift, {Zone: "a b"}}, now, by(now))
	e := avoid.Entry{Pool: zoneA, Since: now, Reason: "zonal shift", Cloud: true}
	require.Equal(t, []avoid.Change{{Entry: e}}, changes)
	require.True(t, changed)

	_, changed = b.Shift([]nstance.ZoneShift{shift}, now.Add(time.Minute), by(now.Add(time.Minute)))
	require.False(t, changed, "it began when it was first read")
	_, _, err := b.Find(zoneA)
	require.ErrorIs(t, err, nstance.Conflict, "operators cannot end it")
	require.Equal(t, []avoid.Entry{e}, b.All())
	require.Empty(t, b.Requested(), "it is not stored")

	shift.Until, shift.Reason = now.Add(time.Hour), "autoshift"
	changes, changed = b.Shift([]nstance.ZoneShift{shift}, now.Add(time.Minute), by(now))
	require.True(t, changed)
	require.Empty(t, changes)
	late := now.Add(2 * time.Hour)
	changes, changed = b.Shift([]nstance.ZoneShift{shift}, late, by(late))
	require.True(t, changed)
	require.Len(t, changes, 1, "what is over does not stand")
	require.Equal(t, "the cloud has ended it", changes[0].Why)
	require.Empty(t, b.All())
}

func TestAll(t *testing.T) {
	var b avoid.Book
	b.Shift([]nstance.ZoneShift{{Zone: "a"}}, now, never)
	request(t, &b, avoid.Pool{Zone: "z"})
	request(t, &b, avoid.Pool{Zone: "b"})
	var zones []string
	for _, e := range b.All() {
		zones = append(zones, e.Zone)
	}
	require.Equal(t, []string{"b", "z", "a"}, zones, "those of operators first")
}

func TestEnd(t *testing.T) {
	var b avoid.Book
	e := request(t, &b, zoneA)
	b.Shift([]nstance.ZoneShift{{Zone: "zone-b"}}, now, never)
	require.Empty(t, b.End(by(now)))
	require.Empty(t, b.End(never), "the clock cannot be trusted")
	require.Len(t, b.Standing(by(now)), 2)
	require.Equal(t, time.Minute, b.NextEnd(now), "the clock may be set")
	require.Equal(t, 10*time.Second, b.NextEnd(e.Until.Add(-10*time.Second)))

	ended := b.End(by(now.Add(15 * time.Minute)))
	require.Len(t, ended, 1)
	require.Equal(t, "zone-b", ended[0].Zone)
	require.Equal(t, "the cloud could not be asked for 15m0s", ended[0].Why)

	saved := b.Requested()
	require.Empty(t, b.Standing(by(e.Until)))
	require.Equal(t, []avoid.Change{{Entry: e, Ended: true, Why: "its time is over"}}, b.End(by(e.Until)))
	require.Empty(t, b.All())
	require.Equal(t, []avoid.Entry{e}, saved, "a copy does not change")
	require.Equal(t, time.Hour, b.NextEnd(now))
}

// TestShiftWithAnEnd: it stands until then, also while the cloud cannot be asked.
func TestShiftWithAnEnd(t *testing.T) {
	var b avoid.Book
	b.Shift([]nstance.ZoneShift{{Zone: "zone-b", Until: now.Add(time.Hour)}}, now, by(now))
	require.Empty(t, b.End(by(now.Add(59*time.Minute))))
	ended := b.End(by(now.Add(time.Hour)))
	require.Len(t, ended, 1)
	require.Equal(t, "its time is over", ended[0].Why)
}

// TestRestore: the clock of another leader was ahead.
func TestRestore(t *testing.T) {
	stored := []avoid.Entry{{Pool: zoneA, Until: now.Add(90 * 24 * time.Hour)}}
	var b avoid.Book
	b.Restore(stored, time.Time{})
	require.Equal(t, stored, b.Requested(), "this leader's clock cannot be trusted")
	b.Restore(stored, now.Add(avoid.Longest))
	require.Equal(t, now.Add(avoid.Longest), b.Requested()[0].Until)
	require.Equal(t, now.Add(90*24*time.Hour), stored[0].Until, "a copy does not change")
}

// TestRequestedAndShifted: what operators and the cloud avoid ends each by itself.
func TestRequestedAndShifted(t *testing.T) {
	var b avoid.Book
	e := request(t, &b, zoneA)
	b.Shift([]nstance.ZoneShift{{Zone: "zone-a"}}, now, by(now))
	require.Len(t, b.All(), 2)
	found, known, err := b.Find(zoneA)
	require.NoError(t, err, "that of the operators can be ended")
	require.True(t, known)
	require.Equal(t, e, found)
	b.Remove(zoneA)
	require.Len(t, b.All(), 1)
	require.True(t, b.All()[0].Cloud)

	b.Restore([]avoid.Entry{e}, time.Time{})
	require.Equal(t, []avoid.Entry{e}, b.Requested())
	require.Len(t, b.All(), 2, "that of the cloud stands")
	changes, changed := b.Shift(nil, now, by(now))
	require.True(t, changed)
	require.Len(t, changes, 1)
	require.Equal(t, []avoid.Entry{e}, b.All())
}

// TestRepeats: a call that asks for anything else is no repetition.
func TestRepeats(t *testing.T) {
	var b avoid.Book
	first := request(t, &b, zoneA)
	for name, change := range map[string]func(e *avoid.Entry){
		"a minute later":   func(e *avoid.Entry) { e.Until = e.Until.Add(time.Minute) },
		"a minute earlier": func(e *avoid.Entry) { e.Until = e.Until.Add(-time.Minute) },
		"another reason":   func(e *avoid.Entry) { e.Reason = "" },
		"another caller":   func(e *avoid.Entry) { e.By = "ann" },
		"members too":      func(e *avoid.Entry) { e.Drain = true },
	} {
		e := avoid.Entry{Pool: zoneA, Until: first.Until, Reason: first.Reason, By: first.By}
		change(&e)
		_, changed, err := b.Check(e, now.Add(time.Second))
		require.NoError(t, err)
		require.True(t, changed, name)
	}
	e := first
	e.Since, e.Cloud, e.Until = time.Time{}, true, first.Until.In(time.FixedZone("", 3600))
	again, changed, err := b.Check(e, now)
	require.NoError(t, err)
	require.False(t, changed, "a caller says neither since when nor for whom")
	require.Equal(t, first, again)
}

// TestWhatTheCloudSays: its begin, end and reason, within bounds.
func TestWhatTheCloudSays(t *testing.T) {
	var b avoid.Book
	shift := nstance.ZoneShift{Zone: "zone-a", Since: now.Add(-time.Hour), Until: now.Add(time.Hour), Reason: strings.Repeat("x", 1000)}
	b.Shift([]nstance.ZoneShift{shift}, now, by(now))
	e := b.All()[0]
	require.Equal(t, []time.Time{now.Add(-time.Hour), now.Add(time.Hour)}, []time.Time{e.Since, e.Until})
	require.LessOrEqual(t, len(e.Reason), 256)
	var many []nstance.ZoneShift
	for i := range 100 {
		many = append(many, nstance.ZoneShift{Zone: strings.Repeat("z", i+1)})
	}
	b.Shift(many, now, by(now))
	require.Len(t, b.All(), 64)
	late := now.Add(14 * time.Minute)
	b.Shift(many, late, by(late)) // nothing has changed but when it was read
	require.Empty(t, b.End(by(now.Add(28*time.Minute))))
	require.Len(t, b.End(by(now.Add(29*time.Minute))), 64)
}
