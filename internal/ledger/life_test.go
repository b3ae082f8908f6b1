package ledger_test

import (
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
)

// ended is the last record of an instance of which everything is known.
func ended() records.Instance {
	cause := nstance.Cause{Kind: nstance.CauseNotice, Message: "aws/spot terminate"}
	return records.Instance{
		ID: "web1", Tenant: "blue", Group: "web", OnDemand: true, Reason: "size", Replaces: "web0", CreatedAt: day(1), CreatedEpoch: 7,
		InfraHash: "v1:ab", Image: "ami-1", Shape: records.Shape{InstanceType: "small", Subnet: "sn-1", Market: nstance.Spot}, PricePerHour: 0.25,
		ProviderID: "i-1", Zone: "a", Hostname: "h1", RegisteredAt: day(1.1), ReadyAt: day(1.2), Drifted: []string{"image"},
		Cancelled: []records.PastDrain{{EndedAt: day(1.5)}}, Drain: &nstance.Drain{StartedAt: day(2)},
		Notices: []nstance.Notice{{EventID: "e1"}}, Deleting: &records.Deletion{At: day(3), Why: cause},
		End: &records.End{
			LaunchedAt: day(1.05), InstanceType: "large", Zone: "b", Market: nstance.OnDemand, GoneAt: day(2.5), Loss: nstance.LossReclaimed,
			Drained: &records.DrainEnd{At: day(2.2), Outcome: nstance.OutcomeDrained},
		},
	}
}

// TestEveryFieldOfALife: a life has everything that the last record says.
func TestEveryFieldOfALife(t *testing.T) {
	rec := ended()
	got := ledger.LifeOf(rec, "web2", day(4))
	require.Equal(t, ledger.Life{
		ID: "web1", Tenant: "blue", Group: "web", OnDemand: true, Reason: "size", Epoch: 7,
		Pool: ledger.Pool{InstanceType: "large", Zone: "a", Market: nstance.OnDemand}, Subnet: "sn-1", Price: 0.25, Image: "ami-1", InfraHash: "v1:ab", ProviderID: "i-1", Hostname: "h1",
		CreatedAt: day(1), LaunchedAt: day(1.05), RegisteredAt: day(1.1), ReadyAt: day(1.2),
		Replaces: "web0", ReplacedBy: "web2", Drifted: []string{"image"},
		Notices: rec.Notices, Drain: rec.Drain, Drained: rec.End.Drained, Cancelled: rec.Cancelled,
		GoneAt: day(2.5), Loss: nstance.LossReclaimed, DeleteAt: day(3), Why: rec.Deleting.Why, DeletedAt: day(4), Outcome: ledger.Drained,
	}, got)
	for i := range reflect.TypeFor[ledger.Life]().NumField() {
		require.False(t, reflect.ValueOf(got).Field(i).IsZero(), reflect.TypeFor[ledger.Life]().Field(i).Name)
	}

	open := ledger.OpenAll([]records.Instance{rec, {ID: "web3"}})
	got.ReplacedBy, got.DeletedAt, got.Outcome = "", time.Time{}, ""
	require.Equal(t, []ledger.Life{got, {ID: "web3"}}, open, "of an instance that lives")
	require.Equal(t, nstance.InstanceID("web2"), ledger.Open(rec, "web2").ReplacedBy)
}

// TestPool: what the provider says of the machine counts before what was asked for.
func TestPool(t *testing.T) {
	asked := records.Instance{Zone: "a", Shape: records.Shape{InstanceType: "small", Market: nstance.Spot}}
	require.Equal(t, ledger.Pool{InstanceType: "small", Zone: "a", Market: nstance.Spot}, ledger.PoolOf(asked))
	asked.End = &records.End{}
	require.Equal(t, ledger.Pool{InstanceType: "small", Zone: "a", Market: nstance.Spot}, ledger.PoolOf(asked))
	require.Equal(t, ledger.Pool{InstanceType: "large", Zone: "b", Market: nstance.OnDemand},
		ledger.PoolOf(records.Instance{End: &records.End{InstanceType: "large", Zone: "b", Market: nstance.OnDemand}}))
}

