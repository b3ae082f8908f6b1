//go:build kube

package nodedrain_test

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

var (
	background = context.Background()
	create     = metav1.CreateOptions{}
	remove     = metav1.DeleteOptions{}
)

// TestKubeLabels: pods labelled skip stay, those labelled wait-completed finish.
func TestKubeLabels(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.pod("skip", a, func(p *corev1.Pod) { p.Labels["cluster.x-k8s.io/drain"] = "skip" })
	r.pod("job", a, func(p *corev1.Pod) { p.Labels["cluster.x-k8s.io/drain"] = "wait-completed" })
	r.pod("web", a, nil)
	r.run(nil)
	d := r.drain(a, time.Minute, voluntary)
	r.eventually(func() bool { return r.getPod("web") == nil }, "not evicted")
	require.True(t, podReady(r.getPod("job")))
	require.False(t, acks(r, d))
	complete := []byte(`{"metadata":{"annotations":{"test.nstance.dev/complete":"true"}}}`)
	_, err := servers.Client.CoreV1().Pods(r.namespace).Patch(t.Context(), "job", types.MergePatchType, complete, metav1.PatchOptions{})
	require.NoError(t, err)
	require.Equal(t, nstance.OutcomeDrained, r.ack(d).Outcome)
	require.Equal(t, corev1.PodSucceeded, r.getPod("job").Status.Phase, "not evicted")
	require.True(t, podReady(r.getPod("skip")))
}

// TestKubeDoNotDisrupt: a pod that refuses disruption is left alone by a voluntary drain, and
// not by a notice.
func TestKubeDoNotDisrupt(t *testing.T) {
	for name, value := range map[string]string{"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a := r.node("a")
			r.pod("stays", a, func(p *corev1.Pod) { p.Annotations = map[string]string{name: value} })
			r.pod("web", a, nil)
			r.run(nil)
			d := r.drain(a, time.Minute, voluntary)
			r.eventually(func() bool { return r.getPod("web") == nil }, "not evicted")
			r.eventually(func() bool {
				return strings.Contains(r.get(a).Annotations["nstance.dev/drain-progress"], "it has the annotation "+name+"="+value)
			}, "it says for what it waits")
			require.True(t, podReady(r.getPod("stays")))
			require.False(t, acks(r, d))
			d.Voluntary = false
			require.NoError(t, r.drains.Start(t.Context(), d))
			require.Equal(t, nstance.OutcomeDrained, r.ack(d).Outcome)
			require.Nil(t, r.getPod("stays"))
		})
	}
}

// TestKubeCordonOnly: pods of a node that is only cordoned end by themselves, until another
// cause has the node drained.
func TestKubeCordonOnly(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.pod("job", a, nil)
	r.pod("web", a, nil)
	r.run(nil)
	d := r.drain(a, time.Minute, func(d *nstance.Drain) { d.CordonOnly = true })
	r.eventually(func() bool { return r.get(a).Spec.Unschedulable }, "not cordoned")
	complete := []byte(`{"metadata":{"annotations":{"test.nstance.dev/complete":"true"}}}`)
	_, err := servers.Client.CoreV1().Pods(r.namespace).Patch(t.Context(), "job", types.MergePatchType, complete, metav1.PatchOptions{})
	require.NoError(t, err)
	r.eventually(func() bool { return r.getPod("job").Status.Phase == corev1.PodSucceeded }, "the job has not ended")
	r.eventually(func() bool { return len(r.requests.matching(listings)) >= 3 }, "not waited for")
	require.Empty(t, r.requests.matching(evictions))
	require.True(t, podReady(r.getPod("web")))
	require.False(t, acks(r, d))

	d.CordonOnly = false
	require.NoError(t, r.drains.Start(t.Context(), d))
	require.Equal(t, nstance.OutcomeDrained, r.ack(d).Outcome)
	require.Nil(t, r.getPod("web"))
}

