package server

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// TestRefusals: why a certificate, or all of a caller, are refused is known for a short time,
// of so many at once.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newCallerLimits()
		count := func() int { return len(l.refused) }
		first := nstance.Identity{Role: nstance.RoleAgent, Tenant: "red", Subject: "web1", Serial: "01"}
		second, everyOne := first, first
		second.Serial, everyOne.Serial = "02", ""
		l.remember(first, nstance.Denied)
		require.ErrorIs(t, l.refusalOf(first), nstance.Denied)
		require.NoError(t, l.refusalOf(second))
		l.remember(everyOne, nstance.NotFound)
		require.ErrorIs(t, l.refusalOf(second), nstance.NotFound)
		<-time.After(refusedFor)
		require.NoError(t, l.refusalOf(first))
		require.NoError(t, l.refusalOf(second))

		for i := range maxRefused {
			l.remember(nstance.Identity{Serial: fmt.Sprint("b", i)}, nstance.Denied)
		}
		require.Equal(t, maxRefused, count())
		<-time.After(refusedFor + 1)
		l.remember(first, nstance.Denied)
		require.Equal(t, 1, count(), "what is over makes room")
	})
}
