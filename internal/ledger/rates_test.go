package ledger_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/storage"
)

func TestRates(t *testing.T) {
	from := time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)
	to := from.AddDate(0, 0, 10)
	day := func(n float64) time.Time { return from.Add(time.Duration(n * 24 * float64(time.Hour))) }
	spot := ledger.Pool{InstanceType: "small", Zone: "a", Market: nstance.Spot}
	owned := ledger.Pool{InstanceType: "small", Zone: "a", Market: nstance.OnDemand}
	notice := func(at time.Time, left time.Duration, source string) []nstance.Notice {
		return []nstance.Notice{{Kind: nstance.Reclaim, EventID: at.String(), Source: source, ReceivedAt: at, Deadline: at.Add(left)}}
	}
	drain := &nstance.Drain{}
	s := storage.NewMemory()
	for i, l := range []ledger.Life{
		{ID: "1", Pool: spot, CreatedAt: day(-1), DeletedAt: day(2), Notices: notice(day(2), 2*time.Minute, "aws/spot"), Drain: drain, Outcome: ledger.Drained},
		{ID: "2", Pool: spot, CreatedAt: day(1), DeletedAt: day(3), Notices: notice(day(3), time.Minute, "aws/spot"), Drain: drain, Outcome: ledger.CutShort},
		{ID: "2", Pool: spot, CreatedAt: day(1), DeletedAt: day(3.1), Notices: notice(day(3), time.Minute, "aws/spot"), Drain: drain, Outcome: ledger.CutShort}, // written again
		{ID: "3", Pool: spot, CreatedAt: day(3), DeletedAt: day(9), GoneAt: day(4), Loss: nstance.LossReclaimed, Outcome: ledger.Gone},
		{ID: "4", Pool: spot, CreatedAt: day(4), DeletedAt: day(5), Notices: notice(day(5), time.Hour, "rehearsal/ann"), Drain: drain, Outcome: ledger.Drained},
		{ID: "5", Pool: spot, CreatedAt: day(4), DeletedAt: day(5), Outcome: ledger.NotDrained},
		{ID: "6", Pool: spot, CreatedAt: day(4), DeletedAt: day(6), Outcome: ledger.NeverLaunched},
		{ID: "7", Pool: spot, CreatedAt: day(9), DeletedAt: day(12), Notices: notice(day(12), time.Second, "aws/spot"), Drain: drain, Outcome: ledger.CutShort},
	} {
		line, err := json.Marshal(ledger.Entry{Life: &l})
		require.NoError(t, err)
		_, err = s.PutIfAbsent(t.Context(), layout.LedgerKey(shard, l.DeletedAt, string(rune('a'+i))), line)
		require.NoError(t, err)
	}
	rehearsal := func(n nstance.Notice) bool { return n.Source == "rehearsal/ann" }
	running := []ledger.Running{{Pool: owned, Since: day(-100)}, {Pool: spot, Since: day(8)}, {Pool: spot, Since: day(11)}}
	rates, problems, err := ledger.NewReader(s, shard).Rates(t.Context(), from, to, running, rehearsal)
	require.NoError(t, err)
	require.Empty(t, problems)
	const d = 24 * time.Hour
	require.Equal(t, []ledger.Rate{
		{Pool: owned, Machines: 10 * d},
		{
			Pool: spot, Machines: 2*d + 2*d + d + d + d + d + 2*d, Reclaims: 3, Unwarned: 1,
			Notices: 2, MinNotice: time.Minute, MedianNotice: time.Minute, Drains: 2, DrainsInTime: 1,
		},
	}, rates)
	require.InDelta(t, 0.3, rates[1].PerDay(), 1e-9)
	require.Zero(t, rates[0].PerDay())
	require.Zero(t, (&ledger.Rate{Reclaims: 1}).PerDay(), "nothing ran")
}
