package orphans_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/orphans"
)

var (
	noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	rule = orphans.Rule{Interval: 2 * time.Minute, MinAge: 5 * time.Minute, MinTerm: 5 * time.Minute}
)

// machine was created an hour before noon.
func machine(t testing.TB, change ...func(*nstance.Machine)) nstance.Machine {
	t.Helper()
	id, err := nstance.NewInstanceID("web", noon.Add(-time.Hour))
	require.NoError(t, err)
	m := nstance.Machine{
		ID: id, ProviderID: "p-" + string(id), Group: "web", CreatedAt: noon.Add(-time.Hour),
		Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1", Tenant: "default"},
	}
	for _, f := range change {
		f(&m)
	}
	return m
}

// shard has no reason to keep an orphan.
func shard() orphans.Shard {
	return orphans.Shard{
		Now: noon, TermBegan: noon.Add(-time.Hour), Members: 10, Live: 10,
		Frozen: func(nstance.GroupKey) error { return nil },
	}
}

// listed returns a book with two listings of the machines, an interval apart.
func listed(machines ...nstance.Machine) *orphans.Book {
	b := orphans.New(rule)
	b.List(machines, noon.Add(-3*time.Minute))
	b.List(machines, noon.Add(-time.Minute))
	return b
}

func TestDue(t *testing.T) {
	m := machine(t)
	b := listed(m)
	due, doubt := b.Due(shard())
	require.Equal(t, []nstance.Machine{m}, due)
	require.Empty(t, doubt)
	b.Forget(m.ID)
	due, _ = b.Due(shard())
	require.Empty(t, due)
}

func TestKeepReasons(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*nstance.Machine)
		shard  func(*orphans.Shard)
		why    string
		doubt  bool
	}{
		"frozen":          {shard: func(s *orphans.Shard) { s.Frozen = func(nstance.GroupKey) error { return errors.New("frozen since") } }, why: "frozen since"},
		"wrong clock":     {shard: func(s *orphans.Shard) { s.ClockWrong = "an hour ahead" }, why: "an hour ahead"},
		"new leader":      {shard: func(s *orphans.Shard) { s.TermBegan = noon.Add(-4 * time.Minute) }, why: "has not led for 5m0s"},
		"young machine":   {change: func(m *nstance.Machine) { m.CreatedAt = noon.Add(-4 * time.Minute) }, why: "younger than 5m0s"},
		"no record left":  {shard: func(s *orphans.Shard) { s.Live = 0 }, why: "no live record", doubt: true},
		"found no record": {shard: func(s *orphans.Shard) { s.FoundNoRecord, s.TermBegan = true, noon.Add(-10*time.Minute) }, why: "when this leader began", doubt: true},
		"too many":        {shard: func(s *orphans.Shard) { s.Deleting = 2 }, why: "3 machines without a record are more than 2", doubt: true},
		"earlier copy":    {change: func(m *nstance.Machine) { m.Epoch = 7 }, shard: func(s *orphans.Shard) { s.Epoch = 1_000_003 }, why: "term 7 has made it", doubt: true},
		"later copy":      {change: func(m *nstance.Machine) { m.Epoch = 1_000_001 }, shard: func(s *orphans.Shard) { s.Epoch = 7 }, why: "another server leads", doubt: true},
		"later term":      {change: func(m *nstance.Machine) { m.Epoch = 8 }, shard: func(s *orphans.Shard) { s.Epoch = 7 }, why: "another server leads", doubt: true},
		"no tenant":       {change: func(m *nstance.Machine) { m.Owner.Tenant = "" }, why: "name no tenant", doubt: true},
	} {
		t.Run(name, func(t *testing.T) {
			m, s := machine(t), shard()
			if test.change != nil {
				test.change(&m)
			}
			if test.shard != nil {
				test.shard(&s)
			}
			b := listed(m)
			o, ok := b.Get(m.ID)
			require.True(t, ok)
			require.Contains(t, b.Spared(o, s), test.why)
			due, doubt := b.Due(s)
			require.Empty(t, due)
			require.Equal(t, test.doubt, doubt != "", "needs a decision by an operator: %q", doubt)
		})
	}
}

// TestListings: an orphan is the same machine in every listing.
func TestListings(t *testing.T) {
	m := machine(t)
	b := orphans.New(rule)
	require.Equal(t, []nstance.Machine{m}, b.List([]nstance.Machine{m}, noon.Add(-10*time.Minute)))
	due, _ := b.Due(shard())
	require.Empty(t, due, "one listing is not enough")
	require.Empty(t, b.List(nil, noon.Add(-8*time.Minute)))
	require.Empty(t, b.All())
	require.Len(t, b.List([]nstance.Machine{m}, noon.Add(-3*time.Minute)), 1, "the count starts again")

	other := m
	other.ProviderID = "another machine with this ID"
	require.Len(t, b.List([]nstance.Machine{other}, noon.Add(-30*time.Second)), 1)
	due, _ = b.Due(shard())
	require.Empty(t, due)
	b.List([]nstance.Machine{other}, noon.Add(-2*time.Minute)) // answer to an earlier call
	o, _ := b.Get(m.ID)
	require.Equal(t, noon.Add(-30*time.Second), o.LastListed)
}

