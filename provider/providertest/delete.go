package providertest

import (
	"context"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// gone deletes m until it is not found.
func (b *bench) gone(m nstance.Machine) {
	b.Helper()
	b.eventually("Delete never became NotFound", func(ctx context.Context) (bool, error) {
		err := b.Provider.Delete(ctx, m)
		if nstance.CodeOf(err) == nstance.NotFound {
			return true, nil
		}
		return false, err
	})
}

func checkDelete(b *bench) {
	s := b.spec()
	m := b.create(s)
	b.known(s.ID)
	require.NoError(b, b.Provider.Delete(b.Context(), m))
	b.gone(m)
	_, err := b.Provider.Get(b.Context(), s.ID)
	b.refused(nstance.NotFound, err)
	got, err := collect(b.Context(), b.Provider, b.owner)
	require.NoError(b, err)
	require.Empty(b, got, "listed after the proof of absence")
	b.refused(nstance.NotFound, b.Provider.Delete(b.Context(), m))
}

func checkDeleteOther(b *bench) {
	s := b.spec()
	stays := b.create(s)
	m := b.create(b.spec())
	b.known(m.ID) // before that, not found is no proof
	b.gone(m)
	b.untouched(s, stays)
}

func checkDeleteUnknown(b *bench) {
	s := b.spec()
	m := b.create(s)
	b.known(s.ID) // before that, not found is no proof
	b.gone(m)
	b.refused(nstance.NotFound, b.Provider.Delete(b.Context(), m))
	b.create(b.spec())
	b.refused(nstance.NotFound, b.Provider.Delete(b.Context(), m))
}

func checkDeleteByID(b *bench) {
	s := b.spec()
	b.create(s)
	b.known(s.ID)
	b.gone(nstance.Machine{ID: s.ID, Owner: s.Owner})
	_, err := b.Provider.Get(b.Context(), s.ID)
	b.refused(nstance.NotFound, err)
}

func checkDeleteWrongID(b *bench) {
	s := b.spec()
	m := b.create(s)
	b.known(s.ID)
	wrong := m
	wrong.ID = b.spec().ID
	b.refused(nstance.Conflict, b.Provider.Delete(b.Context(), wrong))
	b.untouched(s, m)
}

func checkDeleteWrongOwner(b *bench) {
	s := b.spec()
	m := b.create(s)
	b.known(s.ID)
	for name, owner := range others(s.Owner) {
		wrong := m
		wrong.Owner = owner
		err := b.Provider.Delete(b.Context(), wrong)
		require.Error(b, err, "other %s", name)
		b.refused(nstance.Conflict, err)
	}
	b.untouched(s, m)
}

func checkDeleteSwapped(b *bench) {
	s1, s2 := b.spec(), b.spec()
	m1, m2 := b.create(s1), b.create(s2)
	b.known(s1.ID)
	b.known(s2.ID)
	wrong := m1
	wrong.ProviderID = m2.ProviderID
	b.refused(nstance.Conflict, b.Provider.Delete(b.Context(), wrong))
	b.untouched(s1, m1)
	b.untouched(s2, m2)
}
