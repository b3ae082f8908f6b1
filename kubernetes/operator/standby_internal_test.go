package operator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// TestReplaced: a node that came stands in for one lost node only, whichever claims have
// ended meanwhile.
func TestReplaced(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	minute := func(n int) metav1.Time { return metav1.NewTime(start.Add(time.Duration(n) * time.Minute)) }
	claim := func(at int) infrav1.StandbyClaim {
		return infrav1.StandbyClaim{Interruption: infrav1.Interruption{Node: "gone", Time: minute(at)}}
	}
	released := func(at, end int, why string) infrav1.StandbyClaim {
		c := claim(at)
		c.Released, c.Message = minute(end), why
		return c
	}
	for name, c := range map[string]struct {
		older []infrav1.StandbyClaim // the latest first
		nodes []int                  // minutes at which they came
		want  bool
	}{
		"no node":                      {nil, nil, false},
		"a node that was there before": {nil, []int{9}, false},
		"a node":                       {nil, []int{11}, true},
		"a node for two":               {[]infrav1.StandbyClaim{claim(5)}, []int{11}, false},
		"two nodes for two":            {[]infrav1.StandbyClaim{claim(5)}, []int{11, 12}, true},
		"the older claim has a node that is older":   {[]infrav1.StandbyClaim{claim(5)}, []int{6, 11}, true},
		"the node is that of a claim that has ended": {[]infrav1.StandbyClaim{released(5, 12, releasedReplaced)}, []int{11}, false},
		"a claim that ended before needed another":   {[]infrav1.StandbyClaim{released(5, 7, releasedReplaced)}, []int{11}, true},
		"a claim that ended without a node":          {[]infrav1.StandbyClaim{released(5, 12, "the node stays")}, []int{11}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &survey{sp: &infrav1.SpotProtection{}, nodes: map[string]*surveyedNode{}}
			s.sp.Status.Claims = append([]infrav1.StandbyClaim{claim(10)}, c.older...)
			for i, at := range c.nodes {
				n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(rune('a' + i)), CreationTimestamp: minute(at)}}
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
				s.nodes[n.Name] = &surveyedNode{Node: n}
			}
			require.Equal(t, c.want, s.replaced(&s.sp.Status.Claims[0]))
		})
	}
}

// TestForgetClaims remembers a claim that has ended for as long as a claim of that time may last:
// its node is taken.
func TestForgetClaims(t *testing.T) {
	for name, c := range map[string]struct {
		duration *metav1.Duration
		ended    time.Duration // ago
		want     int
	}{
		"within an hour":        {nil, 59 * time.Minute, 1},
		"an hour later":         {nil, 61 * time.Minute, 0},
		"claims of three hours": {&metav1.Duration{Duration: 3 * time.Hour}, 2 * time.Hour, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := &survey{sp: &infrav1.SpotProtection{}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
			s.sp.Spec.Standby.Duration = c.duration
			s.sp.Status.Claims = []infrav1.StandbyClaim{{Released: metav1.NewTime(s.now.Add(-c.ended)), Message: releasedReplaced}}
			s.forgetClaims()
			require.Len(t, s.sp.Status.Claims, c.want)
		})
	}
}
