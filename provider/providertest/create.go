package providertest

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// classified reports whether the provider gave err a code.
func classified(err error) bool {
	if _, ok := errors.AsType[*nstance.Error](err); ok {
		return true
	}
	_, ok := errors.AsType[nstance.Code](err)
	return ok
}

func checkCreate(b *bench) {
	s := b.spec()
	m := b.create(s)
	b.marked(s, m)
	require.False(b, m.Status.Dead(), "a machine just made cannot be %s", m.Status)
}

func checkCreateTwice(b *bench) {
	s := b.spec()
	first := b.create(s)
	second := b.create(s)
	require.Equal(b, first.ProviderID, second.ProviderID)
	b.marked(s, second)
	b.known(s.ID)
	third := b.create(s)
	require.Equal(b, first.ProviderID, third.ProviderID)
	require.Len(b, b.listed(b.owner, 1), 1)
}

// together calls Create once for each spec, all at the same time.
func (b *bench) together(specs []nstance.MachineSpec) []nstance.Machine {
	b.Helper()
	machines := make([]nstance.Machine, len(specs))
	errs := make([]error, len(specs))
	var wg sync.WaitGroup
	for i, s := range specs {
		wg.Go(func() { machines[i], errs[i] = b.Provider.Create(b.Context(), s) })
	}
	wg.Wait()
	b.Cleanup(func() {
		for i, m := range machines {
			if errs[i] == nil {
				b.remove(m)
			}
		}
	})
	require.NoError(b, errors.Join(errs...))
	return machines
}

func checkCreateTogether(b *bench) {
	s := b.spec()
	machines := b.together(slices.Repeat([]nstance.MachineSpec{s}, 8))
	for _, m := range machines {
		b.marked(s, m)
		require.Equal(b, machines[0].ProviderID, m.ProviderID)
	}
	require.Len(b, b.listed(b.owner, 1), 1)
}

func checkCreateMany(b *bench) {
	specs := make([]nstance.MachineSpec, 8)
	for i := range specs {
		specs[i] = b.spec()
	}
	handles := map[string]nstance.InstanceID{}
	for i, m := range b.together(specs) {
		b.marked(specs[i], m)
		handles[m.ProviderID] = m.ID
	}
	require.Len(b, handles, len(specs), "every machine has its own handle")
}

func checkOtherParameters(b *bench) {
	s := b.spec()
	m := b.create(s)
	other := s
	other.UserData = []byte("#cloud-config\nhostname: other\n")
	_, err := b.Provider.Create(b.Context(), other)
	b.refused(nstance.Conflict, err)
	b.untouched(s, m)
}

func checkOtherOwner(b *bench) {
	s := b.spec()
	m := b.create(s)
	for name, owner := range others(s.Owner) {
		other := s
		other.Owner = owner
		_, err := b.Provider.Create(b.Context(), other)
		require.Error(b, err, "other %s", name)
		b.refused(nstance.Conflict, err)
	}
	b.untouched(s, m)
}

// others returns owners that differ from o in one mark each.
func others(o nstance.Owner) map[string]nstance.Owner {
	installation, cluster, shard, tenant := o, o, o, o
	installation.Installation = "another"
	cluster.Cluster = "another"
	shard.Shard = "another"
	tenant.Tenant = "another"
	return map[string]nstance.Owner{"installation": installation, "cluster": cluster, "shard": shard, "tenant": tenant}
}

// untouched requires the machine of s to be still what m was.
func (b *bench) untouched(s nstance.MachineSpec, m nstance.Machine) {
	b.Helper()
	now := b.known(s.ID)
	b.marked(s, now)
	require.Equal(b, m.ProviderID, now.ProviderID)
	require.False(b, now.Status.Dead(), "the machine is %s", now.Status)
}

func checkBadID(b *bench) {
	for _, id := range []nstance.InstanceID{"", "web-1", "../../../../etc/passwd", "TST06DX9XY919T3V9KZD2XDSYZB3G"} {
		s := b.spec()
		s.ID = id
		_, err := b.Provider.Create(b.Context(), s)
		b.refused(nstance.Invalid, err)
	}
	require.Empty(b, b.listed(b.owner, 0))
}

func runMarket(t *testing.T, newSubject func(t *testing.T) Subject) {
	if newSubject(t).Spot {
		t.Run("spot is honoured and shown", func(t *testing.T) {
			b := newBench(t, newSubject(t))
			b.market(nstance.Spot)
			b.market(nstance.OnDemand)
		})
	} else {
		t.Run("spot is refused, never ignored", func(t *testing.T) {
			b := newBench(t, newSubject(t))
			b.market(nstance.OnDemand)
			b.noMarket(nstance.Spot)
		})
	}
	t.Run("an unknown market is refused", func(t *testing.T) {
		newBench(t, newSubject(t)).noMarket("lottery")
	})
}

func (b *bench) market(want nstance.MarketType) {
	s := b.spec()
	s.Market = want
	require.Equal(b, want, b.create(s).Market, "what Create says")
	require.Equal(b, want, b.known(s.ID).Market, "what Get says")
}

func (b *bench) noMarket(m nstance.MarketType) {
	s := b.spec()
	s.Market = m
	_, err := b.Provider.Create(b.Context(), s)
	b.refused(nstance.Invalid, err)
	b.field("market", err)
	_, err = b.Provider.Get(b.Context(), s.ID)
	b.refused(nstance.NotFound, err)
}

// field requires err to name the input that is wrong.
func (b *bench) field(name string, err error) {
	b.Helper()
	e, ok := errors.AsType[*nstance.Error](err)
	require.True(b, ok, "the error is no *nstance.Error: %v", err)
	require.Contains(b, e.Field, name, "Field of: %v", err)
}

func runArgs(t *testing.T, newSubject func(t *testing.T) Subject) {
	bad := map[string]json.RawMessage{"no_such_argument": json.RawMessage(`{"no_such_argument": true}`)}
	maps.Copy(bad, newSubject(t).BadArgs)
	for name, args := range bad {
		t.Run("an unacceptable "+name+" is refused by name", func(t *testing.T) {
			b := newBench(t, newSubject(t))
			s := b.spec()
			s.Args = args
			_, err := b.Provider.Create(b.Context(), s)
			b.refused(nstance.Invalid, err)
			b.field(name, err)
			require.Empty(t, b.listed(b.owner, 0))
		})
	}
	t.Run("anything but one object is refused", func(t *testing.T) {
		b := newBench(t, newSubject(t))
		for _, args := range []string{`[]`, `"x"`, `{`, `{} {}`} {
			s := b.spec()
			s.Args = json.RawMessage(args)
			_, err := b.Provider.Create(b.Context(), s)
			require.Error(t, err, "args %s", args)
			b.refused(nstance.Invalid, err)
			b.field("args", err)
		}
	})
}

func checkUserData(b *bench) {
	s := b.spec()
	s.UserData = []byte(`{"env": {"NSTANCE_SUITE": "ä 1"}}`)
	m := b.create(s)
	ctx, cancel := context.WithTimeout(b.Context(), b.Wait)
	defer cancel()
	got, err := b.UserData(ctx, m)
	require.NoError(b, err)
	require.Equal(b, string(s.UserData), string(got))
}
