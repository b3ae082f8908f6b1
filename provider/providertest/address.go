package providertest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// addressPromises are those of nstance.AddressMover, in the order of its comments.
var addressPromises = []struct {
	name  string
	check func(b *bench, here nstance.AddressMover)
}{
	{"one that was taken is here", checkTaken},
	{"taking it again changes nothing", checkTakenAgain},
	{"taking it moves it away from another machine", checkMoved},
	{"one that does not exist is not found", checkNoAddress},
	{"an empty one is refused by name", checkEmptyAddress},
	{"a context that has ended fails every call and is no answer", checkAddressCancelled},
}

func runAddress(t *testing.T, newSubject func(t *testing.T) Subject) {
	if newSubject(t).Address == "" {
		return
	}
	for _, p := range addressPromises {
		t.Run(p.name, func(t *testing.T) {
			b := newBench(t, newSubject(t))
			here, ok := b.Provider.(nstance.AddressMover)
			require.True(t, ok, "Subject.Address is for providers that can move addresses")
			p.check(b, here)
		})
	}
}

// holds waits until the machine has the address, or has it no more.
func (b *bench) holds(m nstance.AddressMover, want bool) {
	b.Helper()
	b.eventually("HoldsAddress never came round", func(ctx context.Context) (bool, error) {
		held, err := m.HoldsAddress(ctx, b.Address)
		return held == want, err
	})
}

func checkTaken(b *bench, here nstance.AddressMover) {
	require.NoError(b, here.TakeAddress(b.Context(), b.Address))
	b.holds(here, true)
}

func checkTakenAgain(b *bench, here nstance.AddressMover) {
	checkTaken(b, here)
	checkTaken(b, here)
}

func checkMoved(b *bench, here nstance.AddressMover) {
	if b.Elsewhere == nil { // then the test has one machine only
		return
	}
	for range 2 {
		require.NoError(b, b.Elsewhere.TakeAddress(b.Context(), b.Address))
		b.holds(b.Elsewhere, true)
		b.holds(here, false)
		require.NoError(b, here.TakeAddress(b.Context(), b.Address))
		b.holds(here, true)
		b.holds(b.Elsewhere, false)
	}
}

func checkNoAddress(b *bench, here nstance.AddressMover) {
	if b.NoAddress == "" {
		return
	}
	b.refused(nstance.NotFound, here.TakeAddress(b.Context(), b.NoAddress))
	held, err := here.HoldsAddress(b.Context(), b.NoAddress)
	b.refused(nstance.NotFound, err)
	require.False(b, held)
}

func checkEmptyAddress(b *bench, here nstance.AddressMover) {
	err := here.TakeAddress(b.Context(), "")
	b.refused(nstance.Invalid, err)
	b.field("address", err)
	_, err = here.HoldsAddress(b.Context(), "")
	b.refused(nstance.Invalid, err)
}

func checkAddressCancelled(b *bench, here nstance.AddressMover) {
	checkTaken(b, here)
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	b.refused(nstance.Unavailable, here.TakeAddress(ctx, b.Address))
	held, err := here.HoldsAddress(ctx, b.Address)
	b.refused(nstance.Unavailable, err)
	require.False(b, held)
	b.holds(here, true)
}