// TestKubeDaemonSet: pods of a DaemonSet stay, unless it does not exist.
func TestKubeDaemonSet(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	labels := map[string]string{"app": "agent"}
	spec := podSpec()
	spec.NodeSelector = map[string]string{"test": r.namespace}
	set, err := servers.Client.AppsV1().DaemonSets(r.namespace).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}, create)
	require.NoError(t, err)
	agents := func() *corev1.PodList {
		list, err := servers.Client.CoreV1().Pods(r.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=agent"})
		require.NoError(t, err)
		return list
	}
	r.eventually(func() bool { l := agents(); return len(l.Items) == 1 && podReady(&l.Items[0]) }, "the DaemonSet's pod")
	r.run(nil)
	require.Equal(t, nstance.OutcomeDrained, r.ack(r.drain(a, time.Minute, nil)).Outcome)
	require.Len(t, agents().Items, 1)
	require.True(t, podReady(&agents().Items[0]))
	require.Empty(t, r.requests.matching(evictions))

	// The garbage collector deletes the pod of a DaemonSet that is gone, but it takes its time to end.
	other, yes := r.node("b"), true
	r.pod("foreign", other, func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps.example.com/v1", Kind: "DaemonSet", Name: "foreign", UID: "1", Controller: &yes}}
	})
	r.makePod("orphan", other, func(p *corev1.Pod) {
		p.Labels["test.nstance.dev/stop"] = "never"
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "forgotten", UID: set.UID, Controller: &yes}}
	})
	r.requests.clear()
	d := r.drain(other, time.Minute, nil)
	r.eventually(func() bool { return len(r.requests.matching(listings)) >= 3 }, "not waited for")
	require.False(t, acks(r, d))
	r.killPod("orphan")
	require.Equal(t, nstance.OutcomeDrained, r.ack(d).Outcome)
	require.True(t, podReady(r.getPod("foreign")))
}

func listings(q request) bool { return q.path == "/api/v1/pods" }

// TestKubeVolumes: a drain waits for volumes, but not for those of pods that stay.
func TestKubeVolumes(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	claim := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
		}
	}
	staying := r.namespace + "-staying"
	kept := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Spec: corev1.PersistentVolumeClaimSpec{
		VolumeName: staying, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(string),
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
	_, err := servers.Client.CoreV1().PersistentVolumeClaims(r.namespace).Create(t.Context(), kept, create)
	require.NoError(t, err)
	r.pod("db", a, claim("none"))
	r.pod("stays", a, func(p *corev1.Pod) {
		claim("kept")(p)
		p.Labels["cluster.x-k8s.io/drain"] = "skip"
	})
	attach := func(volume string) string {
		name := "attached-" + volume
		_, err := servers.Client.StorageV1().VolumeAttachments().Create(t.Context(), &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: "test.nstance.dev", NodeName: a, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume}},
		}, create)
		require.NoError(t, err)
		t.Cleanup(func() { _ = servers.Client.StorageV1().VolumeAttachments().Delete(background, name, remove) })
		return name
	}
	attach(staying)
	leaving := attach(r.namespace + "-leaving")
	r.run(nil)
	d := r.drain(a, time.Minute, nil)
	attachmentLists := func() int {
		return len(r.requests.matching(func(q request) bool { return q.path == "/apis/storage.k8s.io/v1/volumeattachments" }))
	}
	r.eventually(func() bool { return r.getPod("db") == nil && attachmentLists() >= 2 }, "volumes are not waited for")
	require.False(t, acks(r, d))
	require.NoError(t, servers.Client.StorageV1().VolumeAttachments().Delete(t.Context(), leaving, remove))
	require.Equal(t, nstance.OutcomeDrained, r.ack(d).Outcome)
}

// TestKubeGone: the node of a machine that is gone goes at once, and its pods move.
func TestKubeGone(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.deployment(2, nil)
	b := r.node("b")
	d, _ := r.run(nil)
	watch, err := servers.Client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + a})
	require.NoError(t, err)
	defer watch.Stop()
	began := time.Now()
	r.eventually(func() bool { return d.Gone(t.Context(), "", "i-"+a) == nil }, "not gone")
	require.Less(t, time.Since(began), 5*time.Second)
	tainted := false
	for e := range watch.ResultChan() {
		node := e.Object.(*corev1.Node)
		for _, taint := range node.Spec.Taints {
			tainted = tainted || taint.ToString() == "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
		}
		if e.Type == "DELETED" {
			break
		}
	}
	require.True(t, tainted)
	r.eventually(func() bool { p := r.readyPods(); return len(p) == 2 && p[0] == b && p[1] == b }, "pods have not moved")
	r.eventually(func() bool { return d.Gone(t.Context(), "", "i-"+a) == nil }, "gone twice")
	require.NoError(t, d.Gone(t.Context(), "", "i-unknown"))
}