// TestInterruptions: each notice of an instance is an interruption, with the drain that it
// led to.
func TestInterruptions(t *testing.T) {
	pool := ledger.Pool{InstanceType: "small", Zone: "a", Market: nstance.Spot}
	e := func(id string) nstance.Notice { return nstance.Notice{EventID: id} }
	base := ledger.Life{ID: "web1", Tenant: "blue", Group: "web", Pool: pool, Notices: []nstance.Notice{e("e1")}, ReplacedBy: "web2", DeletedAt: day(4)}
	of := func(change func(l *ledger.Life)) *ledger.Life {
		l := base
		change(&l)
		return &l
	}
	last := ledger.Interruption{ID: "web1", Tenant: "blue", Group: "web", Pool: pool, Notice: e("e1"), Replacement: "web2", DeletedAt: day(4)}
	with := func(change func(i *ledger.Interruption)) ledger.Interruption {
		i := last
		change(&i)
		return i
	}
	drain := &nstance.Drain{StartedAt: day(1)}
	cancelled := func(n string) ledger.Interruption {
		return ledger.Interruption{ID: "web1", Tenant: "blue", Group: "web", Pool: pool, Notice: e(n), Withdrawn: true}
	}
	drained := cancelled("e0")
	drained.DrainStarted, drained.DrainEnded, drained.DrainOutcome = day(0.5), day(0.7), "cancelled"
	for name, c := range map[string]struct {
		life *ledger.Life
		want []ledger.Interruption
	}{
		"no drain": {
			of(func(l *ledger.Life) { l.Outcome = ledger.NotDrained }),
			[]ledger.Interruption{with(func(i *ledger.Interruption) { i.Outcome = ledger.NotDrained })},
		},
		"drained": {
			of(func(l *ledger.Life) {
				l.Drain, l.Drained, l.Outcome = drain, &records.DrainEnd{At: day(2), Outcome: nstance.OutcomeDrained}, ledger.Drained
			}),
			[]ledger.Interruption{with(func(i *ledger.Interruption) {
				i.DrainStarted, i.DrainEnded, i.DrainOutcome, i.Outcome = day(1), day(2), "drained", ledger.Drained
			})},
		},
		"given up before the deadline came": {
			of(func(l *ledger.Life) {
				l.Drain, l.Drained, l.DeleteAt, l.Outcome = drain, &records.DrainEnd{At: day(2), Outcome: nstance.OutcomeFailed}, day(3), ledger.CutShort
			}),
			[]ledger.Interruption{with(func(i *ledger.Interruption) {
				i.DrainStarted, i.DrainEnded, i.DrainOutcome, i.Outcome = day(1), day(2), "failed", ledger.CutShort
			})},
		},
		"the deadline came first": {
			of(func(l *ledger.Life) {
				l.Drain, l.DeleteAt, l.GoneAt, l.Outcome = drain, day(2), day(3), ledger.CutShort
			}),
			[]ledger.Interruption{with(func(i *ledger.Interruption) {
				i.DrainStarted, i.DrainEnded, i.DrainOutcome, i.GoneAt, i.Outcome = day(1), day(2), "cut short", day(3), ledger.CutShort
			})},
		},
		"the machine ended first": {
			of(func(l *ledger.Life) {
				l.Drain, l.DeleteAt, l.GoneAt, l.Outcome = drain, day(3), day(2), ledger.CutShort
			}),
			[]ledger.Interruption{with(func(i *ledger.Interruption) {
				i.DrainStarted, i.DrainEnded, i.DrainOutcome, i.GoneAt, i.Outcome = day(1), day(2), "cut short", day(2), ledger.CutShort
			})},
		},
		"it lives": {
			of(func(l *ledger.Life) { l.Drain, l.DeletedAt, l.Outcome = drain, time.Time{}, "" }),
			[]ledger.Interruption{with(func(i *ledger.Interruption) { i.DrainStarted, i.DeletedAt = day(1), time.Time{} })},
		},
		"two notices, and some withdrawn before": {
			of(func(l *ledger.Life) {
				l.Notices, l.Outcome = []nstance.Notice{e("e1"), e("e2")}, ledger.NotDrained
				l.Cancelled = []records.PastDrain{
					{Drain: nstance.Drain{StartedAt: day(0.5)}, Notices: []nstance.Notice{e("e0")}, EndedAt: day(0.7)},
					{Notices: []nstance.Notice{e("f1"), e("f2")}, EndedAt: day(0.8)}, // no drain stood
				}
			}),
			[]ledger.Interruption{
				drained, cancelled("f1"), cancelled("f2"),
				with(func(i *ledger.Interruption) { i.Outcome = ledger.NotDrained }),
				with(func(i *ledger.Interruption) { i.Outcome, i.Notice = ledger.NotDrained, e("e2") }),
			},
		},
		"none": {of(func(l *ledger.Life) { l.Notices, l.Drain, l.Outcome = nil, drain, ledger.NotDrained }), nil},
	} {
		require.Equal(t, c.want, c.life.Interruptions(), name)
	}
}

