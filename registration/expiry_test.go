package registration_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
)

func TestUsedNonceKeepsItsExpiry(t *testing.T) {
	w := newWorld(t, nil)
	const jti = "0123456789abcdef"
	claims := operatorClaims(nstance.RoleOperator, jti, epoch)
	w.mustRegister(w.mint(claims), pki.NewKey())
	used := w.store.nonces[jti]
	require.Equal(t, claims.Expiry, used.NonceExpiry)
	require.True(t, used.Current.NotAfter.After(used.NonceExpiry), "its certificate is good for longer")
}
