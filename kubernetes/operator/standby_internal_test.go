package operator

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/shards"
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

// A claimAPI is a shard that answers claims.
type claimAPI struct {
	answer *apiv1.ClaimStandbyResponse
	err    error
	asked  *apiv1.ClaimStandbyRequest
}

func (a *claimAPI) ClaimStandby(_ context.Context, r *apiv1.ClaimStandbyRequest, _ ...grpc.CallOption) (*apiv1.ClaimStandbyResponse, error) {
	a.asked = r
	return a.answer, a.err
}

func (a *claimAPI) ReleaseStandby(context.Context, *apiv1.ReleaseStandbyRequest, ...grpc.CallOption) (*apiv1.ReleaseStandbyResponse, error) {
	return &apiv1.ReleaseStandbyResponse{}, a.err
}

// TestClaimAnswers: a claim stands until the time that the shard says, and waits if no machine is
// parked. One that was not answered is asked for again.
func TestClaimAnswers(t *testing.T) {
	now := claiming().now
	for name, c := range map[string]struct {
		answer *apiv1.ClaimStandbyResponse
		err    error
		until  time.Time
		waits  bool
	}{
		"a machine wakes":           {&apiv1.ClaimStandbyResponse{Parked: 1, Claim: &apiv1.StandbyClaim{Until: timestamppb.New(now.Add(time.Minute))}}, nil, now.Add(time.Minute), false},
		"it does not say how long":  {&apiv1.ClaimStandbyResponse{Parked: 1}, nil, now.Add(claimDuration), false},
		"none is parked":            {&apiv1.ClaimStandbyResponse{}, nil, now.Add(claimDuration), true},
		"it has the claim":          {&apiv1.ClaimStandbyResponse{Unchanged: true}, nil, now.Add(claimDuration), false},
		"the shard does not answer": {nil, nstance.Errorf(nstance.Unavailable, "away"), time.Time{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, api := claiming(), &claimAPI{answer: c.answer, err: c.err}
			claim := &s.sp.Status.Claims[0]
			claim.Until, claim.Reason = metav1.Time{}, "reclaimed"
			require.ErrorIs(t, s.askAt(t.Context(), api, claim), c.err)
			require.True(t, c.until.Equal(claim.Until.Time), claim.Until)
			require.Equal(t, c.waits, claim.Message != "")
			require.Equal(t, []string{"spare", "n", "e1", "reclaimed"}, []string{api.asked.GetGroup(), api.asked.GetNode(), api.asked.GetEventId(), api.asked.GetReason()})
			require.Equal(t, claimDuration, api.asked.GetDuration().AsDuration())
		})
	}
}

// TestReleaseAnswers: the claims of a group that was removed have ended with it.
func TestReleaseAnswers(t *testing.T) {
	claim := &claiming().sp.Status.Claims[0]
	require.NoError(t, releaseAt(t.Context(), &claimAPI{}, claim))
	require.NoError(t, releaseAt(t.Context(), &claimAPI{err: nstance.Errorf(nstance.NotFound, "no group spare")}, claim))
	require.ErrorIs(t, releaseAt(t.Context(), &claimAPI{err: nstance.Errorf(nstance.Unavailable, "away")}, claim), nstance.Unavailable)
}

// TestLosesNodes: of the nodes that are lost, those with protected pods count. Their workloads say so,
// once for each interruption. A machine is claimed for those of others only: the shard bridges its own.
func TestLosesNodes(t *testing.T) {
	s := claiming()
	s.with("stays", nil)
	s.nodes["empty"], s.nodes["others"] = lostNode("empty", "e2"), lostNode("others", "e3")
	s.with("own", &apiv1.Instance{Drain: &apiv1.Drain{Causes: []*apiv1.Cause{{Kind: string(nstance.CauseNotice), EventId: "e4", Message: "taken back"}}}})
	web, api := s.workload(2, on("others", true, nil), on("stays", true, nil)), s.workload(1, on("own", true, nil))
	api.Object.SetName("api")
	lost := s.lostNodes()
	require.Len(t, lost, 2)
	began := s.now
	for range 2 {
		s.noteInterruptions(lost)
		require.NoError(t, s.recordClaims(lost))
		s.now = s.now.Add(time.Minute)
	}
	require.Equal(t, infrav1.Interruption{Node: "others", EventID: "e3", Time: metav1.NewTime(began)}, web.status.LastInterruption)
	require.Equal(t, infrav1.Interruption{Node: "own", EventID: "e4", Reason: "taken back", Time: metav1.NewTime(began)}, api.status.LastInterruption)
	require.Len(t, s.sp.Status.Claims, 2)
	require.Equal(t, infrav1.StandbyClaim{Interruption: web.status.LastInterruption, Group: "spare", Workloads: []string{web.key()}}, s.sp.Status.Claims[0], "the latest first")

	s.sp.Spec.Standby.Group, s.sp.Status.Claims = "", nil
	require.NoError(t, s.recordClaims(lost))
	require.Empty(t, s.sp.Status.Claims, "no group stands by")
}

