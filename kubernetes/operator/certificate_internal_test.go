package operator

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/identity"
	"github.com/nstance-go/nstance/kubernetes/internal/shards"
)

// secretStore holds the Secrets of one namespace.
type secretStore struct {
	client.Client
	scheme *runtime.Scheme

	mu     sync.Mutex
	byName map[string]*corev1.Secret
	fail   error // of the next Get
}

func (s *secretStore) Scheme() *runtime.Scheme { return s.scheme }

func (s *secretStore) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fail; err != nil {
		s.fail = nil
		return err
	}
	stored, out := s.byName[key.Name], obj.(*corev1.Secret)
	if stored == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
	}
	stored.DeepCopyInto(out)
	return nil
}

func (s *secretStore) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	obj.SetUID("stored")
	return s.Update(context.Background(), obj)
}

func (s *secretStore) Update(_ context.Context, obj client.Object, _ ...client.UpdateOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byName[obj.GetName()] = obj.(*corev1.Secret).DeepCopy()
	return nil
}

// A certificateRig is an operator of one cluster, whose passes a test makes.
type certificateRig struct {
	*testing.T
	*clusterController
	shards  *shardtest.Cluster
	secrets *secretStore
	cluster *clusterv1.Cluster
	nc      *infrav1.NstanceCluster
	stop    func()
}

// newCertificateRig registers at shards, and waits until they are connected.
func newCertificateRig(t *testing.T, names ...nstance.ShardID) (r *certificateRig, servers []*shardtest.Shard) {
	t.Helper()
	r = &certificateRig{T: t, shards: shardtest.New(t), secrets: &secretStore{scheme: runtime.NewScheme(), byName: map[string]*corev1.Secret{}}}
	require.NoError(t, infrav1.AddToScheme(r.secrets.scheme))
	r.nc = &infrav1.NstanceCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "1"}}
	r.nc.Spec.Registration.SecretName = "nonce"
	r.cluster = &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
	r.cluster.Spec.InfrastructureRef.Name = "c"
	for _, name := range names {
		s := r.shards.Start(name, 0)
		servers = append(servers, s)
		r.nc.Spec.Shards = append(r.nc.Spec.Shards, infrav1.Shard{Name: string(name), Address: s.Operator(), RegistrationAddress: s.Registration()})
	}
	r.stop = func() {}
	r.restart()
	r.newNonce()
	r.until(r.connected, "connected")
	return r, servers
}

// restart replaces the operator by one that knows what is stored.
func (r *certificateRig) restart() {
	r.stop()
	r.clusterController = &clusterController{keeper: identity.Keeper{Client: r.secrets}, fleets: newFleets(nil, slog.New(slog.DiscardHandler))}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = r.fleets.Start(ctx) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	r.Cleanup(r.stop)
}

// newNonce puts a new nonce into the Secret.
func (r *certificateRig) newNonce() {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "nonce"}, Data: map[string][]byte{
		"nonce": []byte(r.shards.OperatorNonce()), "ca.crt": r.shards.Keys().Identity.CertPEM(),
	}}
	require.NoError(r, r.secrets.Create(r.Context(), secret))
}

// pass returns when the next pass is to be.
func (r *certificateRig) pass() time.Duration {
	r.Helper()
	result, err := r.provision(r.Context(), r.cluster, r.nc)
	require.NoError(r, err)
	return result.RequeueAfter
}

func (r *certificateRig) until(holds func() bool, what string) {
	r.Helper()
	require.Eventually(r, func() bool {
		r.pass()
		return holds()
	}, time.Minute, 10*time.Millisecond, what)
}

func (r *certificateRig) connected() bool {
	return conditions.IsTrue(r.nc, infrav1.ConditionShardsConnected)
}

// requireCondition requires a status, a reason and words of the message.
func (r *certificateRig) requireCondition(name string, status metav1.ConditionStatus, reason string, says ...string) {
	r.Helper()
	c := conditions.Get(r.nc, name)
	require.NotNil(r, c, name)
	require.Equal(r, status, c.Status, c.Message)
	require.Equal(r, reason, c.Reason, c.Message)
	for _, words := range says {
		require.Contains(r, c.Message, words)
	}
}

func (r *certificateRig) fleet() *fleet { return r.fleets.byKey(client.ObjectKeyFromObject(r.nc)) }