// TestIgnoredInterruption: an ignored notice was received when that was journalled, unless it
// says when.
func TestIgnoredInterruption(t *testing.T) {
	n := nstance.Notice{EventID: "e1", DetectedAt: day(1)}
	i := ledger.Ignored{ID: "web1", Tenant: "blue", Group: "web", Notice: n, Reason: "advice", At: day(2)}
	got := i.Interruption()
	require.Equal(t, day(2), got.At())
	n.ReceivedAt = day(2)
	require.Equal(t, ledger.Interruption{ID: "web1", Tenant: "blue", Group: "web", Notice: n, Ignored: "advice"}, got)
	require.Zero(t, i.Notice.ReceivedAt, "the entry is as it was")
	i.Notice.ReceivedAt = day(1.5)
	got = i.Interruption()
	require.Equal(t, day(1.5), got.At())
	got.Notice.ReceivedAt = time.Time{}
	require.Equal(t, day(1), got.At(), "when it was detected")
}

// TestStories: what is counted of an instance ends with it, and an event without a notice does
// not count.
func TestStories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		s := ledger.NewStories(b.w)
		n := nstance.Notice{Kind: nstance.Rebalance, EventID: "e1"}
		event := nstance.Event{Type: nstance.EventNoticeIgnored, Tenant: "blue", Group: "web", Instance: "web1", Notice: &n, Reason: "advice", Time: day(1)}
		for range 40 {
			s.Event(event)
		}
		other := event
		other.Instance, other.Notice = "web2", nil
		s.Event(other)
		other.Notice = &n
		s.Event(other)
		s.Event(nstance.Event{Type: nstance.EventDeleted, Instance: "web1"})
		s.Event(event)
		s.Event(nstance.Event{Type: nstance.EventRegistered, Instance: "web3"})
		s.Event(nstance.Event{Type: nstance.EventDeleted, Instance: "web3"})
		s.Event(nstance.Event{Type: nstance.EventReady, Instance: "web3", Time: day(1)})
		<-time.After(2 * time.Second)
		got := days(t, b)[0]
		require.Empty(t, got.Ready)
		require.Len(t, got.Ignored, 16+1+1)
		require.Equal(t, ledger.Ignored{ID: "web1", Tenant: "blue", Group: "web", Notice: n, Reason: "advice", At: day(1)}, got.Ignored[0])
		require.Equal(t, nstance.InstanceID("web2"), got.Ignored[16].ID)
	})
}

// TestPrices: the cost is that of the time within the period, of machines with a price.
func TestPrices(t *testing.T) {
	s := storage.NewMemory()
	pool := ledger.Pool{InstanceType: "small", Zone: "a", Market: nstance.Spot}
	writeEntries(t, s,
		ledger.Entry{Life: &ledger.Life{ID: "1", Pool: pool, ProviderID: "p", Price: 0.5, CreatedAt: day(-1), DeletedAt: day(1), Outcome: ledger.NotDrained}},
		ledger.Entry{Life: &ledger.Life{ID: "2", Pool: pool, ProviderID: "p", CreatedAt: day(1), DeletedAt: day(4), Outcome: ledger.NotDrained}},
		ledger.Entry{Life: &ledger.Life{ID: "3", Pool: pool, Price: 9, CreatedAt: day(1), DeletedAt: day(4), Outcome: ledger.NeverLaunched}})
	open := []ledger.Life{
		{ID: "4", Pool: pool, ProviderID: "p", Price: 0.25, CreatedAt: day(9)},
		{ID: "5", Tenant: "blue", Pool: pool, ProviderID: "p", Price: 100, CreatedAt: day(1)}, // of another tenant
		{ID: "1", Pool: pool, ProviderID: "p", Price: 0.5, CreatedAt: day(-1)},                // its record is not deleted yet: read before its life
	}
	rates, err := ledger.NewReader(s, shard).Rates(t.Context(), day(0), day(10), open, func(tenant nstance.TenantID) bool { return tenant != "blue" })
	require.NoError(t, err)
	require.Len(t, rates.Pools, 1)
	r := rates.Pools[0]
	const d = 24 * time.Hour
	require.Equal(t, []time.Duration{10*d + 3*d + d, 10*d + d}, []time.Duration{r.MachineTime, r.PricedTime}, "each machine once")
	require.InDelta(t, 10*24*0.5+24*0.25, r.Cost, 1e-9)
}

