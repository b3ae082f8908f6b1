package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/protection"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// annotationBridgeCordon on a node says that the hand-off has cordoned it, and in which
// waking: the next one uncordons it.
const annotationBridgeCordon = "nstance.dev/hand-off-cordoned"

// annotationFormerCost on a pod is the deletion cost that it had before it was to leave.
const annotationFormerCost = "nstance.dev/hand-off-former-deletion-cost"

// Annotations of kubernetes/nodedrain on a node that is drained. With the second one the node is
// uncordoned when the drain ends without the machine's end.
const (
	annotationDrainInstance = "nstance.dev/drain-instance"
	annotationDrainCordoned = "nstance.dev/drain-cordoned"
)

// handOffTime is how long a drain must last at least, so that pods are handed off first.
const handOffTime = 2 * protection.Interval

// handsOff reports whether a drain leaves pods to their hand-off. It has the first half of
// the drain's time, or handOffTime where that is not limited; whatever is still there is
// evicted then.
func handsOff(d nstance.Drain, now time.Time) bool {
	whole := d.Deadline.Sub(d.StartedAt)
	if d.Unlimited() {
		whole = 2 * handOffTime
	}
	return d.Voluntary && whole >= handOffTime && now.Before(d.StartedAt.Add(whole/2))
}

// A workloadProgress is where the pods of a workload are.
type workloadProgress struct {
	protection.Progress
	onBridges int          // living pods on machines that run in place of others
	cheap     []corev1.Pod // living pods on machines that they are to leave, now or soon
	restored  []corev1.Pod // pods that were to leave, and may stay
	evictable []corev1.Pod // of those that leave: on machines that nothing drains
}

// progress returns where the pods of a workload are. A surge waits until every node that its
// pods leave is closed, and was so before this pass: its new pods would go there too.
func (s *survey) progress(w *surveyedWorkload) workloadProgress {
	p := workloadProgress{Progress: protection.Progress{Wanted: true, Now: s.now}}
	for i := range w.pods {
		pod := &w.pods[i]
		if !protection.Lives(pod) {
			continue
		}
		n := s.nodes[pod.Spec.NodeName]
		leaving, drained := s.leaving(n)
		switch {
		case n != nil && (n.bridge() || leaving):
			p.cheap = append(p.cheap, *pod)
			if n.bridge() {
				p.onBridges++
			}
			if leaving && nodedrain.MayDisrupt(pod) {
				p.Leaving++
				p.Wanted = p.Wanted && n.Spec.Unschedulable
				p.Reason = "pods leave node " + n.Name
				if !drained {
					p.evictable = append(p.evictable, *pod)
				}
			}
			continue
		case n.lasting() && protection.Ready(pod):
			p.Settled++
		default:
			p.Unready++
		}
		if pod.Annotations[corev1.PodDeletionCost] == protection.DeletionCost {
			p.restored = append(p.restored, *pod)
		}
	}
	return p
}

// leaving reports whether pods are to leave a node: one that runs in place of others is
// cordoned some time after its waking, and a voluntary drain may have time enough. drained
// says that a drain evicts them.
func (s *survey) leaving(n *surveyedNode) (leaving, drained bool) {
	if n == nil || n.instance == nil {
		return false, false
	}
	if d := n.instance.GetDrain(); d != nil && s.drains {
		return nstance.Executor(d.GetExecutor()) == nstance.ExecutorOperator, true
	} else if d != nil {
		long := d.GetDeadline().AsTime().Sub(d.GetStartedAt().AsTime()) >= handOffTime
		return d.GetVoluntary() && long && nstance.Executor(d.GetExecutor()) == nstance.ExecutorOperator, true
	}
	return n.bridge() && !s.now.Before(n.instance.GetWokenAt().AsTime().Add(protection.Interval)), false
}

