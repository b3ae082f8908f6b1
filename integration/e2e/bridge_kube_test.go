//go:build kube

package e2e_test

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// The two groups, which differ in their warm pools only.
const (
	bridged = "bridged"
	plain   = "plain"

	bootDelay = 8 * time.Second
	wakeDelay = time.Second

	groupSize, standbySize = 5, 3
	reclaims               = 3
	podsPerNode            = 2 // all that there is room for
	replicas               = groupSize * podsPerNode
	unavailable            = 2
)

// spotGroup is a group of a shard's configuration, whose size its pool says.
func spotGroup(name string, standby int) map[string]any {
	type object = map[string]any
	g := object{
		"template": "node", "size": 0, "drain_timeout": noticePeriod.String(), "market": object{"type": "spot"},
		"args": object{"boot_delay": bootDelay.String(), "wake_delay": wakeDelay.String(), "env": object{envGroup: name}},
	}
	if standby > 0 {
		g["warm_pool"] = object{"size": standby, "mode": "stopped"}
	}
	return g
}

// TestBridgeEndToEnd has three machines of each of two groups taken back at the same moment.
// One group has a warm pool. In each, the nodes are full of the pods of a Deployment with a
// disruption budget, to which a client sends requests. None of those of the bridged group
// fails, and no budget is passed. How long pods were missing in both is reported. Afterwards
// the stand-by machines sleep again.
func TestBridgeEndToEnd(t *testing.T) {
	network, err := os.MkdirTemp("", "pods-") // short, since paths of sockets are
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(network) })
	w := newWorld(t, options{zones: []string{"a"}, network: network, groups: map[string]any{
		bridged: spotGroup(bridged, standbySize), plain: spotGroup(plain, 0),
	}})
	w.cluster()
	admin := w.login()
	for _, group := range []string{bridged, plain} {
		w.pool(group, groupSize, infrav1.NstanceMachinePoolSpec{})
	}
	before := map[string]*groupView{bridged: w.rested(admin, bridged, standbySize), plain: w.rested(admin, plain, 0)}
	loads := map[string]*workload{}
	for group := range before {
		w.serve(group)
	}
	for group := range before {
		loads[group] = w.watch(group)
		w.until("endpoints of "+group+" are ready", func() bool { return w.readyEndpoints(group) == replicas })
	}
	stop := map[string]func() *serviceClient{}
	for group := range before {
		stop[group] = w.newServiceClient(group)
	}

	deadline := time.Now().Add(noticePeriod)
	for group, load := range loads {
		load.notice(before[group].members[:reclaims])
	}
	for n := range reclaims { // of both groups in turn
		for _, v := range before {
			w.interrupt(v.members[n:n+1], noticePeriod)
		}
	}
	require.Eventually(t, func() bool { return loads[bridged].whole() && loads[plain].whole() }, time.Until(deadline), 10*time.Millisecond,
		"all pods are ready elsewhere before the machines end")
	after := map[string]*groupView{bridged: w.rested(admin, bridged, standbySize), plain: w.rested(admin, plain, 0)}

	for _, group := range []string{bridged, plain} {
		load, c := loads[group], stop[group]()
		load.report(w, before[group].standby, c)
		require.GreaterOrEqual(t, load.close().fewest, replicas-unavailable, "%s: ready pods", group)
		w.checkReclaimed(before[group], after[group])
		if group == bridged {
			require.Zero(t, c.failed, "%s: %d of %d requests failed, the first ones:\n%s", group, c.failed, c.requests, strings.Join(c.failures, "\n"))
		}
		require.Greater(t, c.requests, 100, "%s: requests", group)
	}
	w.checkBridged(before[bridged], after[bridged])
	w.checkClient(plain, after[plain].members[0])
}

