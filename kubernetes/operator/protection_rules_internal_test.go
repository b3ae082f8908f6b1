package operator

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/protection"
	"github.com/nstance-go/nstance/kubernetes/internal/shards"
)

// recorder is an API server that takes every patch, and lists SpotProtections and rules.
type recorder struct {
	client.Client
	protections []infrav1.SpotProtection
	patched     []client.Object
	patches     []string
}

func (r *recorder) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if l, ok := list.(*infrav1.SpotProtectionList); ok {
		l.Items = r.protections
	}
	return nil
}

func (r *recorder) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	data, err := patch.Data(obj)
	r.patched, r.patches = append(r.patched, obj), append(r.patches, string(data))
	return err
}

// Status takes patches of statuses too.
func (r *recorder) Status() client.SubResourceWriter { return statusRecorder{of: r} }

type statusRecorder struct {
	client.SubResourceWriter
	of *recorder
}

func (s statusRecorder) Patch(ctx context.Context, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.of.Patch(ctx, obj, patch)
}

// claiming is a SpotProtection with a group that stands by, and a claim for node n.
func claiming() *survey {
	s := &survey{sp: &infrav1.SpotProtection{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), nodes: map[string]*surveyedNode{}}
	s.sp.Spec.ClusterName, s.sp.Spec.Standby.Group = "c", "spare"
	s.sp.Status.Claims = []infrav1.StandbyClaim{{Interruption: infrav1.Interruption{Node: "n", EventID: "e1"}, Group: "spare", Workloads: []string{"Deployment/ns/web"}, Until: metav1.NewTime(s.now.Add(time.Hour))}}
	return s
}

func lostNode(name, event string) *surveyedNode {
	return &surveyedNode{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, signal: &protection.Signal{Cause: protection.Reclaim, EventID: event}}
}

// TestOneClaimOfNode: a node needs one machine, until another interruption comes after the end of
// the claim. There are so many claims at a time.
func TestOneClaimOfNode(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*infrav1.StandbyClaim)
		node   string
		event  string
		more   bool
	}{
		"the same event":               {func(*infrav1.StandbyClaim) {}, "n", "e1", false},
		"another event":                {func(*infrav1.StandbyClaim) {}, "n", "e2", false},
		"the same event, and it ended": {func(c *infrav1.StandbyClaim) { c.Released = metav1.Now() }, "n", "e1", false},
		"another event, and it ended":  {func(c *infrav1.StandbyClaim) { c.Released = metav1.Now() }, "n", "e2", true},
		"another node":                 {func(*infrav1.StandbyClaim) {}, "m", "e1", true},
		"of another group":             {func(c *infrav1.StandbyClaim) { c.Group = "former" }, "n", "e1", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := claiming()
			c.change(&s.sp.Status.Claims[0])
			require.NoError(t, s.recordClaims([]*surveyedNode{lostNode(c.node, c.event)}))
			require.Equal(t, c.more, len(s.sp.Status.Claims) == 2)
		})
	}
	s := claiming()
	for len(s.sp.Status.Claims) < maxClaims {
		s.sp.Status.Claims = append(s.sp.Status.Claims, s.sp.Status.Claims[0])
	}
	require.ErrorIs(t, s.recordClaims([]*surveyedNode{lostNode("m", "e")}), nstance.Quota)
	require.Len(t, s.sp.Status.Claims, maxClaims)
	s.sp.Status.Claims[0].Released = metav1.Now()
	require.NoError(t, s.recordClaims([]*surveyedNode{lostNode("m", "e")}))
	require.Len(t, s.sp.Status.Claims, maxClaims+1)
	s.nodes["n"] = lostNode("n", "e1")
	s.forgetClaims()
	require.Len(t, s.sp.Status.Claims, maxClaims, "one that has ended")
	for _, claim := range s.sp.Status.Claims {
		require.Zero(t, claim.Released)
	}
	s = claiming()
	s.sp.Status.Claims[0].Released = metav1.NewTime(s.now)
	s.forgetClaims()
	require.Len(t, s.sp.Status.Claims, 1)
	s.with("n", nil)
	s.forgetClaims()
	require.Empty(t, s.sp.Status.Claims, "the node stays")
}