// endPause has the next certificate requested at once.
func (r *certificateRig) endPause() {
	fl := r.fleet()
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.lastRequest = time.Time{}
}

func (r *certificateRig) stored() shards.Identity {
	r.Helper()
	id, err := r.keeper.Load(r.Context(), r.nc)
	require.NoError(r, err)
	return id
}

// age replaces the stored certificate by one of the same operator that began half an hour ago.
func (r *certificateRig) age(life time.Duration) {
	r.Helper()
	id := r.stored()
	who := r.holder()
	public, _ := id.Key.Public().(ed25519.PublicKey)
	issued, err := r.shards.Keys().Identity.Issue(keyring.Template{
		Subject: who.Subject, Tenant: who.Tenant, Role: who.Role, Key: public, Lifetime: life, Now: time.Now().Add(-30 * time.Minute),
	})
	require.NoError(r, err)
	var secret corev1.Secret
	require.NoError(r, r.secrets.Get(r.Context(), client.ObjectKey{Name: identity.SecretName(r.nc)}, &secret))
	secret.Data["tls.crt"] = pki.MarshalCertificates(issued.Certificate)
	require.NoError(r, r.secrets.Update(r.Context(), &secret))
}

func (r *certificateRig) holder() nstance.Identity {
	certs, err := pki.ParseCertificates(pki.MarshalCertificates(r.stored().Certificate()))
	require.NoError(r, err)
	who, err := pki.IdentityOf(certs[0])
	require.NoError(r, err)
	return who
}

// revoke has shards refuse the operator, as nstance-admin operator revoke does.
func (r *certificateRig) revoke() {
	r.Helper()
	who := r.holder()
	stored, err := r.shards.Store.Get(r.Context(), layout.OperatorKey(who.Tenant, who.Subject))
	require.NoError(r, err)
	record := map[string]any{}
	require.NoError(r, json.Unmarshal(stored.Data, &record))
	registered, ok := record["operator"].(map[string]any)
	require.True(r, ok, "%s", stored.Data)
	registered["revoked"] = true
	data, err := json.Marshal(record)
	require.NoError(r, err)
	_, err = r.shards.Store.PutIfMatch(r.Context(), stored.Key, data, stored.Version)
	require.NoError(r, err)
}

// TestRequestedRenewal: what a server requests lasts until the certificate is renewed. The new
// certificate is used at once: until then the rotation of the former one's key cannot be finished.
func TestRequestedRenewal(t *testing.T) {
	r, _ := newCertificateRig(t, "a")
	former := r.stored()
	require.Greater(t, time.Until(r.fleet().renewAt()), time.Hour)
	useless, _ := r.fleet().useless(former.NotAfter.Add(time.Hour))
	require.Empty(t, useless, "a shard accepts it, whatever our clock says")
	r.fleet().renewWithin(time.Hour)
	for range 2 {
		r.pass()
		require.LessOrEqual(t, time.Until(r.fleet().renewAt()), 30*time.Minute)
	}
	require.Equal(t, former.Certificate(), r.stored().Certificate(), "not yet")

	r.fleet().renewWithin(0)
	r.pass()
	renewed := r.stored()
	require.NotEqual(t, former.Certificate(), renewed.Certificate())
	r.pass()
	require.Greater(t, time.Until(r.fleet().renewAt()), time.Hour, "the request was for the former certificate")
	csr, err := pki.NewCSR(renewed.Key, "operator")
	require.NoError(t, err)
	r.until(func() bool {
		apis := r.fleet().connectedAPIs()
		if len(apis) == 0 {
			return false
		}
		_, err := apis[0].RenewCertificate(t.Context(), &apiv1.OperatorServiceRenewCertificateRequest{Csr: csr})
		return nstance.CodeOf(err) == nstance.Invalid // the key of the certificate that the connection has
	}, "the renewed certificate is used")
	require.Equal(t, renewed.Certificate(), r.stored().Certificate(), "once")

	require.Zero(t, r.fleet().requestPause(time.Now().Add(retryRegistration)), "another request, at this moment")
	r.fleet().renewWithin(0)
	r.pass()
	require.Equal(t, renewed.Certificate(), r.stored().Certificate(), "not before the pause is over")
}