// checkClient checks that clients count what fails: requests to the pods of a machine that
// ends without notice.
func (w *world) checkClient(group, member string) {
	w.Helper()
	stop := w.newServiceClient(group)
	require.NoError(w, w.zones[0].cloud.Kill(nstance.InstanceID(member)))
	w.until("the node of a killed machine is gone", func() bool {
		var node corev1.Node
		return apierrors.IsNotFound(w.Get(w.Context(), client.ObjectKey{Name: member}, &node))
	})
	c := stop()
	require.NotZero(w, c.failed, "of %d requests", c.requests)
	w.Logf("without notice %d of %d requests fail, the first one at %s", c.failed, c.requests, c.failures[0])
}

// checkReclaimed checks that the machines that were taken back were emptied before, and are
// replaced.
func (w *world) checkReclaimed(before, after *groupView) {
	w.Helper()
	for n, id := range before.members {
		if n >= reclaims {
			require.Contains(w, after.members, id, "a machine that was not taken back stays")
			continue
		}
		require.NotContains(w, after.members, id)
		types := w.events(id)
		require.Contains(w, types, nstance.EventDrainAcknowledged, "%s: %v", id, types)
		require.NotContains(w, types, nstance.EventDrainCutShort, "%s: %v", id, types)
	}
}

// checkBridged checks that stand-by machines ran, and sleep again.
func (w *world) checkBridged(before, after *groupView) {
	w.Helper()
	require.Equal(w, before.standby, after.standby, "the same machines sleep again")
	woken := 0
	for _, id := range after.standby {
		types := w.events(id)
		if n := slices.Index(types, nstance.EventWoken); n >= 0 {
			woken++
			require.Contains(w, types[n:], nstance.EventParked, "%s: %v", id, types)
		}
	}
	require.NotZero(w, woken, "stand-by machines ran")
	w.Logf("%d of %d stand-by machines ran, and sleep again", woken, len(after.standby))
}

// login makes an administrator of the first shard, and returns the folder of its identity.
func (w *world) login() (identity string) {
	w.Helper()
	dir, z := w.TempDir(), w.zones[0]
	identity = filepath.Join(dir, "admin")
	nonce, ca := filepath.Join(dir, "nonce"), filepath.Join(dir, "ca.crt")
	w.admin("cluster", "nonce", "--storage", w.storage, "--cluster", clusterID, "--shard", z.name, "--kind", "admin", "--output", nonce, "--ca-output", ca)
	w.admin("login", "--nonce", nonce, "--ca", ca, "--registration", z.registration, "--operator-addr", z.operator, "--identity", identity)
	return identity
}

// A groupView is what there is of a group: IDs in order.
type groupView struct {
	members, standby []string
}

// rested waits until a group is whole, and its stand-by machines sleep: each record has its
// machine and its node and the other way round, nodes of members take pods, and nodes of
// stand-by machines take none and have none.
func (w *world) rested(identity, group string, standby int) *groupView {
	w.Helper()
	var v *groupView
	w.until(group+" is whole and its stand-by machines sleep", func() bool {
		v = &groupView{}
		records, ok := w.records(identity, group)
		if !ok {
			return false
		}
		for _, r := range records {
			want := record{ID: r.ID, State: string(nstance.Ready), Standby: r.Standby}
			if r.Standby {
				want.State = string(nstance.Parked)
				v.standby = append(v.standby, r.ID)
			} else {
				v.members = append(v.members, r.ID)
			}
			if r != want {
				return false
			}
		}
		return len(v.members) == groupSize && len(v.standby) == standby && w.machinesAre(group, v) && w.nodesAre(group, v)
	})
	return v
}

// A record is an instance, as nstance-admin prints it.
type record struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Standby bool   `json:"standby"`
}

// records returns the instances of a group, if the server says so.
func (w *world) records(identity, group string) (list []record, ok bool) {
	w.Helper()
	program := filepath.Join(os.Getenv(envPrograms), "nstance-admin")
	out, err := exec.CommandContext(w.Context(), program, "instance", "list", "--group", group, "--output", "json", "--identity", identity).Output()
	return list, err == nil && json.Unmarshal(out, &list) == nil
}

