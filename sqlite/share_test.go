package sqlite_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/sqlite"
)

func of(tenant nstance.TenantID, typ nstance.EventType, reason string) nstance.Event {
	e := event(reason)
	e.Tenant, e.Type = tenant, typ
	return e
}

func TestTenantsShareTheJournal(t *testing.T) {
	path := newPath(t)
	options := &sqlite.Options{MaxEvents: 100, MaxAlarms: 20}
	c := open(t, path, options)
	for i := range 10 {
		c.Append(of("quiet", nstance.EventReady, strconv.Itoa(i)))
		c.Append(of("", eventtype.ClockWrong, "of the shard"))
	}
	c.Append(of("quiet", nstance.EventAlarm, "look"))
	c.Append(of("loud", nstance.EventAlarm, "look"))
	write(t, c)
	for i := range 3000 {
		c.Append(of("loud", nstance.EventNoticeIgnored, strconv.Itoa(i)))
		if i%300 == 0 {
			write(t, c)
		}
	}
	write(t, c)
	t.Run("a busy tenant evicts no events of the others", func(t *testing.T) {
		require.Len(t, events(t, c, journal.Filter{Tenant: "quiet", Types: []nstance.EventType{nstance.EventReady}}), 10)
		require.Len(t, events(t, c, journal.Filter{Types: []nstance.EventType{eventtype.ClockWrong}}), 10)
	})
	t.Run("a busy tenant keeps its newest", func(t *testing.T) {
		all := events(t, c, journal.Filter{Tenant: "loud", Types: []nstance.EventType{nstance.EventNoticeIgnored}, Limit: 1000})
		require.LessOrEqual(t, len(all), 90)
		require.GreaterOrEqual(t, len(all), 80)
		require.Equal(t, "2999", all[len(all)-1].Reason)
	})
	t.Run("alarms are kept apart", func(t *testing.T) {
		require.Len(t, events(t, c, journal.Filter{Types: []nstance.EventType{nstance.EventAlarm}}), 2)
	})
	t.Run("alarms have their own limit", func(t *testing.T) {
		for i := range 100 {
			c.Append(of("loud", nstance.EventAlarm, strconv.Itoa(i)))
		}
		write(t, c)
		alarms := events(t, c, journal.Filter{Types: []nstance.EventType{nstance.EventAlarm}})
		require.LessOrEqual(t, len(alarms), 22)
		require.Equal(t, "look", alarms[0].Reason)
		require.Equal(t, nstance.TenantID("quiet"), alarms[0].Tenant)
		require.Equal(t, "99", alarms[len(alarms)-1].Reason)
	})
	t.Run("also after a restart", func(t *testing.T) {
		again := open(t, path, options)
		for i := range 300 {
			again.Append(of("loud", nstance.EventNoticeIgnored, strconv.Itoa(i)))
		}
		write(t, again)
		require.Len(t, events(t, again, journal.Filter{Tenant: "quiet"}), 11)
		require.LessOrEqual(t, len(events(t, again, journal.Filter{Tenant: "loud", Limit: 1000})), 130)
	})
}

func TestTenantsShareTheQueue(t *testing.T) {
	c := open(t, newPath(t), &sqlite.Options{Queue: 100})
	for i := range 1000 {
		c.Append(of("loud", nstance.EventReady, strconv.Itoa(i)))
	}
	for i := range 10 {
		c.Append(of("quiet", nstance.EventReady, strconv.Itoa(i)))
	}
	write(t, c)
	require.Len(t, events(t, c, journal.Filter{Tenant: "quiet"}), 10)
	require.Len(t, events(t, c, journal.Filter{Tenant: "loud", Limit: 1000}), 90)
	require.EqualValues(t, 910, c.Dropped())
}
