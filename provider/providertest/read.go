package providertest

import (
	"context"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

func checkGetMarks(b *bench) {
	s := b.spec()
	made := b.create(s)
	m := b.known(s.ID) // whatever Get answers first must be the whole truth
	b.marked(s, m)
	require.Equal(b, made.ProviderID, m.ProviderID)
}

func checkGetUnknown(b *bench) {
	b.create(b.spec())
	_, err := b.Provider.Get(b.Context(), b.spec().ID)
	b.refused(nstance.NotFound, err)
}

func checkGetTwice(b *bench) {
	s := b.spec()
	b.create(s)
	first, second := b.known(s.ID), b.known(s.ID)
	second.Status = first.Status // the one thing that may move
	second.Addresses = first.Addresses
	require.Equal(b, first, second)
}

func checkListMarks(b *bench) {
	s := b.spec()
	made := b.create(s)
	filter := s.Owner
	filter.Tenant = ""
	var got []nstance.Machine
	b.eventually("List never showed the machine", func(ctx context.Context) (_ bool, err error) {
		got, err = collect(ctx, b.Provider, filter)
		return len(got) > 0, err
	})
	require.Len(b, got, 1)
	b.marked(s, got[0])
	require.Equal(b, made.ProviderID, got[0].ProviderID)
}

func checkListOnce(b *bench) {
	const n = 12
	var want, got []nstance.InstanceID
	for range n {
		want = append(want, b.create(b.spec()).ID)
	}
	for _, m := range b.listed(b.owner, n) {
		got = append(got, m.ID)
	}
	slices.Sort(want)
	slices.Sort(got)
	require.Equal(b, want, got)
}

// apart makes one machine of the bench's owner and one of each of the others,
// and requires a listing by each to show its own only.
func (b *bench) apart(owners ...nstance.Owner) {
	b.Helper()
	mine := []nstance.MachineSpec{b.spec()}
	for _, o := range owners {
		s := b.spec()
		s.Owner = o
		mine = append(mine, s)
	}
	for _, s := range mine {
		b.create(s)
	}
	for _, s := range mine {
		got := b.listed(s.Owner, 1)
		require.Len(b, got, 1, "listed for %+v", s.Owner)
		b.marked(s, got[0])
	}
}

func checkListInstallation(b *bench) { b.apart(others(b.owner)["installation"]) }

func checkListShard(b *bench) {
	o := others(b.owner)
	b.apart(o["cluster"], o["shard"])
}

func checkListTenant(b *bench) {
	b.apart(others(b.owner)["tenant"])
	all := b.owner
	all.Tenant = ""
	require.Len(b, b.listed(all, 2), 2, "listed for every tenant")
}

func checkListEmpty(b *bench) {
	got, err := collect(b.Context(), b.Provider, b.owner)
	require.NoError(b, err)
	require.Empty(b, got)
}

func checkListBreak(b *bench) {
	for range 3 {
		b.create(b.spec())
	}
	b.listed(b.owner, 3)
	seen := 0
	for _, err := range b.Provider.List(b.Context(), b.owner) {
		require.NoError(b, err)
		seen++
		break
	}
	require.Equal(b, 1, seen)
	require.Len(b, b.listed(b.owner, 3), 3, "listed afterwards")
}

func checkCancelled(b *bench) {
	s := b.spec()
	m := b.create(s)
	b.known(s.ID)
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	_, err := b.Provider.Get(ctx, s.ID)
	b.noAnswer("Get", err)
	_, err = collect(ctx, b.Provider, b.owner)
	b.noAnswer("List", err)
	b.noAnswer("Delete", b.Provider.Delete(ctx, m))
	b.untouched(s, m)
	fresh := b.spec()
	made, err := b.Provider.Create(ctx, fresh)
	b.Cleanup(func() { b.removeIfAny(made, fresh) })
	b.noAnswer("Create", err)
}

// removeIfAny deletes the machine of s if there is one after all.
func (b *bench) removeIfAny(made nstance.Machine, s nstance.MachineSpec) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), b.Wait)
	defer cancel()
	if made.ProviderID == "" {
		made, _ = b.Provider.Get(ctx, s.ID)
	}
	if made.ProviderID != "" {
		b.remove(made)
	}
}

// noAnswer requires err to say that nothing was learned.
func (b *bench) noAnswer(op string, err error) {
	b.Helper()
	require.Error(b, err, "%s after its context ended", op)
	code := nstance.CodeOf(err)
	require.Contains(b, []nstance.Code{nstance.Unavailable, nstance.Ambiguous}, code, "%s: %v", op, err)
}

func checkCancelledList(b *bench) {
	for range 3 {
		b.create(b.spec())
	}
	b.listed(b.owner, 3)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var seen int
	var last error
	for _, err := range b.Provider.List(ctx, b.owner) {
		if last = err; err != nil {
			break
		}
		seen++
		cancel()
	}
	// A page that had arrived may still be yielded, but then it must be all.
	if last == nil {
		require.Equal(b, 3, seen, "a listing that was cut off ended without an error")
		return
	}
	b.noAnswer("List", last)
}
