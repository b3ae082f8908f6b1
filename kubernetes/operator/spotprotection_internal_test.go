package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/protection"
)

// TestChangesForProtection: a drain concerns every SpotProtection, a group those that claim its machines,
// and an instance that nothing happens to none.
func TestChangesForProtection(t *testing.T) {
	r, servers := newCertificateRig(t, "a")
	id := r.machines(servers[0], 1)[0]
	list := []infrav1.SpotProtection{*claiming().sp, *claiming().sp}
	list[1].Name, list[1].Spec.Standby.Group = "q", ""
	c := &protectionController{Client: &recorder{protections: list}, fleets: r.fleets}
	concerned := func(group nstance.GroupID, id nstance.InstanceID) (names []string) {
		for _, key := range c.ofChange(change{cluster: client.ObjectKeyFromObject(r.nc), shard: "a", group: group, instance: id}) {
			names = append(names, key.Name)
		}
		return names
	}
	require.Equal(t, []string{"p"}, concerned("spare", ""))
	require.Empty(t, concerned("web", ""))
	require.Empty(t, concerned("web", id))
	require.Empty(t, concerned("web", "unknown"))
	r.drain(servers[0], id)
	r.until(func() bool { return len(concerned("web", id)) == 2 }, "it is drained")

	require.True(t, concernsProtection(&apiv1.Instance{Standby: true}))
	require.True(t, concernsProtection(&apiv1.Instance{Drain: &apiv1.Drain{}}))
	require.False(t, concernsProtection(&apiv1.Instance{}))
}

// TestProtectsReached: until the nodes are reached nothing is protected, nor taken back. Without a
// Cluster nothing is left to take back.
func TestProtectsReached(t *testing.T) {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	ending := cluster.DeepCopy()
	deleting(ending)
	for name, c := range map[string]struct {
		cluster  *clusterv1.Cluster
		deleting bool
		gone     bool
		says     string
		again    bool
	}{
		"no Cluster":                     {nil, false, false, "there is no Cluster c", false},
		"deleted, without a Cluster":     {nil, true, true, "", false},
		"deleted, with its Cluster":      {ending, true, true, "", false},
		"nodes that are not reached":     {cluster, false, false, "are not reached", true},
		"deleted, nodes are not reached": {cluster, true, false, "are not reached", true},
		"the end of a Cluster":           {ending, false, false, "are not reached", true},
	} {
		t.Run(name, func(t *testing.T) {
			sp := claiming().sp
			sp.Finalizers = []string{infrav1.Finalizer}
			if c.deleting {
				deleting(sp)
			}
			f := newFleets(nil, slog.New(slog.DiscardHandler))
			f.byCluster[infrastructureOf(cluster)] = &fleet{nodes: &nodeDrainer{access: newNodeAccess()}}
			result, err := (&protectionController{fleets: f}).protect(t.Context(), sp, c.cluster)
			require.NoError(t, err)
			require.Equal(t, c.gone, len(sp.Finalizers) == 0)
			require.Contains(t, conditions.GetMessage(sp, infrav1.ConditionSynced), c.says)
			require.Equal(t, c.again, result.RequeueAfter == retryKubeconfig)
		})
	}
}

// TestProtectionFails: what only the user can correct is tried again after a while, anything else at once.
func TestProtectionFails(t *testing.T) {
	for code, mistake := range map[nstance.Code]bool{
		nstance.Invalid: true, nstance.Denied: true, nstance.NotFound: true, nstance.Conflict: true, nstance.Unavailable: false, nstance.Quota: false,
	} {
		sp := claiming().sp
		result, err := failed(sp, reasonNotRead, errors.Join(nil, nstance.Errorf(code, "no")))
		require.Equal(t, mistake, err == nil, code)
		require.Equal(t, mistake, result.RequeueAfter == retryRefused, code)
		require.Equal(t, reasonNotRead, conditions.GetReason(sp, infrav1.ConditionSynced))
	}
}

