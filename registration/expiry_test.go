package registration_test

import (
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/registration"
)

func TestTheExpiryOfAUsedNonceIsNoted(t *testing.T) {
	w := newWorld(t, nil)
	const jti = "0123456789abcdef"
	claims := operatorClaims(nstance.RoleOperator, jti, epoch)
	w.mustRegister(w.mint(claims), pki.NewKey())
	used := w.store.nonces[jti]
	require.Equal(t, claims.Expiry, used.NonceExpiry)
	require.Equal(t, claims.Expiry, used.NonceEnds())
	require.Equal(t, used.Current.NotAfter, used.Ends(), "its certificate is good for longer")
	used.NonceExpiry = time.Time{}
	require.Equal(t, used.RegisteredAt.Add(registration.MaxNonceLife), used.NonceEnds(), "an earlier version did not note it")
}

func TestOperatorsNoncesAreNotGoodForever(t *testing.T) {
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

// TestNoncesOfEarlierVersionsEnd: those were minted for any time at all, and the
// mark of their use is not kept for ever.
func TestNoncesOfEarlierVersionsEnd(t *testing.T) {
	raw, key := fixedKey(t)
	long := sign(t, jose.EdDSA, raw, key.ID(), map[string]any{
		"iss": "nstance/prod", "aud": "nstance-registration/prod", "sub": "prod", "jti": "0123456789abcdef",
		"nbf": epoch.Unix(), "iat": epoch.Unix(), "exp": epoch.AddDate(10, 0, 0).Unix(),
		"kind": "admin", "cluster_id": "prod", "tenant": "acme",
	})
	end := epoch.Add(registration.MaxNonceLife)
	claims, err := key.Verify(long, end.Add(-time.Second), here)
	require.NoError(t, err)
	require.Equal(t, end, claims.Expiry)
	_, err = key.Verify(long, end, here)
	require.ErrorIs(t, err, nstance.Denied)
	require.ErrorContains(t, err, "expired")
}
