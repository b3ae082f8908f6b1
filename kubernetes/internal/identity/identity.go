// Package identity keeps the certificate with which the operator connects to
// the shards of a cluster, in a Secret beside the NstanceCluster. It registers
// with the nonce that the user put into another Secret, and renews.
//
// A request that is repeated after a lost answer carries the same key: the key
// is stored before it is used.
package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/operatorapi"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/wire"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/shards"
)

// The rights on Secrets are a role of their own, which is bound in the namespaces of
// Clusters.
//
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;update

// Keys of the Secret.
const (
	keyCertificate = "tls.crt"
	keyPrivate     = "tls.key"
	keyNext        = "next.key" // of a request under way
	keyRoots       = "ca.crt"
	keyCluster     = "cluster"      // ID of the cluster at the shards
	keyUsedNonce   = "nonce.sha256" // of the nonce that the certificate was registered with

	// keyNonce and keyRoots are those of the user's Secret.
	keyNonce = "nonce"
)

// registerTimeout bounds one attempt.
const registerTimeout = 20 * time.Second

// SecretName is the name of the Secret of an NstanceCluster.
func SecretName(cluster *infrav1.NstanceCluster) string { return cluster.Name + "-nstance" }

// A Keeper keeps identities. It is safe for concurrent use for different clusters.
type Keeper struct {
	Client client.Client // reads Secrets from the API server, not from a cache
}

// Load returns the identity of a cluster, whether its certificate has expired or not. Fails
// with NotFound when there is none yet.
func (k Keeper) Load(ctx context.Context, cluster *infrav1.NstanceCluster) (shards.Identity, error) {
	secret, err := k.secret(ctx, cluster)
	if err != nil {
		return shards.Identity{}, err
	}
	return identityIn(secret, cluster)
}

// Register exchanges the user's nonce for an identity, which replaces the former one. Fails
// with Denied when the nonce is refused or was used for the former one, Invalid when the user's Secret has no usable nonce or
// authority, NotFound without such a Secret, Unavailable when no shard answers.
func (k Keeper) Register(ctx context.Context, cluster *infrav1.NstanceCluster) error {
	nonce, roots, err := k.registration(ctx, cluster)
	if err != nil {
		return err
	}
	claims, err := operatorapi.ReadNonce(nonce, nstance.RoleOperator)
	if err != nil {
		return err
	}
	secret, key, err := k.nextKey(ctx, cluster)
	if err != nil {
		return err
	}
	name, used := cluster.Spec.Registration.SecretName, nonceSum(nonce)
	if bytes.Equal(secret.Data[keyUsedNonce], used) {
		return refusedNonce(name, errors.New("the nonce has been used")) // shards would raise an alarm: two parties have it
	}
	csr, err := pki.NewCSR(key, "nstance-operator")
	if err != nil {
		return err
	}
	failed := nstance.FieldError("spec.shards", "give one of them a registrationAddress", "none has one")
	for _, s := range cluster.Spec.Shards {
		if s.RegistrationAddress == "" || claims.Shard != "" && claims.Shard != nstance.ShardID(s.Name) {
			continue
		}
		cred, err := register(ctx, s, claims.Cluster, roots, &apiv1.RegisterOperatorRequest{Nonce: nonce, Csr: csr})
		if err == nil {
			secret.Data[keyCluster], secret.Data[keyUsedNonce] = []byte(claims.Cluster), used
			return k.install(ctx, secret, cred)
		}
		failed = fmt.Errorf("shard %s at %s: %w", s.Name, s.RegistrationAddress, err)
		if errors.Is(err, nstance.Denied) {
			return refusedNonce(name, failed)
		}
		if !errors.Is(err, nstance.Unavailable) {
			return failed
		}
	}
	return failed
}