// TestBusyPassesGoOn: while pods are moved or machines claimed, the next pass comes soon, whatever else
// has failed for how long.
func TestBusyPassesGoOn(t *testing.T) {
	for name, c := range map[string]struct {
		busy   bool
		err    error
		again  time.Duration
		failed bool
		reason string
	}{
		"nothing is moved":          {false, nil, idlePass, false, reasonSynced},
		"a mistake":                 {false, nstance.Errorf(nstance.Invalid, "no"), retryRefused, false, reasonNotAccepted},
		"a webhook refuses":         {false, errors.New("no"), 0, true, reasonNotAccepted},
		"moved":                     {true, nil, busyPass, false, reasonSynced},
		"moved, and a mistake":      {true, nstance.Errorf(nstance.Invalid, "no"), busyPass, false, reasonNotAccepted},
		"moved, a webhook refuses":  {true, errors.New("no"), busyPass, false, reasonNotAccepted},
		"moved, a shard is not met": {true, nstance.Errorf(nstance.Unavailable, "away"), busyPass, false, reasonNotAccepted},
	} {
		t.Run(name, func(t *testing.T) {
			s := claiming()
			s.busy = c.busy
			result, err := s.next(c.err)
			require.Equal(t, c.failed, err != nil)
			require.Equal(t, c.again, result.RequeueAfter)
			require.Equal(t, c.reason, conditions.GetReason(s.sp, infrav1.ConditionSynced))
		})
	}
	s := claiming()
	s.unread = errors.New("NodeClaims cannot be listed")
	result, err := s.next(nil)
	require.NoError(t, err)
	require.Equal(t, idlePass, result.RequeueAfter)
	require.Equal(t, reasonNotRead, conditions.GetReason(s.sp, infrav1.ConditionSynced), "it is said")
}

// TestNodesThatLast: pods may stay on a node that nothing ends. They lose one that its cloud takes back,
// and one that is scaled down if that is protected.
func TestNodesThatLast(t *testing.T) {
	signal := func(cause protection.Cause) *protection.Signal { return &protection.Signal{Cause: cause} }
	notice := &apiv1.Drain{Causes: []*apiv1.Cause{{Kind: string(nstance.CauseNotice)}}}
	rollout := &apiv1.Drain{Causes: []*apiv1.Cause{{Kind: string(nstance.CauseRollout)}}}
	for name, c := range map[string]struct {
		node        surveyedNode
		lost, lasts bool
	}{
		"one of others":                   {surveyedNode{}, false, true},
		"one of a shard":                  {surveyedNode{instance: &apiv1.Instance{}}, false, true},
		"one that stands by":              {surveyedNode{instance: &apiv1.Instance{Standby: true}}, false, false},
		"reclaimed":                       {surveyedNode{signal: signal(protection.Reclaim)}, true, false},
		"scaled down":                     {surveyedNode{signal: signal(protection.ScaleDown)}, false, false},
		"scaled down, of the spot market": {surveyedNode{signal: signal(protection.ScaleDown), interruptible: true}, true, false},
		"noticed":                         {surveyedNode{instance: &apiv1.Instance{Drain: notice}}, true, false},
		"rolled out":                      {surveyedNode{instance: &apiv1.Instance{Drain: rollout}}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.node.Node = &corev1.Node{}
			require.Equal(t, c.lost, c.node.lost())
			require.Equal(t, c.lasts, c.node.lasting())
			deleting(c.node.Node)
			require.False(t, c.node.lasting())
		})
	}
	var unknown *surveyedNode
	require.False(t, unknown.lost() || unknown.lasting())
}

// TestDescribesWorkload: living pods on nodes that a cloud may take back are protected, if their workload is.
func TestDescribesWorkload(t *testing.T) {
	s := claiming()
	s.with("spot", nil).interruptible = true
	s.with("dear", nil)
	ended := on("spot", false, nil)
	ended.Status.Phase = corev1.PodSucceeded
	w := s.workload(3, on("spot", true, nil), on("dear", true, nil), on("gone", true, nil), ended)
	former := infrav1.Interruption{Node: "former"}
	s.sp.Status.Workloads = []infrav1.ProtectedWorkload{{Kind: infrav1.KindStatefulSet, Namespace: "ns", Name: "web"}, {Kind: infrav1.KindDeployment, Namespace: "ns", Name: "web", LastInterruption: former}}
	w.admission.Budget = &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
	s.describe(w)
	require.EqualValues(t, 1, *w.status.ProtectedPods)
	require.True(t, *w.status.Admitted)
	require.Equal(t, "b", w.status.Budget)
	require.Equal(t, former, w.status.LastInterruption)
	w.admission = protection.Admission{Reason: "NoBudget"}
	s.describe(w)
	require.Zero(t, *w.status.ProtectedPods)
	require.False(t, *w.status.Admitted)
	require.Empty(t, w.status.Budget)
}

