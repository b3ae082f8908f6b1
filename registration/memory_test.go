package registration_test

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/registration"
)

// TestMemoryRegisters uses what NewMemory returns in place of a server's storage.
func TestMemoryRegisters(t *testing.T) {
	const id = nstance.InstanceID("web06bgm7733st2576nx5jht4ecjw")
	ctx, now := t.Context(), time.Now()
	memory := registration.NewMemory()
	keys, err := registration.NewKeys(now)
	require.NoError(t, err)
	registrar, err := registration.New(keys, memory, &registration.Options{Cluster: cluster, Shard: shard})
	require.NoError(t, err)
	nonce, err := keys.Mint(registration.Claims{
		Kind: nstance.RoleAgent, Subject: string(id), Cluster: cluster, Shard: shard, Tenant: "default", Group: "web",
		NotBefore: now.Add(-time.Second), Expiry: now.Add(time.Minute),
	})
	require.NoError(t, err)
	csr, err := newRequest()
	require.NoError(t, err)
	request := nstance.RegistrationRequest{Nonce: nonce, CSR: csr}
	_, err = registrar.Register(ctx, request)
	require.Error(t, err, "the instance is not known")

	memory.Put(registration.Registration{ID: id, Kind: "web", Tenant: "default", Group: "web"})
	credential, err := registrar.Register(ctx, request)
	require.NoError(t, err)
	again, err := registrar.Register(ctx, request)
	require.NoError(t, err)
	require.Equal(t, credential.Serial, again.Serial)
	known, err := memory.Registration(ctx, id)
	require.NoError(t, err)
	require.Equal(t, credential.Serial, known.Current.Serial)

	cert, err := x509.ParseCertificate(known.Current.Certificate)
	require.NoError(t, err)
	identity, err := registration.IdentityOf(cert)
	require.NoError(t, err)
	require.Equal(t, nstance.RoleAgent, identity.Role)
	require.Equal(t, string(id), identity.Subject)
	_, err = registration.IdentityOf(&x509.Certificate{})
	require.ErrorIs(t, err, nstance.Denied)

	memory.Remove(id)
	_, err = memory.RefreshRegistration(ctx, id)
	require.ErrorIs(t, err, nstance.NotFound)
	_, err = registrar.Register(ctx, request)
	require.Error(t, err)
}
