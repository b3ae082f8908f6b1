package ledger_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
)

var from = time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)

func day(n float64) time.Time { return from.Add(time.Duration(n * 24 * float64(time.Hour))) }

func everyTenant(nstance.TenantID) bool { return true }

// writeEntries writes entries, each to the day of its end.
func writeEntries(t *testing.T, s storage.Store, entries ...ledger.Entry) {
	t.Helper()
	for i, e := range entries {
		line, err := json.Marshal(e)
		require.NoError(t, err)
		at := from
		if e.Life != nil {
			at = e.Life.DeletedAt
		}
		_, err = s.PutIfAbsent(t.Context(), layout.LedgerKey(shard, at, string(rune('a'+i))), line)
		require.NoError(t, err)
	}
}

func TestRates(t *testing.T) {
	spot := ledger.Pool{InstanceType: "small", Zone: "a", Market: nstance.Spot}
	large := ledger.Pool{InstanceType: "large", Zone: "a", Market: nstance.Spot}
	owned := ledger.Pool{InstanceType: "small", Zone: "a", Market: nstance.OnDemand}
	notice := func(at time.Time, left time.Duration, source string) []nstance.Notice {
		return []nstance.Notice{{Kind: nstance.Reclaim, EventID: at.String(), Source: source, ReceivedAt: at, Deadline: at.Add(left)}}
	}
	drain := &nstance.Drain{}
	s := storage.NewMemory()
	var entries []ledger.Entry
	for _, l := range []ledger.Life{
		{ID: "1", Pool: spot, ProviderID: "p", CreatedAt: day(-1), DeletedAt: day(2), Notices: notice(day(2), 2*time.Minute, "aws/spot"), Drain: drain, Outcome: ledger.Drained},
		{ID: "2", Pool: spot, ProviderID: "p", CreatedAt: day(1), DeletedAt: day(3), Notices: notice(day(3), time.Minute, "aws/spot"), Drain: drain, Outcome: ledger.CutShort},
		{ID: "2", Pool: spot, ProviderID: "p", CreatedAt: day(1), DeletedAt: day(3.1), Notices: notice(day(3), time.Minute, "aws/spot"), Drain: drain, Outcome: ledger.CutShort}, // written again
		{ID: "3", Pool: spot, ProviderID: "p", CreatedAt: day(3), DeletedAt: day(9), GoneAt: day(4), Loss: nstance.LossReclaimed, Outcome: ledger.Gone},
		{ID: "4", Pool: spot, ProviderID: "p", CreatedAt: day(4), DeletedAt: day(5), Notices: notice(day(5), time.Hour, "rehearsal/ann"), Drain: drain, Loss: nstance.LossReclaimed, GoneAt: day(5), Outcome: ledger.Drained},
		{ID: "5", Pool: spot, ProviderID: "p", CreatedAt: day(4), DeletedAt: day(5), Outcome: ledger.NotDrained},
		{ID: "6", Pool: spot, CreatedAt: day(4), DeletedAt: day(6), Outcome: ledger.NeverLaunched},
		{ID: "7", Pool: spot, ProviderID: "p", CreatedAt: day(9), DeletedAt: day(12), Notices: notice(day(12), time.Second, "aws/spot"), Drain: drain, Outcome: ledger.CutShort},
		{ID: "9", Pool: large, ProviderID: "p", CreatedAt: day(3), DeletedAt: day(9), GoneAt: day(4), Loss: nstance.LossReclaimed, Outcome: ledger.Gone},
		{ID: "8", Pool: spot, Tenant: "blue", ProviderID: "p", CreatedAt: day(1), DeletedAt: day(2), Notices: notice(day(2), time.Second, "aws/spot"), Outcome: ledger.NotDrained},
	} {
		entries = append(entries, ledger.Entry{Life: &l})
	}
	rebalance := func(id nstance.InstanceID, at time.Time) ledger.Entry {
		return ledger.Entry{Ignored: &ledger.Ignored{ID: id, At: at, Notice: nstance.Notice{Kind: nstance.Rebalance, Source: "aws/rebalance"}}}
	}
	entries = append(entries, rebalance("r1", day(1)),
		rebalance("1", day(2).Add(-time.Minute)), rebalance("1", day(2).Add(-time.Second)), // twice about one machine, which then goes
		rebalance("2", day(3).Add(-61*time.Minute)), // too long before
		rebalance("3", day(4).Add(-time.Hour)),      // it went without a notice
		rebalance("r2", day(9).Add(time.Minute)))    // afterwards
	writeEntries(t, s, entries...)
	open := []ledger.Life{
		{ID: "r1", Pool: owned, ProviderID: "p", CreatedAt: day(-100)},
		{ID: "r2", Pool: spot, ProviderID: "p", CreatedAt: day(8), Drain: drain, Notices: notice(day(9), 3*time.Minute, "aws/spot")},
		{ID: "r3", Pool: spot, ProviderID: "p", CreatedAt: day(11)},
		{ID: "r4", Pool: spot, CreatedAt: day(1)}, // no machine yet
	}
	others := func(tenant nstance.TenantID) bool { return tenant != "blue" }
	rates, err := ledger.NewReader(s, shard).Rates(t.Context(), day(0), day(10), open, others)
	require.NoError(t, err)
	const d = 24 * time.Hour
	require.Equal(t, ledger.Rates{Since: day(0), Until: day(10), Pools: []ledger.Rate{
		{Pool: large, MachineTime: d, Notices: map[nstance.NoticeKind]int{}, Reclaims: 1, Unwarned: 1, LastReclaim: day(4)},
		{Pool: owned, MachineTime: 10 * d, Notices: map[nstance.NoticeKind]int{nstance.Rebalance: 1}, Recommended: 1},
		{
			Pool: spot, MachineTime: 2*d + 2*d + d + d + d + d + 2*d, Notices: map[nstance.NoticeKind]int{nstance.Reclaim: 3, nstance.Rebalance: 5}, Reclaims: 4, Unwarned: 1, LastReclaim: day(9),
			Measured: 3, MedianNotice: 2 * time.Minute, P10Notice: time.Minute, Drains: 2, DrainsInTime: 1, Recommended: 4, RecommendedReclaimed: 2,
		},
	}}, rates)
	require.InDelta(t, 0.4, rates.Pools[2].PerDay(10*d), 1e-9)
	require.InDelta(t, 4/2.4, rates.Pools[2].PerHundredHours(), 1e-9)
	require.Zero(t, rates.Pools[1].PerHundredHours())
	require.Zero(t, (&ledger.Rate{Reclaims: 1}).PerHundredHours(), "nothing ran")
	require.Zero(t, (&ledger.Rate{Reclaims: 1}).PerDay(0), "no period")
}

