package providertest

import (
	"context"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

func checkGetMarks(b *fixture) {
	s := b.spec()
	made := b.create(s)
	m := b.waitKnown(s.ID) // the first answer of Get must be complete
	b.requireMarks(s, m)
	require.Equal(b, made.ProviderID, m.ProviderID, "ProviderID of Get")
}

func checkGetUnknown(b *fixture) {
	b.create(b.spec())
	_, err := b.Provider.Get(b.Context(), b.spec().ID)
	b.requireCode(nstance.NotFound, err)
}

func checkGetTwice(b *fixture) {
	s := b.spec()
	b.create(s)
	first, second := b.waitKnown(s.ID), b.waitKnown(s.ID)
	second.Status = first.Status // may change
	second.Addresses = first.Addresses
	require.Equal(b, first, second)
}

func checkListMarks(b *fixture) {
	s := b.spec()
	made := b.create(s)
	filter := s.Owner
	filter.Tenant = ""
	var got []nstance.Machine
	b.eventually("List must show the machine", func(ctx context.Context) (_ bool, err error) {
		got, err = collect(ctx, b.Provider, filter)
		return len(got) > 0, err
	})
	require.Len(b, got, 1)
	b.requireMarks(s, got[0])
	require.Equal(b, made.ProviderID, got[0].ProviderID, "ProviderID of List")
}

func checkListOnce(b *fixture) {
	specs := make([]nstance.MachineSpec, b.Page)
	for i := range specs {
		specs[i] = b.spec()
	}
	var want, got []nstance.InstanceID
	for some := range slices.Chunk(specs, 8) {
		for _, m := range b.createConcurrently(some) {
			want = append(want, m.ID)
		}
	}
	for _, m := range b.waitListed(b.owner, b.Page) {
		got = append(got, m.ID)
	}
	slices.Sort(want)
	slices.Sort(got)
	require.Equal(b, want, got)
}

// requireSeparateLists makes one machine of the fixture's owner and one of each other
// owner, and requires a listing of each to show only its own.
func (b *fixture) requireSeparateLists(owners ...nstance.Owner) {
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
		got := b.waitListed(s.Owner, 1)
		require.Len(b, got, 1, "listed for %+v", s.Owner)
		b.requireMarks(s, got[0])
	}
}

func checkListInstallation(b *fixture) { b.requireSeparateLists(otherOwners(b.owner)["installation"]) }

func checkListShard(b *fixture) {
	o := otherOwners(b.owner)
	b.requireSeparateLists(o["cluster"], o["shard"])
}

func checkListTenant(b *fixture) {
	b.requireSeparateLists(otherOwners(b.owner)["tenant"])
	all := b.owner
	all.Tenant = ""
	require.Len(b, b.waitListed(all, 2), 2, "listed for every tenant")
}

func checkListEmpty(b *fixture) {
	got, err := collect(b.Context(), b.Provider, b.owner)
	require.NoError(b, err)
	require.Empty(b, got)
}

func checkListBreak(b *fixture) {
	for range 3 {
		b.create(b.spec())
	}
	b.waitListed(b.owner, 3)
	seen := 0
	for _, err := range b.Provider.List(b.Context(), b.owner) {
		require.NoError(b, err)
		seen++
		break
	}
	require.Equal(b, 1, seen)
	require.Len(b, b.waitListed(b.owner, 3), 3, "listed afterwards")
}

func checkListCalls(b *fixture) {
	for range 2 {
		b.create(b.spec())
	}
	b.waitListed(b.owner, 2)
	var failure error
	for m, err := range b.Provider.List(b.Context(), b.owner) {
		if err == nil {
			_, err = b.Provider.Get(b.Context(), m.ID)
		}
		if failure = err; err != nil {
			break
		}
	}
	require.NoError(b, failure, "in the loop over List; a List must hold no lock while it yields")
}

func checkCancelled(b *fixture) {
	s := b.spec()
	m := b.create(s)
	b.waitKnown(s.ID)
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	_, err := b.Provider.Get(ctx, s.ID)
	b.requireNoAnswer("Get", err)
	_, err = collect(ctx, b.Provider, b.owner)
	b.requireNoAnswer("List", err)
	b.requireNoAnswer("Delete", b.Provider.Delete(ctx, m))
	b.requireUnchanged(s, m)
	fresh := b.spec()
	made, err := b.Provider.Create(ctx, fresh)
	b.Cleanup(func() { b.removeIfAny(made, fresh) })
	b.requireNoAnswer("Create", err)
}

// removeIfAny deletes the machine of s if it was made.
func (b *fixture) removeIfAny(made nstance.Machine, s nstance.MachineSpec) {
	ctx := context.WithoutCancel(b.Context())
	if made.ProviderID == "" {
		made, _ = b.Provider.Get(ctx, s.ID)
	}
	if made.ProviderID != "" {
		b.remove(made)
	}
}

// requireNoAnswer requires err to mean that there was no answer.
func (b *fixture) requireNoAnswer(op string, err error) {
	b.Helper()
	require.Error(b, err, "%s after its context ended", op)
	code := nstance.CodeOf(err)
	require.Contains(b, []nstance.Code{nstance.Unavailable, nstance.Ambiguous}, code, "%s after its context ended: %v; an error is never absence", op, err)
}

func checkCancelledList(b *fixture) {
	for range 3 {
		b.create(b.spec())
	}
	b.waitListed(b.owner, 3)
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
	// A page that has arrived may still be yielded if it is the last one.
	if last == nil {
		require.Equal(b, 3, seen, "a listing that was cut off ended without an error")
		return
	}
	b.requireNoAnswer("List", last)
}

// checkOutage checks that a cloud that fails is not taken for one that knows of nothing.
func (r *suiteRun) checkOutage(s Subject) {
	const name = "outage/is no absence"
	if s.Break == nil {
		r.skip(name, "Subject.Break is nil")
		return
	}
	r.check(name, func(b *fixture) {
		s := b.spec()
		m := b.create(s)
		b.waitKnown(s.ID)
		b.waitListed(b.owner, 1)
		restore := b.Break()
		defer restore()
		_, err := b.Provider.Get(b.Context(), s.ID)
		b.requireOutage("Get", err)
		_, err = b.Provider.Get(b.Context(), b.spec().ID)
		b.requireOutage("Get of an unknown machine", err)
		_, err = collect(b.Context(), b.Provider, b.owner)
		b.requireOutage("List", err)
		b.requireOutage("Delete", b.Provider.Delete(b.Context(), m))
		restore()
		b.requireUnchanged(s, m)
	})
}

// requireOutage requires err to be no answer about what exists.
func (b *fixture) requireOutage(op string, err error) {
	b.Helper()
	require.Error(b, err, "%s in an outage: an empty answer is one too", op)
	require.NotContains(b, []nstance.Code{nstance.NotFound, nstance.Invalid, nstance.Conflict}, nstance.CodeOf(err), "%s in an outage: %v; an error is never absence", op, err)
}
