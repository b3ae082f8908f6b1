package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/web"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/reconcile"
)

// TestAlarms: equal alarms are one entry for an hour after the latest; the alarms of one tenant,
// and all of them, are bounded by dropping the oldest.
func TestAlarms(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	raise := func(l *alarms, tenant nstance.TenantID, group nstance.GroupID, after time.Duration) {
		l.add(nstance.Event{Type: nstance.EventAlarm, Time: now.Add(after), Tenant: tenant, Group: group, Reason: "misuse"})
	}
	t.Run("equal ones", func(t *testing.T) {
		var l alarms
		raise(&l, "red", "web", 0)
		raise(&l, "red", "db", time.Minute)
		raise(&l, "red", "web", 2*time.Minute)
		list := l.attention(now.Add(2 * time.Minute))
		require.Len(t, list, 2)
		require.Equal(t, []any{"group red/db", "misuse"}, []any{list[0].Subject, list[0].Why})
		require.Equal(t, []any{"group red/web", "misuse, 2 times"}, []any{list[1].Subject, list[1].Why})
		require.Equal(t, now, list[1].Since)
		require.Equal(t, now.Add(2*time.Minute+alarmMemory), list[1].Until)
		require.Len(t, l.attention(now.Add(time.Minute+alarmMemory)), 2)
		require.Len(t, l.attention(now.Add(2*time.Minute+alarmMemory)), 1, "an hour after the latest")
	})
	t.Run("of one tenant", func(t *testing.T) {
		var l alarms
		raise(&l, "blue", "web", 0)
		for i := range maxTenantAlarms + 1 {
			raise(&l, "red", nstance.GroupID(fmt.Sprint("g", i)), time.Second)
		}
		list := l.attention(now)
		require.Len(t, list, 1+maxTenantAlarms)
		require.Equal(t, "group blue/web", list[0].Subject)
		require.Equal(t, "group red/g1", list[1].Subject)
	})
	t.Run("of all", func(t *testing.T) {
		var l alarms
		for i := range maxAlarms + 1 {
			raise(&l, nstance.TenantID(fmt.Sprint("t", i)), "web", 0)
		}
		list := l.attention(now)
		require.Len(t, list, maxAlarms)
		require.Equal(t, "group t1/web", list[0].Subject)
	})
}

// TestAttentionRows: of what the page does not tell it counts how much there is, since when, and
// how much is acknowledged until when.
func TestAttentionRows(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	entry := func(since time.Time, known *attention.Acknowledgement) attention.Entry {
		return attention.Entry{Attention: reconcile.Attention{Kind: "orphan", Subject: "instance web-1", Since: since, Why: "secret"}, Acknowledged: known}
	}
	rows, omitted := attentionRows([]attention.Entry{
		entry(time.Time{}, nil), entry(now, nil), entry(now.Add(-time.Hour), nil), entry(now, nil),
		entry(now, &attention.Acknowledgement{Until: now.Add(2 * time.Hour), Reason: "secret"}),
		entry(now, &attention.Acknowledgement{Until: now.Add(time.Hour), Reason: "secret"}),
		entry(now, &attention.Acknowledgement{Until: now.Add(3 * time.Hour), Reason: "secret"}),
	}, true)
	require.Zero(t, omitted)
	require.Equal(t, []web.Attention{
		{Kind: "orphan", Count: 4, Since: now.Add(-time.Hour)},
		{Kind: "orphan", Count: 3, Since: now, Acknowledged: &web.Acknowledgement{Until: now.Add(time.Hour)}},
	}, rows)
}

// A lossyJournal is a journal that has lost events.
type lossyJournal struct{ journal.Journal }

func (lossyJournal) Problems() []string { return []string{"3 events were lost"} }

// TestAttentionOfAStandby: it lists what is wrong with this server alone.
func TestAttentionOfAStandby(t *testing.T) {
	s := &Server{events: lossyJournal{}}
	s.termError = nstance.Errorf(nstance.Denied, "no rights")
	list := s.attention()
	require.Len(t, list, 2)
	require.Equal(t, []any{reconcile.AttentionKind(attentionJournal), "3 events were lost"}, []any{list[0].Kind, list[0].Why})
	require.Equal(t, reconcile.AttentionKind(attentionNotLeading), list[1].Kind)
	require.Contains(t, list[1].Why, "no rights")
}