// TestKubeGoneWithVolumes: the node of a machine that is gone is there, tainted, until its
// volumes are detached.
func TestKubeGoneWithVolumes(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	volume := r.namespace + "-data"
	_, err := servers.Client.StorageV1().VolumeAttachments().Create(t.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: volume},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: "test.nstance.dev", NodeName: a, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume}},
	}, create)
	require.NoError(t, err)
	t.Cleanup(func() { _ = servers.Client.StorageV1().VolumeAttachments().Delete(background, volume, remove) })
	d, _ := r.run(nil)
	gone := make(chan error, 1)
	go func() {
		for {
			if err := d.Gone(t.Context(), "", "i-"+a); nstance.CodeOf(err) != nstance.Unavailable {
				gone <- err
				return
			}
		}
	}()
	tainted := func() bool {
		node, err := servers.Client.CoreV1().Nodes().Get(t.Context(), a, metav1.GetOptions{})
		require.NoError(t, err, "deleted before its volumes are detached")
		return len(node.Spec.Taints) > 0
	}
	r.eventually(tainted, "not tainted")
	looks := func() int {
		return len(r.requests.matching(func(q request) bool { return q.path == "/apis/storage.k8s.io/v1/volumeattachments" }))
	}
	r.eventually(func() bool { return tainted() && looks() >= 3 }, "volumes are not waited for")
	require.Empty(t, gone)
	require.NoError(t, servers.Client.StorageV1().VolumeAttachments().Delete(t.Context(), volume, remove))
	require.NoError(t, <-gone)
	_, err = servers.Client.CoreV1().Nodes().Get(t.Context(), a, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
}

// TestKubeGoneOfAnotherCluster: a number is no identity, nor is the end of one.
func TestKubeGoneOfAnotherCluster(t *testing.T) {
	r := newRig(t)
	node, err := servers.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: r.namespace + "-101"}, Spec: corev1.NodeSpec{ProviderID: "proxmox://other/101"},
	}, create)
	require.NoError(t, err)
	t.Cleanup(func() { _ = servers.Client.CoreV1().Nodes().Delete(background, node.Name, remove) })
	d, _ := r.run(nil)
	id, err := nstance.NewInstanceID("web", time.Now())
	require.NoError(t, err)
	r.eventually(func() bool { return d.Gone(t.Context(), id, "101") == nil }, "nodes are not known")
	_, err = servers.Client.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})
	require.NoError(t, err)
}