func TestClaimDuration(t *testing.T) {
	s := claiming()
	for asked, want := range map[time.Duration]time.Duration{0: claimDuration, -1: claimDuration, time.Minute: time.Minute, 48 * time.Hour: maxClaim} {
		s.sp.Spec.Standby.Duration = &metav1.Duration{Duration: asked}
		require.Equal(t, want, s.claimDuration())
	}
	s.sp.Spec.Standby.Duration = nil
	require.Equal(t, claimDuration, s.claimDuration())
}

// TestSharedClaims: of several SpotProtections that claim a machine for the same node, the last one
// by name releases it. Claims that have ended, of others that are deleted or of other clusters, are
// none.
func TestSharedClaims(t *testing.T) {
	other := func(name string, change func(*infrav1.SpotProtection)) infrav1.SpotProtection {
		sp := claiming().sp
		sp.Name = name
		change(sp)
		return *sp
	}
	none := func(*infrav1.SpotProtection) {}
	for name, c := range map[string]struct {
		other infrav1.SpotProtection
		first string
		later bool
	}{
		"itself":             {other("p", none), "", false},
		"an earlier one":     {other("a", none), "a", false},
		"a later one":        {other("z", none), "", true},
		"whose claim ended":  {other("z", func(sp *infrav1.SpotProtection) { sp.Status.Claims[0].Released = metav1.Now() }), "", false},
		"for another node":   {other("z", func(sp *infrav1.SpotProtection) { sp.Status.Claims[0].Node = "m" }), "", false},
		"of another group":   {other("z", func(sp *infrav1.SpotProtection) { sp.Status.Claims[0].Group = "other" }), "", false},
		"that is deleted":    {other("z", func(sp *infrav1.SpotProtection) { deleting(sp) }), "", false},
		"of another cluster": {other("z", func(sp *infrav1.SpotProtection) { sp.Spec.ClusterName = "d" }), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := claiming()
			controller := &protectionController{uncached: &recorder{protections: []infrav1.SpotProtection{c.other}}}
			first, later, err := controller.sharers(t.Context(), s, &s.sp.Status.Claims[0])
			require.NoError(t, err)
			require.Equal(t, c.first, first)
			require.Equal(t, c.later, later)
		})
	}
}

// TestReleasesForAll: the end of all claims leaves those that another SpotProtection ends to that.
func TestReleasesForAll(t *testing.T) {
	for _, name := range []string{"a", "z"} {
		s := claiming()
		other := claiming().sp
		other.Name = name
		before := s.sp.Status.Claims[0]
		before.Released = metav1.NewTime(s.now.Add(-time.Hour))
		s.sp.Status.Claims = append(s.sp.Status.Claims, before)
		c := &protectionController{uncached: &recorder{protections: []infrav1.SpotProtection{*other}}} // no shard is reached
		require.NoError(t, c.releaseAll(t.Context(), s))
		require.Equal(t, s.now, s.sp.Status.Claims[0].Released.Time)
		require.Equal(t, before, s.sp.Status.Claims[1], "it had ended")
	}
}

// TestNoGroupStandsBy: while a shard is away it may have the group.
func TestNoGroupStandsBy(t *testing.T) {
	s := claiming()
	s.cluster = &clusterv1.Cluster{}
	f := newFleets(nil, slog.New(slog.DiscardHandler))
	s.fleet = &fleet{shards: map[string]*connection{}}
	f.byCluster[infrastructureOf(s.cluster)] = s.fleet
	c := &protectionController{fleets: f}
	_, err := c.claimsOf(s, &s.sp.Status.Claims[0])
	require.ErrorIs(t, err, nstance.Invalid)
	require.NoError(t, c.release(t.Context(), s, &s.sp.Status.Claims[0]), "its claims went with the group")
	s.fleet.shards["a"] = &connection{Shard: shards.New(shards.Options{Name: "a"})}
	_, err = c.claimsOf(s, &s.sp.Status.Claims[0])
	require.ErrorIs(t, err, nstance.Unavailable)
	require.Error(t, c.release(t.Context(), s, &s.sp.Status.Claims[0]))
}

