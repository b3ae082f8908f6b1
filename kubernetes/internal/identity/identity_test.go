package identity_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	"github.com/nstance-go/nstance/internal/wire"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/identity"
	"github.com/nstance-go/nstance/kubernetes/internal/memkube"
)

// A rig is an NstanceCluster and the Secrets beside it.
type rig struct {
	*testing.T
	identity.Keeper
	shards *shardtest.Cluster
	kube   *memkube.Server
	nc     *infrav1.NstanceCluster
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, shards: shardtest.New(t), kube: memkube.New()}
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, infrav1.AddToScheme(scheme))
	var err error
	r.Client, err = client.New(r.kube.Config(), client.Options{Scheme: scheme})
	require.NoError(t, err)
	r.nc = &infrav1.NstanceCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "1", Labels: map[string]string{clusterv1.ClusterNameLabel: "workload"}}}
	r.nc.Spec.Registration.SecretName = "nonce"
	return r
}

// shard starts a shard, and returns where it registers operators once it does.
func (r *rig) shard(name nstance.ShardID) (address string) {
	s := r.shards.Start(name, 0)
	s.RegisterOperator()
	return s.Registration()
}

// nonce puts a nonce into the user's Secret; empty: a valid one for any shard.
func (r *rig) nonce(nonce string) {
	if nonce == "" {
		nonce = r.shards.OperatorNonce()
	}
	r.kube.Put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "nonce"}, Data: map[string][]byte{
		"nonce": []byte(nonce), "ca.crt": r.shards.Keys().Identity.CertPEM(),
	}})
}

// secret returns the Secret of the cluster; nil: there is none.
func (r *rig) secret() *corev1.Secret {
	var s corev1.Secret
	err := r.Client.Get(r.Context(), client.ObjectKey{Namespace: "ns", Name: identity.SecretName(r.nc)}, &s)
	if client.IgnoreNotFound(err) == nil && err != nil {
		return nil
	}
	require.NoError(r, err)
	return &s
}

// issue returns a certificate of an hour for a key.
func (r *rig) issue(key ed25519.PrivateKey, role nstance.Role) nstance.Credential {
	public, _ := key.Public().(ed25519.PublicKey)
	keys := r.shards.Keys()
	record, err := keys.Identity.Issue(keyring.Template{Subject: "operator-x", Tenant: nstance.DefaultTenant, Role: role, Key: public, Lifetime: time.Hour, Now: time.Now()})
	require.NoError(r, err)
	return nstance.Credential{Chain: [][]byte{record.Certificate}, Roots: [][]byte{keys.Identity.Certificate()}}
}

// registered stores an identity as a registration does.
func (r *rig) registered(role nstance.Role) {
	key := pki.NewKey()
	cred := r.issue(key, role)
	data, err := pki.MarshalKey(key)
	require.NoError(r, err)
	r.kube.Put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: identity.SecretName(r.nc)}, Data: map[string][]byte{
		"tls.key": data, "tls.crt": pki.MarshalCertificates(cred.Chain...), "ca.crt": pki.MarshalCertificates(cred.Roots...), "cluster": []byte(shardtest.ID),
	}})
}

// listener returns an address where nothing is answered, and a function that counts connections.
func (r *rig) listener() (address string, count func() int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(r, err)
	accepted := make(chan struct{}, 100)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- struct{}{}
			_ = conn.Close()
		}
	}()
	r.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	return l.Addr().String(), func() int { return len(accepted) }
}

// TestRegister: the identity is of the cluster, goes with it, and is renewed after two thirds of its life. A
// shard that does not answer, or has no registration, leaves it to the next.
func TestRegister(t *testing.T) {
	r := newRig(t)
	_, err := r.Load(t.Context(), r.nc)
	require.ErrorIs(t, err, nstance.NotFound)
	r.nonce("")
	away, count := r.listener()
	r.nc.Spec.Shards = []infrav1.Shard{{Name: "none"}, {Name: "away", RegistrationAddress: away}}
	require.ErrorIs(t, r.Register(t.Context(), r.nc), nstance.Unavailable)
	require.Positive(t, count())
	next := r.secret().Data["next.key"]
	require.NotEmpty(t, next, "stored before it was used")
	require.ErrorIs(t, r.Register(t.Context(), r.nc), nstance.Unavailable)
	require.Equal(t, next, r.secret().Data["next.key"], "an answer that was lost is asked for again with the same key")
	_, err = r.Load(t.Context(), r.nc)
	require.ErrorIs(t, err, nstance.NotFound)

	r.nc.Spec.Shards = append(r.nc.Spec.Shards, infrav1.Shard{Name: "a", RegistrationAddress: r.shard("a")})
	require.NoError(t, r.Register(t.Context(), r.nc))
	id, err := r.Load(t.Context(), r.nc)
	require.NoError(t, err)
	require.Equal(t, shardtest.ID, id.Cluster)
	require.Equal(t, nstance.DefaultTenant, id.Tenant)
	stored := r.secret()
	require.Equal(t, next, stored.Data["tls.key"])
	require.NotContains(t, stored.Data, "next.key")
	require.Equal(t, "workload", stored.Labels[clusterv1.ClusterNameLabel])
	require.True(t, metav1.IsControlledBy(stored, r.nc))
	certs, err := pki.ParseCertificates(stored.Data["tls.crt"])
	require.NoError(t, err)
	life := certs[0].NotAfter.Sub(certs[0].NotBefore)
	require.Equal(t, certs[0].NotBefore.Add(life*2/3), id.RenewAt)
	require.Equal(t, certs[0].NotAfter, id.NotAfter)

	before := count()
	r.nc.Spec.Shards = r.nc.Spec.Shards[:2]
	used := r.Register(t.Context(), r.nc)
	require.ErrorIs(t, used, nstance.Denied)
	require.ErrorContains(t, used, "put a new nonce into the Secret nonce")
	require.Equal(t, stored.Data["tls.crt"], r.secret().Data["tls.crt"])
	require.Equal(t, before, count(), "a shard would raise an alarm")
}