// TestKubeTiers: critical pods go when the others are gone.
func TestKubeTiers(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.pod("web", a, slow(2))
	r.pod("dns", a, func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-cluster-critical" })
	r.run(nil)
	d := r.drain(a, time.Minute, nil)
	require.Equal(t, nstance.OutcomeDrained, r.ack(d).Outcome)
	sent := r.requests.matching(evictions)
	require.Len(t, sent, 2)
	require.Contains(t, sent[0].path, "/pods/web/")
	require.Contains(t, sent[1].path, "/pods/dns/")
	require.GreaterOrEqual(t, sent[1].at.Sub(sent[0].at), time.Second, "the first has ended before")
}

// TestKubeTightened: a drain only ever shortens.
func TestKubeTightened(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.pod("p", a, nil)
	r.budget(0)
	r.run(nil)
	d := r.drain(a, time.Minute, voluntary)
	r.eventually(func() bool { return len(r.requests.matching(evictions)) > 0 }, "not begun")
	d.Deadline, d.Voluntary = time.Now().Add(4*time.Second), false
	require.NoError(t, r.drains.Start(t.Context(), d))
	ack := r.ack(d)
	require.Equal(t, nstance.OutcomeDrained, ack.Outcome, "past its budget, since it is involuntary now")
	require.Contains(t, ack.Message, "pdb_overridden")
	require.True(t, time.Now().Before(d.Deadline))
	require.Equal(t, d.Deadline.UTC().Format(time.RFC3339), r.get(a).Annotations["nstance.dev/drain-deadline"])
	r.eventually(func() bool { return len(r.eventsOf("default", a, "DrainTightened")) == 1 }, "event on the node")
}

// TestKubeTightenedGrace: a pod that was evicted with a long grace period is given what
// the tightened drain has left, by one request.
func TestKubeTightenedGrace(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.pod("p", a, slow(900))
	r.run(nil)
	d := r.drain(a, 10*time.Minute, voluntary)
	r.eventually(func() bool { p := r.getPod("p"); return p != nil && p.DeletionTimestamp != nil }, "not evicted")
	require.InDelta(t, 598, *r.getPod("p").DeletionGracePeriodSeconds, 10)
	d.Deadline, d.Voluntary = time.Now().Add(8*time.Second), false
	require.NoError(t, r.drains.Start(t.Context(), d))
	r.eventually(func() bool { p := r.getPod("p"); return p == nil || *p.DeletionGracePeriodSeconds <= 6 }, "grace period not shortened")
	ack := r.ack(d)
	require.Equal(t, nstance.OutcomeDrained, ack.Outcome, ack.Message)
	require.Empty(t, ack.Message, "no disruption budget is overridden")
	require.True(t, time.Now().Before(d.Deadline))
	require.Len(t, r.requests.matching(func(q request) bool { return q.method == http.MethodDelete }), 1)
	r.eventually(func() bool { return len(r.eventsOf(r.namespace, "p", "GraceShortened")) == 1 }, "event on the pod")
}

// TestKubeStops: another executor, and the end of the drain, stop it.
func TestKubeStops(t *testing.T) {
	r := newRig(t)
	a, b := r.node("a"), r.node("b")
	r.pod("p", a, nil)
	r.pod("q", b, nil)
	r.budget(0)
	hooks := &hooks{}
	r.run(&nodedrain.Options{Hooks: hooks})
	da, db := r.drain(a, time.Minute, nil), r.drain(b, time.Minute, nil)
	r.eventually(func() bool { return annotated(r.get(a)) && annotated(r.get(b)) }, "not begun")
	da.Executor = nstance.ExecutorAgent
	require.NoError(t, r.drains.Start(t.Context(), da))
	require.NoError(t, r.drains.End(t.Context(), db.Instance))
	r.eventually(func() bool { return hooks.ended(a) == nodedrain.Reassigned && hooks.ended(b) == nodedrain.Ended }, "hooks")
	require.True(t, r.get(a).Spec.Unschedulable)
	require.True(t, r.get(b).Spec.Unschedulable)
	r.requests.clear()
	da.Executor = nstance.ExecutorOperator
	require.NoError(t, r.drains.Start(t.Context(), da))
	r.eventually(func() bool { return len(r.requests.matching(evictions)) > 0 }, "not taken up again")
	for _, q := range r.requests.matching(evictions) {
		require.Contains(t, q.path, "/pods/p/")
	}
}

// TestKubeHooks: they frame the drain, and have a say about its cancellation.
func TestKubeHooks(t *testing.T) {
	r := newRig(t)
	a, b := r.node("a"), r.node("b")
	hooks := &hooks{stay: map[string]bool{b: true}, fail: true}
	r.run(&nodedrain.Options{Hooks: hooks})
	da, db := r.drain(a, time.Minute, nil), r.drain(b, time.Minute, nil)
	require.Equal(t, nstance.OutcomeDrained, r.ack(da).Outcome, "errors of hooks delay nothing")
	require.Equal(t, nstance.OutcomeDrained, r.ack(db).Outcome)
	require.Equal(t, nodedrain.Drained, hooks.ended(a))
	require.Equal(t, map[string]bool{a: false, b: false}, hooks.cordonedAtBegin())
	require.NoError(t, r.drains.Cancel(t.Context(), da.Instance, 1))
	require.NoError(t, r.drains.Cancel(t.Context(), db.Instance, 1))
	r.eventually(func() bool { return !annotated(r.get(a)) && !annotated(r.get(b)) }, "not taken back")
	require.False(t, r.get(a).Spec.Unschedulable)
	require.True(t, r.get(b).Spec.Unschedulable)
	require.Equal(t, nodedrain.Cancelled, hooks.ended(a))
}

// TestKubeRules: rules say which pods stay and in which order others go.
func TestKubeRules(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	for _, name := range []string{"first", "second", "stays"} {
		r.pod(name, a, nil)
	}
	r.run(&nodedrain.Options{Rules: rules{"second": {Order: 1}, "stays": {Behavior: nodedrain.Skip}}})
	require.Equal(t, nstance.OutcomeDrained, r.ack(r.drain(a, time.Minute, nil)).Outcome)
	sent := r.requests.matching(evictions)
	require.Len(t, sent, 2)
	require.Contains(t, sent[0].path, "/pods/first/")
	require.Contains(t, sent[1].path, "/pods/second/")
}

type rules map[string]nodedrain.Rule

func (r rules) Rule(_ context.Context, _ nstance.Drain, _ *corev1.Node, pod *corev1.Pod) (nodedrain.Rule, error) {
	return r[pod.Name], nil
}

// TestKubeTargets: the last schedulable nodes stay targets of load balancers.
func TestKubeTargets(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.run(&nodedrain.Options{MinTargets: 100_000})
	require.Equal(t, nstance.OutcomeDrained, r.ack(r.drain(a, time.Minute, nil)).Outcome)
	require.True(t, r.get(a).Spec.Unschedulable)
	require.False(t, excluded(r.get(a)))
}

type hooks struct {
	stay map[string]bool // nodes that must not be uncordoned
	fail bool            // Begin fails

	mu     sync.Mutex
	begins map[string]bool // whether it was cordoned
	ends   map[string]nodedrain.Ending
}

func (h *hooks) Begin(_ context.Context, _ nstance.Drain, node *corev1.Node) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.begins == nil {
		h.begins = map[string]bool{}
	}
	h.begins[node.Name] = node.Spec.Unschedulable
	if h.fail {
		return errors.New("the management cluster does not answer")
	}
	return nil
}