// TestReleaseGoesWhereClaimWent: the shard of a claim is chosen before it is asked, and stays
// while others with the group come and go.
func TestReleaseGoesWhereClaimWent(t *testing.T) {
	r, servers := newCertificateRig(t, "a", "b")
	servers[0].Stop()
	r.until(func() bool { return r.fleets.shardWith(r.cluster, "web") == "b" }, "shard a is away")
	s := claiming()
	s.cluster, s.fleet, s.sp.Spec.Standby.Group = r.cluster, r.fleet(), "web"
	asked := infrav1.StandbyClaim{Group: "web", Shard: "a", Until: metav1.NewTime(s.now)}
	s.sp.Status.Claims = []infrav1.StandbyClaim{{Group: "web"}, asked, {Group: "web", Shard: "a"}, {Group: "web", Shard: "removed"}}
	c := &protectionController{fleets: r.fleets}
	require.NoError(t, c.chooseShards(s))
	var chosen []string
	for _, claim := range s.sp.Status.Claims {
		chosen = append(chosen, claim.Shard)
	}
	require.Equal(t, []string{"b", "a", "a", "b"}, chosen)
	require.ErrorIs(t, c.release(t.Context(), s, &s.sp.Status.Claims[1]), nstance.Unavailable, "its shard is away")
	require.NoError(t, c.release(t.Context(), s, &infrav1.StandbyClaim{Group: "web", Shard: "removed"}), "its claims went with it")
	s.sp.Status.Claims = []infrav1.StandbyClaim{{Group: "nowhere"}}
	require.ErrorIs(t, c.chooseShards(s), nstance.Unavailable, "the shard that is away may have the group")
	require.NoError(t, c.ask(t.Context(), s, &s.sp.Status.Claims[0]))
	require.Zero(t, s.sp.Status.Claims[0].Until)
}

// TestClaimsGoWhereMachinesStandBy: of several shards with the group a claim goes to one where a machine is
// parked that no other claim takes, else to one with a warm pool, else to the first.
func TestClaimsGoWhereMachinesStandBy(t *testing.T) {
	r, _ := newCertificateRig(t, "a", "b")
	best := func(ranks map[string]int) string {
		return r.fleets.shardWithBest(r.cluster, "web", func(shard string, g *apiv1.Group) int {
			require.Equal(t, "web", g.GetGroup())
			return ranks[shard]
		})
	}
	require.Equal(t, "a", best(nil), "none has a machine")
	require.Equal(t, "b", best(map[string]int{"b": 1}))
	require.Equal(t, "a", best(map[string]int{"a": 2, "b": 1}))

	parked := &apiv1.Group{Parked: 1, WarmPool: &apiv1.WarmPool{Size: 1}}
	asked := infrav1.StandbyClaim{Group: "web", Shard: "a", Until: metav1.Now()}
	for name, c := range map[string]struct {
		claims []infrav1.StandbyClaim
		want   int
	}{
		"parked":                      {nil, 2},
		"one is about to be taken":    {[]infrav1.StandbyClaim{{Group: "web", Shard: "a"}}, 1},
		"one has been taken":          {[]infrav1.StandbyClaim{asked}, 2}, // the group's number is without it
		"one is not needed any more":  {[]infrav1.StandbyClaim{{Group: "web", Shard: "a", Released: metav1.Now()}}, 2},
		"one of another shard is":     {[]infrav1.StandbyClaim{{Group: "web", Shard: "b"}}, 2},
		"one of another group is":     {[]infrav1.StandbyClaim{{Group: "db", Shard: "a"}}, 2},
		"one that has no shard is to": {[]infrav1.StandbyClaim{{Group: "web"}}, 2},
	} {
		require.Equal(t, c.want, standbyRank(c.claims, "web")("a", parked), name)
	}
	require.Zero(t, standbyRank(nil, "web")("a", &apiv1.Group{}))
}

