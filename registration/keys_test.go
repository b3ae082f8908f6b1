package registration_test

import (
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/registration"
)

// TestKeysSurviveRestart: the keys that MarshalPEM wrote are the same authority and
// accept the nonces of the former process.
func TestKeysSurviveRestart(t *testing.T) {
	keys, err := registration.NewKeys(epoch)
	require.NoError(t, err)
	text, err := keys.MarshalPEM()
	require.NoError(t, err)
	loaded, err := registration.LoadKeys(text)
	require.NoError(t, err)

	const id = nstance.InstanceID("web06bgm7733st2576nx5jht4ecjw")
	claims := registration.Claims(agentClaims(id, epoch))
	nonce, err := keys.Mint(claims)
	require.NoError(t, err)
	again, err := loaded.Mint(claims)
	require.NoError(t, err)
	require.Equal(t, nonce, again)
	require.True(t, keys.Pool().Equal(loaded.Pool()))
	cert, err := loaded.ServerCertificate(shard, cluster, time.Hour, epoch)
	require.NoError(t, err)
	require.NotNil(t, cert.Leaf)
	for _, without := range []time.Duration{3600, 0, -time.Hour} {
		_, err = loaded.ServerCertificate(shard, cluster, without, epoch)
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, "forgot the unit?")
	}

	store := newStore()
	store.truth[id] = registration.Registration{ID: id, Kind: "web", Tenant: "default", Group: "web"}
	w := newWorld(t, nil)
	registrar, err := registration.New(loaded, store, &registration.Options{Cluster: cluster, Shard: shard, Now: w.clock})
	require.NoError(t, err)
	_, key, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	_, err = registrar.Register(t.Context(), nstance.RegistrationRequest{Nonce: nonce, CSR: csrOf(t, key), Source: source})
	require.NoError(t, err)
}

func TestLoadKeysRefuses(t *testing.T) {
	keys, err := registration.NewKeys(epoch)
	require.NoError(t, err)
	text, err := keys.MarshalPEM()
	require.NoError(t, err)
	workload, err := keyring.NewAuthority(keyring.Workload, epoch)
	require.NoError(t, err)
	workloadKey, err := workload.KeyPEM()
	require.NoError(t, err)
	for name, bad := range map[string][]byte{
		"nothing": nil, "no PEM": []byte("keys"), "half of it": text[:len(text)/2], "another authority": append(append(workload.CertPEM(), workloadKey...), workloadKey...),
		"a pair of two authorities": append(workload.CertPEM(), text[len(workload.CertPEM()):]...),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := registration.LoadKeys(bad)
			require.ErrorIs(t, err, nstance.Invalid)
		})
	}
}
