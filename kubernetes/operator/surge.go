package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nstance-go/nstance"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/protection"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// labelSurge is on a Deployment that is surged because of a drain, for as long as that is so:
// any operator finds what another began.
const labelSurge = "nstance.dev/hand-off-surge"

// Times of surges because of drains.
const (
	leastSurge = time.Minute      // how long a drain must last at least
	surgePass  = 2 * time.Second  // between two looks at what is surged
	surgeLimit = 10 * time.Second // of a step for one Deployment
	surgeWidth = 8                // Deployments that are looked at at the same time
	wantedFor  = time.Minute      // after a drain has last asked
)

// timeToSurge reports whether the first half of a drain's time is not over yet, and is long
// enough for a pod to become ready elsewhere. What is not away by then is evicted. A drain
// without a limit counts as long as the longest hand-off.
func timeToSurge(d nstance.Drain, now time.Time) bool {
	whole := d.Deadline.Sub(d.StartedAt)
	if d.Unlimited() {
		whole = 2 * handOffTime
	}
	return whole >= leastSurge && now.Before(d.StartedAt.Add(whole/2))
}

// surges are the Deployments of one cluster that drains leave pods of for a while, since these
// say that they are to be handed off. It is safe for concurrent use.
type surges struct {
	tell func() // of the first pod of a Deployment; must not block

	mu      sync.Mutex
	wanted  map[client.ObjectKey]wantedSurge
	trouble string // of the last pass; empty: none
}

// A wantedSurge is of one Deployment.
type wantedSurge struct {
	asked  time.Time // last
	evicts bool      // it cannot be surged
}

func newSurges(tell func()) *surges {
	return &surges{tell: tell, wanted: map[client.ObjectKey]wantedSurge{}}
}

// waits reports whether a drain leaves a pod on its node, for its Deployment to be surged.
func (s *surges) waits(d nstance.Drain, pod *corev1.Pod, now time.Time) bool {
	kind, name := protection.OwnerOf(pod)
	if pod.Annotations[infrav1.AnnotationHandOff] != "true" || kind != infrav1.KindDeployment || !nodedrain.MayDisrupt(pod) || !timeToSurge(d, now) {
		return false
	}
	key := client.ObjectKey{Namespace: pod.Namespace, Name: name}
	s.mu.Lock()
	w, known := s.wanted[key]
	w.asked = now
	s.wanted[key] = w
	s.mu.Unlock()
	if !known {
		s.tell()
	}
	return !w.evicts
}

// current returns what drains have asked for within wantedFor.
func (s *surges) current(now time.Time) map[client.ObjectKey]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.wanted, func(_ client.ObjectKey, w wantedSurge) bool { return now.Sub(w.asked) > wantedFor })
	out := map[client.ObjectKey]bool{}
	for key := range s.wanted {
		out[key] = true
	}
	return out
}

// evict has drains evict the pods of a Deployment.
func (s *surges) evict(key client.ObjectKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w, ok := s.wanted[key]; ok {
		w.evicts = true
		s.wanted[key] = w
	}
}

// isNews reports whether a pass failed, and with other words than the one before.
func (s *surges) isNews(err error) bool {
	text := ""
	if err != nil {
		text = err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := text != s.trouble
	s.trouble = text
	return changed && text != ""
}

// A surgeController raises Deployments whose pods say that they are to be handed off, while
// drains wait for that. A SpotProtection that hands a workload off does so alone.
type surgeController struct {
	client.Client
	fleets *fleets
}

func (c *surgeController) setUp(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("surge").
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			c.fleets.onSurgeChanged(func(cluster client.ObjectKey) { queue.Add(reconcile.Request{NamespacedName: cluster}) })
			return nil
		})).
		Complete(c)
}