// TestNoRegistration: where no shard registers operators, the remedy is to name an address.
func TestNoRegistration(t *testing.T) {
	r := newRig(t)
	r.nonce("")
	r.nc.Spec.Shards = []infrav1.Shard{{Name: "a"}, {Name: "b"}}
	err := r.Register(t.Context(), r.nc)
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, "give one of them a registrationAddress")
}

// TestRefusedNonce: a nonce that a shard refuses is shown to no other, and one for another shard to
// none. What is wrong in the user's Secret is said.
func TestRefusedNonce(t *testing.T) {
	r := newRig(t)
	second, count := r.listener()
	r.nc.Spec.Shards = []infrav1.Shard{{Name: "a", RegistrationAddress: r.shard("a")}, {Name: "b", RegistrationAddress: second}}
	other := shardtest.New(t)
	r.nonce(other.OperatorNonce())
	refused := r.Register(t.Context(), r.nc)
	require.ErrorIs(t, refused, nstance.Denied)
	require.ErrorContains(t, refused, "put a new nonce into the Secret nonce")
	require.Zero(t, count())

	elsewhere, err := r.shards.Keys().Nonces.Mint("", keyring.Claims{
		Kind: nstance.RoleOperator, Subject: string(shardtest.ID), Cluster: shardtest.ID, Shard: "c", Tenant: nstance.DefaultTenant, JTI: rand.Text(),
		NotBefore: time.Now().Add(-time.Hour), Expiry: time.Now().Add(time.Hour),
	})
	require.NoError(t, err)
	r.nonce(elsewhere)
	require.ErrorIs(t, r.Register(t.Context(), r.nc), nstance.Invalid)
	require.Zero(t, count())

	for _, key := range []string{"nonce", "ca.crt"} {
		r.nonce("")
		r.kube.Change("/api/v1/namespaces/ns/secrets/nonce", func(o map[string]any) { delete(o["data"].(map[string]any), key) })
		err := r.Register(t.Context(), r.nc)
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, "has no key "+key)
	}
	require.True(t, r.kube.Remove("/api/v1/namespaces/ns/secrets/nonce"))
	require.ErrorIs(t, r.Register(t.Context(), r.nc), nstance.NotFound)
}

// A renewingAPI answers requests for a certificate.
type renewingAPI struct {
	apiv1.OperatorServiceClient
	csrs   [][]byte
	answer func() (nstance.Credential, error)
}

func (a *renewingAPI) RenewCertificate(_ context.Context, req *apiv1.OperatorServiceRenewCertificateRequest, _ ...grpc.CallOption) (*apiv1.OperatorServiceRenewCertificateResponse, error) {
	a.csrs = append(a.csrs, req.GetCsr())
	cred, err := a.answer()
	return &apiv1.OperatorServiceRenewCertificateResponse{Credential: wire.Credential(cred)}, err
}

// TestRenew: a renewed certificate is used with its key, and the roots that came with it. One that is of no use
// is not, nor is one that did not come: the next request has the same key.
func TestRenew(t *testing.T) {
	r := newRig(t)
	r.registered(nstance.RoleOperator)
	before := r.secret()
	api := &renewingAPI{}
	for _, answer := range []func() (nstance.Credential, error){
		func() (nstance.Credential, error) {
			return nstance.Credential{}, nstance.Errorf(nstance.Unavailable, "away")
		},
		func() (nstance.Credential, error) { return r.issue(pki.NewKey(), nstance.RoleOperator), nil },
		func() (nstance.Credential, error) { return nstance.Credential{}, nil },
	} {
		api.answer = answer
		require.Error(t, r.Renew(t.Context(), r.nc, api))
		stored := r.secret()
		for _, key := range []string{"tls.crt", "tls.key", "ca.crt"} {
			require.Equal(t, before.Data[key], stored.Data[key])
		}
	}
	next := r.secret().Data["next.key"]
	key, err := pki.ParseKey(next)
	require.NoError(t, err)
	cred := r.issue(key, nstance.RoleOperator)
	cred.Roots = append(cred.Roots, shardtest.New(t).Keys().Identity.Certificate())
	api.answer = func() (nstance.Credential, error) { return cred, nil }
	require.NoError(t, r.Renew(t.Context(), r.nc, api))
	for _, csr := range api.csrs {
		require.Equal(t, api.csrs[0], csr)
	}
	id, err := r.Load(t.Context(), r.nc)
	require.NoError(t, err)
	require.Equal(t, cred.Chain, id.Chain)
	require.Equal(t, cred.Roots, id.Roots)
	require.True(t, key.Equal(id.Key))
	require.NotContains(t, r.secret().Data, "next.key")
}

// TestWhoseCertificate: a certificate of another role or tenant is not used.
func TestWhoseCertificate(t *testing.T) {
	r := newRig(t)
	r.registered(nstance.RoleOperator)
	_, err := r.Load(t.Context(), r.nc)
	require.NoError(t, err)
	r.nc.Spec.Tenant = string(nstance.DefaultTenant)
	_, err = r.Load(t.Context(), r.nc)
	require.NoError(t, err)
	r.nc.Spec.Tenant = "blue"
	_, err = r.Load(t.Context(), r.nc)
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, "name the tenant that the nonce was minted for")
	r.nc.Spec.Tenant = ""
	r.registered(nstance.RoleAdmin)
	_, err = r.Load(t.Context(), r.nc)
	require.ErrorIs(t, err, nstance.Denied)
}