// TestRatesOfUnknownPools counts what is known, under the empty pool; the period begins
// with the first machine.
func TestRatesOfUnknownPools(t *testing.T) {
	s := storage.NewMemory()
	writeEntries(t, s,
		ledger.Entry{Life: &ledger.Life{
			ID: "1", ProviderID: "p", CreatedAt: day(4), DeletedAt: day(5), Outcome: ledger.GoneNoDrain, GoneAt: day(5),
			Notices: []nstance.Notice{{Kind: nstance.Reclaim, ReceivedAt: day(5), Deadline: day(5).Add(-time.Minute)}},
		}},
		ledger.Entry{Ignored: &ledger.Ignored{ID: "2", At: day(6), Notice: nstance.Notice{Kind: nstance.Rebalance}}},
		ledger.Entry{Ignored: &ledger.Ignored{ID: "2", At: day(20), Notice: nstance.Notice{Kind: nstance.Rebalance}}},
		ledger.Entry{Ignored: &ledger.Ignored{ID: "2", At: day(6), Notice: nstance.Notice{Kind: nstance.Reclaim, Source: notice.RehearsalSource}}},
	)
	rates, err := ledger.NewReader(s, shard).Rates(t.Context(), day(0), day(10), nil, everyTenant)
	require.NoError(t, err)
	require.Equal(t, ledger.Rates{Since: day(4), Until: day(10), Pools: []ledger.Rate{{
		MachineTime: 24 * time.Hour, Notices: map[nstance.NoticeKind]int{nstance.Reclaim: 1, nstance.Rebalance: 1}, Reclaims: 1, TooLate: 1, LastReclaim: day(5), Measured: 1, Recommended: 1,
	}}}, rates)
}

