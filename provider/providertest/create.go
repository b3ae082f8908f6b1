package providertest

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
)

// classified reports whether the provider gave err a code.
func classified(err error) bool {
	if _, ok := errors.AsType[*nstance.Error](err); ok {
		return true
	}
	_, ok := errors.AsType[nstance.Code](err)
	return ok
}

func checkCreate(b *fixture) {
	s := b.spec()
	m := b.create(s)
	b.requireMarks(s, m)
	require.False(b, m.Status.Dead(), "a machine just made cannot be %s", m.Status)
}

func checkCreateTwice(b *fixture) {
	s := b.spec()
	first := b.create(s)
	second := b.create(s)
	b.requireSameMachine(first, second)
	b.requireMarks(s, second)
	b.waitKnown(s.ID)
	third := b.create(s)
	b.requireSameMachine(first, third)
	require.Len(b, b.waitListed(b.owner, 1), 1)
}

// requireSameMachine requires two calls of Create with one spec to return one machine.
func (b *fixture) requireSameMachine(first, again nstance.Machine) {
	b.Helper()
	require.Equal(b, first.ProviderID, again.ProviderID, "ProviderID of Create: find the machine of a repeated spec by its ID or token")
}

// createConcurrently calls Create once for each spec, all at the same time.
func (b *fixture) createConcurrently(specs []nstance.MachineSpec) []nstance.Machine {
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

func checkCreateTogether(b *fixture) {
	s := b.spec()
	machines := b.createConcurrently(slices.Repeat([]nstance.MachineSpec{s}, 8))
	for _, m := range machines {
		b.requireMarks(s, m)
		b.requireSameMachine(machines[0], m)
	}
	require.Len(b, b.waitListed(b.owner, 1), 1)
}

func checkCreateMany(b *fixture) {
	specs := make([]nstance.MachineSpec, 8)
	for i := range specs {
		specs[i] = b.spec()
	}
	handles := map[string]nstance.InstanceID{}
	for i, m := range b.createConcurrently(specs) {
		b.requireMarks(specs[i], m)
		handles[m.ProviderID] = m.ID
	}
	require.Len(b, handles, len(specs), "every machine has its own handle")
}

func checkOtherParameters(b *fixture) {
	s := b.spec()
	m := b.create(s)
	other := s
	other.UserData = []byte("#cloud-config\nhostname: other\n")
	_, err := b.Provider.Create(b.Context(), other)
	b.requireCode(nstance.Conflict, err)
	b.requireUnchanged(s, m)
}

func checkOtherOwner(b *fixture) {
	s := b.spec()
	m := b.create(s)
	for name, owner := range otherOwners(s.Owner) {
		other := s
		other.Owner = owner
		_, err := b.Provider.Create(b.Context(), other)
		require.Error(b, err, "other %s", name)
		b.requireCode(nstance.Conflict, err)
	}
	b.requireUnchanged(s, m)
}

// otherOwners returns owners that differ from o in one mark each.
func otherOwners(o nstance.Owner) map[string]nstance.Owner {
	installation, cluster, shard, tenant := o, o, o, o
	installation.Installation = "another"
	cluster.Cluster = "another"
	shard.Shard = "another"
	tenant.Tenant = "another"
	return map[string]nstance.Owner{"installation": installation, "cluster": cluster, "shard": shard, "tenant": tenant}
}

// requireUnchanged requires the machine of s to be the same as m.
func (b *fixture) requireUnchanged(s nstance.MachineSpec, m nstance.Machine) {
	b.Helper()
	now := b.waitKnown(s.ID)
	b.requireMarks(s, now)
	require.Equal(b, m.ProviderID, now.ProviderID, "ProviderID of Get")
	require.False(b, now.Status.Dead(), "the machine is %s", now.Status)
}

func checkBadID(b *fixture) {
	for _, id := range []nstance.InstanceID{"", "web-1", "../../../../etc/passwd", "TST06DX9XY919T3V9KZD2XDSYZB3G"} {
		s := b.spec()
		s.ID = id
		_, err := b.Provider.Create(b.Context(), s)
		b.requireCode(nstance.Invalid, err)
	}
	require.Empty(b, b.waitListed(b.owner, 0))
}

func (r *suiteRun) checkMarket(s Subject) {
	if s.Spot {
		r.check("market/spot is honoured and shown", func(b *fixture) {
			b.market(nstance.Spot)
			b.market(nstance.OnDemand)
		})
	} else {
		r.skip("market/spot is honoured and shown", "Subject.Spot is false")
		r.check("market/spot is refused, never ignored", func(b *fixture) {
			b.market(nstance.OnDemand)
			b.noMarket(nstance.Spot)
		})
	}
	r.check("market/an unknown market is refused", func(b *fixture) { b.noMarket("lottery") })
}

func (b *fixture) market(want nstance.MarketType) {
	s := b.spec()
	s.Market = want
	require.Equal(b, want, b.create(s).Market, "what Create says")
	require.Equal(b, want, b.waitKnown(s.ID).Market, "what Get says")
}

func (b *fixture) noMarket(m nstance.MarketType) {
	s := b.spec()
	s.Market = m
	_, err := b.Provider.Create(b.Context(), s)
	b.requireCode(nstance.Invalid, err)
	b.requireField("market", err)
	_, err = b.Provider.Get(b.Context(), s.ID)
	b.requireCode(nstance.NotFound, err)
}

// requireField requires err to name the wrong input.
func (b *fixture) requireField(name string, err error) {
	b.Helper()
	e, ok := errors.AsType[*nstance.Error](err)
	require.True(b, ok, "the error is no *nstance.Error: %v", err)
	require.Contains(b, e.Field, name, "Field of: %v", err)
}

func (r *suiteRun) checkArgs(s Subject) {
	bad := map[string]json.RawMessage{"no_such_argument": json.RawMessage(`{"no_such_argument": true}`)}
	maps.Copy(bad, s.BadArgs)
	for _, name := range slices.Sorted(maps.Keys(bad)) {
		r.check("args/an unacceptable "+name+" is refused by name", func(b *fixture) {
			s := b.spec()
			s.Args = bad[name]
			_, err := b.Provider.Create(b.Context(), s)
			b.requireCode(nstance.Invalid, err)
			b.requireField(name, err)
			require.Empty(b, b.waitListed(b.owner, 0))
		})
	}
	if len(s.BadArgs) == 0 {
		r.skip("args/of a wrong type are refused by name", "Subject.BadArgs is empty")
	}
	r.check("args/anything but one object is refused", func(b *fixture) {
		for _, args := range []string{`[]`, `"x"`, `{`, `{} {}`} {
			s := b.spec()
			s.Args = json.RawMessage(args)
			_, err := b.Provider.Create(b.Context(), s)
			require.Error(b, err, "args %s", args)
			b.requireCode(nstance.Invalid, err)
			b.requireField("args", err)
		}
	})
}

func (r *suiteRun) checkUserData(s Subject) {
	const name = "user data/reaches the machine unchanged"
	if s.UserData == nil {
		r.skip(name, "Subject.UserData is nil")
		return
	}
	r.check(name, checkUserData)
}

func checkUserData(b *fixture) {
	s := b.spec()
	s.UserData = []byte(`{"env": {"NSTANCE_SUITE": "ä 1"}}`)
	m := b.create(s)
	got, err := conformance.Call(b.Context(), b.calls, "Subject.UserData("+machineWords(m)+")", func(ctx context.Context) (string, error) {
		data, err := b.UserData(ctx, m)
		return string(data), err
	})
	require.NoError(b, err)
	require.Equal(b, string(s.UserData), got)
}

// checkHostLimit: a provider that heeds the limit says where its machine is, and knows the
// machine again when the limit has changed.
func checkHostLimit(b *fixture) {
	s := b.spec()
	s.HostLimit = 1
	m, err := b.Provider.Create(b.Context(), s)
	if err != nil {
		b.requireCode(nstance.Invalid, err)
		return
	}
	b.Cleanup(func() { b.remove(m) })
	require.NotEmpty(b, m.Zone)
	s.HostLimit = 2
	again, err := b.Provider.Create(b.Context(), s)
	require.NoError(b, err)
	b.requireSameMachine(m, again)
}
