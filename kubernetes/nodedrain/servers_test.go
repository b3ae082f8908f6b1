//go:build kube

package nodedrain_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// TestKubeDrain: a node is emptied within a disruption budget, and says why.
func TestKubeDrain(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.deployment(6, nil)
	b := r.node("b") // all pods are on a
	r.budget(1)
	fewest := r.countReady(6)
	r.run(nil)
	d := r.drain(a, time.Minute, nil)
	ack := r.ack(d)
	require.GreaterOrEqual(t, fewest(), 5, "ready pods, of which the budget wants five")
	require.Equal(t, nstance.OutcomeDrained, ack.Outcome, ack.Message)
	r.eventually(func() bool { return len(r.readyPods()) == 6 }, "replacements are not ready")
	for _, node := range r.readyPods() {
		require.Equal(t, b, node)
	}
	node := r.get(a)
	require.True(t, node.Spec.Unschedulable)
	require.Contains(t, node.Labels, corev1.LabelNodeExcludeBalancers)
	require.Equal(t, "notice: spot interruption", node.Annotations["nstance.dev/drain-cause"])
	require.Equal(t, "event-1", node.Annotations["nstance.dev/drain-event-id"])
	require.Equal(t, d.Deadline.UTC().Format(time.RFC3339), node.Annotations["nstance.dev/drain-deadline"])
	r.eventually(func() bool {
		return len(r.eventsOf("default", a, "DrainStarted")) == 1 && len(r.eventsOf("default", a, "Drained")) == 1
	}, "events on the node")
	evicted := r.requests.matching(func(q request) bool { return evictions(q) && q.status == http.StatusCreated })
	require.NotEmpty(t, evicted)
	for _, q := range evicted {
		name := strings.Split(q.path, "/")[6]
		r.eventually(func() bool {
			m := r.eventsOf(r.namespace, name, "EvictedByDrain")
			return len(m) == 1 && strings.Contains(m[0], "event-1") && strings.Contains(m[0], d.Deadline.UTC().Format(time.RFC3339)) && strings.Contains(m[0], "spot interruption")
		}, "event on pod %s", name)
	}
}

func acks(r *rig, d nstance.Drain) bool {
	for e := range r.drains.Watch(r.Context(), "", 0) {
		if e.Type == nstance.DrainSynced {
			return false
		}
		if e.Drain.Instance == d.Instance && e.Ack != nil && e.Ack.Outcome != nstance.OutcomeBlocked {
			return true
		}
	}
	return true
}

// TestKubeWaitsForBudget: a drain without deadline passes no budget and says for what it
// waits, until a notice comes.
func TestKubeWaitsForBudget(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.pod("p", a, nil)
	r.budget(0)
	r.run(nil)
	d := r.drain(a, 0, unlimited)
	blocked := r.nextAck(d, func(nstance.Ack) bool { return true })
	require.Equal(t, nstance.OutcomeBlocked, blocked.Outcome)
	require.False(t, blocked.Delete)
	for _, text := range []string{
		blocked.Message, r.get(a).Annotations["nstance.dev/drain-progress"], r.event("default", a, "DrainBlocked"), r.event(r.namespace, "p", "DrainBlocked"),
	} {
		require.Contains(t, text, "The disruption budget web ")
	}
	require.Contains(t, blocked.Message, "pod "+r.namespace+"/p: ")
	require.Contains(t, r.event("default", a, "DrainStarted"), "node is drained without a deadline because of")
	require.Equal(t, "none", r.get(a).Annotations["nstance.dev/drain-deadline"])
	require.True(t, podReady(r.getPod("p")))
	require.GreaterOrEqual(t, len(r.requests.matching(evictions)), 3, "retried")
	require.Empty(t, r.requests.matching(func(q request) bool { return q.method == http.MethodDelete }))

	d.Deadline, d.Voluntary = time.Now().Add(5*time.Second), false
	require.NoError(t, r.drains.Start(t.Context(), d))
	ack := r.ack(d)
	require.Equal(t, nstance.OutcomeDrained, ack.Outcome, ack.Message)
	require.Contains(t, ack.Message, "pdb_overridden for 1 pods")
}

