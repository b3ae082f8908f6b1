package protection_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nstance-go/nstance/kubernetes/internal/protection"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func tainted(keys ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}}
	for _, k := range keys {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: k, Effect: corev1.TaintEffectNoSchedule})
	}
	return n
}

func withCondition(kind corev1.NodeConditionType, status corev1.ConditionStatus, message string) *corev1.Node {
	n := tainted()
	n.Status.Conditions = []corev1.NodeCondition{{Type: kind, Status: status, Message: message}}
	return n
}

// nodeClaim is one of Karpenter's; reason is that of a voluntary disruption.
func nodeClaim(deleting bool, reason string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"nodeName": "n"}}}
	u.SetName("claim")
	if deleting {
		u.SetDeletionTimestamp(&metav1.Time{Time: now})
	}
	if reason != "" {
		_ = unstructured.SetNestedSlice(u.Object, []any{map[string]any{"type": "DisruptionReason", "status": "True", "reason": reason}}, "status", "conditions")
	}
	return u
}

func event(node, reason string, age time.Duration) corev1.Event {
	return corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node}, Reason: reason, Message: "m", LastTimestamp: metav1.NewTime(now.Add(-age))}
}

func TestDetect(t *testing.T) {
	const none = protection.Cause("")
	young := tainted()
	young.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
	again := event("n", "SpotInterrupted", time.Hour)
	again.Series = &corev1.EventSeries{Count: 2, LastObservedTime: metav1.NewMicroTime(now.Add(-time.Minute))}
	former := nodeClaim(true, "Underutilized")
	conditions, _, _ := unstructured.NestedSlice(former.Object, "status", "conditions")
	conditions[0].(map[string]any)["status"] = "False"
	require.NoError(t, unstructured.SetNestedSlice(former.Object, conditions, "status", "conditions"))
	for name, c := range map[string]struct {
		node   *corev1.Node
		claim  *unstructured.Unstructured
		events []corev1.Event
		want   protection.Cause
	}{
		"nothing":                                   {tainted(), nil, nil, none},
		"any other taint":                           {tainted("node.kubernetes.io/unschedulable"), nil, nil, none},
		"AWS's handler":                             {tainted("aws-node-termination-handler/spot-itn"), nil, nil, protection.Reclaim},
		"GKE":                                       {tainted("cloud.google.com/impending-node-termination"), nil, nil, protection.Reclaim},
		"Azure's provider":                          {tainted("cloudprovider.azure.microsoft.com/draining"), nil, nil, protection.Reclaim},
		"the machine is off":                        {tainted("node.cloudprovider.kubernetes.io/shutdown"), nil, nil, protection.Reclaim},
		"Cluster Autoscaler":                        {tainted("ToBeDeletedByClusterAutoscaler"), nil, nil, protection.ScaleDown},
		"a mere candidate of Cluster Autoscaler":    {tainted("DeletionCandidateOfClusterAutoscaler"), nil, nil, none},
		"AKS":                                       {withCondition("PreemptionScheduled", corev1.ConditionTrue, "Preempt Scheduled: …"), nil, nil, protection.Reclaim},
		"AKS, over":                                 {withCondition("PreemptionScheduled", corev1.ConditionFalse, ""), nil, nil, none},
		"AKS, a freeze":                             {withCondition("VMEventScheduled", corev1.ConditionTrue, "Freeze Scheduled"), nil, nil, none},
		"a graceful shutdown":                       {withCondition(corev1.NodeReady, corev1.ConditionFalse, "node is shutting down"), nil, nil, protection.Reclaim},
		"an unhealthy node":                         {withCondition(corev1.NodeReady, corev1.ConditionFalse, "container runtime is down"), nil, nil, none},
		"Karpenter deletes the claim":               {tainted(), nodeClaim(true, ""), nil, protection.Reclaim},
		"Karpenter deletes the claim, tainted":      {tainted("karpenter.sh/disrupted"), nodeClaim(true, ""), nil, protection.Reclaim},
		"Karpenter's taint without claim":           {tainted("karpenter.sh/disrupted"), nil, nil, protection.Reclaim},
		"Karpenter prepares":                        {tainted("karpenter.sh/disrupted"), nodeClaim(false, ""), nil, protection.Replacement},
		"Karpenter consolidates":                    {tainted("karpenter.sh/disrupted"), nodeClaim(false, "Underutilized"), nil, protection.Replacement},
		"Karpenter consolidates, deleting":          {tainted("karpenter.sh/disrupted"), nodeClaim(true, "Underutilized"), nil, protection.Replacement},
		"Karpenter replaces a drifted node":         {tainted("karpenter.sh/disrupted"), nodeClaim(true, "Drifted"), nil, protection.Replacement},
		"Karpenter consolidates, older version":     {tainted("karpenter.sh/disruption"), nodeClaim(true, ""), []corev1.Event{event("n", "DisruptionTerminating", time.Minute)}, protection.Replacement},
		"a reclaim during consolidation":            {tainted("karpenter.sh/disrupted"), nodeClaim(true, "Underutilized"), []corev1.Event{event("n", "SpotInterrupted", time.Second)}, protection.Reclaim},
		"a claim that stays":                        {tainted(), nodeClaim(false, ""), nil, none},
		"an event of Karpenter's":                   {tainted(), nil, []corev1.Event{event("n", "SpotInterrupted", time.Second)}, protection.Reclaim},
		"an event of AWS's handler":                 {tainted(), nil, []corev1.Event{event("n", "SQSTermination", time.Second)}, protection.Reclaim},
		"an event of another node":                  {tainted(), nil, []corev1.Event{event("m", "SpotInterrupted", time.Second)}, none},
		"an event that is old":                      {tainted(), nil, []corev1.Event{event("n", "SpotInterrupted", 11*time.Minute)}, none},
		"an event of a former node of that name":    {tainted(), nil, []corev1.Event{event("n", "SpotInterrupted", 2*time.Hour)}, none},
		"an event before the node was made":         {young, nil, []corev1.Event{event("n", "SpotInterrupted", 5*time.Minute)}, none},
		"an event that is seen again":               {tainted(), nil, []corev1.Event{again}, protection.Reclaim},
		"a reason of Karpenter's that is over":      {tainted("karpenter.sh/disrupted"), former, nil, protection.Reclaim},
		"a recommendation is advice":                {tainted(), nil, []corev1.Event{event("n", "SpotRebalanceRecommendation", time.Second)}, none},
		"an event of AKS's node problem detector":   {tainted(), nil, []corev1.Event{event("n", "PreemptScheduled", time.Second)}, protection.Reclaim},
		"an event that means nothing for this node": {tainted(), nil, []corev1.Event{event("n", "DisruptionBlocked", time.Second)}, none},
	} {
		t.Run(name, func(t *testing.T) {
			s := protection.Detect(c.node, c.claim, c.events, now)
			if c.want == none {
				require.Nil(t, s)
				return
			}
			require.NotNil(t, s)
			require.Equal(t, c.want, s.Cause)
			require.Equal(t, c.want != protection.Replacement, s.Loses())
			require.Equal(t, s, protection.Detect(c.node, c.claim, c.events, now.Add(time.Minute)), "it is the same event")
		})
	}
}

