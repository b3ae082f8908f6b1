package cache_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage/cache"
)

func TestFilterByTenantGroupAndInstance(t *testing.T) {
	c := open(t, newPath(t), nil)
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
		filter cache.Filter
		want   []string
	}{
		"any of two":            {cache.Filter{Any: ids("i2", "i3")}, []string{"b", "c", "d"}},
		"any of one unknown":    {cache.Filter{Any: ids("i9")}, []string{}},
		"any, and one of them":  {cache.Filter{Any: ids("i2", "i3"), Instance: "i3"}, []string{"c", "d"}},
		"what they replace":     {cache.Filter{Replaces: ids("i1", "i2")}, []string{"b", "c"}},
		"names are not syntax":  {cache.Filter{Any: ids(`i1"]') --`, "i2")}, []string{"b"}},
		"a notice":              {cache.Filter{EventID: "e1"}, []string{"a", "e"}},
		"a notice, the newest":  {cache.Filter{EventID: "e1", Newest: true, Limit: 1}, []string{"e"}},
		"a notice of another's": {cache.Filter{EventID: "e1", Instance: "i3"}, []string{}},
	} {
		require.Equal(t, f.want, reasons(events(t, c, f.filter)), name)
	}
	for name, f := range map[string]struct {
		filter cache.Filter
		want   []cache.Sighting
	}{
		"each once, last first":  {cache.Filter{}, []cache.Sighting{{Seq: 6, Instance: "i1", EventID: "e3"}, {Seq: 4, Instance: "i3", EventID: "e2"}, {Seq: 1, Instance: "i1", EventID: "e1"}}},
		"no more than the limit": {cache.Filter{Limit: 1}, []cache.Sighting{{Seq: 6, Instance: "i1", EventID: "e3"}}},
		"of an instance":         {cache.Filter{Instance: "i3"}, []cache.Sighting{{Seq: 4, Instance: "i3", EventID: "e2"}}},
		"of another tenant":      {cache.Filter{Tenant: "acme"}, nil},
	} {
		got, err := c.Sightings(t.Context(), f.filter)
		require.NoError(t, err)
		require.Equal(t, f.want, got, name)
	}
}

func TestFilterByTypeAndTime(t *testing.T) {
	c := open(t, newPath(t), nil)
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i, typ := range []nstance.EventType{nstance.EventCreated, nstance.EventReady, nstance.EventReady, nstance.EventDeleted} {
		e := event(string(rune('a' + i)))
		e.Type, e.Time = typ, t0.Add(time.Duration(i)*1500*time.Millisecond) // 5, 6.5, 8, 9.5 s
		c.Append(e)
	}
	write(t, c)
	for name, f := range map[string]struct {
		filter cache.Filter
		want   []string
	}{
		"one type":              {cache.Filter{Types: []nstance.EventType{nstance.EventReady}}, []string{"b", "c"}},
		"several":               {cache.Filter{Types: []nstance.EventType{nstance.EventCreated, nstance.EventDeleted}}, []string{"a", "d"}},
		"none of that type":     {cache.Filter{Types: []nstance.EventType{nstance.EventAlarm}}, []string{}},
		"since a second":        {cache.Filter{Since: t0.Add(time.Second)}, []string{"b", "c", "d"}},
		"until a second":        {cache.Filter{Until: t0.Add(3 * time.Second)}, []string{"a", "b"}},
		"in another time zone":  {cache.Filter{Since: t0.Add(3 * time.Second).In(time.FixedZone("x", 3600))}, []string{"c", "d"}},
		"between":               {cache.Filter{Since: t0.Add(time.Second), Until: t0.Add(4 * time.Second)}, []string{"b", "c"}},
		"before a number":       {cache.Filter{Before: 3}, []string{"a", "b"}},
		"the newest before one": {cache.Filter{Before: 4, Newest: true, Limit: 1}, []string{"c"}},
	} {
		require.Equal(t, f.want, reasons(events(t, c, f.filter)), name)
	}
}
