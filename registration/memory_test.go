package registration_test

import (
	"crypto/x509"
	"sync"
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
	var keys [2]*registration.Keys
	var both sync.WaitGroup
	for i := range keys {
		both.Go(func() {
			var err error
			keys[i], err = registration.Bootstrap(ctx, memory, now)
			if err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	require.Equal(t, keys[0].Installation, keys[1].Installation, "the keys exist once")
	registrar, err := registration.New(keys[0].Identity, keys[0].Nonces, memory, &registration.Options{Cluster: cluster, Shard: shard})
	require.NoError(t, err)
	nonce, err := keys[1].Nonces.Mint("", registration.Claims{
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

func TestMemoryVault(t *testing.T) {
	ctx, memory := t.Context(), registration.NewMemory()
	require.NoError(t, memory.PutIfAbsent(ctx, "a", []byte("x")))
	require.ErrorIs(t, memory.PutIfAbsent(ctx, "a", []byte("y")), nstance.Conflict)
	data, err := memory.Get(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, "x", string(data))
	require.NoError(t, memory.Destroy(ctx, "a"))
	require.NoError(t, memory.Destroy(ctx, "a"))
	_, err = memory.Get(ctx, "a")
	require.ErrorIs(t, err, nstance.NotFound)
	require.ErrorIs(t, memory.PutIfAbsent(ctx, "a", []byte("y")), nstance.Conflict, "the name is not used again")
	_, err = memory.Get(ctx, "b")
	require.ErrorIs(t, err, nstance.NotFound)
}