// machinesAre reports whether the cloud has these machines of the group and no others, those
// of members running and the others stopped.
func (w *world) machinesAre(group string, v *groupView) bool {
	w.Helper()
	cloud := w.zones[0].cloud
	some, err := cloud.Get(w.Context(), nstance.InstanceID(v.members[0]))
	if err != nil {
		return false
	}
	want, got := map[string]nstance.MachineStatus{}, map[string]nstance.MachineStatus{}
	for _, id := range v.members {
		want[id] = nstance.StatusRunning
	}
	for _, id := range v.standby {
		want[id] = nstance.StatusStopped
	}
	for m, err := range cloud.List(w.Context(), some.Owner) {
		require.NoError(w, err)
		if string(m.Group) == group {
			got[string(m.ID)] = m.Status
		}
	}
	return maps.Equal(want, got)
}

// nodesAre reports whether the group has the nodes of these machines and no others, those of
// members open for pods, the others cordoned and without pods.
func (w *world) nodesAre(group string, v *groupView) bool {
	w.Helper()
	want, got := map[string]bool{}, map[string]bool{} // whether it is cordoned
	for _, id := range v.members {
		want[id] = false
	}
	for _, id := range v.standby {
		want[id] = true
	}
	var nodes corev1.NodeList
	var pods corev1.PodList
	require.NoError(w, w.List(w.Context(), &nodes, client.MatchingLabels{labelGroup: group}))
	require.NoError(w, w.List(w.Context(), &pods, client.InNamespace(w.namespace)))
	for _, n := range nodes.Items {
		got[n.Name] = n.Spec.Unschedulable
	}
	return maps.Equal(want, got) && !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return slices.Contains(v.standby, p.Spec.NodeName) })
}

// serve runs a Deployment with a disruption budget and a Service, which fills the nodes of a
// group.
func (w *world) serve(group string) {
	w.Helper()
	selector := map[string]string{"app": group}
	podLabels := map[string]string{"app": group, labelKubelet: "machine"}
	object := metav1.ObjectMeta{Namespace: w.namespace, Name: group}
	share := resource.MustParse("30") // of 64 processors
	for _, obj := range []client.Object{
		&corev1.Service{ObjectMeta: object, Spec: corev1.ServiceSpec{Selector: selector, Ports: []corev1.ServicePort{{Port: 80}}}},
		&policyv1.PodDisruptionBudget{ObjectMeta: object, Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt(unavailable)), Selector: &metav1.LabelSelector{MatchLabels: selector},
		}},
		&appsv1.Deployment{ObjectMeta: object, Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](replicas), Selector: &metav1.LabelSelector{MatchLabels: selector},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: podLabels}, Spec: corev1.PodSpec{
				NodeSelector: map[string]string{labelGroup: group}, TerminationGracePeriodSeconds: ptr.To(int64(stopGrace / time.Second)),
				Containers: []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: share},
				}}},
			}},
		}},
	} {
		require.NoError(w, w.Create(w.Context(), obj))
	}
	w.until("the budget of "+group+" covers its pods", func() bool {
		var budget policyv1.PodDisruptionBudget
		return w.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: group}, &budget) == nil &&
			budget.Status.ExpectedPods == replicas && budget.Status.DisruptionsAllowed == unavailable
	})
}

// readyEndpoints returns how many endpoints of a Service are ready.
func (w *world) readyEndpoints(service string) (ready int) {
	w.Helper()
	list, err := servers.Client.DiscoveryV1().EndpointSlices(w.namespace).List(w.Context(), metav1.ListOptions{
		LabelSelector: labels.Set{"kubernetes.io/service-name": service}.String(),
	})
	require.NoError(w, err)
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if ptr.Deref(e.Conditions.Ready, false) {
				ready++
			}
		}
	}
	return ready
}

// A workload follows the pods of a Deployment, change by change.
type workload struct {
	group string
	close func() *workload

	mu         sync.Mutex
	nodes      map[types.UID]string // of each pod that is ready and stays
	fewest     int
	lost       []string // nodes
	stay       int      // ready pods on other nodes at the notice
	noticed    time.Time
	first, all time.Duration        // from the notice until one more pod is ready on other nodes, and as many as before
	hosts      map[types.UID]string // node of each pod that was ready since the notice

	missing time.Duration // sum of the times that replicas were not ready since the notice
	since   time.Time
}