// on is a pod on a node.
func on(node string, ready bool, annotations map[string]string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Annotations: annotations}, Spec: corev1.PodSpec{NodeName: node}}
	if ready {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return p
}

func (s *survey) with(name string, instance *apiv1.Instance) *surveyedNode {
	n := &surveyedNode{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "7", Annotations: map[string]string{}}}, instance: instance}
	s.nodes[name] = n
	return n
}

func (s *survey) workload(replicas int32, pods ...corev1.Pod) *surveyedWorkload {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", ResourceVersion: "7", Annotations: map[string]string{}}, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
	w := &surveyedWorkload{Workload: protection.DeploymentWorkload(d), pods: pods, admission: protection.Admission{Reason: protection.ReasonAdmitted}}
	s.workloads = append(s.workloads, w)
	return w
}

func (s *survey) bridgeSince(name string, woken time.Duration) *surveyedNode {
	return s.with(name, &apiv1.Instance{Standby: true, WokenAt: timestamppb.New(s.now.Add(-woken))})
}

// TestClaimIsNeeded: until the node has no protected pods, and those run elsewhere.
func TestClaimIsNeeded(t *testing.T) {
	handOff := func(w *surveyedWorkload) {
		w.Object.SetAnnotations(map[string]string{infrav1.AnnotationHandOff: "true"})
	}
	for name, c := range map[string]struct {
		change func(*survey)
		want   string
	}{
		"its time is over": {func(s *survey) { s.sp.Status.Claims[0].Until = metav1.NewTime(s.now) }, "its time is over"},
		"not granted yet": {func(s *survey) {
			s.sp.Status.Claims[0].Until = metav1.Time{}
			s.workload(1, on("n", true, nil))
			s.nodes["n"] = lostNode("n", "e1")
		}, ""},
		"another group":        {func(s *survey) { s.sp.Spec.Standby.Group = "other" }, "another group is to stand by"},
		"the node stays":       {func(s *survey) { s.with("n", nil); s.workload(1, on("n", true, nil)) }, "the node stays"},
		"pods are on the node": {func(s *survey) { s.nodes["n"] = lostNode("n", "e1"); s.workload(1, on("n", true, nil)) }, ""},
		"a pod there has ended": {func(s *survey) {
			s.nodes["n"] = lostNode("n", "e1")
			w := s.workload(0, on("n", false, nil))
			w.pods[0].Status.Phase = corev1.PodSucceeded
		}, "its pods are ready on other nodes"},
		"they are ready":     {func(s *survey) { s.with("m", nil); s.workload(1, on("m", true, nil)) }, "its pods are ready on other nodes"},
		"they are not ready": {func(s *survey) { s.with("m", nil); s.workload(1, on("m", false, nil)) }, ""},
		"ready, without a surge": {func(s *survey) {
			s.with("m", nil)
			s.workload(2, on("m", true, nil)).Object.GetAnnotations()[protection.AnnotationSurge] = `{"added":1,"replicas":2}`
		}, "its pods are ready on other nodes"},
		"on the stand-by machine": {func(s *survey) { s.bridgeSince("b", time.Minute); s.workload(1, on("b", true, nil)) }, ""},
		"on it, and another node has come": {func(s *survey) {
			s.bridgeSince("b", time.Minute)
			s.workload(1, on("b", true, nil))
			s.comes("m")
		}, releasedReplaced},
		"handed off from it": {func(s *survey) {
			s.bridgeSince("b", time.Minute)
			handOff(s.workload(1, on("b", true, nil)))
			s.comes("m")
		}, ""},
		"the other node is cordoned": {func(s *survey) {
			s.bridgeSince("b", time.Minute)
			s.workload(1, on("b", true, nil))
			s.comes("m").Spec.Unschedulable = true
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := claiming()
			c.change(s)
			require.Equal(t, c.want, s.dispensable(&s.sp.Status.Claims[0]))
		})
	}
}

