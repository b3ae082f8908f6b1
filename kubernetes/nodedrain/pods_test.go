package nodedrain_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

func TestNewRefuses(t *testing.T) {
	cfg, drains := &rest.Config{Host: "https://127.0.0.1:1"}, drain.New(nil)
	for name, c := range map[string]struct {
		cfg    *rest.Config
		drains nstance.DrainCoordinator
		opts   *nodedrain.Options
		field  string
	}{
		"no configuration":  {nil, drains, nil, "cfg"},
		"no coordinator":    {cfg, nil, nil, "drains"},
		"bad configuration": {&rest.Config{Host: "https://a b"}, drains, nil, "cfg"},
		"negative margin":   {cfg, drains, &nodedrain.Options{Margin: -1}, "margin"},
		"negative targets":  {cfg, drains, &nodedrain.Options{MinTargets: -1}, "min_targets"},
		"negative calls":    {cfg, drains, &nodedrain.Options{MaxCalls: -1}, "max_calls"},
		"negative rate":     {cfg, drains, &nodedrain.Options{QPS: -1}, "qps"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := nodedrain.New(c.cfg, c.drains, c.opts)
			require.ErrorIs(t, err, nstance.Invalid)
			var e *nstance.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, c.field, e.Field)
			require.NotEmpty(t, e.Remedy)
		})
	}
}

func TestGoneNeedsNodes(t *testing.T) {
	d, err := nodedrain.New(&rest.Config{Host: "https://127.0.0.1:1"}, drain.New(nil), nil)
	require.NoError(t, err)
	require.ErrorIs(t, d.Gone(context.Background(), "", "i-1"), nstance.Unavailable)
	_, err = d.Find("", "i-1")
	require.ErrorIs(t, err, nstance.Unavailable)
}

func TestMatch(t *testing.T) {
	const instance = "web06dx9xy919t3v9kzd2xdsyzb3g"
	for _, c := range []struct {
		node, provider string
		want           bool
	}{
		{"aws:///us-east-1a/i-0abc", "i-0abc", true},
		{"aws:///us-east-1a/i-0abcd", "i-0abc", false},
		{"aws:///us-east-1a/xi-0abc", "i-0abc", false},
		{"gce://project/zone/web-1", "gce://project/zone/web-1", true},
		{"gce://other/zone/web-1", "gce://project/zone/web-1", false},
		{"azure:///subscriptions/S/resourceGroups/RG/providers/Microsoft.Compute/virtualMachines/web", "azure:///subscriptions/s/resourcegroups/rg/providers/microsoft.compute/virtualmachines/web", true},
		{"proxmox://region/101", "101", false},
		{"101", "101", false},
		{"nstance:///" + instance, "", true},
		{"nstance:///" + instance, "42", true},
		{"", "", false},
		{"aws:///zone/", "", false},
	} {
		require.Equal(t, c.want, nodedrain.IsNodeOf(c.node, c.provider, instance), "%s for %s", c.node, c.provider)
	}
}

func TestGrace(t *testing.T) {
	const own = 30 * time.Second
	for left, want := range map[time.Duration]int64{
		time.Hour: 0, own: 0, own - 1: 0, 29*time.Second + 1: 0, 29 * time.Second: 29, 1500 * time.Millisecond: 2,
		time.Second: 1, time.Millisecond: 1, 1: 1, 0: 1, -1: 1, -time.Hour: 1,
	} {
		grace := nodedrain.ClampGrace(own, left)
		if want == 0 {
			require.Nil(t, grace, "%s left: the pod's own", left)
			continue
		}
		require.NotNil(t, grace, "%s left", left)
		require.Equal(t, want, *grace, "%s left", left)
	}
	require.Nil(t, nodedrain.ClampGrace(0, -time.Hour), "a pod that wants no grace")
}

func TestBudget(t *testing.T) {
	require.EqualValues(t, 100, nodedrain.QPS(3))
	require.EqualValues(t, 300, nodedrain.QPS(150))
	require.EqualValues(t, 500, nodedrain.QPS(50_000))
	require.Equal(t, 500*time.Millisecond, nodedrain.PollInterval(1000, 1))
	require.Equal(t, 4*time.Second, nodedrain.PollInterval(1000, 500))
	require.Equal(t, 5*time.Second, nodedrain.PollInterval(50_000, 50_000))
}