// TestShowsProtection: the first five workloads that are not protected are named, and how many are too many.
func TestShowsProtection(t *testing.T) {
	s := claiming()
	for i := range 7 {
		w := s.workload(1)
		w.Object.SetName(fmt.Sprintf("w%d", i))
		if i > 0 {
			w.admission = protection.Admission{Reason: "NoBudget"}
		}
		s.describe(w)
	}
	message := func() string {
		s.show()
		require.EqualValues(t, 1, *s.sp.Status.AdmittedWorkloads)
		return conditions.GetMessage(s.sp, infrav1.ConditionAdmitted)
	}
	s.selected = 7
	require.Equal(t, "6 of 7 workloads are not protected; ns/w1: NoBudget; ns/w2: NoBudget; ns/w3: NoBudget; ns/w4: NoBudget; ns/w5: NoBudget", message())
	s.selected = maxWorkloads + 2
	require.True(t, strings.HasPrefix(message(), "129 of 130 workloads are not protected, 2 of them because one SpotProtection protects at most 128: use several; "), message())
	s.workloads, s.selected = s.workloads[:1], 1
	require.Empty(t, message())
	require.True(t, conditions.IsTrue(s.sp, infrav1.ConditionAdmitted))
	s.selected = maxWorkloads + 1
	require.NotEmpty(t, message())
}

// TestWithdraws: a SpotProtection goes after a pass that has found nothing to take back.
func TestWithdraws(t *testing.T) {
	s, cluster := leavingSurvey()
	s.sp.Finalizers = []string{infrav1.Finalizer}
	withdraw := func() bool {
		s.busy = false
		s.workloads = []*surveyedWorkload{{Workload: protection.DeploymentWorkload(cluster.deployment), pods: cluster.pods}}
		require.NoError(t, (&protectionController{uncached: cluster}).withdraw(t.Context(), s))
		return len(s.sp.Finalizers) == 0
	}
	require.False(t, withdraw())
	require.EqualValues(t, 2, *cluster.deployment.Spec.Replicas)
	require.True(t, withdraw())
}

// someWorkloads lists Deployments and StatefulSets, in no order.
type someWorkloads struct {
	client.Client
	of map[string][]string // names, by kind
}

func (s someWorkloads) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch l := list.(type) {
	case *appsv1.DeploymentList:
		for _, name := range s.of[infrav1.KindDeployment] {
			l.Items = append(l.Items, appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}})
		}
	case *appsv1.StatefulSetList:
		for _, name := range s.of[infrav1.KindStatefulSet] {
			l.Items = append(l.Items, appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}})
		}
	}
	return nil
}

// TestListsWorkloads: of too many the same ones are left out each time.
func TestListsWorkloads(t *testing.T) {
	of := map[string][]string{infrav1.KindStatefulSet: {"a"}}
	for i := range maxWorkloads {
		of[infrav1.KindDeployment] = append(of[infrav1.KindDeployment], fmt.Sprintf("w%03d", maxWorkloads-i))
	}
	s := claiming()
	s.objects, s.sp.Spec.Selector = someWorkloads{of: of}, &metav1.LabelSelector{}
	require.NoError(t, s.listWorkloads(t.Context()))
	require.Equal(t, maxWorkloads+1, s.selected)
	require.Len(t, s.workloads, maxWorkloads)
	require.Equal(t, "w001", s.workloads[0].Name())
	require.Equal(t, infrav1.KindDeployment, s.workloads[maxWorkloads-1].Kind)
}

// TestListsOwnPods: a pod with the labels of a workload need not be one of it.
func TestListsOwnPods(t *testing.T) {
	cluster, sp := surged()
	stray := *cluster.pods[0].DeepCopy()
	stray.Name, stray.OwnerReferences = "stray", []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "api-1", Controller: ptr.To(true)}}
	cluster.pods = append(cluster.pods, stray)
	w := &surveyedWorkload{Workload: protection.DeploymentWorkload(cluster.deployment)}
	require.NoError(t, (&survey{sp: sp, objects: cluster}).listPods(t.Context(), w))
	require.Len(t, w.pods, 1)
	require.Equal(t, "web-1-a", w.pods[0].Name)
}