// TestKubeBudgetOverridden: what a budget blocks is deleted past it, early enough for its
// grace period, which has half of the time at most.
func TestKubeBudgetOverridden(t *testing.T) {
	const left, margin = 12 * time.Second, 2 * time.Second
	for name, c := range map[string]struct {
		grace, given         int64
		voluntary, tightened bool
	}{
		"it has its own grace":                {grace: 3, given: 3},
		"it wants more than half of the time": {grace: 600, given: 6},
		"a voluntary drain ends likewise":     {grace: 3, given: 3, voluntary: true},
		"a notice comes in a long drain":      {grace: 600, given: 6, voluntary: true, tightened: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a := r.node("a")
			r.pod("p", a, slow(c.grace))
			r.budget(0)
			drainer, stop := r.run(&nodedrain.Options{Margin: margin})
			d := r.drain(a, left, func(d *nstance.Drain) {
				if d.Voluntary = c.voluntary; c.tightened {
					d.Deadline = d.Deadline.Add(20 * time.Minute)
				}
			})
			if c.tightened {
				r.eventually(func() bool { return len(r.requests.matching(evictions)) > 0 }, "not begun")
				d.Deadline, d.Voluntary = time.Now().Add(left), false
				require.NoError(t, r.drains.Start(t.Context(), d))
			}
			due := d.Deadline.Add(-margin - time.Duration(c.given)*time.Second)
			r.eventually(func() bool { p := r.getPod("p"); return p != nil && p.DeletionTimestamp != nil }, "not deleted")
			require.WithinDuration(t, due, time.Now(), time.Second)
			require.False(t, time.Now().Before(due), "not before its grace must begin")
			require.EqualValues(t, c.given, *r.getPod("p").DeletionGracePeriodSeconds)
			r.eventually(func() bool { return r.get(a).Annotations["nstance.dev/drain-pdb-overridden"] == r.namespace+"/p" }, "annotation of the node")
			require.Contains(t, r.event(r.namespace, "p", "pdb_overridden"), "The disruption budget web ")
			stats := drainer.Stats()
			require.EqualValues(t, 1, stats.PDBOverridden)
			require.Greater(t, stats.BudgetWait, time.Second)
			require.Contains(t, drainer.Progress(d.Instance), "pods remaining: 1")
			stop()
			require.Zero(t, drainer.Stats().Refused)
			r.run(nil)
			ack := r.ack(d)
			require.Equal(t, nstance.OutcomeDrained, ack.Outcome, ack.Message)
			require.Contains(t, ack.Message, "pdb_overridden for 1 pods: "+r.namespace+"/p", "also after a restart")
		})
	}
}

// TestKubeShortNotice: with less time than the pods' grace periods the budget is kept, as
// long as others can take their place in half of that time.
func TestKubeShortNotice(t *testing.T) {
	r := newRig(t)
	nodes := []string{r.node("a"), r.node("b"), r.node("c")}
	r.deployment(3, func(s *corev1.PodSpec) {
		*s.TerminationGracePeriodSeconds = 60
		apart := corev1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, TopologyKey: corev1.LabelHostname}
		s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{apart}}}
	})
	r.budget(1)
	for _, name := range []string{"d", "e", "f"} {
		r.node(name)
	}
	fewest := r.countReady(3)
	r.run(nil)
	var drains []nstance.Drain
	for _, n := range nodes {
		drains = append(drains, r.drain(n, 24*time.Second, nil))
	}
	for _, d := range drains {
		ack := r.ack(d)
		require.Equal(t, nstance.OutcomeDrained, ack.Outcome, ack.Message)
		require.Empty(t, ack.Message, "no budget is passed")
	}
	require.GreaterOrEqual(t, fewest(), 2, "ready pods, of which the budget wants two")
}

// TestKubeGraceClamped: a pod that wants more time than there is gets what there is.
func TestKubeGraceClamped(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.pod("p", a, slow(600))
	r.run(nil)
	d := r.drain(a, 6*time.Second, voluntary)
	r.eventually(func() bool { p := r.getPod("p"); return p != nil && p.DeletionTimestamp != nil }, "not evicted")
	require.InDelta(t, 4, *r.getPod("p").DeletionGracePeriodSeconds, 1)
	require.Equal(t, nstance.OutcomeDrained, r.ack(d).Outcome)
}