// TestUnwarned: spot capacity that ends without a known cause counts as taken back, as
// the reconciler counts it.
func TestUnwarned(t *testing.T) {
	for name, c := range map[string]struct {
		market   nstance.MarketType
		loss     nstance.LossCause
		notice   string // its source
		noticed  time.Time
		served   time.Time
		unwarned int
	}{
		"spot, reclaimed":              {nstance.Spot, nstance.LossReclaimed, "", time.Time{}, day(1.1), 1},
		"spot, vanished":               {nstance.Spot, "", "", time.Time{}, day(1.1), 1},
		"spot, vanished, rehearsed":    {nstance.Spot, "", "rehearsal/ann", day(2), day(1.1), 0},
		"spot, vanished, after notice": {nstance.Spot, "", "aws/spot", day(2), day(1.1), 0},
		"spot, notice before period":   {nstance.Spot, "", "aws/spot", day(-0.5), day(1.1), 0},
		"spot, powered off":            {nstance.Spot, nstance.LossGuest, "", time.Time{}, day(1.1), 0},
		"spot, deleted by others":      {nstance.Spot, nstance.LossRequested, "", time.Time{}, day(1.1), 0},
		"on demand, vanished":          {nstance.OnDemand, "", "", time.Time{}, day(1.1), 0},
		"unknown market, reclaimed":    {"", nstance.LossReclaimed, "", time.Time{}, day(1.1), 1},
		"unknown market, vanished":     {"", "", "", time.Time{}, day(1.1), 0},
		"spot, vanished while booting": {nstance.Spot, "", "", time.Time{}, time.Time{}, 0},
	} {
		s := storage.NewMemory()
		life := ledger.Life{ID: "1", Pool: ledger.Pool{Market: c.market}, ProviderID: "p", CreatedAt: day(1), RegisteredAt: c.served, GoneAt: day(2), DeletedAt: day(2), Loss: c.loss}
		if c.notice != "" {
			life.Notices = []nstance.Notice{{Kind: nstance.Reclaim, Source: c.notice, ReceivedAt: c.noticed}}
		}
		writeEntries(t, s, ledger.Entry{Life: &life})
		rates, err := ledger.NewReader(s, shard).Rates(t.Context(), day(0), day(10), nil, everyTenant)
		require.NoError(t, err)
		require.Equal(t, c.unwarned, rates.Pools[0].Unwarned, name)
	}
}

// TestRatesOfRepeatedEntries: an entry is written again if storage did not answer.
func TestRatesOfRepeatedEntries(t *testing.T) {
	s := storage.NewMemory()
	ignored := ledger.Entry{Ignored: &ledger.Ignored{ID: "1", At: day(1), Notice: nstance.Notice{Kind: nstance.Rebalance, EventID: "e1"}}}
	writeEntries(t, s, ignored, ignored)
	rates, err := ledger.NewReader(s, shard).Rates(t.Context(), day(0), day(10), nil, everyTenant)
	require.NoError(t, err)
	require.Equal(t, map[nstance.NoticeKind]int{nstance.Rebalance: 1}, rates.Pools[0].Notices)
}

// TestRatesOfWithdrawnNotices: a cancelled reclaim took nothing back.
func TestRatesOfWithdrawnNotices(t *testing.T) {
	s := storage.NewMemory()
	cancelled := records.PastDrain{Notices: []nstance.Notice{{Kind: nstance.Reclaim, ReceivedAt: day(1)}}}
	writeEntries(t, s, ledger.Entry{Life: &ledger.Life{ID: "1", ProviderID: "p", CreatedAt: day(0), DeletedAt: day(2), Outcome: ledger.NotDrained, Cancelled: []records.PastDrain{cancelled}}})
	rates, err := ledger.NewReader(s, shard).Rates(t.Context(), day(0), day(10), nil, everyTenant)
	require.NoError(t, err)
	require.Equal(t, []ledger.Rate{{MachineTime: 48 * time.Hour, Notices: map[nstance.NoticeKind]int{nstance.Reclaim: 1}}}, rates.Pools)
}