// handOff makes one step of each workload's hand-off.
func (c *protectionController) handOff(ctx context.Context, s *survey) error {
	errs := []error{s.uncordonBridges(ctx)}
	for _, w := range s.workloads {
		if w.admission.Admitted() && w.HandOff() {
			errs = append(errs, s.handOffWorkload(ctx, w))
		} else {
			errs = append(errs, s.endHandOff(ctx, w)) // it may have been one until now
		}
		w.status.Surged = onlyPositive(protection.Surged(&w.Workload))
	}
	return errors.Join(append(errs, c.endUnselected(ctx, s))...)
}

func onlyPositive(n int32) *int32 {
	if n <= 0 {
		return nil
	}
	return &n
}

func (s *survey) handOffWorkload(ctx context.Context, w *surveyedWorkload) error {
	how, p := protection.ChooseHandOff(&w.Workload, w.scalers), s.progress(w)
	w.status.HandOff, w.status.HandOffMessage = how.Method, clip.Text(how.Why, 1024)
	s.busy = s.busy || len(p.cheap) > 0 || protection.Surged(&w.Workload) > 0
	errs := []error{s.cordonBridges(ctx, p)}
	if w.Kind == infrav1.KindDeployment {
		errs = append(errs, s.setCosts(ctx, p))
	}
	if how.Method == infrav1.HandOffEviction {
		p.Wanted, p.Finished = false, true // of a surge that began before
		errs = append(errs, s.evict(ctx, p.evictable))
	}
	step := protection.NextStep(&w.Workload, w.scaler(), p.Progress)
	return errors.Join(append(errs, s.take(ctx, w, step))...)
}

// scaler returns the autoscaler of a workload that a surge changes, or has changed; nil: none.
func (w *surveyedWorkload) scaler() *autoscalingv2.HorizontalPodAutoscaler {
	for i := range w.scalers {
		if t := w.scalers[i].Spec.ScaleTargetRef; t.Kind == w.Kind && t.Name == w.Name() {
			return &w.scalers[i]
		}
	}
	return nil
}

// key names a workload in the status of claims.
func (w *surveyedWorkload) key() string { return w.Kind + "/" + w.Namespace() + "/" + w.Name() }

// take makes a step: the record goes before what it is a record of, in one request with the
// replicas.
func (s *survey) take(ctx context.Context, w *surveyedWorkload, step *protection.Step) error {
	d, ok := w.Object.(*appsv1.Deployment)
	if step == nil || !ok {
		return nil
	}
	s.busy = true
	changed := d.DeepCopy()
	delete(changed.Annotations, protection.AnnotationSurge)
	if step.Surge != nil {
		record, err := json.Marshal(step.Surge)
		if err != nil {
			return err
		}
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, protection.AnnotationSurge, string(record))
	}
	delete(changed.Labels, labelSurge)
	if step.Surge != nil && s.drains {
		metav1.SetMetaDataLabel(&changed.ObjectMeta, labelSurge, "true")
	}
	if step.Replicas != nil {
		changed.Spec.Replicas = step.Replicas
	}
	lowers := step.Floor != nil && *step.Floor < ptr.Deref(step.FloorWas, 1)
	if lowers { // the record is kept until this is done
		if err := s.setFloor(ctx, w, step); err != nil {
			return ignoreGone(err)
		}
	}
	err := s.objects.Patch(ctx, changed, client.MergeFromWithOptions(d, client.MergeFromWithOptimisticLock{}), fieldOwner)
	if err != nil {
		return ignoreGone(err)
	}
	w.Workload = protection.DeploymentWorkload(changed)
	if step.Floor != nil && !lowers {
		return ignoreGone(s.setFloor(ctx, w, step))
	}
	return nil
}

// setFloor sets minReplicas of the autoscaler of a workload. Fails with a conflict if that
// has changed meanwhile, with NotFound if it is gone: the next step is another one then.
func (s *survey) setFloor(ctx context.Context, w *surveyedWorkload, step *protection.Step) error {
	scaler := w.scaler()
	if scaler == nil {
		return nil
	}
	changed := scaler.DeepCopy()
	changed.Spec.MinReplicas = step.Floor
	return s.objects.Patch(ctx, changed, client.MergeFromWithOptions(scaler, client.MergeFromWithOptimisticLock{}), fieldOwner)
}

