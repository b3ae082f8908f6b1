package operator

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// announced are the types, reasons and notes of events.
type announced []string

func (a *announced) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	*a = append(*a, kind+" "+reason+": "+fmt.Sprintf(note, args...))
}

// TestAnnouncesConditions: an event says each change of a condition, and warns of what is not as it should
// be and no step on the way there.
func TestAnnouncesConditions(t *testing.T) {
	const normal, warning = corev1.EventTypeNormal, corev1.EventTypeWarning
	condition := func(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
	}
	ready := condition(clusterv1.ReadyCondition, metav1.ConditionTrue, reasonReady, "")
	for name, c := range map[string]struct {
		before, now []metav1.Condition
		want        []string
	}{
		"none":              {nil, nil, nil},
		"new":               {nil, []metav1.Condition{ready}, []string{normal + " Ready: Ready is True"}},
		"the same":          {[]metav1.Condition{ready}, []metav1.Condition{ready}, nil},
		"other words":       {[]metav1.Condition{ready}, []metav1.Condition{condition(ready.Type, ready.Status, ready.Reason, "still")}, nil},
		"another reason":    {[]metav1.Condition{ready}, []metav1.Condition{condition(ready.Type, ready.Status, "Other", "why")}, []string{normal + " Other: Ready is True: why"}},
		"worse":             {[]metav1.Condition{ready}, []metav1.Condition{condition(ready.Type, metav1.ConditionFalse, reasonShardLost, "")}, []string{warning + " ShardLost: Ready is False"}},
		"a step":            {nil, []metav1.Condition{condition(ready.Type, metav1.ConditionFalse, reasonScaling, "")}, []string{normal + " Scaling: Ready is False"}},
		"it waits":          {nil, []metav1.Condition{condition(ready.Type, metav1.ConditionFalse, reasonBootstrap, "")}, []string{normal + " WaitingForBootstrapData: Ready is False"}},
		"interrupted":       {nil, []metav1.Condition{condition(infrav1.ConditionInterrupted, metav1.ConditionTrue, reasonReclaimed, "")}, []string{warning + " Reclaimed: NstanceInterrupted is True"}},
		"a withdrawn one":   {nil, []metav1.Condition{condition(infrav1.ConditionInterrupted, metav1.ConditionFalse, reasonReady, "")}, []string{normal + " Ready: NstanceInterrupted is False"}},
		"a drain has ended": {nil, []metav1.Condition{condition(infrav1.ConditionDraining, metav1.ConditionFalse, reasonNotDraining, "")}, []string{normal + " NotDraining: NstanceDraining is False"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got announced
			m := &infrav1.NstanceMachine{}
			m.SetConditions(c.now)
			(&statusKeeper{events: &got}).announce(m, c.before, []string{clusterv1.ReadyCondition, infrav1.ConditionInterrupted, infrav1.ConditionDraining})
			require.Equal(t, announced(c.want), got)
		})
	}
}