// refusedNonce returns the error for a nonce that no shard accepts.
func refusedNonce(secret string, why error) error {
	return &nstance.Error{
		Code: nstance.Denied, Msg: why.Error(), Err: why,
		Remedy: "put a new nonce into the Secret " + secret + ", from nstance-admin cluster nonce --kind operator",
	}
}

// nonceSum returns what is stored of a nonce.
func nonceSum(nonce string) []byte {
	sum := sha256.Sum256([]byte(nonce))
	return hex.AppendEncode(nil, sum[:])
}

// Renew exchanges the certificate for its successor at a shard.
func (k Keeper) Renew(ctx context.Context, cluster *infrav1.NstanceCluster, api apiv1.OperatorServiceClient) error {
	secret, key, err := k.nextKey(ctx, cluster)
	if err != nil {
		return err
	}
	csr, err := pki.NewCSR(key, "nstance-operator")
	if err != nil {
		return err
	}
	resp, err := api.RenewCertificate(ctx, &apiv1.OperatorServiceRenewCertificateRequest{Csr: csr})
	if err != nil {
		return wire.ErrorOf(err)
	}
	return k.install(ctx, secret, wire.CredentialOf(resp.GetCredential()))
}

// registration reads the user's Secret.
func (k Keeper) registration(ctx context.Context, cluster *infrav1.NstanceCluster) (nonce string, roots []byte, err error) {
	name := cluster.Spec.Registration.SecretName
	var secret corev1.Secret
	if err := k.Client.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, &secret); err != nil {
		if apierrors.IsNotFound(err) {
			err = &nstance.Error{
				Code: nstance.NotFound, Field: "spec.registration.secretName", Msg: fmt.Sprintf("there is no Secret %s", name),
				Remedy: "make it with the keys nonce and ca.crt, from nstance-admin cluster nonce --kind operator", Err: err,
			}
		}
		return "", nil, err
	}
	for _, key := range []string{keyNonce, keyRoots} {
		if len(secret.Data[key]) == 0 {
			return "", nil, nstance.FieldError("secret "+name, "add what nstance-admin cluster nonce --kind operator --ca-output printed and wrote", "has no key %s", key)
		}
	}
	return string(secret.Data[keyNonce]), secret.Data[keyRoots], nil
}

func register(ctx context.Context, s infrav1.Shard, cluster nstance.ClusterID, pem []byte, req *apiv1.RegisterOperatorRequest) (nstance.Credential, error) {
	var none nstance.Credential
	certs, err := pki.ParseCertificates(pem)
	if err != nil {
		return none, nstance.FieldError(keyRoots, "use what nstance-admin cluster nonce --ca-output wrote", "%v", err)
	}
	var ders [][]byte
	for _, c := range certs {
		ders = append(ders, c.Raw)
	}
	roots, err := pki.NewPool(ders...)
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	cfg := pki.ClientTLS(roots, nil, nstance.ShardID(s.Name), cluster)
	return operatorapi.Leader(ctx, []string{s.RegistrationAddress}, func(ctx context.Context, addr string) (nstance.Credential, error) {
		conn, err := operatorapi.Dial(addr, cfg)
		if err != nil {
			return none, err
		}
		defer conn.Close()
		resp, err := apiv1.NewRegistrationServiceClient(conn).RegisterOperator(ctx, req)
		return wire.CredentialOf(resp.GetCredential()), wire.ErrorOf(err)
	})
}

// nextKey returns the key of the request under way, storing one if there is none.
func (k Keeper) nextKey(ctx context.Context, cluster *infrav1.NstanceCluster) (*corev1.Secret, ed25519.PrivateKey, error) {
	secret, err := k.secret(ctx, cluster)
	if errors.Is(err, nstance.NotFound) {
		secret, err = k.newSecret(cluster)
	}
	if err != nil {
		return nil, nil, err
	}
	if key, err := pki.ParseKey(secret.Data[keyNext]); err == nil {
		return secret, key, nil
	}
	key := pki.NewKey()
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	if secret.Data[keyNext], err = pki.MarshalKey(key); err != nil {
		return nil, nil, err
	}
	return secret, key, k.store(ctx, secret)
}