// setCosts has pods that are to leave go first when their ReplicaSet shrinks, and takes that
// back where they may stay.
func (s *survey) setCosts(ctx context.Context, p workloadProgress) error {
	var errs []error
	for i := range p.cheap {
		if pod := &p.cheap[i]; pod.Annotations[corev1.PodDeletionCost] != protection.DeletionCost {
			changed := pod.DeepCopy()
			setCost(changed)
			errs = append(errs, ignoreGone(s.objects.Patch(ctx, changed, client.MergeFrom(pod), fieldOwner)))
		}
	}
	s.busy = s.busy || len(p.restored) > 0
	for i := range p.restored {
		changed := p.restored[i].DeepCopy()
		restoreCost(changed)
		errs = append(errs, ignoreGone(s.objects.Patch(ctx, changed, client.MergeFrom(&p.restored[i]), fieldOwner)))
	}
	return errors.Join(errs...)
}

// setCost has a pod go first, and remembers the cost that others have set.
func setCost(pod *corev1.Pod) {
	delete(pod.Annotations, annotationFormerCost)
	if former, ok := pod.Annotations[corev1.PodDeletionCost]; ok {
		pod.Annotations[annotationFormerCost] = former
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, corev1.PodDeletionCost, protection.DeletionCost)
}

// restoreCost takes that back.
func restoreCost(pod *corev1.Pod) {
	former, ok := pod.Annotations[annotationFormerCost]
	delete(pod.Annotations, corev1.PodDeletionCost)
	delete(pod.Annotations, annotationFormerCost)
	if ok {
		pod.Annotations[corev1.PodDeletionCost] = former
	}
}

// evict asks for the eviction of pods. The first that its budget refuses ends the round: the
// others have the same budget. It fails with the first of other errors, which ends nothing.
func (s *survey) evict(ctx context.Context, pods []corev1.Pod) (failed error) {
	same := map[string]bool{}
	for i := range pods {
		pod := &pods[i]
		if err := s.confirmNode(ctx, pod.Spec.NodeName, same); err != nil {
			return err
		}
		if !same[pod.Spec.NodeName] {
			continue
		}
		err := s.objects.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))},
		})
		if apierrors.IsTooManyRequests(err) {
			break
		}
		if ignoreGone(err) != nil && failed == nil {
			failed = fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	return failed
}

// confirmNode has same say whether the node of a name is the one that was surveyed: pods that
// were listed before run on that one then, and not on a new machine of its name.
func (s *survey) confirmNode(ctx context.Context, name string, same map[string]bool) error {
	if _, known := same[name]; known {
		return nil
	}
	var now corev1.Node
	err := s.objects.Get(ctx, client.ObjectKey{Name: name}, &now)
	same[name] = err == nil && now.UID == s.nodes[name].UID
	return client.IgnoreNotFound(err)
}

// cordonBridges cordons the machines that a workload's pods are to leave and nothing drains.
func (s *survey) cordonBridges(ctx context.Context, p workloadProgress) error {
	var errs []error
	for i := range p.evictable {
		n := s.nodes[p.evictable[i].Spec.NodeName]
		if n.Spec.Unschedulable {
			continue
		}
		changed := n.DeepCopy()
		changed.Spec.Unschedulable = true
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, annotationBridgeCordon, wokenAt(n))
		err := s.objects.Patch(ctx, changed, client.MergeFromWithOptions(n.Node, client.MergeFromWithOptimisticLock{}), fieldOwner)
		if err == nil {
			n.Node = changed
		}
		errs = append(errs, ignoreGone(err))
	}
	return errors.Join(errs...)
}

func wokenAt(n *surveyedNode) string {
	return n.instance.GetWokenAt().AsTime().UTC().Format(time.RFC3339)
}

// uncordonBridges takes back the cordons of earlier wakings. A drain finds a node that was
// cordoned before, and leaves that to whatever cordoned it.
func (s *survey) uncordonBridges(ctx context.Context) error {
	var errs []error
	for _, n := range s.nodes {
		mark, ours := n.Annotations[annotationBridgeCordon]
		if ours && n.bridge() && n.instance.GetDrain() == nil && mark != wokenAt(n) {
			errs = append(errs, s.uncordon(ctx, n))
		}
	}
	return errors.Join(errs...)
}

func (s *survey) uncordon(ctx context.Context, n *surveyedNode) error {
	return s.changeCordon(ctx, n, func(changed *corev1.Node) { changed.Spec.Unschedulable = false })
}

// changeCordon makes a change of a node that has the mark of the hand-off, and takes the mark
// away.
func (s *survey) changeCordon(ctx context.Context, n *surveyedNode, change func(*corev1.Node)) error {
	s.busy = true
	changed := n.DeepCopy()
	delete(changed.Annotations, annotationBridgeCordon)
	change(changed)
	err := s.objects.Patch(ctx, changed, client.MergeFromWithOptions(n.Node, client.MergeFromWithOptimisticLock{}), fieldOwner)
	if err == nil {
		n.Node = changed
	}
	return ignoreGone(err)
}

// endCordon takes back the cordon of a node, also if no hand-off comes after this one. A drain
// keeps the cordon until it ends, which for a machine that sleeps is its waking.
func (s *survey) endCordon(ctx context.Context, n *surveyedNode) error {
	d := n.instance.GetDrain()
	switch {
	case n.Annotations[annotationDrainInstance] != "":
		return s.changeCordon(ctx, n, func(changed *corev1.Node) { changed.Annotations[annotationDrainCordoned] = "true" })
	case d == nil:
		return s.uncordon(ctx, n)
	case nstance.Executor(d.GetExecutor()) != nstance.ExecutorOperator:
		return s.changeCordon(ctx, n, func(*corev1.Node) {}) // what drains it uncordons it
	}
	s.busy = true // the drain has not begun at this node, or has just ended
	return nil
}

// endHandOff takes back what a hand-off did to a workload that does not ask for it any more.
func (s *survey) endHandOff(ctx context.Context, w *surveyedWorkload) error {
	step := protection.NextStep(&w.Workload, w.scaler(), protection.Progress{Now: s.now, Finished: true})
	return errors.Join(s.take(ctx, w, step), s.setCosts(ctx, workloadProgress{restored: w.marked()}))
}

// marked returns the pods that have the deletion cost of pods that are to leave.
func (w *surveyedWorkload) marked() (out []corev1.Pod) {
	for i := range w.pods {
		if w.pods[i].Annotations[corev1.PodDeletionCost] == protection.DeletionCost {
			out = append(out, w.pods[i])
		}
	}
	return out
}

