package cache_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage/cache"
)

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