// TestLooksForKubeconfig: one that is not there is looked for soon, also while the cluster is paused. A
// cluster that has never registered does not while it is paused.
func TestLooksForKubeconfig(t *testing.T) {
	r, _ := newCertificateRig(t, "a")
	require.LessOrEqual(t, r.pass(), retryKubeconfig)
	result, err := r.keepDraining(t.Context(), r.cluster, r.nc)
	require.NoError(t, err)
	require.LessOrEqual(t, result.RequeueAfter, retryKubeconfig)
	clear(r.secrets.byName)
	r.newNonce()
	result, err = r.keepDraining(t.Context(), r.cluster, r.nc)
	require.NoError(t, err)
	require.Zero(t, result)
	require.Len(t, r.secrets.byName, 1, "nothing is stored")
}

// TestUnreadIdentity: an identity that cannot be read, or understood, is one: it costs no nonce.
func TestUnreadIdentity(t *testing.T) {
	for name, hide := range map[string]func(r *certificateRig){
		"cannot be read": func(r *certificateRig) {
			r.secrets.fail = apierrors.NewInternalError(errors.New("etcdserver: leader changed"))
		},
		"may not be read": func(r *certificateRig) {
			r.secrets.fail = apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, identity.SecretName(r.nc), nil)
		},
		"is damaged": func(r *certificateRig) {
			r.secrets.byName[identity.SecretName(r.nc)].Data["tls.crt"] = []byte("-----")
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newCertificateRig(t, "a")
			stored := r.secrets.byName[identity.SecretName(r.nc)].DeepCopy()
			r.newNonce()
			hide(r)
			changed := r.secrets.byName[identity.SecretName(r.nc)].DeepCopy()
			_, err := r.identity(t.Context(), r.nc)
			require.Error(t, err)
			require.Equal(t, changed.Data, r.secrets.byName[identity.SecretName(r.nc)].Data)
			r.secrets.byName[identity.SecretName(r.nc)] = stored
			_, err = r.identity(t.Context(), r.nc)
			require.NoError(t, err)
		})
	}
}

// TestExpiredCertificate: it is replaced with a new nonce. Until then the conditions say that
// nothing is reached, and the used nonce is shown to no shard.
func TestExpiredCertificate(t *testing.T) {
	r, _ := newCertificateRig(t, "a")
	r.age(10 * time.Minute)
	r.restart()
	expired := r.stored()
	require.LessOrEqual(t, r.pass(), retryRegistration)
	r.requireCondition(infrav1.ConditionRegistered, metav1.ConditionFalse, reasonExpired, "expired at", "has been used", "put a new nonce into the Secret nonce")
	r.requireCondition(infrav1.ConditionShardsConnected, metav1.ConditionFalse, reasonDisconnected)
	r.requireCondition(infrav1.ConditionNodesReached, metav1.ConditionFalse, reasonWaiting)
	require.True(t, conditions.IsTrue(r.nc, clusterv1.ReadyCondition), "it stays provisioned")

	r.newNonce()
	require.LessOrEqual(t, r.pass(), retryRegistration)
	require.Equal(t, expired.Certificate(), r.stored().Certificate(), "not before the pause is over")
	r.requireCondition(infrav1.ConditionRegistered, metav1.ConditionFalse, reasonExpired, "put a new nonce")
	r.endPause()
	r.until(r.connected, "the new nonce is enough")
	r.requireCondition(infrav1.ConditionRegistered, metav1.ConditionTrue, reasonRegistered)
}

// TestRevokedCertificate: it is not expired, but every shard refuses it.
func TestRevokedCertificate(t *testing.T) {
	r, _ := newCertificateRig(t, "a", "b")
	r.revoke()
	r.restart()
	r.until(func() bool { return conditions.IsFalse(r.nc, infrav1.ConditionRegistered) }, "refused")
	r.requireCondition(infrav1.ConditionRegistered, metav1.ConditionFalse, reasonUnaccepted, "no trust between shard a and the certificate", "has been revoked", "put a new nonce into the Secret nonce")
	r.newNonce()
	r.endPause()
	r.until(r.connected, "the new nonce is enough")
	r.requireCondition(infrav1.ConditionRegistered, metav1.ConditionTrue, reasonRegistered)
}

// A poorShard cannot renew certificates.
type poorShard struct {
	apiv1.OperatorServiceClient
}

func (poorShard) RenewCertificate(context.Context, *apiv1.OperatorServiceRenewCertificateRequest, ...grpc.CallOption) (*apiv1.OperatorServiceRenewCertificateResponse, error) {
	return nil, nstance.Errorf(nstance.Unavailable, "its storage does not answer")
}

