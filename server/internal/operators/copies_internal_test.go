package operators

import (
	"encoding/json"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// testInternals answer what a test asks, and call hook before they list.
type testInternals struct {
	loop.Internals
	hook func()
}

func (testInternals) LivingRecords() []records.Instance { return nil }

func (i testInternals) InstanceIDs(func(nstance.GroupKey) bool) []nstance.InstanceID {
	i.hook()
	return nil
}

func (i testInternals) GroupKeys() []nstance.GroupKey {
	i.hook()
	return nil
}

// TestEarlierCopyOfALife: a life that was written twice ended when it was written first, in
// whichever order the copies are found.
func TestEarlierCopyOfALife(t *testing.T) {
	id := nstance.InstanceID("web06bgm7733st2576nx5jht4ecjw")
	midnight := id.Time().Truncate(24 * time.Hour).Add(72 * time.Hour)
	for name, ends := range map[string][]time.Time{
		"of one day, the earlier first": {midnight.Add(time.Hour), midnight.Add(2 * time.Hour)},
		"of one day, the later first":   {midnight.Add(2 * time.Hour), midnight.Add(time.Hour)},
		"of two days":                   {midnight.Add(-time.Minute), midnight.Add(time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			store := storage.NewMemory()
			earlier := ends[0]
			for i, end := range ends {
				if end.Before(earlier) {
					earlier = end
				}
				data, err := json.Marshal(ledger.Entry{Life: &ledger.Life{ID: id, Tenant: "default", Group: "web", CreatedAt: id.Time(), LaunchedAt: id.Time(), ProviderID: "i-1", Pool: ledger.Pool{InstanceType: "small"}, DeletedAt: end}})
				require.NoError(t, err)
				_, err = store.PutIfAbsent(t.Context(), layout.LedgerKey("s1", end, string(rune('A'+i))), data)
				require.NoError(t, err)
			}
			reader := ledger.NewReader(store, "s1")
			o := NewService(Options{Ledger: reader})
			c := caller{nstance.Identity{Role: nstance.RoleAdmin}, o, &Term{TermOptions: TermOptions{Internals: testInternals{}}}}
			life, problems, err := o.endedLife(t.Context(), c, id)
			require.NoError(t, err)
			require.Empty(t, problems)
			require.Equal(t, earlier, life.GetDeletedAt().AsTime())
			rates, err := reader.Rates(t.Context(), id.Time(), midnight.Add(24*time.Hour), nil, func(nstance.TenantID) bool { return true })
			require.NoError(t, err)
			require.Len(t, rates.Pools, 1)
			require.Equal(t, earlier.Sub(id.Time()), rates.Pools[0].MachineTime)
		})
	}
}

// TestSnapshotsLoseNoEvent: what happens while a snapshot is listed is among the events that
// follow it.
func TestSnapshotsLoseNoEvent(t *testing.T) {
	o := NewService(Options{})
	term := o.NewTerm()
	c := caller{nstance.Identity{Role: nstance.RoleAdmin}, o, term}
	var published nstance.Seq
	happens := func() {
		published = term.Publish(nstance.Event{Type: nstance.EventReady, Tenant: "default", Group: "web"})
		term.groupFeeds.publish("default", groupChange{key: nstance.GroupKey{Tenant: "default", Group: "web"}, view: &reconcile.GroupView{}})
	}
	term.Internals = testInternals{hook: sync.OnceFunc(happens)} // during the first listing
	term.Publish(nstance.Event{Type: nstance.EventReady, Tenant: "default"})
	all := func(nstance.GroupKey) bool { return true }
	list, seq := c.snapshot(all, func(nstance.InstanceID) bool { return true })()
	exhaust(list)
	require.Less(t, seq, published)

	term.Internals = testInternals{hook: sync.OnceFunc(happens)}
	groups, seq := c.groupSnapshot()
	exhaust(groups)
	require.Less(t, seq, term.groupFeeds.of(c).Last())
}

func exhaust[T any](all iter.Seq[T]) {
	for range all {
		continue
	}
}