func TestStays(t *testing.T) {
	owned := func(kind string) *corev1.Pod {
		p := pod("p")
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "owner", Controller: &yes}}
		return p
	}
	phase := func(p *corev1.Pod, phase corev1.PodPhase) *corev1.Pod { p.Status.Phase = phase; return p }
	mirror := pod("m")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	skipped := pod("s")
	skipped.Labels = map[string]string{"cluster.x-k8s.io/drain": "skip"}
	require.False(t, nodedrain.Stays(pod("bare"), false))
	require.False(t, nodedrain.Stays(owned("ReplicaSet"), false))
	require.True(t, nodedrain.Stays(owned("DaemonSet"), false))
	require.False(t, nodedrain.Stays(owned("DaemonSet"), true), "its DaemonSet is gone")
	require.True(t, nodedrain.Stays(mirror, false))
	require.True(t, nodedrain.Stays(skipped, false))
	require.True(t, nodedrain.Stays(phase(pod("done"), corev1.PodSucceeded), false))
	require.True(t, nodedrain.Stays(phase(pod("failed"), corev1.PodFailed), false))
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
}

func graced(name string, seconds int64) *corev1.Pod {
	p := pod(name)
	p.Spec.TerminationGracePeriodSeconds = &seconds
	return p
}

func TestPlan(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	const margin = 2 * time.Second
	in := func(left time.Duration, voluntary bool) nstance.Drain {
		return nstance.Drain{Deadline: now.Add(left), Voluntary: voluntary}
	}
	had := func(whole, left time.Duration) nstance.Drain {
		return nstance.Drain{StartedAt: now.Add(left - whole), Deadline: now.Add(left)}
	}
	critical, leaving := pod("critical"), pod("leaving")
	critical.Spec.PriorityClassName = "system-node-critical"
	byNumber := pod("priority")
	priority := int32(2_000_000_000)
	byNumber.Spec.Priority = &priority
	leaving.DeletionTimestamp = &metav1.Time{Time: now}
	dns := pod("dns")
	dns.Spec.PriorityClassName = "system-cluster-critical"
	patient := terminating("patient", now.Add(580*time.Second), 590)
	wait := map[string]nodedrain.Rule{"job": {Behavior: nodedrain.WaitCompleted}}

	for _, c := range []struct {
		name     string
		pods     []*corev1.Pod
		rules    map[string]nodedrain.Rule
		refused  map[string]time.Time
		drain    nstance.Drain
		evict    []string
		override []string
		shorten  []string
		grace    map[string]int64
		next     time.Duration
		text     string
	}{
		{name: "ordinary pods first", pods: []*corev1.Pod{critical, pod("a"), byNumber}, drain: in(time.Minute, false), evict: []string{"a"}, next: 28 * time.Second, text: "pods remaining: 3"},
		{name: "then critical ones", pods: []*corev1.Pod{critical, byNumber}, drain: in(time.Minute, false), evict: []string{"critical", "priority"}, text: "pods remaining: 2"},
		{name: "of the cluster too", pods: []*corev1.Pod{dns, pod("a")}, drain: in(time.Minute, false), evict: []string{"a"}, next: 28 * time.Second, text: "pods remaining: 2"},
		{name: "a terminating pod holds the next tier", pods: []*corev1.Pod{critical, leaving}, drain: in(time.Minute, false), next: 28 * time.Second, text: "pods remaining: 2, terminating: 1"},
		{name: "until its grace must begin", pods: []*corev1.Pod{critical, leaving}, drain: in(32*time.Second, false), evict: []string{"critical"}, text: "pods remaining: 2, terminating: 1"},
		{name: "one with more time than the drain has left is given that", pods: []*corev1.Pod{critical, patient}, drain: in(110*time.Second, false), shorten: []string{"patient"}, grace: map[string]int64{"patient": 108}, next: 78 * time.Second, text: "pods remaining: 2, terminating: 1"},
		{name: "after a failure: a little later", pods: []*corev1.Pod{patient}, refused: map[string]time.Time{"patient": now}, drain: in(110*time.Second, true), next: time.Second, text: "pods remaining: 1, terminating: 1"},
		{name: "a rule's order goes first", pods: []*corev1.Pod{pod("late"), critical}, rules: map[string]nodedrain.Rule{"late": {Order: 1}}, drain: in(time.Minute, false), evict: []string{"critical"}, next: 28 * time.Second, text: "pods remaining: 2"},
		{name: "no time left for the grace", pods: []*corev1.Pod{pod("a"), graced("b", 5), graced("now", 0)}, drain: in(12*time.Second, false), evict: []string{"a", "b", "now"}, grace: map[string]int64{"a": 10}, text: "pods remaining: 3"},
		{name: "no time left at all", pods: []*corev1.Pod{pod("a")}, drain: in(time.Second, true), evict: []string{"a"}, grace: map[string]int64{"a": 1}, text: "pods remaining: 1"},
		{name: "a job is waited for", pods: []*corev1.Pod{pod("job")}, rules: wait, drain: in(time.Minute, true), next: 28 * time.Second, text: "pods remaining: 1, to complete: 1"},
		{name: "as long as there is time", pods: []*corev1.Pod{pod("job")}, rules: wait, drain: in(32*time.Second, true), evict: []string{"job"}, text: "pods remaining: 1"},
		{name: "a refused pod is tried again later", pods: []*corev1.Pod{pod("a")}, refused: map[string]time.Time{"a": now}, drain: in(time.Minute, false), next: time.Second, text: "pods remaining: 1, evictions refused: 1"},
		{name: "and in time for its grace", pods: []*corev1.Pod{pod("a")}, refused: map[string]time.Time{"a": now}, drain: in(32*time.Second+500*time.Millisecond, false), next: 500 * time.Millisecond, text: "pods remaining: 1, evictions refused: 1"},
		{name: "once more when its grace must begin", pods: []*corev1.Pod{pod("a")}, refused: map[string]time.Time{"a": now.Add(-time.Millisecond)}, drain: in(32*time.Second, false), evict: []string{"a"}, text: "pods remaining: 1, evictions refused: 1"},
		{name: "then past its budget", pods: []*corev1.Pod{pod("a")}, refused: map[string]time.Time{"a": now}, drain: in(32*time.Second, false), override: []string{"a"}, text: "pods remaining: 1, evictions refused: 1"},
		{name: "a grace longer than there is time: the budget has half of that", pods: []*corev1.Pod{graced("a", 600)}, refused: map[string]time.Time{"a": now}, drain: had(30*time.Second, 17*time.Second+time.Millisecond), next: time.Millisecond, text: "pods remaining: 1, evictions refused: 1"},
		{name: "then it is asked once more", pods: []*corev1.Pod{graced("a", 600)}, refused: map[string]time.Time{"a": now.Add(-time.Millisecond)}, drain: had(30*time.Second, 17*time.Second), evict: []string{"a"}, grace: map[string]int64{"a": 15}, text: "pods remaining: 1, evictions refused: 1"},
		{name: "and passed, and the grace has the other half", pods: []*corev1.Pod{graced("a", 600)}, refused: map[string]time.Time{"a": now}, drain: had(30*time.Second, 17*time.Second), override: []string{"a"}, grace: map[string]int64{"a": 15}, text: "pods remaining: 1, evictions refused: 1"},
		{name: "what the budget permits has all that is left", pods: []*corev1.Pod{graced("a", 600)}, drain: had(30*time.Second, 30*time.Second), evict: []string{"a"}, grace: map[string]int64{"a": 28}, text: "pods remaining: 1"},
		{name: "a grace without end too", pods: []*corev1.Pod{graced("a", math.MaxInt64)}, drain: had(30*time.Second, 30*time.Second), evict: []string{"a"}, grace: map[string]int64{"a": 28}, text: "pods remaining: 1"},
		{name: "in a voluntary drain too", pods: []*corev1.Pod{pod("a")}, refused: map[string]time.Time{"a": now}, drain: in(3*time.Second, true), override: []string{"a"}, grace: map[string]int64{"a": 1}, text: "pods remaining: 1, evictions refused: 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := nodedrain.PlanPods(c.pods, c.rules, c.refused, c.drain, margin, now)
			require.Equal(t, c.evict, p.Evict, "evicted")
			require.Equal(t, c.override, p.Override, "deleted past its budget")
			require.Equal(t, c.shorten, p.Shorten, "given a shorter grace period")
			if c.grace == nil {
				c.grace = map[string]int64{}
			}
			require.Equal(t, c.grace, p.Grace)
			if c.next == 0 {
				require.Zero(t, p.Next)
			} else {
				require.Equal(t, c.next, p.Next.Sub(now))
			}
			require.Equal(t, c.text, p.Text)
		})
	}
}