// Reconcile implements reconcile.Reconciler. It makes one step for each Deployment of a cluster.
func (c *surgeController) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	fl := c.fleets.byKey(req.NamespacedName)
	if fl == nil {
		return ctrl.Result{}, nil
	}
	nodes := fl.drainer()
	if nodes == nil {
		return ctrl.Result{}, nil
	}
	s := &survey{fleet: fl, objects: nodes.workloads.objects, now: time.Now(), nodes: map[string]*surveyedNode{}, drains: true}
	instances := fl.instances()
	for _, node := range nodes.Nodes() {
		s.nodes[node.Name] = &surveyedNode{Node: node, instance: instances.of(node)}
	}
	wanted := nodes.surges.current(s.now)
	all, err := c.deployments(ctx, s, wanted)
	if err != nil && len(wanted) == 0 {
		return ctrl.Result{}, err // no drain waits
	}
	if err == nil {
		err = c.steps(ctx, s, nodes, all, wanted)
	}
	if nodes.surges.isNews(err) {
		fl.fleets.log.Warn("Deployments not handed off yet", "cluster", req.String(), "err", err)
	}
	if err == nil && len(wanted) == 0 && len(all) == 0 {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{RequeueAfter: surgePass}, nil // drains wait: what fails for one Deployment delays no other
}

// steps makes a step for each Deployment. None waits for one whose requests hang.
func (c *surgeController) steps(ctx context.Context, s *survey, nodes *nodeDrainer, all []appsv1.Deployment, wanted map[client.ObjectKey]bool) error {
	errs := make([]error, len(all))
	var steps errgroup.Group
	steps.SetLimit(surgeWidth)
	for i := range all {
		steps.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, surgeLimit)
			defer cancel()
			own, key := *s, client.ObjectKeyFromObject(&all[i])
			if err := c.step(ctx, &own, nodes, &all[i], wanted[key]); err != nil {
				errs[i] = fmt.Errorf("deployment %s: %w", key, err)
			}
			return nil
		})
	}
	_ = steps.Wait() // never fails
	return errors.Join(errs...)
}

// deployments returns those that are surged, or are to be.
func (c *surgeController) deployments(ctx context.Context, s *survey, wanted map[client.ObjectKey]bool) ([]appsv1.Deployment, error) {
	ctx, cancel := context.WithTimeout(ctx, surgeLimit)
	defer cancel()
	var surged appsv1.DeploymentList
	if err := s.objects.List(ctx, &surged, client.HasLabels{labelSurge}); err != nil {
		return nil, err
	}
	all := surged.Items
	for key := range wanted {
		if slices.ContainsFunc(surged.Items, func(d appsv1.Deployment) bool { return client.ObjectKeyFromObject(&d) == key }) {
			continue
		}
		var d appsv1.Deployment
		switch err := s.objects.Get(ctx, key, &d); {
		case err == nil:
			all = append(all, d)
		case !apierrors.IsNotFound(err):
			return nil, err
		}
	}
	return all, nil
}

// step makes one step for a Deployment. wanted says that a drain waits for it.
func (c *surgeController) step(ctx context.Context, s *survey, nodes *nodeDrainer, d *appsv1.Deployment, wanted bool) error {
	w := &surveyedWorkload{Workload: protection.DeploymentWorkload(d)}
	if other, err := c.protected(ctx, nodes.pods.cluster, s.fleet.key.Namespace, d); err != nil || other {
		return err
	}
	var scalers autoscalingv2.HorizontalPodAutoscalerList
	if err := s.objects.List(ctx, &scalers, client.InNamespace(d.Namespace)); err != nil {
		return err
	}
	w.scalers = scalers.Items
	if err := s.listPods(ctx, w); err != nil {
		return err
	}
	p, how := s.progress(w), protection.ChooseHandOff(&w.Workload, w.scalers)
	p.Wanted = p.Wanted && wanted
	if how.Method == infrav1.HandOffEviction || !w.HandOff() {
		nodes.surges.evict(client.ObjectKeyFromObject(d))
		p.Wanted, p.Finished = false, true // of a surge that began before
	}
	next := protection.NextStep(&w.Workload, w.scaler(), p.Progress)
	return errors.Join(s.setCosts(ctx, p), s.take(ctx, w, next))
}

// protected reports whether a SpotProtection hands a Deployment off.
func (c *surgeController) protected(ctx context.Context, cluster, namespace string, d *appsv1.Deployment) (bool, error) {
	var list infrav1.SpotProtectionList
	if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.Items, func(sp infrav1.SpotProtection) bool {
		found := statusOf(&sp, infrav1.KindDeployment, d.Namespace, d.Name)
		return sp.Spec.ClusterName == cluster && found != nil && found.HandOff != "" && ptr.Deref(found.Admitted, false)
	}), nil
}
