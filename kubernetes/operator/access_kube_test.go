//go:build kube

package operator_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/never"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/operator"
)

func reached(nc *infrav1.NstanceCluster) bool {
	return isTrue(nc, infrav1.ConditionShardsConnected) && isTrue(nc, infrav1.ConditionNodesReached)
}

// shortToken returns a kubeconfig whose token is of an administrator until revoke is called:
// it is bound to a Secret, which is deleted then. The API server remembers a token for ten
// seconds more.
func (w *world) shortToken(name string) (kubeconfig []byte, revoke func()) {
	w.Helper()
	ctx, api, account := w.Context(), w.workload.Client, w.namespace+"-drains"
	accounts, secrets := api.CoreV1().ServiceAccounts("default"), api.CoreV1().Secrets("default")
	if _, err := accounts.Get(ctx, account, metav1.GetOptions{}); err != nil {
		_, err = accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
		require.NoError(w, err)
		_, err = api.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: account}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: account}},
		}, metav1.CreateOptions{})
		require.NoError(w, err)
	}
	bound, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: account + "-" + name}}, metav1.CreateOptions{})
	require.NoError(w, err)
	token, err := accounts.CreateToken(ctx, account, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: bound.Name, UID: bound.UID},
	}}, metav1.CreateOptions{})
	require.NoError(w, err)
	authority, err := os.ReadFile(w.workload.Config.CAFile)
	require.NoError(w, err)
	return w.kubeconfigOf(w.workload.Config.Host, authority, token.Status.Token), func() {
		require.NoError(w, secrets.Delete(ctx, bound.Name, metav1.DeleteOptions{}))
	}
}

func (w *world) kubeconfigOf(server string, authority []byte, token string) []byte {
	w.Helper()
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: server, CertificateAuthorityData: authority}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {Token: token}},
		Contexts:  map[string]*clientcmdapi.Context{"c": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "c",
	})
	require.NoError(w, err)
	return data
}

// storeKubeconfig stores a kubeconfig as a control plane provider does.
func (w *world) storeKubeconfig(data []byte) {
	w.Helper()
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-kubeconfig", Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}},
		Type:       clusterv1.ClusterSecretType, Data: map[string][]byte{"value": data},
	}
	if w.Create(w.Context(), s.DeepCopy()) == nil {
		return
	}
	patch, err := json.Marshal(map[string]any{"data": map[string]any{"value": data}})
	require.NoError(w, err)
	require.NoError(w, w.Patch(w.Context(), s, client.RawPatch(types.MergePatchType, patch)))
}

// lines count log lines by their message.
type lines struct {
	slog.Handler
	mu     sync.Mutex
	counts map[string]int
}

func newLines() *lines { return &lines{Handler: slog.DiscardHandler, counts: map[string]int{}} }

func (*lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[r.Message]++
	return nil
}

func (l *lines) count(message string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[message]
}

// TestKubeTokenRotated: the token of the kubeconfig ends while a drain runs, and a new one is
// stored shortly before. The drain is not begun again, no moment is without it, and the next
// one works.
func TestKubeTokenRotated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	logged := newLines()
	w.options = &operator.Options{Log: slog.New(logged)}
	first, revoke := w.shortToken("1")
	w.storeKubeconfig(first)
	a := w.shards.Start("a", 2)
	w.nonce(w.shards.OperatorNonce())
	w.start()
	nc := w.cluster(a)
	until(w, nc, reached, "reached")
	sg := w.shardGroup("web", 2, nil)
	until(w, sg, ready(2), "ready")
	machines := a.Cloud.Machines()
	n := w.node(machines[0], "nstance:///"+string(machines[0].ID))
	pod := w.slowPod(n.Name)
	require.NoError(t, a.Cloud.Reclaim(machines[0].ID, 5*time.Minute))
	until(w, pod, func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil }, "it is evicted")

	second, _ := w.shortToken("2")
	w.storeKubeconfig(second)
	revoke()
	never.True(t, func() bool {
		return w.Get(t.Context(), client.ObjectKeyFromObject(nc), nc) != nil || !reached(nc)
	}, 15*time.Second, 100*time.Millisecond, "the API server has forgotten the first token by then")
	require.Equal(t, nstance.ExecutorOperator, a.Executor(machines[0].ID))
	zero := client.GracePeriodSeconds(0)
	require.NoError(t, w.Delete(t.Context(), pod, zero))
	w.untilGone(n)
	require.Equal(t, 1, logged.count("drain started"))

	other := w.node(machines[1], "nstance:///"+string(machines[1].ID))
	require.NoError(t, a.Cloud.Reclaim(machines[1].ID, time.Minute))
	w.untilGone(other)
}

// TestKubeNodesLost: without a token that the API server accepts, NodesReached says so, and
// drains have another executor. With one they are the operator's again.
func TestKubeNodesLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, revoke := w.shortToken("1")
	w.storeKubeconfig(first)
	a := w.shards.Start("a", 2)
	w.nonce(w.shards.OperatorNonce())
	w.start()
	nc := w.cluster(a)
	until(w, nc, reached, "reached")
	sg := w.shardGroup("web", 2, nil)
	until(w, sg, ready(2), "ready")
	revoke()
	lost := func(nc *infrav1.NstanceCluster) bool {
		return meta.IsStatusConditionFalse(nc.Status.Conditions, infrav1.ConditionNodesReached)
	}
	until(w, nc, lost, "it says so")
	require.True(t, isTrue(nc, clusterv1.ReadyCondition))
	m := a.Cloud.Machines()[0]
	require.NoError(t, a.Cloud.Reclaim(m.ID, 5*time.Minute))
	require.Eventually(t, func() bool { e := a.Executor(m.ID); return e != "" && e != nstance.ExecutorOperator }, eventually, poll)

	second, _ := w.shortToken("2")
	w.storeKubeconfig(second)
	until(w, nc, reached, "reached again")
	n := w.node(a.Cloud.Machines()[1], "nstance:///"+string(a.Cloud.Machines()[1].ID))
	require.NoError(t, a.Cloud.Reclaim(a.Cloud.Machines()[1].ID, time.Minute))
	w.untilGone(n)
}

// TestKubeNodesNeverReached: an API server that does not answer is not reached, and the
// operator drains nothing.
func TestKubeNodesNeverReached(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	authority, err := os.ReadFile(w.workload.Config.CAFile)
	require.NoError(t, err)
	w.storeKubeconfig(w.kubeconfigOf("https://127.0.0.1:1", authority, "none"))
	a := w.shards.Start("a", 1)
	w.nonce(w.shards.OperatorNonce())
	w.start()
	nc := w.cluster(a)
	until(w, nc, func(nc *infrav1.NstanceCluster) bool {
		c := meta.FindStatusCondition(nc.Status.Conditions, infrav1.ConditionNodesReached)
		return isTrue(nc, infrav1.ConditionShardsConnected) && c != nil && c.Status == metav1.ConditionFalse && c.Reason == "Unreachable"
	}, "it says so")
	until(w, w.shardGroup("web", 1, nil), ready(1), "ready")
	m := a.Cloud.Machines()[0]
	require.NoError(t, a.Cloud.Reclaim(m.ID, time.Minute))
	require.Eventually(t, func() bool { return a.Drains(m.ID) }, eventually, poll)
	require.NotEqual(t, nstance.ExecutorOperator, a.Executor(m.ID))
}
