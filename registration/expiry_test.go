package registration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/registration"
)

func TestUsedNonceKeepsItsExpiry(t *testing.T) {
	w := newWorld(t, nil)
	const jti = "0123456789abcdef"
	claims := operatorClaims(nstance.RoleOperator, jti, epoch)
	w.mustRegister(w.mint(claims), pki.NewKey())
	used := w.store.nonces[jti]
	require.Equal(t, claims.Expiry, used.NonceExpiry)
	require.Equal(t, used.Current.NotAfter, used.Ends(), "its certificate is good for longer")
}

func TestOperatorNoncesExpire(t *testing.T) {
	_, key := fixedKey(t)
	claims := operatorClaims(nstance.RoleAdmin, "0123456789abcdef", epoch)
	claims.Expiry = claims.NotBefore.Add(registration.MaxNonceLife)
	_, err := key.Mint(claims)
	require.NoError(t, err)
	claims.Expiry = claims.Expiry.Add(time.Second)
	_, err = key.Mint(claims)
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, "exp")
}