// endUnselected ends hand-offs of workloads that were selected until now. The status has each
// until a pass finds that nothing of its hand-off is left: nothing else says where to look.
func (c *protectionController) endUnselected(ctx context.Context, s *survey) error {
	var errs []error
	for _, former := range s.sp.Status.Workloads {
		if former.HandOff == "" || former.Kind != infrav1.KindDeployment || s.selects(former) {
			continue
		}
		ended, err := c.endFormer(ctx, s, former)
		if !ended {
			former.Admitted, former.Reason, former.ProtectedPods = ptr.To(false), reasonNotSelected, nil
			former.Message = "it is not selected any more: its hand-off is taken back"
			s.ending = append(s.ending, former)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// endFormer ends the hand-off of a workload that was selected until now. It reports whether
// nothing was left of it, or it is the hand-off of another SpotProtection now.
func (c *protectionController) endFormer(ctx context.Context, s *survey, former infrav1.ProtectedWorkload) (ended bool, err error) {
	if other, err := c.selectedByOther(ctx, s, former); err != nil || other {
		return other, err
	}
	d := &appsv1.Deployment{}
	if err := s.objects.Get(ctx, client.ObjectKey{Namespace: former.Namespace, Name: former.Name}, d); err != nil {
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
	var scalers autoscalingv2.HorizontalPodAutoscalerList
	if err := s.objects.List(ctx, &scalers, client.InNamespace(former.Namespace)); err != nil {
		return false, err
	}
	w := &surveyedWorkload{Workload: protection.DeploymentWorkload(d), scalers: scalers.Items}
	if err := s.listPods(ctx, w); err != nil {
		return false, err
	}
	if _, surged := d.Annotations[protection.AnnotationSurge]; !surged && len(w.marked()) == 0 {
		return true, nil
	}
	return false, s.endHandOff(ctx, w)
}

// selectedByOther reports whether another SpotProtection hands a workload off now.
func (c *protectionController) selectedByOther(ctx context.Context, s *survey, former infrav1.ProtectedWorkload) (bool, error) {
	others, err := c.others(ctx, s)
	return slices.ContainsFunc(others, func(sp infrav1.SpotProtection) bool {
		found := statusOf(&sp, former.Kind, former.Namespace, former.Name)
		return found != nil && found.HandOff != "" && ptr.Deref(found.Admitted, false)
	}), err
}

// others returns the other SpotProtections of the Cluster, without those that are deleted, as
// they are now and not as a cache has them.
func (c *protectionController) others(ctx context.Context, s *survey) ([]infrav1.SpotProtection, error) {
	var list infrav1.SpotProtectionList
	if err := c.uncached.List(ctx, &list, client.InNamespace(s.sp.Namespace)); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(sp infrav1.SpotProtection) bool {
		return sp.Name == s.sp.Name || sp.Spec.ClusterName != s.sp.Spec.ClusterName || !sp.DeletionTimestamp.IsZero()
	}), nil
}

func (s *survey) selects(former infrav1.ProtectedWorkload) bool {
	return slices.ContainsFunc(s.workloads, func(w *surveyedWorkload) bool {
		return w.Kind == former.Kind && w.Namespace() == former.Namespace && w.Name() == former.Name
	})
}

// endHandOffs ends all hand-offs of a SpotProtection.
func (c *protectionController) endHandOffs(ctx context.Context, s *survey) error {
	var errs []error
	for _, w := range s.workloads {
		errs = append(errs, s.endHandOff(ctx, w))
	}
	errs = append(errs, c.endUnselected(ctx, s))
	var nodes corev1.NodeList
	errs = append(errs, s.objects.List(ctx, &nodes)) // the last pass may have cordoned what the cache shows as it was
	for i := range nodes.Items {
		n := &surveyedNode{Node: &nodes.Items[i]}
		if known := s.nodes[n.Name]; known != nil {
			n.instance = known.instance
		}
		if _, ours := n.Annotations[annotationBridgeCordon]; ours {
			errs = append(errs, s.endCordon(ctx, n))
		}
	}
	return errors.Join(errs...)
}

// handedOff reports whether a drain leaves a pod to its hand-off. It decides by the status of
// SpotProtections, which outlives the operator.
func (n *managedNodes) handedOff(ctx context.Context, d nstance.Drain, pod *corev1.Pod) (bool, error) {
	kind, name := protection.OwnerOf(pod)
	if kind != infrav1.KindDeployment || !handsOff(d, time.Now()) || !nodedrain.MayDisrupt(pod) {
		return false, nil
	}
	var list infrav1.SpotProtectionList
	if err := n.objects.List(ctx, &list, client.InNamespace(n.cluster.Namespace)); err != nil {
		return false, err
	}
	for i := range list.Items {
		sp := &list.Items[i]
		if sp.Spec.ClusterName == n.cluster.Name && sp.DeletionTimestamp.IsZero() && slices.ContainsFunc(sp.Status.Workloads, func(w infrav1.ProtectedWorkload) bool {
			return w.HandOff == infrav1.HandOffSurge && ptr.Deref(w.Admitted, false) && w.Kind == kind && w.Namespace == pod.Namespace && w.Name == name
		}) {
			return true, nil
		}
	}
	return false, nil
}