// install makes the key of the request under way the one in use.
func (k Keeper) install(ctx context.Context, secret *corev1.Secret, cred nstance.Credential) error {
	secret.Data[keyPrivate] = secret.Data[keyNext]
	secret.Data[keyCertificate] = pki.MarshalCertificates(cred.Chain...)
	secret.Data[keyRoots] = pki.MarshalCertificates(cred.Roots...)
	delete(secret.Data, keyNext)
	if _, err := identityIn(secret, nil); err != nil {
		return fmt.Errorf("the server sent an unusable certificate: %w", err)
	}
	return k.store(ctx, secret)
}

func (k Keeper) secret(ctx context.Context, cluster *infrav1.NstanceCluster) (*corev1.Secret, error) {
	var secret corev1.Secret
	err := k.Client.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: SecretName(cluster)}, &secret)
	if apierrors.IsNotFound(err) {
		return nil, nstance.Errorf(nstance.NotFound, "there is no Secret %s: %w", SecretName(cluster), err)
	}
	return &secret, err
}

func (k Keeper) newSecret(cluster *infrav1.NstanceCluster) (*corev1.Secret, error) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: SecretName(cluster), Labels: map[string]string{}},
		Type:       corev1.SecretTypeOpaque, Data: map[string][]byte{},
	}
	if name := cluster.Labels[clusterv1.ClusterNameLabel]; name != "" {
		secret.Labels[clusterv1.ClusterNameLabel] = name
	}
	return secret, controllerutil.SetControllerReference(cluster, secret, k.Client.Scheme())
}

func (k Keeper) store(ctx context.Context, secret *corev1.Secret) error {
	if secret.UID == "" {
		return k.Client.Create(ctx, secret)
	}
	return k.Client.Update(ctx, secret)
}

// identityIn returns the identity that a Secret holds; of a nil cluster without a
// tenant.
func identityIn(secret *corev1.Secret, cluster *infrav1.NstanceCluster) (id shards.Identity, err error) {
	if len(secret.Data[keyCertificate]) == 0 {
		return id, nstance.Errorf(nstance.NotFound, "Secret %s has no certificate yet", secret.Name)
	}
	key, kerr := pki.ParseKey(secret.Data[keyPrivate])
	chain, cerr := pki.ParseCertificates(secret.Data[keyCertificate])
	roots, rerr := pki.ParseCertificates(secret.Data[keyRoots])
	if err := errors.Join(kerr, cerr, rerr); err != nil {
		return id, fmt.Errorf("secret %s: %w", secret.Name, err)
	}
	pair, err := pki.Pair(key, chain...)
	if err != nil {
		return id, fmt.Errorf("secret %s: %w", secret.Name, err)
	}
	who, err := pki.IdentityOf(pair.Leaf)
	if err != nil {
		return id, err
	}
	if who.Role != nstance.RoleOperator {
		return id, nstance.Errorf(nstance.Denied, "secret %s: the certificate is of role %s", secret.Name, who.Role)
	}
	if cluster != nil && cluster.Spec.Tenant != "" && who.Tenant != nstance.TenantID(cluster.Spec.Tenant) {
		return id, nstance.FieldError("spec.tenant", "name the tenant that the nonce was minted for", "the certificate is of tenant %s", who.Tenant)
	}
	id = shards.Identity{Cluster: nstance.ClusterID(secret.Data[keyCluster]), Tenant: who.Tenant, Key: key}
	for _, c := range chain {
		id.Chain = append(id.Chain, c.Raw)
	}
	for _, c := range roots {
		id.Roots = append(id.Roots, c.Raw)
	}
	leaf := pair.Leaf
	id.RenewAt, id.NotAfter = leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore)*2/3), leaf.NotAfter
	return id, nil
}