// TestKubeUnknownNode: a node that does not exist is not empty.
func TestKubeUnknownNode(t *testing.T) {
	r := newRig(t)
	r.run(nil)
	never := r.drain("never", 2*time.Second, nil)
	name := r.namespace + "-late"
	late := r.drain(name, time.Minute, nil)
	ack := r.ack(never)
	require.Equal(t, nstance.OutcomeFailed, ack.Outcome)
	require.Contains(t, ack.Message, `no node has the provider ID "i-never"`)
	require.False(t, acks(r, late))
	r.makeNode(name)
	require.Equal(t, nstance.OutcomeDrained, r.ack(late).Outcome)
	require.True(t, r.get(name).Spec.Unschedulable)
}

// TestKubeTwoNodes: two nodes of one provider ID are never guessed between.
func TestKubeTwoNodes(t *testing.T) {
	r := newRig(t)
	a, b := r.node("a"), r.namespace+"-b"
	twin := &corev1.Node{}
	twin.Name, twin.Spec.ProviderID = b, "aws:///zone-b/i-"+a
	_, err := servers.Client.CoreV1().Nodes().Create(t.Context(), twin, create)
	require.NoError(t, err)
	t.Cleanup(func() { _ = servers.Client.CoreV1().Nodes().Delete(background, b, remove) })
	r.run(nil)
	ack := r.ack(r.drain(a, 3*time.Second, nil))
	require.Equal(t, nstance.OutcomeFailed, ack.Outcome)
	require.Contains(t, ack.Message, "both have the provider ID")
	require.False(t, r.get(a).Spec.Unschedulable)
	require.False(t, r.get(b).Spec.Unschedulable)
}

// TestKubeRestart: a drain is continued by the next process.
func TestKubeRestart(t *testing.T) {
	r := newRig(t)
	a := r.node("a")
	r.pod("p", a, nil)
	r.budget(0)
	_, stop := r.run(nil)
	d := r.drain(a, time.Minute, voluntary)
	r.eventually(func() bool { return len(r.requests.matching(evictions)) > 0 }, "not begun")
	stop()
	require.False(t, acks(r, d))
	require.True(t, r.get(a).Spec.Unschedulable)
	r.deleteBudget()
	r.run(nil)
	require.Equal(t, nstance.OutcomeDrained, r.ack(d).Outcome)
	r.eventually(func() bool { return len(r.eventsOf("default", a, "Drained")) == 1 }, "event on the node")
	require.Len(t, r.eventsOf("default", a, "DrainStarted"), 1, "it started once")
}

// TestKubeCancel: what the drain did is taken back, and nothing else, by whichever
// process sees the cancellation.
func TestKubeCancel(t *testing.T) {
	for name, restart := range map[string]bool{"at once": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a, b := r.node("a"), r.node("b")
			r.node("spare") // load balancers need a target
			r.patch(b, `{"spec":{"unschedulable":true}}`)
			r.pod("p", a, nil)
			r.pod("q", b, nil)
			r.budget(0)
			_, stop := r.run(nil)
			da, db := r.drain(a, time.Minute, voluntary), r.drain(b, time.Minute, voluntary)
			r.eventually(func() bool { return excluded(r.get(a)) && excluded(r.get(b)) && r.get(a).Spec.Unschedulable }, "not begun")
			if restart {
				stop()
				r.run(nil)
				count := len(r.requests.matching(evictions))
				r.eventually(func() bool { return len(r.requests.matching(evictions)) > count }, "not continued")
			}
			require.NoError(t, r.drains.Cancel(t.Context(), da.Instance, da.Generation))
			require.NoError(t, r.drains.Cancel(t.Context(), db.Instance, db.Generation))
			r.eventually(func() bool { return !annotated(r.get(a)) && !annotated(r.get(b)) }, "not taken back")
			require.False(t, r.get(a).Spec.Unschedulable)
			require.True(t, r.get(b).Spec.Unschedulable, "it was cordoned before")
			require.False(t, excluded(r.get(a)) || excluded(r.get(b)))
			require.True(t, podReady(r.getPod("p")))
			r.eventually(func() bool { return len(r.eventsOf("default", a, "DrainCancelled")) == 1 }, "event on the node")
			da.Generation = 2
			require.NoError(t, r.drains.Start(t.Context(), da))
			r.eventually(func() bool {
				return r.get(a).Spec.Unschedulable && r.get(a).Annotations["nstance.dev/drain-generation"] == "2"
			}, "drained again")
		})
	}
}