// comes has a ready node come after the claim.
func (s *survey) comes(name string) *surveyedNode {
	n := s.with(name, nil)
	n.CreationTimestamp = metav1.NewTime(s.now)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

// TestProgress: where the pods of a workload are.
func TestProgress(t *testing.T) {
	drained := func(voluntary bool, executor nstance.Executor, whole time.Duration) *apiv1.Instance {
		return &apiv1.Instance{Drain: &apiv1.Drain{Voluntary: voluntary, Executor: string(executor), StartedAt: timestamppb.Now(), Deadline: timestamppb.New(time.Now().Add(whole))}}
	}
	refuses := map[string]string{"karpenter.sh/do-not-disrupt": "true"}
	type counts struct{ leaving, settled, unready, cheap, evictable int }
	for name, c := range map[string]struct {
		instance *apiv1.Instance
		pod      corev1.Pod
		drains   bool
		want     counts
	}{
		"a node that stays":                  {nil, on("n", true, nil), false, counts{settled: 1}},
		"not ready":                          {nil, on("n", false, nil), false, counts{unready: 1}},
		"a long voluntary drain":             {drained(true, nstance.ExecutorOperator, time.Hour), on("n", true, nil), false, counts{leaving: 1, cheap: 1}},
		"of a pod that refuses":              {drained(true, nstance.ExecutorOperator, time.Hour), on("n", true, refuses), false, counts{cheap: 1}},
		"a short one":                        {drained(true, nstance.ExecutorOperator, time.Minute), on("n", true, nil), false, counts{unready: 1}},
		"a notice":                           {drained(false, nstance.ExecutorOperator, time.Hour), on("n", true, nil), false, counts{unready: 1}},
		"an agent's":                         {drained(true, nstance.ExecutorAgent, time.Hour), on("n", true, nil), false, counts{unready: 1}},
		"a notice, where any drain counts":   {drained(false, nstance.ExecutorOperator, time.Minute), on("n", true, nil), true, counts{leaving: 1, cheap: 1}},
		"an agent's, where any counts":       {drained(false, nstance.ExecutorAgent, time.Minute), on("n", true, nil), true, counts{unready: 1}},
		"a stand-by machine, woken just now": {&apiv1.Instance{Standby: true, WokenAt: timestamppb.Now()}, on("n", true, nil), false, counts{cheap: 1}},
		"a stand-by machine, for a while":    {&apiv1.Instance{Standby: true, WokenAt: timestamppb.New(time.Now().Add(-protection.Interval))}, on("n", true, nil), false, counts{leaving: 1, cheap: 1, evictable: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := claiming()
			s.now, s.drains = time.Now(), c.drains
			s.with("n", c.instance)
			p := s.progress(s.workload(1, c.pod))
			require.Equal(t, c.want, counts{p.Leaving, p.Settled, p.Unready, len(p.cheap), len(p.evictable)})
		})
	}
}

// TestCosts: the cost that others have set for a pod is remembered, and restored.
func TestCosts(t *testing.T) {
	for name, former := range map[string]map[string]string{"none": {}, "another's": {corev1.PodDeletionCost: "7"}} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{}
			s := &survey{objects: r}
			pod := on("n", true, former)
			require.NoError(t, s.setCosts(t.Context(), workloadProgress{cheap: []corev1.Pod{pod}}))
			marked := *r.patched[0].(*corev1.Pod)
			require.Equal(t, protection.DeletionCost, marked.Annotations[corev1.PodDeletionCost])
			require.NoError(t, s.setCosts(t.Context(), workloadProgress{cheap: []corev1.Pod{marked}}))
			require.Len(t, r.patched, 1, "it is so")
			require.NoError(t, s.setCosts(t.Context(), workloadProgress{restored: []corev1.Pod{marked}}))
			require.Equal(t, former, r.patched[1].GetAnnotations())
		})
	}
}