// TestRenewsAtAnother: a shard that is connected and cannot renew the certificate keeps no other from it.
func TestRenewsAtAnother(t *testing.T) {
	r, _ := newCertificateRig(t, "a")
	former, apis := r.stored(), r.fleet().connectedAPIs()
	require.ErrorContains(t, r.renewAtOne(t.Context(), r.nc, []apiv1.OperatorServiceClient{poorShard{}}), "storage does not answer")
	require.Equal(t, former.Certificate(), r.stored().Certificate())
	require.NoError(t, r.renewAtOne(t.Context(), r.nc, append([]apiv1.OperatorServiceClient{poorShard{}}, apis...)))
	require.NotEqual(t, former.Certificate(), r.stored().Certificate())
}

// TestRenewalFails: the nodes are drained and the shards are shown while the certificate waits
// for its renewal.
func TestRenewalFails(t *testing.T) {
	r, servers := newCertificateRig(t, "a")
	r.age(40 * time.Minute)
	servers[0].Stop()
	r.restart()
	require.LessOrEqual(t, r.pass(), retryRegistration)
	r.requireCondition(infrav1.ConditionRegistered, metav1.ConditionTrue, reasonUnrenewed, "is valid until", "no shard of ns/c is connected")
	r.requireCondition(infrav1.ConditionShardsConnected, metav1.ConditionFalse, reasonDisconnected)
	r.requireCondition(infrav1.ConditionNodesReached, metav1.ConditionFalse, reasonWaiting, "c-kubeconfig")
}

// TestOneShardRefuses: a certificate is replaced only when no shard may accept it.
func TestOneShardRefuses(t *testing.T) {
	now := time.Now()
	used := shards.Identity{Chain: [][]byte{[]byte("used")}, NotAfter: now.Add(time.Hour)}
	fl := &fleet{fleets: newFleets(nil, slog.New(slog.DiscardHandler)), identity: used, shards: map[string]*connection{}}
	for _, name := range []string{"a", "b"} {
		fl.shards[name] = &connection{Shard: shards.New(shards.Options{}), status: infrav1.ShardStatus{Name: name, Connected: new(bool)}}
	}
	changes := 0
	fl.fleets.onClusterChanged(func(client.ObjectKey) { changes++ })
	refuse := func(shard string, id shards.Identity) {
		fl.connectionChanged(fl.shards[shard], false, &shards.Refusal{Certificate: id.Certificate(), Err: nstance.Errorf(nstance.Denied, "revoked")})
	}
	reason := func() string {
		why, _ := fl.useless(now)
		return why
	}
	refuse("a", used)
	require.Empty(t, reason(), "shard b was not asked")
	fl.connectionChanged(fl.shards["b"], false, nstance.Errorf(nstance.Unavailable, "away"))
	require.Empty(t, reason(), "shard b may accept it")
	refuse("b", shards.Identity{Chain: [][]byte{[]byte("former")}})
	require.Empty(t, reason(), "that was another certificate")
	before := changes
	refuse("b", used)
	require.Equal(t, reasonUnaccepted, reason())
	require.Greater(t, changes, before, "a pass is made, though the message is the same")
	fl.connectionChanged(fl.shards["a"], false, nstance.Errorf(nstance.Unavailable, "broken pipe"))
	require.Equal(t, reasonUnaccepted, reason(), "it was not accepted since")
	fl.connectionChanged(fl.shards["a"], true, nil)
	require.Empty(t, reason())

	now = now.Add(time.Hour)
	require.Equal(t, reasonExpired, reason())
	refuse("a", used)
	renewed := shards.Identity{Chain: [][]byte{[]byte("new")}, NotAfter: now.Add(time.Hour)}
	fl.use(renewed)
	require.Empty(t, reason(), "that was another certificate")

	refuse("a", renewed)
	refuse("b", renewed)
	require.Equal(t, reasonUnaccepted, reason())
	close(fl.fleets.ready)
	fl.fleets.byCluster[client.ObjectKey{}] = fl
	nc := &infrav1.NstanceCluster{Spec: infrav1.NstanceClusterSpec{Shards: []infrav1.Shard{{Name: "a"}, {Name: "b", Address: "127.0.0.1:1"}}}}
	_, err := fl.fleets.follow(t.Context(), nc, renewed)
	require.NoError(t, err)
	require.Empty(t, reason(), "another server answers for shard b")
}