func TestShareOfTheShard(t *testing.T) {
	var machines []nstance.Machine
	for range 3 {
		machines = append(machines, machine(t))
	}
	b := listed(machines...)
	s := shard()
	due, doubt := b.Due(s)
	require.Empty(t, due)
	require.NotEmpty(t, doubt)
	s.Members = 15
	due, _ = b.Due(s)
	require.Len(t, due, 3)
	b.SetRule(orphans.Rule{MinAge: 2 * time.Hour})
	due, doubt = b.Due(s)
	require.Empty(t, due)
	require.Empty(t, doubt)
}

// TestEdges: each limit spares a machine until it is reached, and a machine is as young as the
// later of its two ages says.
func TestEdges(t *testing.T) {
	young, err := nstance.NewInstanceID("web", noon.Add(-4*time.Minute))
	require.NoError(t, err)
	for name, c := range map[string]struct {
		change func(*nstance.Machine)
		shard  func(*orphans.Shard)
		due    bool
	}{
		"a young ID, and no age of the provider": {change: func(m *nstance.Machine) { m.ID, m.CreatedAt = young, time.Time{} }},
		"a young ID, an old machine":             {change: func(m *nstance.Machine) { m.ID = young }},
		"old enough":                             {change: func(m *nstance.Machine) { m.CreatedAt = noon.Add(-5 * time.Minute) }, due: true},
		"led for long enough":                    {shard: func(s *orphans.Shard) { s.TermBegan = noon.Add(-5 * time.Minute) }, due: true},
		"not quite":                              {shard: func(s *orphans.Shard) { s.TermBegan = noon.Add(-5*time.Minute + 1) }},
		"the only machine of its shard":          {shard: func(s *orphans.Shard) { s.Members = 1 }, due: true},
		"two of nine":                            {shard: func(s *orphans.Shard) { s.Members, s.Deleting = 9, 1 }},
		"two of ten":                             {shard: func(s *orphans.Shard) { s.Members, s.Deleting = 10, 1 }, due: true},
		"no record, and made in this term":       {shard: func(s *orphans.Shard) { s.FoundNoRecord, s.TermBegan = true, noon.Add(-2*time.Hour) }, due: true},
		"an unknown term":                        {shard: func(s *orphans.Shard) { s.Epoch = 1_000_003 }, due: true},
		"this term":                              {change: func(m *nstance.Machine) { m.Epoch = 7 }, shard: func(s *orphans.Shard) { s.Epoch = 7 }, due: true},
	} {
		m, s := machine(t), shard()
		if c.change != nil {
			c.change(&m)
		}
		if c.shard != nil {
			c.shard(&s)
		}
		b := listed(m)
		o, _ := b.Get(m.ID)
		due, _ := b.Due(s)
		require.Equal(t, c.due, len(due) == 1, name)
		require.Equal(t, c.due, b.Spared(o, s) == "", name)
	}
}

// TestFreezeOfTheGroup: the freeze is asked about the group of the tenant that the marks name.
func TestFreezeOfTheGroup(t *testing.T) {
	m, s := machine(t, func(m *nstance.Machine) { m.Owner.Tenant = "blue" }), shard()
	var asked nstance.GroupKey
	s.Frozen = func(key nstance.GroupKey) error { asked = key; return nil }
	due, _ := listed(m).Due(s)
	require.Len(t, due, 1)
	require.Equal(t, nstance.GroupKey{Tenant: "blue", Group: "web"}, asked)
}

// TestSameMachine: what differs in anything but its state is another machine.
func TestSameMachine(t *testing.T) {
	m := machine(t)
	for name, change := range map[string]func(*nstance.Machine){
		"provider ID": func(m *nstance.Machine) { m.ProviderID = "other" }, "owner": func(m *nstance.Machine) { m.Owner.Shard = "s2" },
		"age": func(m *nstance.Machine) { m.CreatedAt = m.CreatedAt.Add(time.Second) },
	} {
		other := m
		change(&other)
		require.False(t, orphans.SameMachine(m, other), name)
		b := listed(m)
		require.Equal(t, []nstance.Machine{other}, b.List([]nstance.Machine{other}, noon), name)
		due, _ := b.Due(shard())
		require.Empty(t, due, name)
	}
	same := m
	same.CreatedAt, same.Status = m.CreatedAt.In(time.FixedZone("", 3600)), nstance.StatusUnknown
	require.True(t, orphans.SameMachine(m, same))
}