// TestRecordGoesFirst: before a floor is raised the record is stored, and after it is lowered only it
// goes: whatever ends the operator, the next one takes back what was done.
func TestRecordGoesFirst(t *testing.T) {
	for name, c := range map[string]struct {
		floor  int32
		want   []string
		drains bool
	}{"raised": {5, []string{"Deployment", "HorizontalPodAutoscaler"}, true}, "lowered": {1, []string{"HorizontalPodAutoscaler", "Deployment"}, false}} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{}
			s := claiming()
			s.objects, s.drains = r, c.drains
			w := s.workload(3)
			w.Object.SetLabels(map[string]string{labelSurge: "true"})
			w.scalers = []autoscalingv2.HorizontalPodAutoscaler{{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{Kind: "Deployment", Name: "web"}}}}
			step := &protection.Step{Floor: &c.floor, FloorWas: ptr.To[int32](3), Surge: &protection.Surge{Added: 2, Replicas: 5}}
			require.NoError(t, s.take(t.Context(), w, step))
			var kinds []string
			for _, o := range r.patched {
				if d, ok := o.(*appsv1.Deployment); ok {
					require.Equal(t, c.drains, d.Labels[labelSurge] != "", "others look for it")
					kinds = append(kinds, "Deployment")
				} else {
					kinds = append(kinds, "HorizontalPodAutoscaler")
				}
			}
			require.Equal(t, c.want, kinds)
			for _, p := range r.patches {
				require.Contains(t, p, "resourceVersion", "only what was read is changed")
			}
		})
	}
}

// TestUncordonsBridges: the cordon of an earlier waking is taken back, and not that of this one, of
// others or of a drain.
func TestUncordonsBridges(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*surveyedNode)
		want   bool
	}{
		"of an earlier waking": {func(n *surveyedNode) { n.Annotations[annotationBridgeCordon] = "earlier" }, true},
		"of this one":          {func(n *surveyedNode) { n.Annotations[annotationBridgeCordon] = wokenAt(n) }, false},
		"of others":            {func(*surveyedNode) {}, false},
		"while it is drained": {func(n *surveyedNode) {
			n.Annotations[annotationBridgeCordon] = "earlier"
			n.instance.Drain = &apiv1.Drain{}
		}, false},
		"while it sleeps": {func(n *surveyedNode) {
			n.Annotations[annotationBridgeCordon] = "earlier"
			n.instance.WokenAt = nil
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{}
			s := claiming()
			s.objects = r
			n := s.bridgeSince("b", time.Minute)
			n.Spec.Unschedulable = true
			c.change(n)
			require.NoError(t, s.uncordonBridges(t.Context()))
			require.Equal(t, c.want, !n.Spec.Unschedulable)
			require.Equal(t, c.want, len(r.patches) == 1)
		})
	}
}

// TestEndsCordon: a drain that runs keeps the cordon, and uncordons the node at its end.
func TestEndsCordon(t *testing.T) {
	for name, c := range map[string]struct {
		drain       *apiv1.Drain
		annotations map[string]string
		schedulable bool
		left        bool // the mark, for another pass
	}{
		"no drain":                    {nil, nil, true, false},
		"a drain":                     {&apiv1.Drain{Executor: "operator"}, map[string]string{annotationDrainInstance: "i"}, false, false},
		"a drain that is to begin":    {&apiv1.Drain{Executor: "operator"}, nil, false, true},
		"another executor's":          {&apiv1.Drain{Executor: "agent"}, nil, false, false},
		"one that ended at the shard": {nil, map[string]string{annotationDrainInstance: "i"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := claiming()
			s.objects = &recorder{}
			n := s.with("b", &apiv1.Instance{Drain: c.drain})
			n.Spec.Unschedulable = true
			n.Annotations[annotationBridgeCordon] = "w"
			for k, v := range c.annotations {
				n.Annotations[k] = v
			}
			require.NoError(t, s.endCordon(t.Context(), n))
			require.Equal(t, c.schedulable, !n.Spec.Unschedulable)
			require.Equal(t, c.left, n.Annotations[annotationBridgeCordon] != "")
			require.Equal(t, c.annotations != nil, n.Annotations[annotationDrainCordoned] == "true")
			require.True(t, s.busy)
		})
	}
}