// TestRatesOfTenants: ignored notices are those of the tenants too; a problem is said to all.
func TestRatesOfTenants(t *testing.T) {
	s := storage.NewMemory()
	writeEntries(t, s,
		ledger.Entry{Ignored: &ledger.Ignored{ID: "1", Tenant: "blue", At: day(1), Notice: nstance.Notice{Kind: nstance.Rebalance, Source: "aws/rebalance"}}},
		ledger.Entry{Ignored: &ledger.Ignored{ID: "2", Tenant: "red", At: day(1), Notice: nstance.Notice{Kind: nstance.Maintenance, Source: "aws/maintenance"}}})
	_, err := s.PutIfAbsent(t.Context(), "ledger/"+string(shard)+"/2026-10-02/x.jsonl", []byte("{"))
	require.NoError(t, err)
	rates, err := ledger.NewReader(s, shard).Rates(t.Context(), day(0), day(10), nil, func(tenant nstance.TenantID) bool { return tenant == "red" })
	require.NoError(t, err)
	require.Equal(t, []ledger.Rate{{Notices: map[nstance.NoticeKind]int{nstance.Maintenance: 1}}}, rates.Pools)
	require.Len(t, rates.Problems, 1)
}

// TestCopiesOnTwoDays: a life that a later leader wrote again is counted once, as the first
// one wrote it.
func TestCopiesOnTwoDays(t *testing.T) {
	s := storage.NewMemory()
	life := ledger.Life{ID: "1", ProviderID: "p", CreatedAt: day(1), DeletedAt: day(2), Outcome: ledger.Drained, Drain: &nstance.Drain{}, Notices: []nstance.Notice{{Kind: nstance.Reclaim, Source: "aws/spot", ReceivedAt: day(1.9)}}}
	again := life
	again.DeletedAt, again.Outcome = day(4), ledger.CutShort
	writeEntries(t, s, ledger.Entry{Life: &life}, ledger.Entry{Life: &again})
	rates, err := ledger.NewReader(s, shard).Rates(t.Context(), day(0), day(10), nil, everyTenant)
	require.NoError(t, err)
	r := rates.Pools[0]
	require.Equal(t, []int{1, 1, 1}, []int{r.Reclaims, r.Drains, r.DrainsInTime})
	require.Equal(t, 24*time.Hour, r.MachineTime)

	same := storage.NewMemory()
	late, early := life, life
	late.DeletedAt, late.Outcome, early.DeletedAt = day(2.5), ledger.CutShort, day(2.1)
	writeEntries(t, same, ledger.Entry{Life: &late}, ledger.Entry{Life: &early}) // in the order of their keys
	got := days(t, same)
	require.Len(t, got, 1)
	require.Equal(t, []ledger.Life{early}, got[0].Lives)
}

// TestPeriod: what happens at its begin is in it, what happens at its end is in the next one.
func TestPeriod(t *testing.T) {
	s := storage.NewMemory()
	var entries []ledger.Entry
	for i, at := range []time.Time{day(0).Add(-1), day(0), day(2).Add(-1), day(2)} {
		id := nstance.InstanceID(rune('a' + i))
		reclaim := nstance.Notice{Kind: nstance.Reclaim, Source: "aws/spot", ReceivedAt: at, Deadline: at.Add(time.Duration(2-i) * time.Minute)}
		entries = append(entries,
			ledger.Entry{Life: &ledger.Life{ID: id, ProviderID: "p", CreatedAt: day(-1), DeletedAt: day(3), Notices: []nstance.Notice{reclaim}, Outcome: ledger.NotDrained}},
			ledger.Entry{Life: &ledger.Life{ID: id + "gone", ProviderID: "p", CreatedAt: day(-1), DeletedAt: day(3), GoneAt: at, Loss: nstance.LossReclaimed, Outcome: ledger.Gone}},
			ledger.Entry{Ignored: &ledger.Ignored{ID: id, At: at, Notice: nstance.Notice{Kind: nstance.Maintenance, Source: "aws/maintenance"}}})
	}
	writeEntries(t, s, entries...)
	rates, err := ledger.NewReader(s, shard).Rates(t.Context(), day(0), day(2), nil, everyTenant)
	require.NoError(t, err)
	r := rates.Pools[0]
	require.Equal(t, map[nstance.NoticeKind]int{nstance.Reclaim: 2, nstance.Maintenance: 2}, r.Notices)
	require.Equal(t, []int{4, 2, 1}, []int{r.Reclaims, r.Unwarned, r.TooLate}, "one was received at its deadline")
	require.Equal(t, []time.Duration{0, 0}, []time.Duration{r.P10Notice, r.MedianNotice})
	require.Equal(t, day(2).Add(-1), r.LastReclaim)
}