// TestDetectOnce gives one interruption one ID, whatever announces it and in whichever order.
func TestDetectOnce(t *testing.T) {
	interrupted, terminating := event("n", "SpotInterrupted", time.Second), event("n", "TerminatingOnInterruption", time.Second)
	id := func(node *corev1.Node, claim *unstructured.Unstructured, events ...corev1.Event) string {
		s := protection.Detect(node, claim, events, now)
		require.NotNil(t, s)
		return s.EventID
	}
	want := id(tainted(), nil, interrupted)
	require.Equal(t, want, id(tainted(), nil, interrupted, terminating))
	require.Equal(t, want, id(tainted(), nil, terminating, interrupted))
	require.Equal(t, want, id(tainted("karpenter.sh/disrupted"), nodeClaim(true, "")))
	require.Equal(t, want, id(tainted("aws-node-termination-handler/spot-itn"), nil))
	require.Equal(t, want, id(withCondition(corev1.NodeReady, corev1.ConditionFalse, "node is shutting down"), nil))
	require.NotEqual(t, want, id(tainted("ToBeDeletedByClusterAutoscaler"), nil))
	other := tainted("aws-node-termination-handler/spot-itn")
	other.UID = "v"
	require.NotEqual(t, want, id(other, nil), "a later node of that name")

	for _, events := range [][]corev1.Event{{interrupted, event("n", "SpotInterruption", time.Minute)}, {event("n", "SpotInterruption", time.Minute), interrupted}} {
		require.Equal(t, "SpotInterrupted: m", protection.Detect(tainted(), nil, events, now).Reason, "the latest says why")
	}
}