// TestSavesClaims: what no shard has been asked for yet is stored before it is.
func TestSavesClaims(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*infrav1.StandbyClaim)
		want   bool
	}{
		"not asked for":                   {func(c *infrav1.StandbyClaim) { c.Until = metav1.Time{} }, true},
		"asked for":                       {func(*infrav1.StandbyClaim) {}, false},
		"not asked for, and it has ended": {func(c *infrav1.StandbyClaim) { c.Until, c.Released = metav1.Time{}, metav1.Now() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := claiming(), &recorder{}
			s.nodes["n"] = lostNode("n", "e1")
			c.change(&s.sp.Status.Claims[0])
			require.NoError(t, (&protectionController{Client: r}).saveClaims(t.Context(), s))
			require.Equal(t, c.want, len(r.patches) == 1)
			if c.want {
				require.Contains(t, r.patches[0], `"claims":[{`)
			}
		})
	}
}

// TestReview: a claim that is not needed any more ends at the shard, unless another SpotProtection has
// the same: then the last one by name ends it there. While that fails it has not ended.
func TestReview(t *testing.T) {
	const ended = "the node stays"
	for name, c := range map[string]struct {
		change  func(*survey)
		other   string // has the same claim
		away    bool   // the shard
		failed  bool
		message string
		over    bool
	}{
		"needed": {func(s *survey) { s.nodes["n"] = lostNode("n", "e1"); s.workload(1, on("n", true, nil)) }, "", true, false, "", false},
		"needed, and not asked for": {func(s *survey) {
			s.nodes["n"] = lostNode("n", "e1")
			s.workload(1, on("n", true, nil))
			s.sp.Status.Claims[0].Until, s.sp.Status.Claims[0].Shard = metav1.Time{}, "a"
		}, "", true, true, "", false},
		"not needed":                    {func(s *survey) { s.with("n", nil) }, "", false, false, ended, true},
		"not needed, the shard is away": {func(s *survey) { s.with("n", nil) }, "", true, true, "", false},
		"an earlier one ends first":     {func(s *survey) { s.with("n", nil) }, "a", false, false, "not needed any more: waits for SpotProtection a, which has claimed the same stand-by machine", false},
		"a later one ends it":           {func(s *survey) { s.with("n", nil) }, "z", true, false, ended, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, others := claiming(), &recorder{}
			c.change(s)
			if c.other != "" {
				other := claiming().sp
				other.Name = c.other
				others.protections = []infrav1.SpotProtection{*other}
			}
			s.cluster, s.fleet = &clusterv1.Cluster{}, &fleet{shards: map[string]*connection{}} // no shard has the group any more
			if c.away {
				s.fleet.shards["a"] = &connection{Shard: shards.New(shards.Options{Name: "a"})}
			}
			f, claim := newFleets(nil, slog.New(slog.DiscardHandler)), &s.sp.Status.Claims[0]
			f.byCluster[infrastructureOf(s.cluster)] = s.fleet
			controller := &protectionController{uncached: others, fleets: f}
			require.Equal(t, c.failed, controller.review(t.Context(), s, claim) != nil)
			require.True(t, s.busy)
			require.Equal(t, c.message, claim.Message)
			require.Equal(t, c.over, claim.Released.Time.Equal(s.now))
			if c.over {
				s.busy = false
				require.NoError(t, controller.review(t.Context(), s, claim))
				require.False(t, s.busy, "nothing is left to do")
			}
		})
	}
}
