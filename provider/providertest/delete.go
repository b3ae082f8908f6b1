package providertest

import (
	"context"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// deleteUntilNotFound deletes m until it is not found.
func (b *fixture) deleteUntilNotFound(m nstance.Machine) {
	b.Helper()
	b.eventually("Delete must be repeatable until NotFound", func(ctx context.Context) (bool, error) {
		err := b.Provider.Delete(ctx, m)
		if nstance.CodeOf(err) == nstance.NotFound {
			return true, nil
		}
		return false, err
	})
}

func checkDelete(b *fixture) {
	s := b.spec()
	m := b.create(s)
	b.waitKnown(s.ID)
	require.NoError(b, b.Provider.Delete(b.Context(), m))
	b.deleteUntilNotFound(m)
	_, err := b.Provider.Get(b.Context(), s.ID)
	b.requireCode(nstance.NotFound, err)
	got, err := collect(b.Context(), b.Provider, b.owner)
	require.NoError(b, err)
	require.Empty(b, got, "listed after the proof of absence")
	b.requireCode(nstance.NotFound, b.Provider.Delete(b.Context(), m))
}

func checkDeleteOther(b *fixture) {
	s := b.spec()
	stays := b.create(s)
	m := b.create(b.spec())
	b.waitKnown(m.ID) // before that, not found is no proof
	b.deleteUntilNotFound(m)
	b.requireUnchanged(s, stays)
}

func checkDeleteUnknown(b *fixture) {
	s := b.spec()
	m := b.create(s)
	b.waitKnown(s.ID) // before that, not found is no proof
	b.deleteUntilNotFound(m)
	b.requireCode(nstance.NotFound, b.Provider.Delete(b.Context(), m))
	b.create(b.spec())
	b.requireCode(nstance.NotFound, b.Provider.Delete(b.Context(), m))
}

func checkDeleteByID(b *fixture) {
	s := b.spec()
	b.create(s)
	b.waitKnown(s.ID)
	b.deleteUntilNotFound(nstance.Machine{ID: s.ID, Owner: s.Owner})
	_, err := b.Provider.Get(b.Context(), s.ID)
	b.requireCode(nstance.NotFound, err)
}

func checkDeleteWrongID(b *fixture) {
	s := b.spec()
	m := b.create(s)
	b.waitKnown(s.ID)
	wrong := m
	wrong.ID = b.spec().ID
	b.requireCode(nstance.Conflict, b.Provider.Delete(b.Context(), wrong))
	b.requireUnchanged(s, m)
}

func checkDeleteWrongOwner(b *fixture) {
	s := b.spec()
	m := b.create(s)
	b.waitKnown(s.ID)
	for name, owner := range otherOwners(s.Owner) {
		wrong := m
		wrong.Owner = owner
		err := b.Provider.Delete(b.Context(), wrong)
		require.Error(b, err, "other %s", name)
		b.requireCode(nstance.Conflict, err)
	}
	b.requireUnchanged(s, m)
}

func checkDeleteSwapped(b *fixture) {
	s1, s2 := b.spec(), b.spec()
	m1, m2 := b.create(s1), b.create(s2)
	b.waitKnown(s1.ID)
	b.waitKnown(s2.ID)
	wrong := m1
	wrong.ProviderID = m2.ProviderID
	b.requireCode(nstance.Conflict, b.Provider.Delete(b.Context(), wrong))
	b.requireUnchanged(s1, m1)
	b.requireUnchanged(s2, m2)
}
