package attention_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/reconcile"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func entry(kind reconcile.AttentionKind, subject, why string, since time.Time) reconcile.Attention {
	return reconcile.Attention{Kind: kind, Subject: subject, Why: why, Since: since}
}

func TestMark(t *testing.T) {
	const hour = time.Hour
	old, lookup, other := entry(attention.Alarm, "shard", "old", noon.Add(-hour)), entry("lookup", "shard", "a", time.Time{}), entry("lookup", "shard", "b", time.Time{})
	ack := func(kind reconcile.AttentionKind, entries int) attention.Acknowledgement {
		return attention.Acknowledgement{Kind: kind, Subject: "shard", Entries: entries, At: noon, Until: noon.Add(hour)}
	}
	for name, c := range map[string]struct {
		list        []reconcile.Attention
		ack         attention.Acknowledgement
		now         time.Time
		open, known []string
	}{
		"what is acknowledged comes last":   {[]reconcile.Attention{old, lookup}, ack(attention.Alarm, 1), noon, []string{"a"}, []string{"old"}},
		"another kind and another subject":  {[]reconcile.Attention{entry("clock", "shard", "c", noon), entry(attention.Alarm, "group t/g", "g", noon)}, ack(attention.Alarm, 1), noon, []string{"c", "g"}, nil},
		"its time is over":                  {[]reconcile.Attention{lookup}, ack("lookup", 1), noon.Add(hour), []string{"a"}, nil},
		"a later alarm":                     {[]reconcile.Attention{entry(attention.Alarm, "shard", "new", noon.Add(1)), old}, ack(attention.Alarm, 2), noon, []string{"new"}, []string{"old"}},
		"one entry more than there were":    {[]reconcile.Attention{lookup, other}, ack("lookup", 1), noon, []string{"b"}, []string{"a"}},
		"a state that began later":          {[]reconcile.Attention{entry("short", "shard", "s", noon.Add(hour/2))}, ack("short", 1), noon.Add(hour / 2), nil, []string{"s"}},
		"the oldest entries were there":     {[]reconcile.Attention{entry("obstacle", "shard", "new", noon), entry("obstacle", "shard", "old", noon.Add(-hour))}, ack("obstacle", 1), noon, []string{"new"}, []string{"old"}},
		"a number that makes no sense":      {[]reconcile.Attention{lookup}, ack("lookup", -1), noon, []string{"a"}, nil},
		"all of those that there were":      {[]reconcile.Attention{lookup, other}, ack("lookup", 2), noon, nil, []string{"a", "b"}},
		"fewer than were acknowledged stay": {[]reconcile.Attention{other}, ack("lookup", 2), noon, nil, []string{"b"}},
	} {
		t.Run(name, func(t *testing.T) {
			var open, known []string
			for _, e := range attention.Mark(c.list, []attention.Acknowledgement{c.ack}, c.now) {
				if e.Acknowledged == nil {
					require.Empty(t, known)
					open = append(open, e.Why)
					continue
				}
				require.Equal(t, c.ack, *e.Acknowledged)
				known = append(known, e.Why)
			}
			require.Equal(t, c.open, open)
			require.Equal(t, c.known, known)
		})
	}
	for _, e := range attention.Unacknowledged([]reconcile.Attention{old, lookup}) {
		require.Nil(t, e.Acknowledged)
	}
}

func TestCheck(t *testing.T) {
	list := []reconcile.Attention{entry("short", "group t/a", "", noon), entry("short", "group t/b", "", noon), entry("lookup", "shard", "a", noon), entry("lookup", "shard", "b", noon)}
	want := attention.Acknowledgement{Kind: "lookup", At: noon, Until: noon.Add(time.Hour)}
	got, err := attention.Check(want, list)
	require.NoError(t, err)
	require.Equal(t, "shard", got.Subject)
	require.Equal(t, 2, got.Entries)
	require.True(t, got.Repeats(got, list))

	other := got
	other.Reason = "ticket 7"
	require.False(t, got.Repeats(other, list), "for another reason")
	longer := got
	longer.Until = got.Until.Add(2 * time.Minute)
	require.False(t, got.Repeats(longer, list))
	more := append(list, entry("lookup", "shard", "c", noon))
	now, err := attention.Check(want, more)
	require.NoError(t, err)
	require.False(t, got.Repeats(now, more), "one has come since")

	want.Kind = "short"
	_, err = attention.Check(want, list)
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, "name one of: group t/a, group t/b")
	want.Kind = "clock"
	_, err = attention.Check(want, list)
	require.ErrorIs(t, err, nstance.NotFound)
	want.Subject = "shard"
	_, err = attention.Check(want, list)
	require.ErrorIs(t, err, nstance.NotFound)
	for _, d := range []time.Duration{-time.Hour, 59 * time.Second, 30*24*time.Hour + 1} {
		want.Until = noon.Add(d)
		_, err = attention.Check(want, list)
		require.ErrorContains(t, err, "duration: ")
	}
}

// TestProblems: a hold of the whole shard is a problem, a group's own and an alarm are none.
func TestProblems(t *testing.T) {
	own := entry("frozen", "group t/a", "own hold", noon)
	own.Group = "a"
	require.Equal(t, []string{"a record is broken", "hold of the shard"}, attention.Problems([]reconcile.Attention{
		entry("frozen", "shard", "hold of the shard", noon), own, entry("short", "group t/a", "short", noon), entry(attention.Alarm, "shard", "alarm", noon),
		entry("record", "instance x", "a record is broken", noon),
	}))
}