// watch begins to follow the pods of a group, which are ready.
func (w *world) watch(group string) *workload {
	w.Helper()
	l := &workload{group: group, nodes: map[types.UID]string{}, hosts: map[types.UID]string{}, fewest: replicas}
	factory := informers.NewSharedInformerFactoryWithOptions(servers.Client, 0, informers.WithNamespace(w.namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = labels.Set{"app": group}.String() }))
	handler, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(pod any, initial bool) { l.update(pod.(*corev1.Pod), initial) }, UpdateFunc: func(_, pod any) { l.update(pod.(*corev1.Pod), false) },
		DeleteFunc: func(obj any) { l.remove(obj) },
	})
	require.NoError(w, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	l.close = sync.OnceValue(func() *workload {
		cancel()
		factory.Shutdown()
		return l
	})
	w.Cleanup(func() { l.close() })
	factory.Start(ctx.Done())
	require.True(w, cache.WaitForCacheSync(w.Context().Done(), handler.HasSynced))
	return l
}

// update records a pod. The first list of pods comes one by one: it says nothing about how
// many were ready at a time.
func (l *workload) update(pod *corev1.Pod, initial bool) {
	ready := pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count()
	if ready {
		l.nodes[pod.UID] = pod.Spec.NodeName
	} else {
		delete(l.nodes, pod.UID)
	}
	if !initial {
		l.fewest = min(l.fewest, len(l.nodes))
	}
	l.measure()
}

func (l *workload) remove(obj any) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		gone := pod.DeepCopy()
		gone.DeletionTimestamp = ptr.To(metav1.Now())
		l.update(gone, false)
	}
}

// count adds the time since the last change, in which the same pods were ready.
func (l *workload) count() {
	now := time.Now()
	if !l.noticed.IsZero() {
		l.missing += time.Duration(max(0, replicas-len(l.nodes))) * now.Sub(l.since)
	}
	l.since = now
}

// measure records when pods were ready elsewhere. The caller holds mu.
func (l *workload) measure() {
	if l.noticed.IsZero() {
		return
	}
	maps.Copy(l.hosts, l.nodes)
	elsewhere := l.elsewhere()
	if l.first == 0 && elsewhere > l.stay {
		l.first = time.Since(l.noticed)
	}
	if l.all == 0 && elsewhere >= replicas {
		l.all = time.Since(l.noticed)
	}
}

// elsewhere returns how many pods are ready on nodes that are not lost.
func (l *workload) elsewhere() (ready int) {
	for _, node := range l.nodes {
		if !slices.Contains(l.lost, node) {
			ready++
		}
	}
	return ready
}

// notice begins to measure: these nodes are about to be lost.
func (l *workload) notice(nodes []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost, l.noticed, l.since = nodes, time.Now(), time.Now()
	l.stay = l.elsewhere()
}

// whole reports whether all replicas have been ready on nodes that stay.
func (l *workload) whole() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all > 0
}

// report logs what was measured, in words and as JSON.
func (l *workload) report(w *world, standby []string, c *serviceClient) {
	w.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count()
	onStandby := 0
	for _, node := range l.hosts {
		if slices.Contains(standby, node) {
			onStandby++
		}
	}
	w.Logf("%-7s  notice → first pod ready elsewhere %6.2f s, → all %6.2f s; %d pods ran on stand-by machines; pods missing %6.1f s in all, fewest ready %d of %d; requests %d, failed %d",
		l.group, l.first.Seconds(), l.all.Seconds(), onStandby, l.missing.Seconds(), l.fewest, replicas, c.requests, c.failed)
	line, err := json.Marshal(map[string]any{
		"group": l.group, "first_ready_s": seconds(l.first), "all_ready_s": seconds(l.all), "on_standby": onStandby, "missing_pod_s": seconds(l.missing),
		"fewest_ready": l.fewest, "replicas": replicas, "requests": c.requests, "failed": c.failed,
	})
	require.NoError(w, err)
	w.Logf("measured %s", line)
}

// seconds returns a duration without its parts of a millisecond.
func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }
