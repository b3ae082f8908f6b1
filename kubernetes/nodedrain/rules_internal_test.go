package nodedrain

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/nstance-go/nstance"
)

// get returns a node as it is now.
func (r *virtualRig) get(name string) (n corev1.Node) {
	path := "/api/v1/nodes/" + name
	o := r.kube.Objects(path)[path]
	require.NotNil(r, o, name)
	require.NoError(r, runtime.DefaultUnstructuredConverter.FromUnstructured(o, &n))
	return n
}

// change changes a node as another one would.
func (r *virtualRig) change(name string, do func(*corev1.Node)) {
	require.True(r, r.kube.Change("/api/v1/nodes/"+name, func(o map[string]any) {
		var n corev1.Node
		require.NoError(r, runtime.DefaultUnstructuredConverter.FromUnstructured(o, &n))
		do(&n)
		changed, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&n)
		require.NoError(r, err)
		changed["apiVersion"], changed["kind"] = o["apiVersion"], o["kind"]
		clear(o)
		maps.Copy(o, changed)
	}))
}

// requests counts requests whose answer is awaited.
type requests struct {
	mu             sync.Mutex
	all, now, most int
}

// during counts one more for as long as do lasts.
func (q *requests) during(do func() error) error {
	q.mu.Lock()
	q.all++
	q.now++
	q.most = max(q.most, q.now)
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.now--
	}()
	return do()
}

func (q *requests) counts() (all, most int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.all, q.most
}

// TestSlowWebhook: an eviction whose webhook needs ten seconds succeeds, and is asked for once at a
// time.
func TestSlowWebhook(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		var evictions requests
		r.kube.Refuse(func(q *http.Request) error {
			if !strings.HasSuffix(q.URL.Path, "/slow/eviction") {
				return nil
			}
			return evictions.during(func() error {
				select {
				case <-time.After(10 * time.Second):
					return nil
				case <-q.Context().Done():
					return q.Context().Err()
				}
			})
		})
		r.node("n")
		r.pod("slow", "n", nil)
		r.pod("other", "n", nil)
		d := r.drain("n", 5*time.Minute, nil)
		pass(5 * time.Second)
		require.Len(r, r.pods(), 1)
		pass(25 * time.Second)
		require.Empty(r, r.pods())
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
		require.Empty(r, r.said(reasonOverridden))
		_, most := evictions.counts()
		require.Equal(r, 1, most)
	})
}

// TestShortenedOnceAtATime: so is the deletion that shortens a grace period.
func TestShortenedOnceAtATime(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		var deletions requests
		r.kube.Refuse(func(q *http.Request) error {
			if q.Method != http.MethodDelete {
				return nil
			}
			return deletions.during(func() error {
				<-q.Context().Done()
				return q.Context().Err()
			})
		})
		r.node("n")
		r.pod("p", "n", func(p *corev1.Pod) {
			stops("10m")(p)
			p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](590)
		})
		d := r.drain("n", 15*time.Minute, nil)
		pass(5 * time.Second)
		require.NotNil(r, r.pods()[0].DeletionTimestamp)
		d.Deadline = time.Now().Add(time.Minute)
		require.NoError(r, r.drains.Start(r.ctx, d))
		pass(30 * time.Second)
		all, most := deletions.counts()
		require.Greater(r, all, 1, "it is tried again")
		require.Equal(r, 1, most)
	})
}

// TestDeletionRefused: a pod whose deletion past its budget is refused too is tried again, with
// pauses. The event names what refused the eviction.
func TestDeletionRefused(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		var deletions requests
		began := time.Now()
		r.kube.Refuse(func(q *http.Request) error {
			if q.Method != http.MethodDelete || time.Since(began) > 95*time.Second {
				return nil
			}
			return deletions.during(func() error { return apierrors.NewForbidden(corev1.Resource("pods"), "p", errors.New("by a policy")) })
		})
		r.node("n")
		r.pod("p", "n", nil)
		r.budget(3)                           // of which two will never be
		d := r.drain("n", 2*time.Minute, nil) // past its budget at 88 s
		pass(95 * time.Second)
		all, _ := deletions.counts()
		require.Positive(r, all)
		require.Less(r, all, 30, "four times a second at most")
		pass(20 * time.Second)
		require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
		require.Len(r, r.said(reasonOverridden), 1)
		require.NotContains(r, r.said(reasonOverridden)[0], "by a policy")
	})
}

// TestTightenedOnly: a repeat of a drain makes it no milder.
func TestTightenedOnly(t *testing.T) {
	now := time.Now()
	notice := []nstance.Cause{{Kind: nstance.CauseNotice}}
	drain := func(left time.Duration, voluntary, cordonOnly bool) nstance.Drain {
		return nstance.Drain{Instance: "i", Generation: 1, Deadline: now.Add(left), Voluntary: voluntary, CordonOnly: cordonOnly}
	}
	for name, c := range map[string]struct{ first, repeat, want nstance.Drain }{
		"a notice in a rollout":   {drain(time.Hour, true, true), drain(time.Minute, false, false), drain(time.Minute, false, false)},
		"a rollout in a notice":   {drain(time.Minute, false, false), drain(time.Hour, true, true), drain(time.Minute, false, false)},
		"as it is":                {drain(time.Hour, true, true), drain(time.Hour, true, true), drain(time.Hour, true, true)},
		"from a cordon to drains": {drain(time.Hour, true, true), drain(time.Hour, true, false), drain(time.Hour, true, false)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorker(&Drainer{options: Options{Log: discardIfNil(nil)}}, c.first, true)
			w.start(t.Context())
			c.repeat.Causes, c.want.Causes = notice, notice
			w.tighten(c.repeat)
			require.Equal(t, c.want, w.current())
			require.Len(t, w.changed, 1, "the drain looks at its pods again")
			w.expiry.Stop()
			w.abandon()
		})
	}
}

// annotated has a node have these annotations, and be cordoned and out of load balancers.
func annotated(annotations map[string]string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Annotations, n.Labels = annotations, map[string]string{corev1.LabelNodeExcludeBalancers: ""}
		n.Spec.Unschedulable = true
	}
}

// TestTakesBackItsOwn: what a drain left on a node whose instance stays is taken back, as far as
// the annotations say that the drain did it. It is found again after another one.
func TestTakesBackItsOwn(t *testing.T) {
	for name, c := range map[string]struct {
		annotations           map[string]string
		schedulable, balanced bool
		known                 bool // it is a drain of this instance
	}{
		"all of it":                     {map[string]string{annotationInstance: "web-n", annotationCordoned: "true", annotationExcluded: "true"}, true, true, true},
		"others have cordoned it":       {map[string]string{annotationInstance: "web-n", annotationExcluded: "true"}, false, true, true},
		"others have excluded it":       {map[string]string{annotationInstance: "web-n", annotationCordoned: "true"}, true, false, true},
		"a drain of another instance":   {map[string]string{annotationInstance: "web-m", annotationCordoned: "true", annotationExcluded: "true"}, false, false, false},
		"no drain, whatever it be like": {map[string]string{annotationCordoned: "true", annotationExcluded: "true"}, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, &Options{Instances: allStay{}}, func(r *virtualRig) {
				r.node("n")
				for range 2 {
					r.change("n", annotated(maps.Clone(c.annotations)))
					pass(2 * time.Minute)
					n := r.get("n")
					require.Equal(r, c.schedulable, !n.Spec.Unschedulable)
					require.Equal(r, c.balanced, !excluded(&n))
					_, left := n.Annotations[annotationInstance]
					require.Equal(r, !c.known && c.annotations[annotationInstance] != "", left)
				}
			})
		})
	}
}

// TestTakeBackSparesDrains: a node that a drain is at work on stays as it is.
func TestTakeBackSparesDrains(t *testing.T) {
	virtual(t, &Options{Instances: allStay{}}, func(r *virtualRig) {
		r.node("n")
		r.pod("job", "n", func(p *corev1.Pod) { p.Labels["cluster.x-k8s.io/drain"] = "wait-completed" })
		d := r.drain("n", time.Hour, nil)
		for range 10 {
			pass(30 * time.Second)
			require.True(r, r.get("n").Spec.Unschedulable)
		}
		require.Nil(r, r.ack(d))
	})
}

// TestEarlierDrain: what an earlier drain left on the node is not of this one. What the same drain
// left, before a restart, is.
func TestEarlierDrain(t *testing.T) {
	for name, same := range map[string]bool{"an earlier drain": false, "the same drain": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				d := nstance.Drain{Instance: "web-n", Generation: 7, Deadline: time.Now().Add(5 * time.Minute)}
				before := describe(d)
				before[annotationSince] = time.Now().Add(-time.Hour).UTC().Format(time.RFC3339Nano)
				before[annotationOverridden], before[annotationEventID] = "ns/old", "event-0"
				r.node("n")
				r.change("n", func(n *corev1.Node) { n.Annotations = maps.Clone(before) })
				r.pod("job", "n", func(p *corev1.Pod) { p.Labels["cluster.x-k8s.io/drain"] = "wait-completed" })
				d = r.drain("n", 5*time.Minute, func(d *nstance.Drain) {
					d.Causes = nil
					if d.Generation = 8; same {
						d.Generation = 7
					}
				})
				pass(5 * time.Second)
				now := r.get("n").Annotations
				require.Equal(r, generationText(d), now[annotationGeneration])
				require.NotContains(r, now, annotationEventID)
				require.Equal(r, same, now[annotationSince] == before[annotationSince], "the budget has half of the time since then")
				require.Equal(r, same, now[annotationOverridden] == "ns/old")
				require.True(r, r.kube.Remove("/api/v1/namespaces/ns/pods/job"))
				pass(15 * time.Second)
				require.Equal(r, same, strings.Contains(r.ack(d).Message, "ns/old"), r.ack(d).Message)
			})
		})
	}
}

// TestNewDeadlineOfNode: a drain that is tightened has its time from then on.
func TestNewDeadlineOfNode(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("job", "n", func(p *corev1.Pod) { p.Labels["cluster.x-k8s.io/drain"] = "wait-completed" })
		d := r.drain("n", time.Hour, nil)
		pass(time.Minute)
		before := r.get("n")
		d.Deadline = time.Now().Add(10 * time.Minute)
		require.NoError(r, r.drains.Start(r.ctx, d))
		pass(5 * time.Second)
		now := r.get("n")
		require.Equal(r, deadlineText(d), now.Annotations[annotationDeadline])
		require.GreaterOrEqual(r, since(&now).Sub(since(&before)), time.Minute)
		pass(time.Minute)
		later := r.get("n")
		require.Equal(r, since(&now), since(&later))
	})
}

// TestTargetsStay: nodes of load balancers are left out only while another one can serve.
func TestTargetsStay(t *testing.T) {
	t.Run("a node that others have cordoned is none", func(t *testing.T) {
		virtual(t, nil, func(r *virtualRig) {
			for _, name := range []string{"a", "b"} {
				r.node(name)
				r.pod(name, name, waits)
			}
			r.change("a", func(n *corev1.Node) { n.Spec.Unschedulable = true })
			r.drain("a", time.Hour, nil)
			pass(5 * time.Second)
			n := r.get("a")
			require.True(r, excluded(&n))
		})
	})
	t.Run("all nodes go", func(t *testing.T) {
		virtual(t, nil, func(r *virtualRig) {
			names := []string{"a", "b", "c", "d"}
			for _, name := range names {
				r.node(name)
				r.pod(name, name, waits)
			}
			for _, name := range names {
				r.drain(name, time.Hour, nil)
			}
			pass(30 * time.Second)
			left := 0
			for _, name := range names {
				if n := r.get(name); !excluded(&n) {
					left++
				}
			}
			require.GreaterOrEqual(r, left, len(names)-1, "the first one could not know")
		})
	})
}

// endings are hooks that record how drains ended.
type endings struct {
	mu    sync.Mutex
	got   []Ending
	error // of MayUncordon
}

func (*endings) Begin(context.Context, nstance.Drain, *corev1.Node) error { return nil }

func (e *endings) End(_ context.Context, _ nstance.Drain, _ *corev1.Node, r Result) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.got = append(e.got, r.Ending)
	return nil
}

func (e *endings) MayUncordon(context.Context, nstance.Drain, *corev1.Node) (bool, error) {
	return true, e.error
}

// TestEndings: hooks are told how each drain ended. A node is not made schedulable where it is not
// known whether it may be.
func TestEndings(t *testing.T) {
	for name, c := range map[string]struct {
		end         func(*virtualRig, nstance.Drain) error
		hooks       *endings
		want        Ending
		schedulable bool
	}{
		"another executor": {func(r *virtualRig, d nstance.Drain) error {
			d.Executor = nstance.ExecutorAgent
			return r.drains.Start(r.ctx, d)
		}, &endings{}, Reassigned, false},
		"the machine is being deleted": {func(r *virtualRig, d nstance.Drain) error { return r.drains.End(r.ctx, d.Instance) }, &endings{}, Ended, false},
		"cancelled":                    {func(r *virtualRig, d nstance.Drain) error { return r.drains.Cancel(r.ctx, d.Instance, d.Generation) }, &endings{}, Cancelled, true},
		"cancelled, and the hook fails": {func(r *virtualRig, d nstance.Drain) error {
			return r.drains.Cancel(r.ctx, d.Instance, d.Generation)
		}, &endings{error: errors.New("not now")}, Cancelled, false},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, &Options{Hooks: c.hooks}, func(r *virtualRig) {
				r.node("n")
				r.node("m")
				r.pod("job", "n", func(p *corev1.Pod) { p.Labels["cluster.x-k8s.io/drain"] = "wait-completed" })
				d := r.drain("n", time.Hour, nil)
				pass(5 * time.Second)
				require.NoError(r, c.end(r, d))
				pass(5 * time.Second)
				c.hooks.mu.Lock()
				defer c.hooks.mu.Unlock()
				require.Equal(r, []Ending{c.want}, c.hooks.got)
				n := r.get("n")
				require.Equal(r, c.schedulable, !n.Spec.Unschedulable)
				require.Equal(r, c.schedulable, !excluded(&n))
				require.Nil(r, r.ack(d))
			})
		})
	}
}

// attachedTo says that a node has a volume.
func (r *virtualRig) attachedTo(node, volume string) {
	r.attach(volume, node)
	r.change(node, func(n *corev1.Node) {
		n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: corev1.UniqueVolumeName(volume)}}
	})
	r.kube.Put(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: volume}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + volume},
	})
}

func using(volume string) corev1.PodSpec {
	return corev1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: ptr.To[int64](30), Volumes: []corev1.Volume{{
		Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: volume}},
	}}}
}

// TestVolumesOfPodsThatStay: volumes of pods that the drain leaves are not waited for. Those of pods
// that have finished are: nothing uses them any more.
func TestVolumesOfPodsThatStay(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		waits  bool
		after  time.Duration // which the drain needs at least
	}{
		"a mirror pod":          {func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "m"} }, false, 0},
		"one that is skipped":   {func(p *corev1.Pod) { p.Labels["cluster.x-k8s.io/drain"] = "skip" }, false, 0},
		"one that does not end": {stops("never"), false, 30*time.Second + stuckLimit},
		"one that has finished": {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.node("n")
				r.attachedTo("n", "v")
				r.pod("p", "n", func(p *corev1.Pod) {
					p.Spec = using("v")
					c.change(p)
				})
				d := r.drain("n", 20*time.Minute, nil)
				pass(c.after + 30*time.Second)
				require.Equal(r, c.waits, r.ack(d) == nil)
				require.True(r, r.kube.Remove("/apis/storage.k8s.io/v1/volumeattachments/v"))
				pass(15 * time.Second)
				require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
			})
		})
	}
}

// TestNodeDeletedLate: a node that is deleted while its last volumes are detached was not drained:
// what registers again may have pods.
func TestNodeDeletedLate(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.attachedTo("n", "v")
		r.pod("p", "n", func(p *corev1.Pod) { p.Spec = using("v") })
		d := r.drain("n", 20*time.Minute, nil)
		pass(15 * time.Second)
		require.Empty(r, r.pods())
		require.True(r, r.kube.Remove("/api/v1/nodes/n"))
		require.True(r, r.kube.Remove("/apis/storage.k8s.io/v1/volumeattachments/v"))
		pass(time.Minute)
		require.Nil(r, r.ack(d))
	})
}

// TestDoNotDisrupt: a pod that refuses disruption is left by voluntary drains for as long as there
// is time, and by no other.
func TestDoNotDisrupt(t *testing.T) {
	for name, c := range map[string]struct {
		voluntary bool
		rules     Rules
		left      bool
		drained   bool
	}{
		"a notice":                    {false, nil, false, true},
		"a rollout":                   {true, nil, true, false},
		"a rollout, by rules skipped": {true, skipAll{}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, &Options{Rules: c.rules}, func(r *virtualRig) {
				r.node("n")
				r.pod("p", "n", func(p *corev1.Pod) {
					p.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
				})
				d := r.drain("n", 10*time.Minute, func(d *nstance.Drain) { d.Voluntary = c.voluntary })
				pass(15 * time.Second)
				require.Equal(r, c.left, len(r.pods()) == 1)
				require.Equal(r, c.drained, r.ack(d) != nil)
			})
		})
	}
}

// skipAll leaves all pods.
type skipAll struct{}

func (skipAll) Rule(context.Context, nstance.Drain, *corev1.Node, *corev1.Pod) (Rule, error) {
	return Rule{Behavior: Skip}, nil
}

// TestLabelGoesFirst: a pod's label decides, also where no rule is known.
func TestLabelGoesFirst(t *testing.T) {
	virtual(t, &Options{Rules: noRules{""}}, func(r *virtualRig) {
		r.node("n")
		r.pod("job", "n", func(p *corev1.Pod) { p.Labels["cluster.x-k8s.io/drain"] = "wait-completed" })
		r.drain("n", 10*time.Minute, nil)
		pass(time.Minute)
		require.Contains(r, strings.Join(r.said(reasonBlocked), "\n"), "left to complete")
		require.NotContains(r, strings.Join(r.said(reasonBlocked), "\n"), "namespaces cannot be listed")
	})
}

// TestTakenOverNode: pods are not evicted from a node whose name another machine's kubelet has
// taken. A node that says less than before is still the same.
func TestTakenOverNode(t *testing.T) {
	for name, c := range map[string]struct {
		systems []string // one after the other
		evicts  bool
	}{
		"the same machine":        {[]string{"1", "1"}, true},
		"another machine":         {[]string{"1", "2"}, false},
		"it does not say it":      {[]string{"1", ""}, true},
		"it says it later":        {[]string{"", "1"}, true},
		"another one, seen twice": {[]string{"1", "2", "2"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.node("n")
				for _, system := range c.systems {
					r.change("n", func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = system })
					pass(time.Second)
				}
				r.pod("p", "n", nil)
				r.drain("n", 10*time.Minute, nil)
				pass(15 * time.Second)
				require.Equal(r, c.evicts, len(r.pods()) == 0)
			})
		})
	}
}

// onFirstPatch does something when a node is first written to, and before that.
func (r *virtualRig) onFirstPatch(do func() error) {
	var once sync.Once
	r.kube.Refuse(func(q *http.Request) (err error) {
		if q.Method == http.MethodPatch && strings.HasPrefix(q.URL.Path, "/api/v1/nodes/") {
			once.Do(func() { err = do() })
		}
		return err
	})
}

// TestCordonedInBetween: a node that others cordon while the drain does stays so once the drain is
// cancelled.
func TestCordonedInBetween(t *testing.T) {
	for name, others := range map[string]bool{"by others": true, "by the drain": false} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.node("n")
				r.pod("job", "n", func(p *corev1.Pod) { p.Labels["cluster.x-k8s.io/drain"] = "wait-completed" })
				r.onFirstPatch(func() error {
					r.change("n", func(n *corev1.Node) { n.Spec.Unschedulable = others })
					return nil
				})
				d := r.drain("n", time.Hour, nil)
				pass(10 * time.Second)
				require.True(r, r.get("n").Spec.Unschedulable)
				require.NoError(r, r.drains.Cancel(r.ctx, d.Instance, d.Generation))
				pass(10 * time.Second)
				require.NotContains(r, r.get("n").Annotations, annotationInstance)
				require.Equal(r, others, r.get("n").Spec.Unschedulable)
			})
		})
	}
}

// TestNodeOfThatName: a node that is made again with the name is not written to for the drain of the
// one before, also where that is found by a conflict.
func TestNodeOfThatName(t *testing.T) {
	for name, conflict := range map[string]error{"at once": nil, "by a conflict": apierrors.NewConflict(corev1.Resource("nodes"), "n", nil)} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.node("n")
				known := r.get("n")
				r.onFirstPatch(func() error {
					require.True(r, r.kube.Remove("/api/v1/nodes/n"))
					r.node("n")
					return conflict
				})
				_, _, err := r.changeNode(r.ctx, &known, func(*corev1.Node) *nodePatch {
					p := &nodePatch{}
					p.annotate(annotationProgress, "x")
					return p
				})
				require.Equal(r, nstance.NotFound, nstance.CodeOf(err))
				require.Empty(r, r.get("n").Annotations)
			})
		})
	}
}