func excluded(n *corev1.Node) bool {
	_, ok := n.Labels[corev1.LabelNodeExcludeBalancers]
	return ok
}

func annotated(n *corev1.Node) bool {
	for key := range n.Annotations {
		if strings.HasPrefix(key, "nstance.dev/drain-") {
			return true
		}
	}
	return false
}

// TestKubeMass: all doomed nodes are cordoned before a pod is evicted.
func TestKubeMass(t *testing.T) {
	r := newRig(t)
	const count = 50
	var nodes []string
	for i := range count {
		nodes = append(nodes, r.namespace+"-"+string(rune('a'+i/26))+string(rune('a'+i%26)))
		r.makeNode(nodes[i])
	}
	for _, n := range nodes {
		r.eventually(func() bool { return ready(r.get(n)) }, "node %s", n)
		r.pod("on-"+n[len(n)-2:], n, nil)
	}
	r.requests.before = func(q request) {
		if q.method == http.MethodPatch && strings.HasSuffix(q.path, nodes[count-1]) {
			sleep.For(t.Context(), time.Second)
		}
	}
	r.run(&nodedrain.Options{QPS: 1000})
	r.eventually(func() bool { return nodesListed(r) }, "nodes are not listed")
	var drains []nstance.Drain
	for _, n := range nodes {
		drains = append(drains, r.drain(n, time.Minute, nil))
	}
	for _, d := range drains {
		require.Equal(t, nstance.OutcomeDrained, r.ack(d).Outcome)
	}
	cordons := r.requests.matching(func(q request) bool { return q.method == http.MethodPatch && q.status == http.StatusOK })
	evicted := r.requests.matching(func(q request) bool { return evictions(q) && q.status == http.StatusCreated })
	require.Len(t, evicted, count)
	cordoned := map[string]time.Time{} // by path, the first patch
	var later []request
	withdrawn := 0
	for _, q := range cordons {
		if _, ok := cordoned[q.path]; ok {
			later = append(later, q)
			continue
		}
		cordoned[q.path] = q.at
		if strings.Contains(q.body, corev1.LabelNodeExcludeBalancers) {
			withdrawn++
		}
	}
	require.Len(t, cordoned, count)
	require.LessOrEqual(t, withdrawn, 1, "targets of load balancers withdrawn with the cordon")
	last := time.Time{}
	for _, at := range cordoned {
		if at.After(last) {
			last = at
		}
	}
	for _, q := range append(evicted, later...) {
		require.True(t, q.at.After(last), "evicted or withdrawn before the last cordon: %s", q)
	}
}

func nodesListed(r *rig) bool {
	r.requests.mu.Lock()
	defer r.requests.mu.Unlock()
	for _, q := range r.requests.sent {
		if q.path == "/api/v1/nodes" {
			return true
		}
	}
	return false
}

// TestKubeEmptyNode: an empty node costs at most five requests, events included.
func TestKubeEmptyNode(t *testing.T) {
	r := newRig(t)
	a, b := r.node("a"), r.node("b")
	r.node("spare") // load balancers need a target
	_, stop := r.run(nil)
	for _, n := range []string{a, b} { // the second as part of a mass
		d := r.drain(n, time.Minute, nil)
		require.Equal(t, nstance.OutcomeDrained, r.ack(d).Outcome)
		r.eventually(func() bool {
			return len(r.requests.matching(func(q request) bool { return strings.HasSuffix(q.path, "/events") })) == 2
		}, "it says that it begins and ends")
		sent := r.requests.matching(func(request) bool { return true })
		require.LessOrEqual(t, len(sent), 5, "%v", sent)
		r.requests.clear()
		require.True(t, excluded(r.get(n)))
	}
	stop()
	r.run(nil)
	last := r.drain(r.node("c"), time.Minute, nil)
	require.Equal(t, nstance.OutcomeDrained, r.ack(last).Outcome)
	for _, q := range r.requests.matching(func(request) bool { return true }) {
		require.NotContains(t, q.String(), a, "a drain that was acknowledged is not repeated")
	}
}