// terminating returns a pod that was deleted with a grace period of some seconds.
func terminating(name string, end time.Time, seconds int64) *corev1.Pod {
	p := graced(name, 900)
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: end}, &seconds
	return p
}

// TestShortenedGrace: a pod that terminates too slowly for the deadline is given what is
// left, once for each deadline.
func TestShortenedGrace(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	const margin, given = 2 * time.Second, 590
	left := func(d time.Duration) time.Time { return now.Add(d + margin) }
	for _, c := range []struct {
		name     string
		end      time.Duration
		before   time.Time // the deadline of an earlier cut
		deadline time.Time
		want     int64 // 0: none
	}{
		{name: "it ends in time", end: 100 * time.Second, deadline: left(100 * time.Second)},
		{name: "as far as whole seconds show", end: 101 * time.Second, deadline: left(100 * time.Second)},
		{name: "it ends too late", end: 580 * time.Second, deadline: left(100 * time.Second), want: 100},
		{name: "no time is left", end: 580 * time.Second, deadline: now, want: 1},
		{name: "it was shortened for this deadline", end: 580 * time.Second, before: left(100 * time.Second), deadline: left(100 * time.Second)},
		{name: "it was shortened for a later one", end: 580 * time.Second, before: left(101 * time.Second), deadline: left(100 * time.Second), want: 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			grace := nodedrain.ShortenedGrace(terminating("p", now.Add(c.end), given), c.before, c.deadline, margin, now)
			if c.want == 0 {
				require.Nil(t, grace)
				return
			}
			require.NotNil(t, grace)
			require.Equal(t, c.want, *grace)
		})
	}
}

