package sqlite_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/journal"
)

// eachJournal runs a test with every journal that there is.
func eachJournal(t *testing.T, do func(t *testing.T, c journal.Journal)) {
	t.Run("sqlite", func(t *testing.T) { do(t, open(t, newPath(t), nil)) })
	t.Run("memory", func(t *testing.T) { do(t, journal.NewMemory(0)) })
}

func TestFilterByTenantGroupAndInstance(t *testing.T) {
	eachJournal(t, testFilterByTenantGroupAndInstance)
}

func testFilterByTenantGroupAndInstance(t *testing.T, c journal.Journal) {
	say := func(reason string, id, replaces nstance.InstanceID, notice string) {
		e := event(reason)
		e.Instance, e.Replaces = id, replaces
		if notice != "" {
			e.Notice = &nstance.Notice{EventID: notice}
		}
		c.Append(e)
	}
	say("a", "i1", "", "e1")
	say("b", "i2", "i1", "")
	say("c", "i3", "i2", "")
	say("d", "i3", "", "e2")
	say("e", "i1", "", "e1")
	say("f", "i1", "", "e3")
	say("g", "", "", "")
	write(t, c)
	ids := func(ids ...nstance.InstanceID) []nstance.InstanceID { return ids }
	for name, f := range map[string]struct {
		filter journal.Filter
		want   []string
	}{
		"any of two":            {journal.Filter{Any: ids("i2", "i3")}, []string{"b", "c", "d"}},
		"any of one unknown":    {journal.Filter{Any: ids("i9")}, []string{}},
		"any, and one of them":  {journal.Filter{Any: ids("i2", "i3"), Instance: "i3"}, []string{"c", "d"}},
		"what they replace":     {journal.Filter{Replaces: ids("i1", "i2")}, []string{"b", "c"}},
		"names are not syntax":  {journal.Filter{Any: ids(`i1"]') --`, "i2")}, []string{"b"}},
		"a notice":              {journal.Filter{EventID: "e1"}, []string{"a", "e"}},
		"a notice, the newest":  {journal.Filter{EventID: "e1", Newest: true, Limit: 1}, []string{"e"}},
		"a notice of another's": {journal.Filter{EventID: "e1", Instance: "i3"}, []string{}},
	} {
		require.Equal(t, f.want, reasons(events(t, c, f.filter)), name)
	}
	for name, f := range map[string]struct {
		filter journal.Filter
		want   []journal.NoticeEntry
	}{
		"each once, last first":  {journal.Filter{}, []journal.NoticeEntry{{Seq: 6, Instance: "i1", EventID: "e3"}, {Seq: 4, Instance: "i3", EventID: "e2"}, {Seq: 1, Instance: "i1", EventID: "e1"}}},
		"no more than the limit": {journal.Filter{Limit: 1}, []journal.NoticeEntry{{Seq: 6, Instance: "i1", EventID: "e3"}}},
		"of an instance":         {journal.Filter{Instance: "i3"}, []journal.NoticeEntry{{Seq: 4, Instance: "i3", EventID: "e2"}}},
		"of another tenant":      {journal.Filter{Tenant: "acme"}, nil},
	} {
		got, err := c.Notices(t.Context(), f.filter)
		require.NoError(t, err)
		require.Equal(t, f.want, got, name)
	}
}

func TestFilterByTypeAndTime(t *testing.T) { eachJournal(t, testFilterByTypeAndTime) }

func testFilterByTypeAndTime(t *testing.T, c journal.Journal) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i, typ := range []nstance.EventType{nstance.EventCreated, nstance.EventReady, nstance.EventReady, nstance.EventDeleted} {
		e := event(string(rune('a' + i)))
		e.Type, e.Time = typ, t0.Add(time.Duration(i)*1500*time.Millisecond) // 5, 6.5, 8, 9.5 s
		c.Append(e)
	}
	write(t, c)
	for name, f := range map[string]struct {
		filter journal.Filter
		want   []string
	}{
		"one type":              {journal.Filter{Types: []nstance.EventType{nstance.EventReady}}, []string{"b", "c"}},
		"several":               {journal.Filter{Types: []nstance.EventType{nstance.EventCreated, nstance.EventDeleted}}, []string{"a", "d"}},
		"none of that type":     {journal.Filter{Types: []nstance.EventType{nstance.EventAlarm}}, []string{}},
		"since a second":        {journal.Filter{Since: t0.Add(time.Second)}, []string{"b", "c", "d"}},
		"until a second":        {journal.Filter{Until: t0.Add(3 * time.Second)}, []string{"a", "b"}},
		"in another time zone":  {journal.Filter{Since: t0.Add(3 * time.Second).In(time.FixedZone("x", 3600))}, []string{"c", "d"}},
		"between":               {journal.Filter{Since: t0.Add(time.Second), Until: t0.Add(4 * time.Second)}, []string{"b", "c"}},
		"after a number":        {journal.Filter{After: 2}, []string{"c", "d"}},
		"before a number":       {journal.Filter{Before: 3}, []string{"a", "b"}},
		"the newest before one": {journal.Filter{Before: 4, Newest: true, Limit: 1}, []string{"c"}},
	} {
		require.Equal(t, f.want, reasons(events(t, c, f.filter)), name)
	}
}