func (h *hooks) End(_ context.Context, _ nstance.Drain, node *corev1.Node, r nodedrain.Result) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ends == nil {
		h.ends = map[string]nodedrain.Ending{}
	}
	h.ends[node.Name] = r.Ending
	return nil
}

func (h *hooks) MayUncordon(_ context.Context, _ nstance.Drain, node *corev1.Node) (bool, error) {
	return !h.stay[node.Name], nil
}

func (h *hooks) ended(node string) nodedrain.Ending {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ends[node]
}

func (h *hooks) cordonedAtBegin() map[string]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.begins
}

// TestKubeSilentNode: a silent kubelet cannot confirm the end of its pods, so their
// grace periods decide.
func TestKubeSilentNode(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.pod("p", a, func(p *corev1.Pod) { p.Labels["test.nstance.dev/stop"] = "never" })
	r.patch(a, `{"metadata":{"annotations":{"test.nstance.dev/silent":"true"}}}`)
	r.run(nil)
	d := r.drain(a, time.Minute, nil)
	r.eventually(func() bool {
		return r.getPod("p").DeletionTimestamp != nil && time.Now().After(r.getPod("p").DeletionTimestamp.Add(time.Second))
	}, "not evicted")
	require.False(t, acks(r, d), "a kubelet that is not silent will confirm it")
	silent := []byte(`{"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}`)
	_, err := servers.Client.CoreV1().Nodes().Patch(t.Context(), a, types.StrategicMergePatchType, silent, metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	require.Equal(t, nstance.OutcomeDrained, r.ack(d).Outcome)
	require.NotNil(t, r.getPod("p"))
	r.killPod("p")
}

// TestKubeReplacedPod: a pod of the same name is not evicted in the place of another.
func TestKubeReplacedPod(t *testing.T) {
	r := newRig(t)
	a, b := r.node("a"), r.node("b")
	keep := func(p *corev1.Pod) { p.Labels["test.nstance.dev/stop"] = "never" } // kwok ends pods by name
	r.pod("db-0", a, keep)
	r.requests.before = func(q request) {
		if !evictions(q) {
			return
		}
		r.requests.before = nil
		r.killPod("db-0")
		r.makePod("db-0", b, keep)
	}
	r.run(nil)
	require.Equal(t, nstance.OutcomeDrained, r.ack(r.drain(a, time.Minute, nil)).Outcome)
	require.Len(t, r.requests.matching(evictions), 1)
	require.Nil(t, r.getPod("db-0").DeletionTimestamp)
	r.killPod("db-0")
}

// TestKubeCordonedMeanwhile: a cordon of another that comes a moment before ours stays.
func TestKubeCordonedMeanwhile(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.requests.before = func(q request) {
		if q.method == http.MethodPatch {
			r.requests.before = nil
			r.patch(a, `{"spec":{"unschedulable":true}}`)
		}
	}
	r.run(nil)
	d := r.drain(a, time.Minute, nil)
	require.Equal(t, nstance.OutcomeDrained, r.ack(d).Outcome)
	require.True(t, annotated(r.get(a)))
	require.NoError(t, r.drains.Cancel(t.Context(), d.Instance, d.Generation))
	r.eventually(func() bool { return !annotated(r.get(a)) }, "not taken back")
	require.True(t, r.get(a).Spec.Unschedulable)
}

// TestKubeNodeDeleted: a node that is deleted in its drain is not drained, until it is
// there again and empty.
func TestKubeNodeDeleted(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.pod("job", a, func(p *corev1.Pod) { p.Labels["cluster.x-k8s.io/drain"] = "wait-completed" })
	r.run(nil)
	d := r.drain(a, time.Minute, nil)
	r.eventually(func() bool { return annotated(r.get(a)) }, "not begun")
	r.requests.clear() // before the Node goes: the listing that is awaited may follow at once
	require.NoError(t, servers.Client.CoreV1().Nodes().Delete(t.Context(), a, remove))
	r.killPod("job")
	r.eventually(func() bool { return len(r.requests.matching(listings)) >= 1 }, "not looked at")
	require.False(t, acks(r, d))
	r.makeNode(a)
	require.Equal(t, nstance.OutcomeDrained, r.ack(d).Outcome)
	require.True(t, r.get(a).Spec.Unschedulable)
}

// A steppedWatch lets a test act between two events of a watch, and break it off.
type steppedWatch struct {
	nstance.DrainCoordinator
	step func(nstance.DrainEvent) error
}

func (s *steppedWatch) Watch(ctx context.Context, tenant nstance.TenantID, _ nstance.Seq) iter.Seq2[nstance.DrainEvent, error] {
	return func(yield func(nstance.DrainEvent, error) bool) {
		for e, err := range s.DrainCoordinator.Watch(ctx, tenant, 0) {
			if err == nil {
				err = s.step(e)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// TestKubeSnapshot: nothing is evicted before the last drain of a snapshot is known.
func TestKubeSnapshot(t *testing.T) {
	r := newRig(t)
	a, b := r.node("a"), r.node("b")
	r.pod("p", a, nil)
	r.pod("q", b, nil)
	da, db := r.drain(a, time.Minute, nil), r.drain(b, 2*time.Minute, nil)
	r.watched = &steppedWatch{r.drains, func(e nstance.DrainEvent) error {
		if e.Type == nstance.DrainSnapshot && e.Drain.Instance == db.Instance {
			r.await(func() bool { return r.get(a).Spec.Unschedulable }, "the first is not cordoned at once")
			sleep.For(t.Context(), 500*time.Millisecond)
			if len(r.requests.matching(evictions)) > 0 {
				t.Error("evicted before the snapshot was complete")
			}
		}
		return nil
	}}
	r.run(nil)
	require.Equal(t, nstance.OutcomeDrained, r.ack(da).Outcome)
	require.Equal(t, nstance.OutcomeDrained, r.ack(db).Outcome)
}

// TestKubeEndedUnseen: a drain that a later snapshot does not have is over.
func TestKubeEndedUnseen(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.pod("p", a, nil)
	r.budget(0)
	hooks := &hooks{}
	d := r.drain(a, time.Minute, nil)
	r.watched = &steppedWatch{r.drains, func(e nstance.DrainEvent) error {
		if e.Type != nstance.DrainSynced || hooks.cordonedAtBegin() != nil {
			return nil
		}
		r.await(func() bool { return hooks.cordonedAtBegin() != nil }, "not begun")
		return errors.Join(r.drains.End(t.Context(), d.Instance), nstance.Unavailable)
	}}
	r.run(&nodedrain.Options{Hooks: hooks})
	r.eventually(func() bool { return hooks.ended(a) == nodedrain.Ended }, "not stopped")
	require.True(t, podReady(r.getPod("p")))
}

// TestKubeTrickle: a drain that is requested right after another one's cordon is still
// cordoned before a pod is evicted.
func TestKubeTrickle(t *testing.T) {
	r := newRig(t)
	a, b := r.node("a"), r.node("b")
	r.pod("p", a, nil)
	requested := make(chan nstance.Drain, 1)
	r.requests.after = func(q request) {
		if q.method == http.MethodPatch {
			r.requests.after = nil
			time.AfterFunc(60*time.Millisecond, func() { requested <- r.drain(b, time.Minute, nil) })
		}
	}
	r.run(&nodedrain.Options{QPS: 1000})
	da := r.drain(a, time.Minute, nil)
	require.Equal(t, nstance.OutcomeDrained, r.ack(da).Outcome)
	require.Equal(t, nstance.OutcomeDrained, r.ack(<-requested).Outcome)
	cordon := r.requests.matching(func(q request) bool { return q.method == http.MethodPatch && q.path == "/api/v1/nodes/"+b })
	require.True(t, cordon[0].at.Before(r.requests.matching(evictions)[0].at))
}