// TestGraceOver: a kubelet counts a shortened grace period anew, so one that has fallen
// silent may need until the margin before the deadline.
func TestGraceOver(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	const margin = 2 * time.Second
	for _, c := range []struct {
		end    time.Duration
		before time.Time
		want   bool
	}{
		{end: time.Second},
		{end: -time.Second, want: true},
		{end: -time.Second, before: now.Add(margin)},
		{end: -time.Second, before: now.Add(margin - 1), want: true},
		{end: time.Second, before: now.Add(margin - 1)},
	} {
		require.Equal(t, c.want, nodedrain.GraceOver(terminating("p", now.Add(c.end), 30), c.before, margin, now), "%+v", c)
	}
}

// TestTrim: all nodes are kept in memory, so a node is small there.
func TestTrim(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n", UID: "u", ResourceVersion: "7", Labels: map[string]string{"a": "b", corev1.LabelNodeExcludeBalancers: ""},
		Annotations: map[string]string{"other": "x", "nstance.dev/drain-instance": "i"}, ManagedFields: []metav1.ManagedFieldsEntry{{}},
	}}
	node.Spec.ProviderID, node.Spec.Unschedulable = "p", true
	node.Status.Images, node.Status.NodeInfo = []corev1.ContainerImage{{}}, corev1.NodeSystemInfo{SystemUUID: "s", BootID: "b"}
	ours := corev1.NodeCondition{Type: "NstanceInterrupted", Status: corev1.ConditionTrue, Message: "m"}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Message: "m"}, {Type: corev1.NodeDiskPressure}, ours}
	kept, err := nodedrain.TrimNode(node)
	require.NoError(t, err)
	want := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n", UID: "u", ResourceVersion: "7", Labels: map[string]string{corev1.LabelNodeExcludeBalancers: ""},
		Annotations: map[string]string{"nstance.dev/drain-instance": "i"},
	}}
	want.Spec.ProviderID, want.Spec.Unschedulable = "p", true
	want.Status.NodeInfo.SystemUUID = "s"
	want.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, ours}
	require.Equal(t, want, kept)
}

func TestMayDisrupt(t *testing.T) {
	for _, c := range []struct {
		key, value string
		want       bool
	}{
		{"karpenter.sh/do-not-disrupt", "true", false},
		{"karpenter.sh/do-not-disrupt", "false", true},
		{"cluster-autoscaler.kubernetes.io/safe-to-evict", "false", false},
		{"cluster-autoscaler.kubernetes.io/safe-to-evict", "true", true},
		{"other", "true", true},
	} {
		p := pod("p")
		p.Annotations = map[string]string{c.key: c.value}
		require.Equal(t, c.want, nodedrain.MayDisrupt(p), "%s=%s", c.key, c.value)
	}
}