// TestDrainLeavesHandedOff: a drain leaves pods to a hand-off that a SpotProtection makes now.
func TestDrainLeavesHandedOff(t *testing.T) {
	for name, c := range map[string]struct {
		pod    func(*corev1.Pod)
		change func(*infrav1.SpotProtection)
		want   bool
	}{
		"handed off":          {nil, nil, true},
		"it refuses":          {func(p *corev1.Pod) { p.Annotations["karpenter.sh/do-not-disrupt"] = "true" }, nil, false},
		"within the budget":   {nil, func(sp *infrav1.SpotProtection) { sp.Status.Workloads[0].HandOff = infrav1.HandOffEviction }, false},
		"not admitted":        {nil, func(sp *infrav1.SpotProtection) { sp.Status.Workloads[0].Admitted = ptr.To(false) }, false},
		"not protected":       {nil, func(sp *infrav1.SpotProtection) { deleting(sp) }, false},
		"of another cluster":  {nil, func(sp *infrav1.SpotProtection) { sp.Spec.ClusterName = "d" }, false},
		"of another workload": {nil, func(sp *infrav1.SpotProtection) { sp.Status.Workloads[0].Name = "api" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, sp := surged()
			pod := &cluster.pods[0]
			if c.pod != nil {
				c.pod(pod)
			}
			if c.change != nil {
				c.change(sp)
			}
			n := &managedNodes{objects: &recorder{protections: []infrav1.SpotProtection{*sp}}, cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}}
			d := nstance.Drain{Voluntary: true, StartedAt: time.Now(), Deadline: time.Now().Add(time.Hour)}
			left, err := n.handedOff(t.Context(), d, pod)
			require.NoError(t, err)
			require.Equal(t, c.want, left)
			protected, err := (&surgeController{Client: &recorder{protections: []infrav1.SpotProtection{*sp}}}).protected(t.Context(), "c", "ns", cluster.deployment)
			require.NoError(t, err)
			require.Equal(t, c.want || c.pod != nil || name == "within the budget" || name == "not protected", protected, "then a SpotProtection does it alone")
		})
	}
}

// TestSurgesAskedFor: a drain leaves a pod for a while, unless its Deployment cannot be surged. What
// no drain asks for any more is forgotten after a minute.
func TestSurgesAskedFor(t *testing.T) {
	cluster, _ := surged()
	pod := &cluster.pods[0]
	pod.Annotations[infrav1.AnnotationHandOff] = "true"
	told := 0
	s := newSurges(func() { told++ })
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	d := nstance.Drain{StartedAt: now, Deadline: now.Add(10 * time.Minute)}
	key := client.ObjectKey{Namespace: "ns", Name: "web"}
	for range 3 {
		require.True(t, s.waits(d, pod, now))
	}
	require.Equal(t, 1, told, "once")
	now = now.Add(wantedFor)
	require.Contains(t, s.current(now), key)
	require.True(t, s.waits(d, pod, now))
	now = now.Add(wantedFor)
	require.Contains(t, s.current(now), key, "it has asked since")
	s.evict(key)
	require.False(t, s.waits(d, pod, now))
	now = now.Add(wantedFor + 1)
	require.Empty(t, s.current(now))
	s.evict(key) // late
	require.Empty(t, s.current(now))
	require.True(t, s.waits(d, pod, now.Add(-wantedFor)), "it is not known any more that it cannot be")

	pod.Annotations["karpenter.sh/do-not-disrupt"] = "true"
	require.False(t, s.waits(d, pod, d.StartedAt), "the pod would stay whatever runs elsewhere")
	delete(pod.Annotations, "karpenter.sh/do-not-disrupt")
	require.False(t, s.waits(d, pod, d.StartedAt.Add(5*time.Minute)), "the second half is for evictions")
	unlimited := nstance.Drain{StartedAt: now, Deadline: now.Add(nstance.UnlimitedDrain)}
	require.True(t, s.waits(unlimited, pod, now.Add(handOffTime-1)))
	require.False(t, s.waits(unlimited, pod, now.Add(handOffTime)), "a drain without a limit too")
	d.Deadline = now.Add(-time.Hour)
	d.StartedAt = d.Deadline.Add(-leastSurge + time.Second)
	require.False(t, s.waits(d, pod, d.StartedAt), "no pod is ready within that time")
}
