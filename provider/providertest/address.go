package providertest

import (
	"context"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// addressPromises are those of nstance.AddressMover, in the order of its comments.
var addressPromises = []struct {
	name  string
	check func(b *fixture, mover nstance.AddressMover)
}{
	{"one that was taken is held", checkTaken},
	{"taking it again changes nothing", checkTakenAgain},
	{"taking it moves it away from another machine", checkMoved},
	{"one that does not exist is not found", checkNoAddress},
	{"an empty one is refused by name", checkEmptyAddress},
	{"a context that has ended fails every call and is no answer", checkAddressCancelled},
}

func (r *suiteRun) checkAddress(s Subject) {
	_, isMover := s.Provider.(nstance.AddressMover)
	switch {
	case s.Address == "" && !isMover:
		r.skip("address", "the provider is no nstance.AddressMover")
	case s.Address == "":
		r.skip("address", "Subject.Address is empty")
	case !isMover:
		r.check("address", func(b *fixture) { b.Fatal("Subject.Address is set, but the provider is no nstance.AddressMover") })
	default:
		for _, p := range addressPromises {
			r.check("address/"+p.name, func(b *fixture) { p.check(b, b.mover) })
		}
	}
}

// waitHolds waits until the machine has the address, or does not have it any more.
func (b *fixture) waitHolds(m nstance.AddressMover, want bool) {
	b.Helper()
	b.eventually("HoldsAddress never showed the change", func(ctx context.Context) (bool, error) {
		held, err := m.HoldsAddress(ctx, b.Address)
		return held == want, err
	})
}

func checkTaken(b *fixture, mover nstance.AddressMover) {
	require.NoError(b, mover.TakeAddress(b.Context(), b.Address))
	b.waitHolds(mover, true)
}

func checkTakenAgain(b *fixture, mover nstance.AddressMover) {
	checkTaken(b, mover)
	checkTaken(b, mover)
}

func checkMoved(b *fixture, mover nstance.AddressMover) {
	if b.Elsewhere == nil {
		b.Skip("not checked: Subject.Elsewhere is nil")
	}
	for range 2 {
		require.NoError(b, b.Elsewhere.TakeAddress(b.Context(), b.Address))
		b.waitHolds(b.Elsewhere, true)
		b.waitHolds(mover, false)
		require.NoError(b, mover.TakeAddress(b.Context(), b.Address))
		b.waitHolds(mover, true)
		b.waitHolds(b.Elsewhere, false)
	}
}

func checkNoAddress(b *fixture, mover nstance.AddressMover) {
	if b.NoAddress == "" {
		b.Skip("not checked: Subject.NoAddress is empty")
	}
	b.requireCode(nstance.NotFound, mover.TakeAddress(b.Context(), b.NoAddress))
	held, err := mover.HoldsAddress(b.Context(), b.NoAddress)
	b.requireCode(nstance.NotFound, err)
	require.False(b, held)
}

func checkEmptyAddress(b *fixture, mover nstance.AddressMover) {
	err := mover.TakeAddress(b.Context(), "")
	b.requireCode(nstance.Invalid, err)
	b.requireField("address", err)
	_, err = mover.HoldsAddress(b.Context(), "")
	b.requireCode(nstance.Invalid, err)
}

func checkAddressCancelled(b *fixture, mover nstance.AddressMover) {
	checkTaken(b, mover)
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	b.requireCode(nstance.Unavailable, mover.TakeAddress(ctx, b.Address))
	held, err := mover.HoldsAddress(ctx, b.Address)
	b.requireCode(nstance.Unavailable, err)
	require.False(b, held)
	b.waitHolds(mover, true)
}
