//go:build kube

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/nstance-go/nstance/internal/sleep"
)

// labelKubelet is on pods that machines run instead of kwok.
const labelKubelet = "test.nstance.dev/kubelet"

// A pod that is asked to end serves for preStop, as a preStop hook has it do, so that clients
// can learn that it goes. stopGrace is its whole grace period.
const (
	preStop   = 5 * time.Second
	stopGrace = 10 * time.Second
)

// tetherFD is the descriptor by which a machine finds that its cloud has ended.
const tetherFD = 3

// runNode runs the agent as a child process, and beside it the pods of a node. All of it is
// one process group: the cloud ends it together.
func runNode(nodes kubernetes.Interface, id, network string, agent *exec.Cmd) error {
	terminated, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	agent.ExtraFiles = []*os.File{os.NewFile(tetherFD, "tether")}
	agent.Stdout, agent.Stderr = os.Stdout, os.Stderr
	if err := agent.Start(); err != nil {
		return err
	}
	forget := context.AfterFunc(terminated, func() { _ = agent.Process.Signal(syscall.SIGTERM) })
	defer forget()
	k := &kubelet{api: nodes, node: id, network: network, pods: map[types.UID]*servedPod{}}
	ctx, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { k.run(ctx) })
	err := agent.Wait()
	end()
	running.Wait()
	return err
}

// A kubelet runs the pods of one node: each is an HTTP server on a socket that is named after
// the pod's address, in the folder that stands for the network.
type kubelet struct {
	api     kubernetes.Interface
	node    string
	network string
	pods    map[types.UID]*servedPod
	running sync.WaitGroup
}

type servedPod struct {
	*corev1.Pod
	address string
	server  *http.Server
	ready   bool // the API server knows that it is
	ending  bool
}

func (k *kubelet) run(ctx context.Context) {
	defer k.running.Wait()
	factory := informers.NewSharedInformerFactoryWithOptions(k.api, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", k.node).String()
		o.LabelSelector = labelKubelet
	}))
	defer factory.Shutdown()
	changed := make(chan struct{}, 1)
	notify := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	pods := factory.Core().V1().Pods()
	_, _ = pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: notify, UpdateFunc: func(_, pod any) { notify(pod) }, DeleteFunc: notify,
	}) // fails only once it is stopped
	factory.Start(ctx.Done())
	retry := time.NewTicker(time.Second)
	defer retry.Stop()
	for {
		select {
		case <-changed:
		case <-retry.C:
		case <-ctx.Done():
			for _, p := range k.pods {
				_ = p.server.Close()
			}
			return
		}
		if list, err := pods.Lister().List(labels.Everything()); err == nil && pods.Informer().HasSynced() {
			k.sync(ctx, list)
		}
	}
}

// sync starts pods that are new, and ends those that are asked to end.
func (k *kubelet) sync(ctx context.Context, list []*corev1.Pod) {
	gone := maps.Clone(k.pods)
	for _, pod := range list {
		delete(gone, pod.UID)
		p := k.pods[pod.UID]
		if p == nil {
			p = k.start(pod)
			k.pods[pod.UID] = p
		}
		switch {
		case pod.DeletionTimestamp != nil && !p.ending:
			p.ending = true
			k.running.Go(func() { k.end(ctx, p) })
		case pod.DeletionTimestamp == nil && !p.ready:
			p.ready = k.report(ctx, p) == nil
		}
	}
	for uid, p := range gone {
		_ = p.server.Close()
		delete(k.pods, uid)
	}
}

// start starts a pod at an address that no pod has had.
func (k *kubelet) start(pod *corev1.Pod) *servedPod {
	p := &servedPod{Pod: pod, server: &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, pod.Name) }), ReadHeaderTimeout: time.Minute,
	}}
	digest := fnv.New32a()
	_, _ = io.WriteString(digest, string(pod.UID)) // never fails
	for n := digest.Sum32(); ; n++ {
		p.address = netip.AddrFrom4([4]byte{10, 128 | byte(n>>16), byte(n >> 8), byte(n)}).String()
		listener, err := net.Listen("unix", filepath.Join(k.network, p.address))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err == nil {
			k.running.Go(func() { _ = p.server.Serve(listener) }) // until it is closed
		}
		return p // without a socket no request to it succeeds
	}
}

// report says that a pod is ready.
func (k *kubelet) report(ctx context.Context, p *servedPod) error {
	now := metav1.Now()
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, PodIP: p.address, PodIPs: []corev1.PodIP{{IP: p.address}}}
	for _, t := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for _, c := range p.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	if err == nil {
		_, err = k.api.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	return err
}

// end has a pod answer what has come, and removes it.
func (k *kubelet) end(ctx context.Context, p *servedPod) {
	if !sleep.For(ctx, preStop) {
		return
	}
	limit, cancel := context.WithTimeout(ctx, stopGrace-preStop)
	_ = p.server.Shutdown(limit)
	cancel()
	remove := metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(p.UID))}
	for {
		err := k.api.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, remove)
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || !sleep.For(ctx, 100*time.Millisecond) {
			return
		}
	}
}
